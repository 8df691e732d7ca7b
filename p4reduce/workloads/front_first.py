"""Choice of the next bucket if front layers go first, as in ByteScheduler (SOSP 2019) and P3 (MLSys 2019).

Ranks finish computing at slightly different times, but have to sum the same bucket next. So before each
bucket they sum a mask of their ready buckets. Buckets that all ranks have ready may go; of these, the one
that the next forward pass needs first goes. Gradients become ready in the same order everywhere, so there
always is one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.errors import VerificationError

Start = Callable[[NDArray[Any]], "Future[Any]"]


class FrontFirst:
    """Calls `go(bucket)` for one bucket after the other; the caller has to call `done` after each.

    `first_layers` has the layer of each bucket that is nearest the front, `start` sums over all ranks, in
    place. `failed` is called with errors. It has no thread of its own: it runs in futures' callbacks.
    """

    def __init__(
        self,
        first_layers: Sequence[int],
        *,
        world_size: int,
        start: Start,
        go: Callable[[int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._first_layers = np.array(first_layers)
        self._world_size = world_size
        self._start = start
        self._go = go
        self._failed = failed
        self._lock = threading.Lock()
        self._ready: set[int] = set()
        self._busy = False
        self._mask = np.zeros(len(first_layers), np.int32)

    def ready(self, bucket: int) -> None:
        """Note that this rank has a bucket's gradients."""
        with self._lock:
            self._ready.add(bucket)
            if self._busy:
                return
            self._busy = True
        self._agree()

    def done(self) -> None:
        """Note that the bucket that went has been summed."""
        with self._lock:
            self._busy = bool(self._ready)
            if not self._busy:
                return
        self._agree()

    def _agree(self) -> None:
        with self._lock:
            self._mask[:] = 0
            self._mask[list(self._ready)] = 1
        try:
            self._start(self._mask).add_done_callback(self._agreed)
        except Exception as error:  # noqa: BLE001 (whoever waits for the bucket has to hear of it)
            self._failed(error)

    def _agreed(self, future: Future[Any]) -> None:
        try:
            future.result()
            everywhere = np.flatnonzero(self._mask == self._world_size)
            if not everywhere.size:
                raise VerificationError(
                    f"the sum of the ranks' masks of ready buckets is wrong: {self._mask.tolist()} has no "
                    f"bucket that all {self._world_size} ranks have ready"
                )
            chosen = int(everywhere[np.argmin(self._first_layers[everywhere])])
            with self._lock:
                self._ready.remove(chosen)
            self._go(chosen)
        except Exception as error:  # noqa: BLE001 (as above; a callback's exceptions are lost otherwise)
            self._failed(error)
