"""The aggregation header: the first 256-byte chunk of every message, big endian; the only Python definition.

P4 holds the other one (`p4src/include/headers.p4`), `docs/protocol.md` the table; a test keeps the three
together.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final

from host_agent.wire.values import value_class

CHUNK_BYTES: Final = 256
LANE_BYTES: Final = 4
CHUNK_LANES: Final = CHUNK_BYTES // LANE_BYTES
MAX_CHUNKS: Final = 16
MAX_RANKS: Final = 32

MAGIC: Final = 0x50345244  # "P4RD"
VERSION: Final = 1

# Among BTH's reserved bits, which receivers ignore: on every packet that the switch made, on no other.
SUMMED_BIT: Final = 0x40

# The bytes that have to be equal on all ranks: from `op` to the end of `tensor_elements`.
SIGNATURE: Final = slice(17, 36)
FLAGS_OFFSET: Final = 5
RANK_OFFSET: Final = 16
# Of those: element type, reduction, kind and stage, which a switch compares whatever they are.
CODES: Final = (18, 20, 21, 23)


class Op(IntEnum):
    """Operation of the switch on a message's lanes of 32 bits, or 16 in the HALF operations."""

    PASS = 0  # forward untouched
    SUM = 1  # two's complement, wrapping
    MAX = 2  # signed
    SUM_HALF = 3  # binary16, rounded once
    MAX_HALF = 4  # signed, of 16 bits


LAST_OP: Final = max(Op)  # switches take no message with one above it


class ElementType(IntEnum):
    """The user's element type; the switch only compares it between ranks. It can add the first four."""

    RAW = 0  # bytes that are of no collective
    INT32 = 1
    FLOAT32 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    BOOL = 5
    INT8 = 6
    UINT8 = 7
    INT16 = 8
    UINT16 = 9
    UINT32 = 10
    INT64 = 11
    UINT64 = 12
    FLOAT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    OTHER = 16  # `tensor_elements` is a digest of the type and the number of elements


class Reduction(IntEnum):
    """The user's reduction; the switch only compares it between ranks."""

    NONE = 0
    SUM = 1
    AVG = 2
    MAX = 3
    MIN = 4
    PROD = 5  # by ring


class Kind(IntEnum):
    """The collective that was called. The switch compares it between ranks, and receivers compare it, too."""

    NONE = 0  # no collective: never in a job
    ALL_REDUCE = 1
    REDUCE = 2
    BROADCAST = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    BARRIER = 6
    REPAIR = 7  # a renewal's: the result of a collective that was cut, from who has it


def kind_and_root(kind: int, root: int) -> tuple[int, int]:
    """Return the header's bytes for them: the high four of a root's 12 bits share the kind's byte."""
    return kind | root >> 8 << 4, root & 0xFF


class Stage(IntEnum):
    """The role of a message in its collective, and so how that travels; compared as `Kind` is."""

    NONE = 0
    TENSOR = 1  # in the network: the tensor itself
    TOGETHER = 3  # in the network: all ranks' small tensors, beside each other
    RING_REDUCE = 4  # by ring: parts that are added on their way
    RING_GATHER = 5  # by ring: parts as they are
    RING_BARRIER = 6  # by ring: nobody is done before everybody has the result


class Flags(IntFlag):
    """Flags that the switch sets."""

    NONE = 0x00
    RESULT = 0x01  # this payload is what all ranks' payloads came to
    MISMATCH = 0x02  # the ranks' signatures differed


_LAYOUT: Final = struct.Struct(">IBBHIIBBBBBBBBIII")
HEADER_BYTES: Final = _LAYOUT.size


class NotAnAggregationHeader(ValueError):
    """The bytes do not begin with our magic and version, or hold unknown codes."""


@value_class(frozen=True)
class AggregationHeader:
    """The fields of the header. Counts are of elements, `packets` of packets in this message."""

    job: int
    generation: int
    message: int
    rank: int
    op: Op
    packets: int
    element_type: ElementType = ElementType.RAW
    reduction: Reduction = Reduction.NONE
    kind: Kind = Kind.NONE
    root: int = 0
    stage: Stage = Stage.NONE
    elements: int = 0
    collective: int = 0
    tensor_elements: int = 0
    flags: Flags = Flags.NONE

    def pack(self) -> bytes:
        """Return the whole first chunk: the header and zeros, 256 bytes."""
        return self.pack_fields().ljust(CHUNK_BYTES, b"\x00")

    def pack_fields(self) -> bytes:
        """Return the 36 bytes that carry fields."""
        return _LAYOUT.pack(
            MAGIC,
            VERSION,
            self.flags,
            self.job,
            self.generation,
            self.message,
            self.rank,
            self.op,
            self.element_type,
            self.packets,
            self.reduction,
            *kind_and_root(self.kind, self.root),
            self.stage,
            self.elements,
            self.collective,
            self.tensor_elements,
        )

    @classmethod
    def unpack(cls, chunk: bytes) -> AggregationHeader:
        """Read the start of `chunk`; NotAnAggregationHeader where it is none or has unknown codes."""
        if len(chunk) < HEADER_BYTES:
            raise NotAnAggregationHeader(
                f"{len(chunk)} bytes are too few for an aggregation header of {HEADER_BYTES}"
            )
        magic, version, flags, job, generation, message, rank, *rest = _LAYOUT.unpack_from(chunk)
        op, element_type, packets, reduction, kind, root, stage, elements, collective, tensor_elements = rest
        kind, root = kind & 0xF, root | kind >> 4 << 8
        if magic != MAGIC:
            raise NotAnAggregationHeader(f"magic is 0x{magic:08x}, not 0x{MAGIC:08x}")
        if version != VERSION:
            raise NotAnAggregationHeader(f"version is {version}; this release speaks version {VERSION}")
        try:
            codes = Op(op), ElementType(element_type), Reduction(reduction), Kind(kind), Stage(stage)
        except ValueError as error:
            raise NotAnAggregationHeader(str(error)) from error
        return cls(
            job=job,
            generation=generation,
            message=message,
            rank=rank,
            op=codes[0],
            packets=packets,
            element_type=codes[1],
            reduction=codes[2],
            kind=codes[3],
            root=root,
            stage=codes[4],
            elements=elements,
            collective=collective,
            tensor_elements=tensor_elements,
            flags=Flags(flags),
        )
