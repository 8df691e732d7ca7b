"""The only sum of floats that the protocol allows: a job's own all-reduces have to equal it, bit for bit.

Switches add integers, so only the scales decide; small tensors are added in 64-bit floats. A ring adds in
the type itself, in the order of the ring. Strategies that promise no order have no reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from host_agent.arguments import of_switches
from host_agent.collectives.plan import SMALL_BYTES, Strategy, Wire, ring_parts
from host_agent.front import Collectives
from host_agent.machine.communicator import MachineCommunicator
from host_agent.quantisation import Blocks, block_sum, divide, round_once
from host_agent.wire.aggregation import Reduction

Array = NDArray[Any]
Racks = Sequence[Sequence[int]]


class Reference(Protocol):
    """A way to sum whose result has only one possible value."""

    def step(self, dtype: np.dtype[Any]) -> int:
        """Return the unit, in elements, of the pieces in which a tensor may be checked."""
        ...

    def result(self, inputs: Sequence[Array], *, start: int, elements: int, divisor: int = 1) -> Array:
        """Return the sum of a piece: `inputs` are the ranks' parts of tensors of `elements`, from `start` on.

        `divisor`: 1, or for an average the number of ranks.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Switched:
    """The sum by switches. `racks`: the ranks behind each leaf; 16-bit numbers are rounded in each.

    `wire`: the wire of float32.
    """

    path_mtu: int
    message_packets: int
    racks: Racks = ()
    wire: Wire = Wire.FULL

    def step(self, dtype: np.dtype[Any]) -> int:
        return self._blocks(dtype).message_elements

    def result(self, inputs: Sequence[Array], *, start: int, elements: int, divisor: int = 1) -> Array:
        dtype = inputs[0].dtype
        if len(inputs) * elements * dtype.itemsize <= SMALL_BYTES:
            total = np.zeros(inputs[0].size)
            for one in inputs:
                total += one.astype(np.float64)
            return round_once(total / divisor, dtype)
        half = self.wire.halves(dtype)
        found, _ = block_sum(inputs, self._blocks(dtype), half=half, divisor=divisor, racks=self.racks)
        return found

    def _blocks(self, dtype: np.dtype[Any]) -> Blocks:
        return Blocks.of(
            path_mtu=self.path_mtu, message_packets=self.message_packets, half=self.wire.halves(dtype)
        )


@dataclass(frozen=True, kw_only=True)
class Ringed:
    """The sum around a ring: `order` has all ranks, each before its successor. `fold` joins two numbers."""

    order: tuple[int, ...]
    fold: np.ufunc = np.add

    def step(self, dtype: np.dtype[Any]) -> int:
        return 1

    def result(self, inputs: Sequence[Array], *, start: int, elements: int, divisor: int = 1) -> Array:
        out = np.empty_like(inputs[0])
        by_rank = ring_parts(elements, len(inputs))
        for place, rank in enumerate(self.order):  # whose part is sent first by itself, added to by the next
            part = slice(max(by_rank[rank].start - start, 0), max(by_rank[rank].stop - start, 0))
            total = inputs[rank][part]
            for other in (*self.order[place + 1 :], *self.order[:place]):
                total = self.fold(total, inputs[other][part])
            out[part] = total
        return out if divisor == 1 else divide(out, divisor)


def of_the_job(
    communicator: Collectives,
    strategy: Strategy,
    racks: Racks,
    dtype: np.dtype[Any],
    wire: Wire = Wire.FULL,
    *,
    reduction: Reduction = Reduction.SUM,
) -> Reference | None:
    """Return how the job reduces `dtype` by `strategy` while nobody leaves it; None: no single result.

    Hosts with several GPUs add float32 as one switch would that sums all workers. They round 16-bit numbers
    in each host, so these have no reference.
    """
    ready = communicator.ready
    if isinstance(communicator, MachineCommunicator):
        if wire.halves(dtype) or not of_switches(dtype, reduction):
            return None
        return Switched(path_mtu=ready.path_mtu, message_packets=ready.message_packets)
    if strategy is Strategy.RING:
        order = ready.ring or tuple(range(communicator.world_size))
        return Ringed(order=order, fold=np.multiply if reduction is Reduction.PROD else np.add)
    return Switched(path_mtu=ready.path_mtu, message_packets=ready.message_packets, racks=racks, wire=wire)
