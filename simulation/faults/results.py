"""What must come out: of every aggregated operation when it is delivered, and of every collective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from host_agent.transport import Operation, SwitchOp
from host_agent.transport.native import library
from host_agent.wire.aggregation import ElementType, Reduction
from simulation.cases import Case, same_bits
from simulation.rack import InvariantError

Array = NDArray[Any]


@dataclass
class Contribution:
    """What a rank put into an operation: its lanes, and what they are to become."""

    lanes: NDArray[np.int32]
    operation: Operation


@dataclass
class Deliveries:
    """The aggregated operations of one generation of a job, by number, with who put what into them."""

    world_size: int
    posted: dict[int, dict[int, Contribution]] = field(default_factory=dict)

    def post(self, rank: int, op_id: int, operation: Operation) -> None:
        """A rank posts an operation; what it sends is looked at now, as the result may replace it."""
        if operation.switch_op != SwitchOp.PASS:
            self.posted.setdefault(op_id, {})[rank] = Contribution(lanes_of(operation), operation)

    def deliver(self, rank: int, op_id: int, who: str) -> None:
        """An endpoint says that a result is there."""
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
        lanes = [contributions[k].lanes for k in range(self.world_size)]
        if operation.switch_op == SwitchOp.MAX:
            total = np.maximum.reduce(lanes)
        else:
            total = np.add.reduce(lanes, dtype=np.int32)
        expected = decoded(total, operation)
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


def lanes_of(operation: Operation) -> NDArray[np.int32]:
    """What travels, in the machine's byte order."""
    send = operation.send
    if send is None:
        return np.zeros(0, np.int32)
    if operation.element_type == ElementType.INT32:
        lanes = send.astype(np.int32).ravel()
        return ~lanes if operation.invert else lanes
    wire = np.empty(send.size, ">i4")
    library().p4r_encode_lanes(
        operation.element_type,
        operation.switch_op == SwitchOp.MAX,
        send.ctypes.data,
        send.size,
        wire.ctypes.data,
        operation.exponent,
        operation.invert,
    )
    return wire.astype(np.int32)


def decoded(lanes: NDArray[np.int32], operation: Operation) -> Array:
    """What the user's array holds then."""
    assert operation.receive is not None
    out = np.empty_like(operation.receive)
    wire = lanes.astype(">i4")
    library().p4r_decode_lanes(
        operation.element_type,
        operation.switch_op == SwitchOp.MAX,
        wire.ctypes.data,
        wire.size,
        out.ctypes.data,
        operation.exponent,
        operation.divisor,
        operation.invert,
    )
    return out


class Expected:
    """One collective of a job: its inputs, and what each rank has to have in the end.

    `inputs` by the rank that a worker joined with.
    """

    def __init__(self, case: Case, inputs: list[Array]) -> None:
        self.case = case
        self.inputs = inputs
        self._first: dict[tuple[tuple[int, ...], str], Array] = {}
        self._parts: dict[tuple[tuple[int, ...], str], dict[int, Array]] = {}

    def check(self, who: str, members: tuple[int, ...], rank: int, module: str, out: Array) -> None:
        """A result is there, of `members` (as they joined), at the one that is `rank` among them now."""
        try:
            self._check(members, rank, module, out)
        except AssertionError as error:
            raise InvariantError(
                f"{who}: {self.case.name} ({module}, {self.case.reduction.name}, {self.case.dtype}, "
                f"{self.case.elements} elements) of ranks {list(members)} came out wrong: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error

    def _check(self, members: tuple[int, ...], rank: int, module: str, out: Array) -> None:
        case, inputs = self.case, [self.inputs[k] for k in members]
        if case.name == "barrier":
            return
        if case.name == "broadcast":
            same_bits(out, inputs[case.root % len(inputs)])
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
            self._checked(module).check_reduction(inputs, out)
            return
        parts = self._parts.setdefault(key, {})  # reduce_scatter
        parts[rank] = out.copy()
        if len(parts) == len(members):
            self._checked(module).check_reduction(
                inputs, np.concatenate([parts[k] for k in range(len(members))])
            )

    def _checked(self, module: str) -> Case:
        case = self.case
        if case.module == module:
            return case
        return Case(module, case.name, case.dtype, case.elements, case.reduction, case.root, case.non_finite)


__all__ = ["Deliveries", "Expected", "Reduction", "decoded", "lanes_of"]
