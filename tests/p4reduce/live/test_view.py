"""Meaning of a reading: rates, sums, what is not known, and faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from p4reduce.live import columns
from p4reduce.live.columns import frame
from p4reduce.live.faults import AGENT_EVENTS, EVENTS, PORT_EVENTS, Row
from p4reduce.live.reading import Agent, Answer, slot_use
from p4reduce.live.view import View, view
from tests.p4reduce.live import clusters
from tests.p4reduce.live.clusters import flow, job, line, reading


def one(rows: list[Row], **wanted: Any) -> Row:
    (found,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return found


def test_rates_of_flows_are_differences() -> None:
    rows = view(reading()).flows
    assert one(rows, switch="l1")["mbit_s"] == 80.0
    assert one(rows, switch="l2")["packets_s"] == 5000.0
    assert one(rows, switch="s1")["mbit_s"] is None  # it was not there before
    assert (one(rows, switch="l1")["host"], one(rows, switch="s1")["role"]) == ("h1", "spine")


def test_counters_that_begin_anew_have_no_rate() -> None:
    flows = Answer(2.0, [flow("l1", 0, aggregated=5)], Answer(1.0, [flow("l1", 0, aggregated=50)]))
    assert one(view(reading(flows=flows)).flows, switch="l1")["mbit_s"] is None
    again = Answer(
        2.0, [flow("l1", 0, generation=8, aggregated=99)], Answer(1.0, [flow("l1", 0, aggregated=50)])
    )
    assert one(view(reading(flows=again)).flows, switch="l1")["mbit_s"] is None


def test_links_have_a_part_of_their_rate() -> None:
    rows = view(reading()).links
    host = one(rows, link="h1:l1")
    assert (host["up_mbit_s"], host["up_utilisation"], host["down_mbit_s"]) == (100.0, 1.0, 0.0)
    uplink = one(rows, link="l1:s1")
    assert (uplink["down_mbit_s"], uplink["down_utilisation"], uplink["rate_mbit"]) == (50.0, 1.0, 50.0)
    assert (uplink["kind"], uplink["state"]) == ("uplink", "up")


def test_a_job() -> None:
    (row,) = view(reading()).jobs
    assert (row["state"], row["sums_by"], row["workers"], row["world_size"]) == ("running", "network", 2, 2)
    assert (row["tenant"], row["slots_open"], row["slots"]) == ("default", 3, 768)
    assert row["mbit_s_per_worker"] == 60.0
    assert (row["retransmissions"], row["retransmissions_s"], row["collectives"]) == (10, 3.0, 4)


def test_a_job_by_ring_is_measured_by_its_workers() -> None:
    ringed = job()
    ringed.mode, ringed.mode_reason = pb.RING, "no free slots"
    del ringed.places[:]
    agents = Answer(
        2.0,
        {("train", 0): Agent({"data_sent_bytes": 1e6}), ("train", 1): Agent({"data_sent_bytes": 2e6})},
        Answer(1.0, {("train", 0): Agent({}), ("train", 1): Agent({})}),
    )
    (row,) = view(reading(jobs=[ringed], flows=Answer(2.0, []), agents=agents, slots=None)).jobs
    assert (row["mbit_s_per_worker"], row["why"], row["slots_open"]) == (12.0, "no free slots", None)


def test_only_some_ended_jobs_are_shown_the_last_first() -> None:
    ended = [job(f"old{n}", pb.ENDED) for n in range(9)]
    for number, info in enumerate(ended):
        info.generation = number
        info.ended.reason = "all workers have left"
    rows = view(reading(jobs=[*ended, job()])).jobs
    assert [row["job"] for row in rows] == ["train", "old8", "old7", "old6", "old5", "old4"]
    assert (rows[1]["workers"], rows[1]["why"]) == (0, "all workers have left")


def test_without_a_second_look_no_rate_is_known() -> None:
    now = reading()
    assert now.flows is not None
    assert now.lines is not None
    found = view(reading(flows=Answer(1.0, now.flows.value), lines=Answer(1.0, now.lines.value), agents=None))
    assert {row["mbit_s"] for row in found.flows} == {None}
    assert {row["up_mbit_s"] for row in found.links} == {None}
    assert {row["retransmissions"] for row in found.hosts} == {None}


def test_switches_and_hosts() -> None:
    found = view(reading())
    l1 = one(found.switches, switch="l1")
    assert (l1["packets_s"], l1["slots_open"], l1["slots_allocated"]) == (25_000 / 2 + 12_500 / 2, 3, 256)
    h1, h2 = one(found.hosts, host="h1"), one(found.hosts, host="h2")
    assert (h1["workers"], h1["retransmissions"], h1["connected"]) == (["train/0"], 10, True)
    assert (h2["workers"], h2["retransmissions"], h2["connected"], h2["heard_s_ago"]) == (
        [],
        None,
        None,
        None,
    )


def test_what_is_down_comes_first() -> None:
    away = job()
    away.workers[1].connected = False
    away.waitlisted.position = 2
    links = [pb.Link(a="l1", b="s2", up=False, state="no answer for 3 s")]
    found = view(
        reading(
            jobs=[away],
            status=clusters.status(s2="unreachable"),
            lines=Answer(1.0, clusters.lines(l2_s1=line("l2:s1", is_up=False))),
            links=links,
        )
    )
    assert [(row["severity"], row["what"], row["where"]) for row in found.faults[:4]] == [
        ("error", "link down", "l2:s1"),
        ("error", "link not used", "l1:s2"),
        ("error", "switch away", "s2"),
        ("warning", "worker away", "train rank 1 (h3)"),
    ]
    assert one(found.faults, what="waits for slots")["severity"] == "note"
    assert one(found.links, link="l2:s1")["state"] == "DOWN"


def test_a_drained_link_is_no_error() -> None:
    links = [pb.Link(a="l1", b="s2", up=True, state="drained")]
    assert one(view(reading(links=links)).faults, what="link not used")["severity"] == "note"


def test_counters_that_something_is_behind_are_faults() -> None:
    flows = Answer(
        2.0,
        [flow("l1", 0, bad_icrc=6, aggregated=9), flow("l1", 1, bad_icrc=4)],
        Answer(1.0, [flow("l1", 0, bad_icrc=3), flow("l1", 1, bad_icrc=4)]),
    )
    port = pb.Port(switch="l1", port=1, host="h1")
    port.drops["spoofed"].packets = 5
    ports = Answer(3.0, [port], Answer(1.0, [pb.Port(switch="l1", port=1, host="h1")]))
    rows = view(reading(flows=flows, ports=ports)).faults
    icrc = one(rows, what="bad_icrc")
    assert (icrc["severity"], icrc["where"], icrc["total"], icrc["per_s"]) == (
        "warning",
        "train on l1",
        10,
        3.0,
    )
    spoofed = one(rows, what="spoofed")
    assert (spoofed["where"], spoofed["total"], spoofed["per_s"]) == ("l1 port 1 (h1)", 5, 2.5)
    resent = one(rows, what="sent again")
    assert (resent["where"], resent["total"], resent["per_s"]) == ("train rank 0", 10, 3.0)
    assert not [row for row in rows if row["what"] == "aggregated"]


def test_every_counter_of_the_program_is_a_fault_or_meant() -> None:
    from controller.fabric.flows import COUNTERS
    from controller.service.views import PORT_DROPS

    meant = {"aggregated", "completed", "partials", "results", "asked", "passed", "acks"}
    assert set(EVENTS) == set(COUNTERS) - meant
    assert set(PORT_EVENTS) == set(PORT_DROPS)
    assert all(text and not text.endswith(".") for _, text in [*EVENTS.values(), *AGENT_EVENTS.values()])


def test_open_slots_are_those_not_complete() -> None:
    slots = [
        pb.Slot(job="train", switch="l1", state=state)
        for state in ("adding", "adding", "sent up", "complete")
    ]
    slots.append(pb.Slot(job="gone", switch="l1", state="adding"))
    found = slot_use([job()], slots)
    assert (found["train", "l1"].open, found["train", "l2"].open, found["train", "l1"].allocated) == (
        3,
        0,
        256,
    )


def test_json_has_everything() -> None:
    read = json.loads(json.dumps(view(reading(remarks=("switch l9 is away",))).to_json()))
    assert set(read) == set(View.__dataclass_fields__)
    assert read["remarks"] == ["switch l9 is away"]


def test_a_frame_as_text() -> None:
    text = frame(view(reading(remarks=("switch l9 is away",))))
    assert text.startswith("c1: 2 leaves 2 spines, 4 hosts, embedded, path MTU 1024, 100 Mbit/s\n")
    assert "no errors" in text
    assert "3 open 1 s ago" in text
    assert "\x1b" not in text
    assert text.endswith("switch l9 is away")
    empty = frame(view(reading(jobs=[], flows=Answer(1.0, []), agents=None)))
    for table in (columns.JOBS, columns.FLOWS, columns.FAULTS):
        assert table.empty in empty


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (250_000, "250k"),
        (1.5e6, "1.5M"),
        (3e9, "3.0G"),
    ],
)
def test_counts_for_people(value: float | None, text: str) -> None:
    assert columns.count(value) == text


def test_bars_and_names() -> None:
    assert [columns.bar(value) for value in (0.0, 0.5, 1.0, 7.0)] == ["     ", "██▌  ", "█████", "█████"]
    assert columns.shortened("allreduce-52da536b") == "allreduce-52da536b"
    assert columns.shortened("a-very-long-name-of-a-job-17") == "a-very-lo…a-job-17"


def test_sorting_puts_the_unknown_last() -> None:
    rows = [{"mbit_s": value} for value in (2.0, None, 10.0)]
    column = next(column for column in columns.FLOWS.columns if column.key == "mbit_s")
    for descending, values in ((True, [10.0, 2.0, None]), (False, [2.0, 10.0, None])):
        found = columns.sorted_rows(columns.FLOWS, rows, column, descending=descending)
        assert [row["mbit_s"] for row in found] == values


def test_slots_of_a_job_that_has_gone_are_not_open() -> None:
    (l1, *_) = view(reading(jobs=[])).switches
    assert l1["slots_open"] is None
