"""Operations that the layer above posts: one tensor to aggregate, or one to pass on while another arrives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from host_agent.wire.aggregation import CHUNK_BYTES, ElementType, Kind, Stage
from host_agent.wire.aggregation import Op as SwitchOp

__all__ = ["Arrival", "ElementType", "Operation", "SwitchOp", "elements_of_message"]


MARKED: Final = 64  # elements for which `Operation.special` has one place


class Arrival(IntEnum):
    """The use of arriving elements in a PASS operation: stored, or folded into the receive buffer."""

    STORE = 0
    SUM = 1
    MAX = 2
    MIN = 3
    PROD = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """One tensor. `send` and `receive` are C-contiguous arrays, or None for zero elements / discard.

    Aggregated (`switch_op` other than PASS): `send` holds this rank's contribution in `element_type`; it
    is converted packet by packet (by an RDMA device message by message) to big-endian lanes of 32 bits
    (SUM_HALF, MAX_HALF: 16), and every result is converted back into `receive`, of the same size and
    type, which may be the same array as `send`. int32: as is, the result divided by `divisor` towards
    zero. SUM of floats: fixed point, SUM_HALF: binary16, with a scale for each block of neighbours that
    the transport agrees on; the result divided by `divisor` and rounded once. Where an Inf or NaN is in a
    block of some rank, nothing is received there, and `special` says so (uint8, one for each `MARKED`
    elements, all 0 before). `residual` (SUM_HALF of float32): with each result, `send`, which is not
    `receive`, gets what rounding has taken away from it. MAX of floats (MAX_HALF: of types of 16 bits):
    integers that sort as the floats do, NaN above all; `divisor` has no part. `invert` sends and receives
    the complement ~lane: MIN is MAX of the complements.

    PASS: bytes travel as they are (host byte order). The two sizes may differ; `cut_elements`, equal on
    all ranks and at least the larger of any rank's sizes, decides the number of messages. `receive` must
    not overlap `send`. `arrival` other than STORE folds what arrives into `receive` as `element_type`.
    Post a step whose data depends on what arrived only after that arrived.

    `switch_op`, `element_type`, `reduction`, `kind`, `root`, `stage`, `collective` and `total_elements` go
    into the aggregation header and have to be the same on all ranks: the switch compares those of aggregated
    messages, and each receiver those of its predecessor's with its own.
    `header_type` goes there in place of `element_type` where what is sent stands for other elements.
    The arrays must not be changed before the operation is RECEIVED (aggregated) or COMPLETED (PASS).
    """

    switch_op: SwitchOp
    send: NDArray[Any] | None
    receive: NDArray[Any] | None
    element_type: int
    reduction: int
    collective: int
    total_elements: int
    special: NDArray[np.uint8] | None = None
    residual: bool = False
    divisor: int = 1
    invert: bool = False
    header_type: int | None = None
    kind: int = Kind.NONE
    root: int = 0
    stage: int = Stage.NONE
    arrival: Arrival = Arrival.STORE
    cut_elements: int | None = None
    receive_elements: int | None = None
    """Elements expected from the predecessor where `receive` is None; else its size."""

    def __post_init__(self) -> None:
        for name, array in (("send", self.send), ("receive", self.receive)):
            if array is not None and not array.flags.c_contiguous:
                raise ValueError(f"{name} is not C-contiguous: copy it with numpy.ascontiguousarray first")
        if self.receive is not None and not self.receive.flags.writeable:
            raise ValueError("receive is read-only")
        if self.divisor < 1:
            raise ValueError(f"divisor {self.divisor} is below 1")

    @property
    def element_size(self) -> int:
        """Bytes of one element in the user's arrays."""
        array = self.send if self.send is not None else self.receive
        return 1 if array is None else int(np.dtype(array.dtype).itemsize)


def elements_of_message(*, path_mtu: int, message_packets: int, wire_element_size: int = 4) -> int:
    """Return how many elements a message has at most; an aggregated one's have 4 bytes on the wire, or 2."""
    return (path_mtu * message_packets - CHUNK_BYTES) // wire_element_size
