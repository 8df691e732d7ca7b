"""Words for what switches count."""

from __future__ import annotations

from controller.fabric.flows import COUNTERS
from p4reduce.workloads.counters import AGAIN, MEANING


def test_every_counter_of_a_flow_is_explained() -> None:
    assert MEANING.keys() == COUNTERS.keys()
    assert {*AGAIN} <= COUNTERS.keys()
