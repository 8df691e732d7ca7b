"""Turns, timelines, memory: what can be said about a replay before and after it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p4reduce.workloads import machine
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.replay import (
    ReplayOptions,
    Turn,
    described,
    exposed_s,
    memory_bytes,
    patience_s,
    require_memory,
    resized,
    timeline,
    turns,
)
from p4reduce.workloads.run_file import Span
from p4reduce.workloads.traffic.buckets import buckets
from p4reduce.workloads.traffic.model import Layer, Workload
from tests.topologies.states import cluster_state

MIB = 1 << 20
MODEL = Workload("toy", "made up", (Layer("front", MIB, 10, 20), Layer("back", 3 * MIB, 30, 40)))


def test_strategies_take_turns_iteration_by_iteration() -> None:
    assert turns(ReplayOptions(iterations=3)) == [Turn(iterations=1)] * 3


@pytest.mark.parametrize(("iterations", "shares"), [(1, [1]), (2, [1, 1]), (5, [3, 2]), (8, [4, 4])])
def test_with_priority_iterations_run_into_each_other(iterations: int, shares: list[int]) -> None:
    planned = turns(ReplayOptions(iterations=iterations, priority=True))
    assert planned == [Turn(iterations=share, warm_up=1) for share in shares]


def test_no_iterations() -> None:
    with pytest.raises(WorkloadError, match="at least one iteration"):
        ReplayOptions(iterations=0)


def _answer(began: float, *iterations: int) -> dict[str, Any]:
    """Return iterations of a second each: half of it is computing, and a sum goes on into the next one."""
    spans = [
        {"iteration": n, "kind": kind, "what": "x", "start_s": n + start, "end_s": n + end}
        for n in iterations
        for kind, start, end in (("compute", 0.0, 0.5), ("communicate", 0.75, 1.25))
    ]
    counted = [{"start_s": n, "end_s": n + 1.0, "wait_s": 0.0} for n in iterations if n >= 0]
    return {"began": began, "spans": spans, "iterations": counted}


def _computing(spans: list[Span]) -> list[tuple[int, int, float]]:
    return [(span.rank, span.iteration, span.start_s) for span in spans if span.kind == "compute"]


def test_the_timeline_is_the_median_iterations() -> None:
    answers = [
        [_answer(10.0, 0), _answer(10.25, 0)],
        [_answer(20.5, 0), _answer(20.0, 0)],
        [_answer(30.0, 0)] * 2,
    ]
    spans = timeline([(0, 0), (1, 0), (2, 0)], answers, [5.0, 3.0, 1.0])
    # Ranks began at their own times; the first of them is where time counts from.
    assert _computing(spans) == [(0, 1, 0.5), (1, 1, 0.0)]


def test_sums_that_go_on_are_cut_where_the_next_iteration_begins() -> None:
    spans = timeline([(0, 0), (0, 1)], [[_answer(10.0, -1, 0, 1)]], [5.0, 3.0])
    sums = [(span.iteration, span.start_s, span.end_s) for span in spans if span.kind == "communicate"]
    assert sums == [(0, 0.0, 0.25), (0, 0.75, 1.0), (1, 1.0, 1.25), (1, 1.75, 2.0)]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1.0, 2.0, 3.0, 9.0, 9.0], [2, 1]),
        ([9.0, 1.0, 1.0, 2.0, 9.0], [3, 4]),
        ([2.0, 1.0, 9.0, 1.0, 9.0], [0, 1]),
    ],
)
def test_with_an_iteration_of_the_same_turn_beside_it(seconds: list[float], expected: list[int]) -> None:
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    answers = [[_answer(1.0, -1, 0, 1, 2)], [_answer(2.0, -1, 0, 1)]]
    spans = timeline(places, answers, seconds)
    assert {iteration for _, iteration, _ in _computing(spans)} == set(expected)


def test_waiting_is_the_median_iterations() -> None:
    assert exposed_s([3.0, 1.0, 2.0], [0.1, 0.9, 0.5]) == 0.5
    assert exposed_s([3.0, 1.0, 2.0, 9.0], [0.1, 0.9, 0.5, 0.0]) == pytest.approx(0.3)
    assert exposed_s([3.0], [0.1]) == 0.1


def test_memory_is_that_of_all_workers() -> None:
    options = ReplayOptions(bucket_bytes=0)
    assert memory_bytes(MODEL, options, workers=8) == 8 * (16 * MIB + 2 * 12 * MIB + 300 * MIB)
    require_memory(resized(MODEL, 0.001), options, workers=2)


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda: 2 << 30)
    with pytest.raises(WorkloadError, match=r"8 workers with 16 MiB of gradients each need about 2\.7 GiB"):
        require_memory(MODEL, ReplayOptions(), workers=8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_two_bytes_an_element_everywhere(dtype: str) -> None:
    halved, options = replace(MODEL, dtype=dtype), ReplayOptions(bucket_bytes=0)
    assert memory_bytes(halved, options, workers=8) == 8 * (8 * MIB + 2 * 6 * MIB + 300 * MIB)
    found = described(halved, buckets(halved, cap_bytes=0), priority=False)
    assert found.gradient_bytes == 8 * MIB
    assert [one.bytes for one in found.buckets] == [6 * MIB, 2 * MIB]
    assert resized(halved, 0.5).gradient_bytes == 4 * MIB
    assert halved.scaled(2).dtype == dtype


def test_resized() -> None:
    half = resized(MODEL, 0.5)
    assert [layer.numel for layer in half.layers] == [MIB // 2, 3 * MIB // 2]
    assert (half.forward_ns, half.backward_ns) == (40, 60)
    assert half.name == "toy, 0.5 times its size"
    assert resized(MODEL, 1.0) is MODEL
    assert resized(MODEL, 1e-9).numel == 2
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(WorkloadError, match="layers cannot be scaled by"):
            resized(MODEL, factor)


def test_slow_links_get_more_patience() -> None:
    fast, slow, bmv2 = (
        patience_s(MODEL, cluster_state("c1", **changes), workers=8)
        for changes in ({"rate_mbit": None}, {"rate_mbit": 10.0}, {"target": "bmv2"})
    )
    assert 160 < fast < 170 < 500 < slow < bmv2


def test_a_workload_in_a_run_file() -> None:
    found = described(MODEL, buckets(MODEL, cap_bytes=0), priority=True)
    assert (found.name, found.source, found.layers, found.priority) == ("toy", "made up", 2, True)
    assert (found.gradient_bytes, found.forward_s, found.backward_s) == (16 * MIB, 40e-9, 60e-9)
    assert [(one.bytes, one.first, one.last) for one in found.buckets] == [(12 * MIB, 1, 1), (4 * MIB, 0, 0)]
