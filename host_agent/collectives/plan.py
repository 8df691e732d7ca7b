"""Common parts of the collectives: steps that they yield, their place in the job, a ring's parts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.api.messages import Mode
from host_agent.collectives.signature import Signature, signature
from host_agent.transport.events import EventType
from host_agent.transport.operation import Operation, SwitchOp
from host_agent.wire.aggregation import Kind, Reduction, Stage, kind_and_root

Array: TypeAlias = NDArray[Any]
T = TypeVar("T")

# Floats of all ranks together that go whole (`in_network.py`): two or three packets of the largest path MTU,
# which no link takes long for.
SMALL_BYTES: Final = 8192


class Strategy(str, Enum):
    """The way of a collective. AUTO takes the switch if the job has one and it is the cheaper way."""

    AUTO = "auto"
    IN_NETWORK = "in-network"
    RING = "ring"


class Wire(str, Enum):
    """The width of floats in a switch's sums: as wide as the type, or 16 bits, for float32 as well."""

    FULL = "full"
    HALF = "16bit"

    def halves(self, dtype: np.dtype[Any]) -> bool:
        """Tell whether a switch sums floats of that type in lanes of 16 bits."""
        return dtype.itemsize == 2 or self is Wire.HALF


@dataclass(frozen=True)
class Wait:
    """A wait until `op_id` is RECEIVED (what arrives is in place) or COMPLETED (all sent is ACKed)."""

    op_id: int
    until: EventType = EventType.RECEIVED


# Yielding an Operation posts it and gives its id; yielding a Wait waits (and gives 0).
Steps: TypeAlias = Generator["Operation | Wait", int, T]


@dataclass
class Shared:
    """The array that a collective leaves on every rank with the same bytes; None as long as there is none.

    `whole`: a rank may lack any part of it when another one has finished. Else it lacks at most what the last
    W messages bring, as whoever finished has the results of all messages, and each rank sends message m only
    when it has the result of m - W. `complete`: all of it is here, and only acknowledgements are missing.

    `before`: the bytes of the collective's input, where its result overwrites them and somebody keeps them.
    """

    array: Array | None = None
    wire_bytes: int = 4  # of an element in a message, where not `whole`
    whole: bool = False
    complete: bool = False
    before: NDArray[np.uint8] | None = None


class Restored(Exception):
    """An exception in steps that were cut: what they share is in place, from a rank that had finished."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective on one worker: who we are, its sequence number, what the user asked for.

    `ring`: all ranks, each followed by its successor (empty: by rank). `wire`: of a sum of float32;
    `residual`: what it takes away is left in the array that is given, which is not the result's.
    `small_bytes`: of all ranks, what goes whole. `shared`, `signature`: told by the collective.
    """

    rank: int
    world_size: int
    collective: int
    reduction: Reduction = Reduction.NONE
    ring: tuple[int, ...] = ()
    wire: Wire = Wire.FULL
    residual: bool = False
    small_bytes: int = SMALL_BYTES
    shared: Shared = field(default_factory=Shared, compare=False)
    signature: Signature | None = None

    def named(self, kind: Kind, array: Array, *, root: int = 0) -> Call:
        """Return the call with its signature, or unchanged if it is part of a call that already has one."""
        if self.signature is not None:
            return self
        return replace(self, signature=signature(kind, root, self.reduction, array.dtype, array.size))

    def operation(
        self, stage: Stage, switch_op: SwitchOp, send: Array, receive: Array, *, element_type: int, **how: Any
    ) -> Operation:
        """Return the operation that moves `send` and `receive`, under the call's signature."""
        said = self.signature
        assert said is not None
        kind, root = kind_and_root(said.kind, said.root)
        return Operation(
            switch_op=switch_op,
            send=send,
            receive=receive,
            element_type=element_type,
            header_type=said.element_type,
            reduction=said.reduction,
            kind=kind,
            root=root,
            stage=stage,
            collective=self.collective if said.step is None else said.step,
            total_elements=said.tensor_elements,
            **how,
        )

    @property
    def position(self) -> int:
        """Our place on the ring, from 0."""
        return self.ring.index(self.rank) if self.ring else self.rank

    def parts(self, elements: int) -> list[slice]:
        """Return `ring_parts` in the order of the ring: each rank's part at that rank's place."""
        by_rank = ring_parts(elements, self.world_size)
        return [by_rank[rank] for rank in self.ring] if self.ring else by_rank


def sharing(
    call: Call, array: Array, steps: Steps[list[int]], *, whole: bool, wire_bytes: int = 4
) -> Steps[bool]:
    """Run `steps`, the last of `call` that need the network: they leave the same in `array` on all ranks.

    The steps return the operations that may still read from their buffers. Returns True if all ran to its
    end, and False if another rank gave the result.
    """
    call.shared.array, call.shared.whole, call.shared.wire_bytes = array, whole, wire_bytes
    try:
        ids = yield from steps
        call.shared.complete = True
        yield from until_sent(ids)
        call.shared.complete = False
    except Restored:
        return False
    return True


def until_sent(ids: list[int]) -> Steps[None]:
    """Wait for the last operation: they complete in order, so none reads from its buffer after that."""
    if ids:  # none in a job of one worker
        yield Wait(ids[-1], EventType.COMPLETED)


class Disagreement(Exception):
    """A difference between ranks that no header shows: what a barrier counted, or what they have finished."""


_ROUND_BYTES: Final = 4096  # what a link could have carried while a worker waits for a round's messages


def cheaper(kind: Kind, nbytes: int, world_size: int, *, scaled: bool = False) -> Strategy:
    """Return the way that costs less where the switch takes part.

    The cost is the bytes that each worker sends and the rounds that it waits. `nbytes`: of each rank's array;
    the result is as large on either way. `scaled`: floats, on whose scales the switch's way agrees in a round
    of its own. `bench.collectives` compares this choice with measurements.
    """
    others = world_size - 1
    switched = {Kind.ALL_GATHER: world_size * nbytes}.get(kind, nbytes)
    passed, rounds = {
        Kind.ALL_GATHER: (others * nbytes, others),
        Kind.REDUCE_SCATTER: (others * nbytes // world_size, 2 * others),  # a barrier at its end
    }.get(kind, (2 * others * nbytes // world_size, 2 * others))
    by_switch = switched + _ROUND_BYTES * (2 if scaled and world_size * nbytes > SMALL_BYTES else 1)
    return Strategy.IN_NETWORK if by_switch <= passed + _ROUND_BYTES * rounds else Strategy.RING


def choose(strategy: Strategy, mode: Mode, *, auto: Strategy) -> Strategy:
    """Return the strategy to use in a job of `mode`; `auto` is what AUTO means where the switch takes part.

    ValueError where the switch is asked for and takes no part.
    """
    if mode is Mode.RING:
        if strategy is Strategy.IN_NETWORK:
            raise ValueError("in-network was asked for, but no switch aggregates for this job")
        return Strategy.RING
    return auto if strategy is Strategy.AUTO else strategy


def ring_parts(elements: int, world_size: int) -> list[slice]:
    """Return N slices that cover `elements`; the first ones are longer by one if N does not divide it."""
    size, longer = divmod(elements, world_size)
    bounds = [part * size + min(part, longer) for part in range(world_size + 1)]
    return [slice(start, end) for start, end in pairwise(bounds)]
