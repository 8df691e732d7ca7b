"""Comparison of two switches' outputs, and the messages that carry BMv2's packets; without BMv2."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance import stf
from tests.conformance.alike import difference, variations
from tests.conformance.bmv2 import decode, encode

SENT = (1, b"\x01")


@pytest.mark.parametrize(
    ("theirs", "same"),
    [
        ([(1, b"a"), (1, b"b"), (2, b"c")], True),
        ([(2, b"c"), (1, b"a"), (1, b"b")], True),  # ports among each other have no order
        ([(1, b"b"), (1, b"a"), (2, b"c")], False),
        ([(1, b"a"), (2, b"c")], False),
        ([(1, b"a"), (1, b"b"), (2, b"c"), (3, b"d")], False),
        ([(1, b"a"), (1, b"bb"), (2, b"c")], False),
    ],
)
def test_differences(theirs: list[tuple[int, bytes]], same: bool) -> None:
    told = difference(SENT, [(1, b"a"), (1, b"b"), (2, b"c")], theirs)
    assert (told is None) == same
    assert told is None or told.startswith("port 1, packet 01\n")


def test_a_port_where_order_does_not_matter() -> None:
    ours = [(1, b"a"), (1, b"b"), (2, b"c")]
    assert difference(SENT, ours, [(1, b"b"), (2, b"c"), (1, b"a")], in_order=False) is None
    for theirs in ([(1, b"a"), (2, b"c"), (2, b"b")], [(1, b"a"), (1, b"a"), (2, b"c")], ours[1:]):
        assert difference(SENT, ours, theirs, in_order=False) is not None


def test_variations_are_the_same_each_time() -> None:
    script = stf.parse("packet 3 0102030405\nexpect 1")
    packets = variations(script, random.Random(1), 50)
    assert packets == variations(script, random.Random(1), 50)
    assert packets[0] == (3, bytes([1, 2, 3, 4, 5]))
    assert len({len(data) for _, data in packets}) > 5
    assert all(data for _, data in packets)


@given(
    st.dictionaries(
        st.integers(1, 100), st.one_of(st.integers(0, (1 << 64) - 1), st.binary(max_size=300)), max_size=5
    )
)
def test_messages_survive(message: dict[int, int | bytes]) -> None:
    assert decode(encode(message)) == message


def test_a_message_to_the_byte() -> None:
    assert encode({1: 300, 4: b"ab"}) == bytes.fromhex("08ac02") + b"\x22\x02ab"
