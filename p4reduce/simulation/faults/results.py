"""Checks of results: of every aggregated operation when it is delivered, and of every collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.quantisation import Blocks, block_sum, divide, from_ordered, to_ordered
from host_agent.transport import Operation, SwitchOp
from host_agent.transport.operation import MARKED
from host_agent.wire.aggregation import ElementType
from p4reduce.simulation.cases import Case, same_bits
from p4reduce.simulation.invariant import InvariantError

Array = NDArray[Any]


@dataclass
class Contribution:
    """A rank's input of an operation."""

    sent: Array
    operation: Operation


@dataclass
class Deliveries:
    """The aggregated operations of one generation of a job, by number, with what each rank put into them.

    `racks`: the ranks behind each leaf, once all are known.
    """

    world_size: int
    path_mtu: int
    message_packets: int
    racks: Callable[[], list[list[int]]]
    posted: dict[int, dict[int, Contribution]] = field(default_factory=dict)

    def post(self, rank: int, op_id: int, operation: Operation) -> None:
        """Note an operation that a rank posts. What it sends is copied now, as the result may replace it."""
        if operation.switch_op != SwitchOp.PASS:
            self.posted.setdefault(op_id, {})[rank] = Contribution(_copied(operation), operation)

    def deliver(self, rank: int, op_id: int, who: str) -> None:
        """Check a result that an endpoint says is there."""
        contributions = self.posted.get(op_id)
        own = contributions.get(rank) if contributions else None
        if contributions is None or own is None:
            return  # a PASS operation
        if len(contributions) < self.world_size:
            missing = sorted(set(range(self.world_size)) - set(contributions))
            raise InvariantError(
                f"{who} has the result of operation {op_id}, to which ranks {missing} have not contributed"
            )
        operation = own.operation
        if operation.receive is None:
            return
        sent = [contributions[k].sent for k in range(self.world_size)]
        if operation.element_type == ElementType.INT32:
            expected = integers(sent, operation)
        elif operation.switch_op in (SwitchOp.MAX, SwitchOp.MAX_HALF):
            ordered = [to_ordered(array, invert=operation.invert) for array in sent]
            largest = np.maximum.reduce(ordered)
            expected = from_ordered(largest, operation.receive.dtype, invert=operation.invert)
            any_nan = np.isnan(expected) & np.isnan(operation.receive)
            expected[any_nan] = operation.receive[any_nan]
        else:
            expected = self._scaled(sent, operation)
        if expected.tobytes() != operation.receive.tobytes():
            wrong = [
                k
                for k in range(expected.size)
                if expected[k : k + 1].tobytes() != operation.receive[k : k + 1].tobytes()
            ]
            raise InvariantError(
                f"{who}: the result of operation {op_id} is wrong at {len(wrong)} of {expected.size} "
                f"elements, first at {wrong[0]}: {operation.receive[wrong[0]]!r} for {expected[wrong[0]]!r}"
            )

    def _scaled(self, inputs: list[Array], operation: Operation) -> Array:
        """Return the sum by the reference; leave special elements as they were received."""
        assert operation.receive is not None
        assert operation.special is not None
        half = operation.switch_op == SwitchOp.SUM_HALF
        blocks = Blocks.of(path_mtu=self.path_mtu, message_packets=self.message_packets, half=half)
        racks = self.racks()
        expected, special = block_sum(inputs, blocks, half=half, divisor=operation.divisor, racks=racks)
        marked = np.repeat(operation.special.view(bool), MARKED)[: special.size]
        if not np.array_equal(marked, special):
            raise InvariantError("elements are marked as not summed that were, or the other way round")
        expected[special] = operation.receive[special]
        return expected


def _copied(operation: Operation) -> Array:
    return np.zeros(0, np.int32) if operation.send is None else operation.send.ravel().copy()


def integers(sent: list[Array], operation: Operation) -> Array:
    """Return what the switch makes of these integers, as the user gets it."""
    if operation.switch_op == SwitchOp.MAX:
        pick: Any = np.minimum if operation.invert else np.maximum
        largest: Array = pick.reduce(sent)
        return largest
    return divide(np.add.reduce(sent, dtype=np.int32), operation.divisor)


class Expected:
    """One collective of a job: its inputs, and what each rank has to have in the end.

    `inputs` by the rank that a worker joined with.
    """

    def __init__(self, case: Case, inputs: list[Array]) -> None:
        self.case = case
        self.inputs = inputs
        self._first: dict[tuple[tuple[int, ...], str], Array] = {}
        self._parts: dict[tuple[tuple[int, ...], str], dict[int, Array]] = {}

    def check(
        self, who: str, members: tuple[int, ...], rank: int, module: str, out: Array, root: int | None = None
    ) -> None:
        """Check a result of `members` (as they joined) at the one that is `rank` among them now.

        `root`: the root's rank, as it joined.
        """
        try:
            self._check(members, rank, module, out, root)
        except AssertionError as error:
            raise InvariantError(
                f"{who}: {self.case.name} ({module}, {self.case.reduction.name}, {self.case.dtype}, "
                f"{self.case.elements} elements) of ranks {list(members)} came out wrong: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error

    def _check(self, members: tuple[int, ...], rank: int, module: str, out: Array, root: int | None) -> None:
        case, inputs = self.case, [self.inputs[k] for k in members]
        if case.name == "barrier":
            return
        if case.name == "broadcast":
            same_bits(out, inputs[case.root % len(inputs)] if root is None else self.inputs[root])
            return
        if case.name == "all_gather":
            same_bits(out, np.concatenate(inputs))
            return
        key = (members, module)
        if case.name == "all_reduce":
            first = self._first.get(key)
            if first is not None:
                same_bits(out, first)
                return
            self._first[key] = out.copy()
            replace(case, module=module).check_reduction(inputs, out)
            return
        parts = self._parts.setdefault(key, {})  # reduce_scatter
        parts[rank] = out.copy()
        if len(parts) == len(members):
            replace(case, module=module).check_reduction(
                inputs, np.concatenate([parts[k] for k in range(len(members))])
            )
