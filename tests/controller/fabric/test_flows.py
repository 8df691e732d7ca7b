"""A job's entries for members that want RNR NAKs, and for those that do not."""

from __future__ import annotations

from typing import Any

from controller.entries import TableEntry
from controller.fabric.flows import COUNTERS
from controller.fabric.tables.membership import FLOW
from controller.switches.schema import Schema
from p4src import P4INFO_PATH
from tests.controller.running_switch import job


def flows(action: str) -> list[dict[str, Any]]:
    """Return the parameters of flow entries with that action, by rank; rank 1 wants RNR NAKs."""
    entries = [e for e in job(ranks=3, generation=9) if isinstance(e, TableEntry) and e.table == FLOW]
    return [dict(e.params) for e in entries if e.action == f"SwitchIngress.membership.{action}"]


def test_the_switch_answers_those_who_want_it() -> None:
    data = flows("data_flow")
    assert [params["rnr_syndrome"] for params in data] == [0, 0x20 | 24, 0]
    assert [params["first_psn"] for params in data] == [7, 7, 7]
    assert [params["ack_qp"] for params in data] == [0x100, 0x102, 0x104]


def test_acknowledgements_are_followed_on_the_same_flows() -> None:
    acks = flows("ack_flow")
    assert [(params["flow"], params["track"]) for params in acks] == [(0, 0), (1, 1), (2, 0)]
    assert {params["generation"] for params in acks} == {9}
    assert {params["first_psn"] for params in acks} == {7}


def test_all_of_it_is_what_the_program_takes() -> None:
    schema = Schema.read(P4INFO_PATH)
    for entry in job(ranks=3):
        assert schema.decode(schema.encode(entry)) == entry
    assert set(COUNTERS.values()) <= set(schema.counters)
