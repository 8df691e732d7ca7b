"""Base of strategies whose sums take several calls: one thread makes them, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.references import Racks, Reference


class QueuedReducer(ABC):
    """A `Reducer` whose subclass defines how one sum is made."""

    def __init__(self, *, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._queue = ThreadPoolExecutor(max_workers=1, thread_name_prefix=type(self).__name__)

    def start(self, array: NDArray[Any]) -> Future[None]:
        """Sum `array` over all ranks, in place; return at once."""
        return self._queue.submit(self._or_give_up, self._sum, array)

    def sum(self, array: NDArray[Any]) -> None:
        """Do as `start` does, and wait. The caller's thread sums, so no other sum may be under way."""
        self._or_give_up(self._sum, array)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._queue.submit(self._or_give_up, self._barrier).result()

    def reference(self, racks: Racks, dtype: np.dtype[Any]) -> Reference | None:
        """Return None: a sum may be added up in any order."""
        return None

    @abstractmethod
    def retransmissions(self) -> int | None:
        """Return the packets that this worker has retransmitted so far; None if nobody counts them."""

    def close(self) -> None:
        """Finish what is queued, and close the connections."""
        self._queue.shutdown(wait=True)
        self._close()

    def _or_give_up(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            self._give_up(str(error))
            raise

    def _give_up(self, reason: str) -> None:  # noqa: B027 (nothing to do where one connection ends all)
        """Tell those who wait for this worker on other connections that it has failed."""

    @abstractmethod
    def _sum(self, array: NDArray[Any]) -> None: ...

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...
