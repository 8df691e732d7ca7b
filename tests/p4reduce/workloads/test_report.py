"""Output of the demo, printed and written, from figures that are given."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from controller.config import Target
from p4reduce.workloads.allreduce import Outcome, Timing
from p4reduce.workloads.demo import DemoOptions, Report, Training
from p4reduce.workloads.report import allreduce_table, demo_tables, run_tables, sweep_table
from p4reduce.workloads.training import Reference


def _outcome(seconds: float, sent: int, *, equal: bool = True) -> Outcome:
    return Outcome(
        timing=Timing(
            bytes=2**25, median_s=seconds, goodput_mbit_s=2**28 / seconds / 1e6, bytes_sent_per_host=sent
        ),
        equal=equal,
        checks=[{"exact": True, "passed": True, "largest_error": 0.0, "bound": 0.0}],
        retransmissions=0,
        duplicates=0,
    )


def _report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "switch": "embedded",
        "workers": 4,
        "rate_mbit": 100.0,
        "path_mtu": 1024,
        "training": Training(
            steps=150,
            accuracy=0.975,
            equal=True,
            reference=Reference(accuracy=0.975, worst_share=0.5, parameter_distance=1e-8),
            step_s=0.007,
            bytes=40_000,
            bytes_sent_per_host=42_000,
        ),
        "integers": _outcome(1.0, 1),
        "in_network": _outcome(3.0, 36_000_000),
        "ring": _outcome(4.5, 54_000_000),
        "counters": {"aggregated": 1000, "completed": 250, "bad_icrc": 0, "unplaced": 3},
    }
    return Report(**{**fields, **changes})


def _text(renderable: Any) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


def test_counters_are_explained() -> None:
    counters = {"aggregated": 1000, "passed": 3, "retransmissions": 873}
    text = " ".join(_text(demo_tables(_report(counters=counters))).split())
    assert "passed: not summed but sent on" in text
    assert "Nothing has to be lost for packets to be sent again" in text
    assert "Nothing has to be lost" not in _text(demo_tables(_report()))


def test_json_has_what_readers_rely_on() -> None:
    found = json.loads(json.dumps(_report().as_json()))
    assert found["switch"] == "embedded"
    assert found["workers"] == 4
    assert found["accuracy"] == found["reference_accuracy"] == 0.975
    assert found["ranks_bitwise_equal"] is True
    assert found["integer_sum_exact"] is True
    assert found["ratio"] == 1.5
    assert found["counters"]["aggregated"] == 1000
    for way, seconds in (("in_network", 3.0), ("ring", 4.5)):
        assert found[way]["bytes"] == 2**25
        assert found[way]["median_s"] == seconds
        assert found[way]["goodput_mbit_s"] == pytest.approx(2**28 / seconds / 1e6)
        assert found[way]["bytes_sent_per_host"] > 0


def test_one_rank_that_differs_shows() -> None:
    report = _report(ring=_outcome(4.5, 1, equal=False))
    assert report.as_json()["ranks_bitwise_equal"] is False
    assert "NO" in _text(demo_tables(report))


def test_the_tables_say_it_all() -> None:
    text = _text(demo_tables(_report()))
    for part in (
        "97.50%",
        "within the bound: yes (largest error 50.0% of it)",
        "7.00 ms",
        "41.02 KiB for 39.06 KiB of gradient (ring: 58.59 KiB",  # 2·3/4
        "3.00 s",
        "4.50 s",
        "packets added up by the switches",
        "1,000",
        "duplicates dropped by the switches",
        "packets resent by the hosts",
        "unplaced",
        "The ring takes 1.50 times as long (2(N-1)/N = 1.50)",
    ):
        assert part in text
    assert "bad icrc" not in text  # nothing to see


def _all_reduce(**changes: Any) -> dict[str, Any]:
    return {
        "switch": "embedded",
        "workers": 2,
        "workers_left": 2,
        "lost": {},
        "dtype": "int32",
        "op": "sum",
        "strategy": "ring",
        "ranks_bitwise_equal": True,
        "verified": True,
        "checks": [{"exact": True, "largest_error": 0.0, "bound": 0.0}],
        "in_network": None,
        "ring": {"bytes": 1024, "median_s": 0.001, "goodput_mbit_s": 8.192, "bytes_sent_per_host": 1100},
        "ratio": None,
        "links": {},
        "counters": {},
        **changes,
    }


def _link(name: str, *, up: int, down: int) -> dict[str, Any]:
    leaf, _, spine = name.partition(":")
    return {"link": name, "leaf": leaf, "spine": spine, "bytes_up": up, "bytes_down": down}


def test_both_strategies_and_what_they_put_on_the_uplinks() -> None:
    timing = {"bytes": 1024, "median_s": 0.0005, "goodput_mbit_s": 16.4, "bytes_sent_per_host": 1100}
    links = {
        "in_network": [_link("l1:s1", up=512, down=513), _link("l1:s2", up=514, down=515)],
        "ring": [_link("l1:s1", up=2048, down=2049), _link("l1:s2", up=0, down=0)],
    }
    text = _text(allreduce_table(_all_reduce(strategy="both", in_network=timing, ratio=2.0, links=links)))
    assert "2.00 times as long" in text
    assert "1.002 KiB (1.00 tensors)" in text  # up from l1, in the network: 512 + 514
    assert "2.001 KiB (2.00 tensors)" in text  # down to l1, by ring


@pytest.mark.parametrize("reason", ["switch s1 is away", ""])
def test_sums_that_went_around_the_ring_meanwhile_say_why(reason: str) -> None:
    timing = {"bytes": 1024, "median_s": 0.0005, "goodput_mbit_s": 16.4, "bytes_sent_per_host": 1100}
    found = _all_reduce(
        strategy="in-network", in_network=timing, ring=None, by_ring_meanwhile=2, ring_reason=reason
    )
    text = " ".join(_text(allreduce_table(found)).split())
    assert f"2 sums ({reason or 'a tensor held Inf or NaN'})" in text


def test_a_run() -> None:
    iteration = {"seconds": 0.5, "bytes_sent_per_host": 1100, "right": True}
    step = {
        "all_reduce": {"bytes": 1024, "dtype": "int32", "op": "sum", "wire": "full"},
        "iterations": [iteration] * 3,
    }
    wrong: dict[str, Any] = {
        "train": {"steps": 1, "dtype": "float32", "wire": "16bit"},
        "accuracy": 0.975,
        "iterations": [{"seconds": 0.25, "right": False}],
    }
    job = {"name": "a", "tenant": "red", "workers": 4, "collectives_in_network": 3, "collectives_by_ring": 0}
    jobs = [{**job, "steps": [step]}, {**job, "name": "b", "collectives_by_ring": 2, "steps": [wrong]}]
    jobs[1]["ring_reason"] = "switch s1 is away"
    text = _text(run_tables({"name": "c", "jobs": jobs, "links": [_link("l1:s1", up=512, down=0)]}))
    for part in (
        "1 KiB int32 sum",
        "500.00 ms",
        "switches (3), ring (2)",
        "training in float32 over 16 bits, accuracy 97.50%",
        "512 B",
        "NO",
    ):
        assert part in text
    assert "job b was summed by ring: switch s1 is away" in text
    assert "job a was" not in text


def test_one_all_reduce() -> None:
    text = _text(allreduce_table(_all_reduce()))
    assert "all-reduce of 1 KiB int32, sum, 2 workers, ring" in text
    assert "8.2 Mbit/s" in text
    assert "equal to NumPy's" in text


def test_a_sweep_has_the_columns_of_nccl_tests() -> None:
    row = {"bytes": 4096, "count": 1024, "strategy": "in-network", "time_us": 1000.0, "algbw_mb_s": 4.096}
    result = {"dtype": "float32", "op": "sum", "workers": 4, "switch": "embedded", "repeat": 5}
    text = _text(sweep_table({**result, "sweep": [{**row, "busbw_mb_s": 6.144, "wrong": None}]}))
    for words in (
        "4,096",
        "1,024",
        "1.00 ms",
        "4.10",
        "6.14",
        "N/A",
        "in-network",
        "algbw",
        "busbw",
        "2(N−1)/N",
    ):
        assert words in text


def test_races_are_as_many_as_time_allows() -> None:
    assert DemoOptions().races == 3
    assert DemoOptions(switch=Target.BMV2).races == 1
    assert DemoOptions(switch=Target.BMV2, repeat=2).races == 2
