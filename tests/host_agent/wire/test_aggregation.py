"""The aggregation header: every field at its offset, and nothing else taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.wire.aggregation import (
    CHUNK_BYTES,
    FLAGS_OFFSET,
    HEADER_BYTES,
    RANK_OFFSET,
    SIGNATURE,
    AggregationHeader,
    ElementType,
    Flags,
    Kind,
    NotAnAggregationHeader,
    Op,
    Reduction,
    Stage,
)

U32 = st.integers(0, 2**32 - 1)
HEADERS = st.builds(
    AggregationHeader,
    job=st.integers(0, 0xFFFF),
    generation=U32,
    message=U32,
    rank=st.integers(0, 255),
    op=st.sampled_from(Op),
    packets=st.integers(0, 255),
    element_type=st.sampled_from(ElementType),
    reduction=st.sampled_from(Reduction),
    kind=st.sampled_from(Kind),
    root=st.integers(0, 255),
    stage=st.sampled_from(Stage),
    elements=U32,
    collective=U32,
    tensor_elements=U32,
    flags=st.sampled_from([Flags.NONE, Flags.RESULT, Flags.RESULT | Flags.MISMATCH]),
)
EXAMPLE = AggregationHeader(
    job=0x0102,
    generation=0x03040506,
    message=0x0708090A,
    rank=0x0B,
    op=Op.SUM,
    element_type=ElementType.BFLOAT16,
    packets=16,
    reduction=Reduction.AVG,
    kind=Kind.REDUCE,
    root=0xFE,
    stage=Stage.RING_GATHER,
    elements=0x10111213,
    collective=0x14151617,
    tensor_elements=0x18191A1B,
    flags=Flags.RESULT | Flags.MISMATCH,
)


def test_every_field_is_at_the_documented_offset() -> None:
    assert EXAMPLE.pack_fields().hex(" ", 4) == (
        "50345244 01030102 03040506 0708090a 0b010410 0202fe05 10111213 14151617 18191a1b"
    )
    assert EXAMPLE.pack() == EXAMPLE.pack_fields() + bytes(CHUNK_BYTES - HEADER_BYTES)


@given(HEADERS)
def test_a_header_comes_back_as_it_was(header: AggregationHeader) -> None:
    assert AggregationHeader.unpack(header.pack()) == header


def test_the_signature_is_what_ranks_must_agree_on_and_leaves_out_who_sent_it() -> None:
    chunk = bytearray(EXAMPLE.pack())
    chunk[RANK_OFFSET], chunk[FLAGS_OFFSET] = 5, 0
    assert AggregationHeader.unpack(bytes(chunk)).rank == 5
    assert chunk[SIGNATURE] == EXAMPLE.pack()[SIGNATURE]
    for field, value in {
        "op": Op.MAX,
        "element_type": ElementType.INT32,
        "reduction": Reduction.MIN,
        "kind": Kind.ALL_REDUCE,
        "root": 1,
        "stage": Stage.TENSOR,
        "tensor_elements": 3,
        "elements": 1,
        "collective": 2,
    }.items():
        other = AggregationHeader(**{**vars(EXAMPLE), field: value})
        assert other.pack()[SIGNATURE] != EXAMPLE.pack()[SIGNATURE], field


@pytest.mark.parametrize("root", [0, 1, 255, 256, 257, 2047])
def test_a_root_has_twelve_bits_of_which_the_kind_holds_four(root: int) -> None:
    """Check GPU 7 of machine 255, rank 2047. Below 256 the bytes are those that there always were."""
    header = AggregationHeader(**{**vars(EXAMPLE), "kind": Kind.BROADCAST, "root": root})
    packed = header.pack()
    assert AggregationHeader.unpack(packed) == header
    assert (packed[21], packed[22]) == (Kind.BROADCAST | root >> 8 << 4, root & 0xFF)


@pytest.mark.parametrize(
    ("offset", "value", "complaint"),
    [
        (0, 0x51, "magic"),
        (4, 2, "version is 2"),
        (17, 9, "9 is not a valid Op"),
        (18, 99, "ElementType"),
        (21, 0x6F, "15 is not a valid Kind"),
    ],
)
def test_what_is_no_header_of_ours_is_refused_by_name(offset: int, value: int, complaint: str) -> None:
    chunk = bytearray(EXAMPLE.pack())
    chunk[offset] = value
    with pytest.raises(NotAnAggregationHeader, match=complaint):
        AggregationHeader.unpack(bytes(chunk))


def test_a_cut_header_is_refused() -> None:
    with pytest.raises(NotAnAggregationHeader, match="35 bytes are too few"):
        AggregationHeader.unpack(EXAMPLE.pack()[:35])
