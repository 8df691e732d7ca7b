"""Changes that count as growth."""

from __future__ import annotations

from typing import Any

import pytest

from p4reduce.workloads.soak.looking import Look, Process, grown
from topologies.processes import ProcessId


def a_look(at_s: float, *, pid: int = 1, slots: int = 0, **has: Any) -> Look:
    process: dict[str, Any] = {"rss_mib": 60.0, "descriptors": 20, "threads": 5, **has}
    return Look(
        at_s=at_s,
        processes=[Process(name="controller", id=ProcessId(pid, 100), **process)],
        slots=slots,
        jobs=0,
        database_bytes=0,
    )


def test_what_stays_is_nothing() -> None:
    assert grown([]) == []
    assert grown([a_look(0), a_look(10, rss_mib=70.0, descriptors=22)]) == []


@pytest.mark.parametrize(
    ("has", "what"),
    [({"rss_mib": 100.0}, "MiB"), ({"descriptors": 40}, "descriptors"), ({"threads": 40}, "threads")],
)
def test_what_grows_in_one_process_is_named(has: dict[str, Any], what: str) -> None:
    (complaint,) = grown([a_look(0), a_look(10, **has)])
    assert "controller" in complaint
    assert what in complaint


def test_another_process_is_not_the_same_one_grown() -> None:
    assert grown([a_look(0), a_look(10, pid=2, rss_mib=500.0)]) == []


def test_slots_that_are_left_are_named() -> None:
    assert grown([a_look(0), a_look(10, slots=256)]) == ["256 slots and 0 jobs are left"]
