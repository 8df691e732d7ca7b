"""What every strategy looks like to a worker."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.references import Racks, Reference


class Reducer(Protocol):
    """One worker's end of a strategy. Calls are made in the same order on all ranks."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def start(self, array: NDArray[Any]) -> Future[None]:
        """Sum a flat contiguous `array` (one of `tensors.DTYPES`) over all ranks, in place; returns at once.

        Sums are made one after the other, in the order of the calls. The array is not to be touched before
        the future is done.
        """
        ...

    def sum(self, array: NDArray[Any]) -> None:
        """As `start`, and wait; while no other sum is under way."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        ...

    def reference(self, racks: Racks, dtype: np.dtype[Any]) -> Reference | None:
        """What its sums have to be, bit for bit, with those ranks behind each leaf; None: in any order."""
        ...

    def retransmissions(self) -> int | None:
        """Packets that this worker sent again so far; None where nobody counts them."""
        ...

    def close(self) -> None:
        """Let go of the connections; all ranks call it."""
        ...
