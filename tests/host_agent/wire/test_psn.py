"""PSN arithmetic: 24 bits, around the wrap as anywhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from host_agent.wire import psn

PSNS = st.integers(0, psn.PSN_MASK)


@given(PSNS, st.integers(0, psn.PSN_MASK))
def test_adding_then_measuring_gives_the_count_back(start: int, count: int) -> None:
    assert psn.distance(start, psn.add(start, count)) == count


@given(PSNS, st.integers(1, psn.PSN_MODULUS // 2 - 1))
def test_what_comes_later_compares_as_newer_also_across_the_wrap(start: int, count: int) -> None:
    later = psn.add(start, count)
    assert psn.compare(later, start) == count
    assert psn.compare(start, later) == -count


def test_the_psn_after_the_last_one_is_zero() -> None:
    assert psn.add(0xFFFFFF, 1) == 0
    assert psn.add(0, -1) == 0xFFFFFF
    assert psn.compare(0, 0xFFFFFF) == 1
