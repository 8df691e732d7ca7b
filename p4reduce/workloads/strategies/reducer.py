"""The interface of every strategy to a worker."""

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
        """Sum a flat contiguous `array` (one of `tensors.DTYPES`) over all ranks, in place; return at once.

        Sums are made one after the other, in the order of the calls. The array is not to be touched before
        the future is done.
        """
        ...

    def sum(self, array: NDArray[Any]) -> None:
        """Do as `start` does, and wait; no other sum may be under way."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        ...

    def reference(self, racks: Racks, dtype: np.dtype[Any]) -> Reference | None:
        """Return the only result that its sums may have, bit for bit; None: any order of addition.

        `racks`: the ranks behind each leaf.
        """
        ...

    def retransmissions(self) -> int | None:
        """Return the packets that this worker has retransmitted so far; None if nobody counts them."""
        ...

    def close(self) -> None:
        """Close the connections; all ranks call it."""
        ...
