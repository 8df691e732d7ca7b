"""Recursive halving and doubling (Rabenseifner's all-reduce), with vectors halved and distances doubled.

In step k a worker exchanges half of the part that it still has with the worker 2^k places away, and adds what
it gets. After log2 N steps it has the sum of an N-th; the same steps backwards gather all parts. Most bytes
go to the nearest neighbour, which suits racks. If N is not a power of two, the first 2(N - 2^k) ranks fold:
the odd one of each pair works for both.

R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective Communication Operations in MPICH, 2005.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.strategies.pairs import Pairs, PairsReducer


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One rank's part: the rank that it folds with, whether it only lends, its partner in each step."""

    folds_with: int | None
    lends: bool
    partners: tuple[int, ...]

    @property
    def peers(self) -> list[int]:
        """All ranks that it has a connection with, in the order in which connections are made."""
        return [*([] if self.folds_with is None else [self.folds_with]), *self.partners]


def plan(rank: int, world_size: int) -> Plan:
    """Make the plan of `rank` among `world_size`."""
    power = 1 << (world_size.bit_length() - 1)
    folded = 2 * (world_size - power)
    folds_with = rank ^ 1 if rank < folded else None
    if rank < folded and rank % 2 == 0:
        return Plan(folds_with=folds_with, lends=True, partners=())
    place = rank // 2 if rank < folded else rank - folded // 2
    partners = []
    for step in range(power.bit_length() - 1):
        other = place ^ (1 << step)
        partners.append(2 * other + 1 if other < folded // 2 else other + folded // 2)
    return Plan(folds_with=folds_with, lends=False, partners=tuple(partners))


class HalvingDoubling(PairsReducer):
    """Halving and doubling over reliable connections between the pairs that exchange."""

    def __init__(self, pairs: Pairs, *, rank: int, world_size: int) -> None:
        super().__init__(pairs, rank=rank, world_size=world_size)
        self._plan = plan(rank, world_size)

    def _sum(self, array: NDArray[Any]) -> None:
        fold = self._plan.folds_with
        if self._plan.lends:
            pair = self._pairs[fold]
            pair.reduce(array, root=1)
            array[...] = pair.broadcast(array, root=1)
            return
        if fold is not None:
            added = self._pairs[fold].reduce(array, root=1)
            array[...] = added
        self._exchange(array)
        if fold is not None:
            self._pairs[fold].broadcast(array, root=1)

    def _exchange(self, array: NDArray[Any]) -> None:
        partners = self._plan.partners
        padded = -(-array.size // (1 << len(partners))) << len(partners)
        part = array
        if padded != array.size:
            part = np.zeros(padded, array.dtype)
            part[: array.size] = array
        for partner in partners:
            part = self._pairs[partner].reduce_scatter(part)
        for partner in reversed(partners):
            part = self._pairs[partner].all_gather(part).reshape(-1)
        array[...] = part[: array.size]
