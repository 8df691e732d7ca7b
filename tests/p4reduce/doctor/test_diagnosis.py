"""Diagnoses of facts made by hand: each case is told from all others, in words a user understands."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from p4reduce.doctor import counting, words
from p4reduce.doctor.diagnosis import diagnose
from p4reduce.doctor.facts import (
    Disk,
    Echo,
    Ends,
    Facts,
    Losses,
    Process,
    ProcessState,
    Said,
)
from p4reduce.doctor.findings import Diagnosis, Severity
from p4reduce.live.reading import Line
from tests.p4reduce.doctor import made
from tests.p4reduce.doctor.made import facts, idle, in_call, job, slot, waiting_for, worker, worker_status
from tests.topologies.states import fabric_state
from topologies.wires import Traffic


def text(found: Diagnosis) -> str:
    """Return all that people see of a diagnosis."""
    return "\n".join(line for line, _ in words.lines(found))


def only_trouble(found: Diagnosis) -> str:
    """Return the code of the one finding that is worse than a note."""
    codes = [finding.code for finding in found.findings if finding.severity is not Severity.NOTE]
    assert len(codes) == 1, text(found)
    return codes[0]


# Nothing is wrong.


def test_a_job_that_moves_is_healthy() -> None:
    before = [worker(in_call(rank, for_s=0.1, received=18)) for rank in made.RANKS]
    now = [
        worker(in_call(rank, for_s=0.2, next_collective=30, received=78, posted=79)) for rank in made.RANKS
    ]
    found = diagnose(facts(now, before=before))
    assert found.is_healthy
    assert found.verdict == "All is well: job train runs: 100 messages a second, at collective 29."


def test_a_job_whose_workers_compute_is_idle_and_healthy() -> None:
    found = diagnose(facts(idle()))
    assert found.is_healthy
    assert "job train is idle: no rank is in a collective" in found.verdict
    assert "rank 2 (h3): it sleeps (0% of a core), at train.py:83 in load_batch" in text(found)


def test_a_collective_that_has_just_begun_is_healthy() -> None:
    said = [worker(worker_status(0)), *(worker(in_call(rank, for_s=0.3)) for rank in (1, 2, 3))]
    assert diagnose(facts(said, slots=Said([slot([0], age_s=0.3)], ""))).is_healthy


def test_no_job() -> None:
    found = diagnose(facts([], both={"jobs": Said([], "")}))
    assert found.verdict == "All is well: cluster c1 runs, and there is no job."
    assert found.is_healthy
    unknown = diagnose(facts([], both={"jobs": Said([], "")}), "x")
    assert unknown.verdict.startswith("there is no job 'x'")
    assert unknown.codes == ("no-such-job",)
    assert not unknown.is_healthy  # a mistyped name must not look like a job that is well


# A worker keeps the others waiting.


def test_a_worker_that_is_stopped() -> None:
    seen = facts(
        waiting_for(2, worker(2, state=ProcessState.STOPPED)),
        slots=Said([slot([2]), slot([2], message=19)], ""),
    )
    found = diagnose(seen)
    assert only_trouble(found) == "waits:worker-stopped"
    assert found.verdict == (
        "job train: waits for rank 2 (h3): its process (202) is stopped (SIGSTOP). 3 of 4 ranks have "
        "contributed "
        "to message 18 on s1, rank 2 has not; it is open for 12.0 s."
    )
    said = text(found)
    assert "-> kill -CONT 202" in said
    assert (
        "rank 0 (h1): in all_reduce(SUM) of 1000 float32 (collective 17) for 12.0 s; messages: 19 posted"
        in said
    )
    assert found.findings[0].rank == 2
    assert found.findings[0].where == "h3"


def broken(rank: int, **fields: Any) -> dict[str, Any]:
    """Return what differs where the session of a rank with the controller is broken."""
    info = job(**fields)
    info.workers[rank].connected = False
    info.workers[rank].heard_s_ago = 1.2
    return {"jobs": Said([info], "")}


def test_a_worker_that_was_killed() -> None:
    waits = waiting_for(1, worker(1, state=ProcessState.GONE))
    opened = Said([slot([1])], "")
    found = diagnose(facts(waits, slots=opened, both=broken(1)))
    assert only_trouble(found) == "waits:worker-gone"
    assert "waits for rank 1 (h2): its process (201) is gone: it was killed, or has crashed" in found.verdict
    assert "'--elastic' lets one go on without it" in text(found)
    elastic = pb.JobSpec(name="train", world_size=4, elastic=True)
    found = diagnose(facts(waits, slots=opened, both=broken(1, spec=elastic)))
    assert "the job is elastic, and goes on without it in a moment" in text(found)


def test_a_dead_worker_is_said_although_the_last_sums_still_move() -> None:
    before = [worker(in_call(rank, received=17)) for rank in made.RANKS]
    waits = waiting_for(1, worker(1, state=ProcessState.GONE))
    assert only_trouble(diagnose(facts(waits, before=before, both=broken(1)))) == "waits:worker-gone"


def test_a_worker_of_an_earlier_run_that_was_killed_is_not_this_ones() -> None:
    """The controller has just heard its successor, which does not say where it stands yet."""
    seen = [worker(worker_status(rank)) for rank in (0, 2, 3)]
    assert diagnose(facts([*seen, worker(1, state=ProcessState.GONE)])).is_healthy
    ready = {"jobs": Said([job(phase=pb.READY)], "")}
    assert diagnose(facts([worker(1, state=ProcessState.GONE)], both=ready)).is_healthy


@pytest.mark.parametrize(("cpu_s", "says"), [(1.6, "it computes (100% of a core)"), (1.0, "it sleeps (0%")])
def test_a_straggler_and_what_it_does(cpu_s: float, says: str) -> None:
    late = worker(worker_status(3), cpu_s=cpu_s)
    found = diagnose(
        facts(
            waiting_for(3, late),
            before=waiting_for(3, worker(worker_status(3), cpu_s=1.0)),
            slots=Said([slot([3])], ""),
        )
    )
    assert only_trouble(found) == "waits:straggler"
    assert f"waits for rank 3 (h4): it has not called {made.CALL}, which the 3 others are in for 12.0 s" in (
        found.verdict
    )
    assert says in found.verdict
    assert "train.py:83 in load_batch" in found.verdict
    assert "py-spy dump --pid 203" in text(found)


def test_two_stragglers_are_both_named() -> None:
    said = [worker(worker_status(0)), worker(worker_status(1)), worker(in_call(2)), worker(in_call(3))]
    found = diagnose(facts(said, slots=Said([slot([0, 1])], "")))
    assert "waits for rank 0 (h1) and rank 1 (h2): it has not called" in found.verdict
    assert "2 of 4 ranks have contributed to message 18 on s1, ranks 0 and 1 have not" in found.verdict


def test_a_worker_that_made_fewer_calls_and_left() -> None:
    found = diagnose(facts(waiting_for(0, worker(worker_status(0, is_leaving=True)))))
    assert only_trouble(found) == "waits:worker-left"
    assert "it has left the job ('leave'), while the 3 others are in all_reduce" in found.verdict
    assert "uneven shares of the data" in text(found)


def test_a_worker_that_hangs_with_pythons_lock_held() -> None:
    found = diagnose(facts(waiting_for(1, worker(1)), slots=Said([slot([1])], "")))
    assert only_trouble(found) == "waits:worker-silent"
    assert "its process (201) runs but does not answer" in found.verdict
    assert "py-spy dump --pid 201" in text(found)


def test_a_worker_in_the_kernel() -> None:
    found = diagnose(facts(waiting_for(1, worker(1, state=ProcessState.STUCK))))
    assert only_trouble(found) == "waits:worker-in-kernel"


def test_workers_elsewhere_tell_nothing() -> None:
    """Check that their slots and heartbeats tell of them: rank 2 has sent none."""
    info = job()
    info.workers[2].heard_s_ago = 8.0
    found = diagnose(facts([], both={"jobs": Said([info], "")}, slots=Said([slot([2])], "")))
    assert only_trouble(found) == "waits:worker-mute"
    assert (
        "rank 2 (h3): it is connected with the controller, but has sent no heartbeat for 8.0 s"
        in found.verdict
    )
    info.workers[2].connected = False
    found = diagnose(facts([], both={"jobs": Said([info], "")}, slots=Said([slot([2])], "")))
    assert only_trouble(found) == "waits:worker-away"
    quiet = diagnose(facts([]))
    assert quiet.is_healthy
    assert "do not say where they stand" in quiet.verdict


def test_a_worker_that_has_failed() -> None:
    found = diagnose(facts(waiting_for(1, worker(worker_status(1, failure="out of memory")))))
    assert only_trouble(found) == "waits:worker-failed"
    assert "it has failed: out of memory" in found.verdict


# Packets do not get through.


def test_a_host_link_that_is_down() -> None:
    waits = waiting_for(2, worker(in_call(2)))
    found = diagnose(facts(waits, both={"lines": made.lines("h3:s1")}, slots=Said([slot([2])], "")))
    assert found.codes[0] == "waits:link-down"
    assert "waits for rank 2 (h3): link h3:s1 is down" in found.verdict
    assert "p4reduce fault link up h3" in text(found)


def test_a_link_that_is_up_and_carries_nothing() -> None:
    echoes = {
        ("h1", "h2"): Echo(sent=8, received=8, fastest_ms=0.3),
        ("h2", "h3"): Echo(sent=8, received=0),
        ("h3", "h4"): Echo(sent=8, received=0),
        ("h4", "h1"): Echo(sent=8, received=8, fastest_ms=0.3),
    }
    waits = waiting_for(2, worker(in_call(2)))
    found = diagnose(facts(waits, echoes=echoes, slots=Said([slot([2])], "")))
    assert found.codes[0] == "waits:cut-off"
    assert "link h3:s1 is up, but nothing comes through it" in found.verdict


SILENT = {(a, b): Echo(sent=8, received=0) for a, b in zip(made.HOSTS, (*made.HOSTS[1:], "h1"), strict=True)}


def silent_fabric(**changes: Any) -> Diagnosis:
    """Diagnose a fabric without jobs in which no ping came back in two turns."""
    both = {"jobs": Said([], ""), **changes.pop("both", {})}
    return diagnose(facts([], both=both, **{"echoes": SILENT, "echo_turns": 2, **changes}))


def test_a_fabric_that_carries_nothing() -> None:
    found = silent_fabric()
    assert only_trouble(found) == "fabric-silent"
    assert found.verdict == "nothing comes through links h1:s1, h2:s1, h3:s1 and h4:s1, which are up."
    assert "-> p4reduce exec h1 ip -s link show dev h1-eth0" in text(found)
    assert "p4reduce fault clear" not in text(found)
    assert "p4reduce fault clear" in text(silent_fabric(rules=["#1 loss of 100% on h1"]))


def test_a_fabric_is_not_called_silent_after_one_observation() -> None:
    assert silent_fabric(echo_turns=1).is_healthy
    assert silent_fabric(echoes={}).is_healthy
    some = {**SILENT, ("h2", "h3"): Echo(sent=8, received=1)}
    assert set(silent_fabric(echoes=some).codes) == {"cut-off"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"then": {"status": Said(made.status(s1="restarted: loading"), "")}}, id="was-away"),
        pytest.param({"now": {"status": Said(made.status(s1="restarted: loading"), "")}}, id="is-away"),
        pytest.param({"now": {"processes": made.processes(switch_s1=ProcessState.STOPPED)}}, id="stopped"),
        pytest.param(
            {"then": {"processes": made.processes(switch_s1=ProcessState.STOPPED)}}, id="was-stopped"
        ),
        pytest.param({"now": {"processes": made.processes(switch_s1=ProcessState.GONE)}}, id="dead"),
        pytest.param({"both": {"status": Said(None, "no answer")}}, id="nobody-knows"),
    ],
)
def test_links_are_not_blamed_for_a_switch(changes: dict[str, Any]) -> None:
    assert "fabric-silent" not in silent_fabric(**changes).codes


def test_of_a_silent_fabric_the_links_that_are_known_to_be_down_are_named() -> None:
    found = silent_fabric(both={"lines": made.lines("h1:s1", "h3:s1")})
    assert [(finding.code, finding.where) for finding in found.findings] == [
        ("link-down", "h1:s1"),
        ("link-down", "h3:s1"),
    ]
    found = silent_fabric(both={"lines": made.lines("h1:s1")})
    assert found.codes == ("fabric-silent", "link-down")
    assert found.verdict == "nothing comes through links h2:s1, h3:s1 and h4:s1, which are up."


def test_a_link_that_loses_everything_is_named_rather_than_all() -> None:
    def port(lost: int) -> dict[tuple[str, int], Losses]:
        return {("s1", 3): {"receive.on_request": lost}}

    found = silent_fabric(then={"losses": port(0)}, now={"losses": port(16)})
    assert only_trouble(found) == "loss"


def test_pings_that_are_only_late_are_no_silence() -> None:
    late: dict[str, Any] = {"echoes": SILENT, "echo_turns": 2}
    runs = [worker(worker_status(rank, received=19, acked=19)) for rank in made.RANKS]
    assert diagnose(facts(runs, before=idle(), **late)).is_healthy
    assert not diagnose(facts(idle(), **late)).is_healthy


def test_a_job_that_waits_in_a_silent_fabric() -> None:
    waits = [worker(in_call(rank)) for rank in made.RANKS]
    found = diagnose(facts(waits, echoes=SILENT, echo_turns=2))
    assert found.codes == ("waits:fabric-silent",)
    assert "nothing has moved for 12.0 s; nothing comes through links h1:s1, h2:s1," in found.verdict
    assert "p4reduce show ports" in text(found)


def test_wires_that_are_stopped() -> None:
    wires = {"wires": Process(4711, ProcessState.STOPPED)}
    found = silent_fabric(both={"processes": {**made.processes(), **wires}})
    assert found.verdict.endswith("the process that is all links' wires (4711) is stopped (SIGSTOP).")
    assert found.findings[0].do[0] == "kill -CONT 4711"


def test_pings_between_racks_are_not_due_while_an_uplink_is_down() -> None:
    fabric = fabric_state("c1", hosts=(1, 1))
    hosts = {f"{host.name}:{host.switch}": host for host in fabric.hosts}
    processes = {f"switch {switch.name}": made.processes()["owner"] for switch in fabric.switches}

    def found(*down: str) -> Diagnosis:
        lines = {
            name: Line(
                name=name,
                is_up=name not in down,
                up=Traffic(),
                down=Traffic(),
                rate_mbit=None,
                uplink=name not in hosts,
            )
            for name in (*hosts, *(link.name for link in fabric.links))
        }
        both = {"lines": lines, "processes": {**made.processes(), **processes}}
        return silent_fabric(cluster=fabric, echoes={("h1", "h2"): Echo(sent=8, received=0)}, both=both)

    assert only_trouble(found()) == "fabric-silent"
    assert set(found("l1:s1", "l1:s2").codes) == {"uplink-down"}


def test_entries_of_a_flow_that_somebody_deleted() -> None:
    waits = waiting_for(2, worker(in_call(2)))
    flows = [pb.Flow(job="train", rank=rank, switch="s1", on_switch=rank != 2) for rank in made.RANKS]
    plan = pb.PlanReport(
        switches=[
            pb.SwitchPlan(
                name="s1",
                changes=[pb.Change(kind=pb.Change.ADD, what="entry", key="flow[port=3]", drift=True)],
            )
        ]
    )
    found = diagnose(facts(waits, flows=Said(flows, ""), plan=Said(plan, ""), slots=Said([slot([2])], "")))
    assert found.codes[0] == "waits:flow-missing"
    assert "rank 2 (h3): the entries of its flow are not on its switch" in found.verdict
    assert "drift" in found.codes
    said = text(found)
    assert "missing: entry flow[port=3]" in said
    assert "p4reduce rollback" in said


def test_packets_that_were_sent_and_did_not_arrive() -> None:
    waits = waiting_for(2, worker(in_call(2)))
    found = diagnose(facts(waits, slots=Said([slot([2])], "")))
    assert only_trouble(found) == "waits:path"
    assert "rank 2 sent it, but it did not arrive" in found.verdict


def test_sums_that_do_not_reach_one_rank() -> None:
    said = [worker(in_call(rank, received=18 if rank == 1 else 19)) for rank in made.RANKS]
    found = diagnose(facts(said))
    assert found.codes[0] == "waits:path"
    assert "the sum of message 18 does not reach rank 1 (h2), while the others have it" in found.verdict
    opened = Said([slot([1], message=19)], "")
    assert "does not reach rank 1 (h2)" in diagnose(facts(said, slots=opened)).verdict


# Links that lose, double, damage, delay.


def running(**changes: Any) -> Facts:
    """Return the facts of a job that moves."""
    before = [worker(worker_status(rank, received=10)) for rank in made.RANKS]
    return facts(idle(), before=before, **changes)


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ({"lost_up": 70}, "link h2:s1 loses packets from h2 to s1: 140 in 0.6 s"),
        ({"lost_down": 70}, "link h2:s1 loses packets from s1 to h2: 140 in 0.6 s"),
        ({"lost_up": -70}, "link h2:s1 doubles packets from h2 to s1: 140 more came out than went in"),
    ],
)
def test_counts_of_host_and_switch_that_disagree(lost: dict[str, Any], says: str) -> None:
    found = diagnose(running(samples=[made.samples(**lost)]))
    assert says in found.verdict
    assert only_trouble(found) in ("loss", "duplication")
    assert "p4reduce fault clear" not in text(found), "nobody injects any"
    found = diagnose(running(samples=[made.samples(**lost)], rules=["#1 loss on h2"]))
    assert "-> p4reduce fault clear" in text(found)


def test_frames_that_are_under_way_are_not_lost() -> None:
    assert diagnose(running(samples=[made.samples(busy=300)])).is_healthy
    assert diagnose(running(samples=[made.samples(lost_up=3, busy=300)])).is_healthy
    assert not diagnose(running(samples=[made.samples(lost_up=600, busy=300)])).is_healthy


def test_a_switch_that_is_short_of_time_is_no_bad_link() -> None:
    """Check that packets counted only in the next turn of samples are not taken for lost."""
    late, then = made.samples(lost_up=70), made.samples(lost_up=-70)
    assert counting.is_suspicious(late)
    assert diagnose(running(samples=[late, then])).is_healthy
    assert diagnose(running(samples=[late, made.samples()])).is_healthy
    found = diagnose(running(samples=[late, late]))
    assert "link h2:s1 loses packets from h2 to s1: 280 in 0.6 s" in found.verdict
    assert not counting.is_suspicious(made.samples(busy=300))


def test_a_switch_that_is_restarted_is_no_bad_link() -> None:
    """Check that a restart, which resets counters, and a missing program are not taken for loss."""
    counted = made.samples()
    anew = dataclasses.replace(
        counted[2], switches={host: Ends(up=5, down=5) for host in counted[2].switches}
    )
    assert not counting.is_suspicious([*counted[:2], anew])
    lost = [made.samples(lost_up=70)]
    away = Said(made.status(s1="restarted: its program and entries are gone, loading the program"), "")
    assert "loss" not in diagnose(running(samples=lost, then={"status": away})).codes
    assert "loss" not in diagnose(running(samples=lost, now={"status": away})).codes


def test_what_a_ports_own_counter_says() -> None:
    def port(lost: int) -> dict[tuple[str, int], Losses]:
        return {("s1", 3): {"transmit.on_request": lost}}

    found = diagnose(running(then={"losses": port(2)}, now={"losses": port(5)}))
    assert "link h3:s1 loses packets from s1 to h3: 3 in 0.6 s" in found.verdict
    found = diagnose(running(both={"losses": port(5)}))
    assert found.is_healthy
    assert "packets were lost earlier, and sent again: 5 from s1 to h3" in text(found)


def test_damaged_packets_by_direction() -> None:
    found = diagnose(
        running(
            then={"counters": Said([made.flow(1, bad_icrc=1, completed=1)], "")},
            now={"counters": Said([made.flow(1, bad_icrc=4, completed=9)], "")},
        )
    )
    assert "link h2:s1 damages packets from h2 to s1: 3 wrong checksums (ICRC)" in found.verdict
    before = [worker(worker_status(2, received=10, counters={"icrc_errors": 1}))]
    now = [worker(worker_status(2, counters={"icrc_errors": 2}))]
    found = diagnose(facts(now, before=before))
    assert (
        "link h3:s1 damages packets from s1 to h3: 1 wrong checksum (ICRC) in 0.6 s, 2 in all"
        in found.verdict
    )


def test_a_link_that_delays() -> None:
    echoes = {
        ("h1", "h2"): Echo(sent=8, received=8, fastest_ms=0.3),
        ("h2", "h3"): Echo(sent=8, received=8, fastest_ms=41.0),
        ("h3", "h4"): Echo(sent=8, received=8, fastest_ms=40.0),
        ("h4", "h1"): Echo(sent=8, received=8, fastest_ms=0.4),
    }
    found = diagnose(running(echoes=echoes))
    assert only_trouble(found) == "delay"
    assert (
        "link h3:s1 is slow: a ping over it takes 40 ms there and back, between other hosts 0.3 ms"
        in found.verdict
    )


def test_packets_that_overtake_each_other() -> None:
    before = [
        worker(worker_status(rank, received=10, counters={"out_of_order_received": 5})) for rank in made.RANKS
    ]
    now = [
        worker(worker_status(rank, counters={"out_of_order_received": 9 if rank == 1 else 5}))
        for rank in made.RANKS
    ]
    found = diagnose(facts(now, before=before))
    assert only_trouble(found) == "reordering"
    assert "packets overtake each other on link h2:s1, from s1 to h2" in found.verdict


def test_packets_that_overtake_each_other_on_the_management_network_are_no_links() -> None:
    """A job by ring whose switch is away: nothing of it takes a link of the fabric."""
    before = [worker(worker_status(rank, counters={"out_of_order_received": 5})) for rank in made.RANKS]
    now = [worker(worker_status(rank, counters={"out_of_order_received": 900})) for rank in made.RANKS]
    ring = job(mode=pb.RING, mode_reason="switch s1 is away")
    said = {"jobs": Said([ring], ""), "status": Said(made.status(s1="unreachable"), "")}
    found = diagnose(facts(now, before=before, both=said))
    assert not {"reordering", "gaps"} & set(found.codes), text(found)
    assert "ring-fallback" in found.codes


def test_packets_that_overtake_each_other_on_the_way_to_the_switch() -> None:
    """Check that the link is named where one rank, behind the sender, sees most, not where all see alike."""
    before = [worker(worker_status(rank, received=10)) for rank in made.RANKS]
    now = [
        worker(worker_status(rank, counters={"out_of_order_received": 40 if rank == 3 else 10}))
        for rank in made.RANKS
    ]
    assert "on link h3:s1, from h3 to s1" in diagnose(facts(now, before=before)).verdict
    even = [worker(worker_status(rank, counters={"out_of_order_received": 10})) for rank in made.RANKS]
    assert "sums come in another order to several ranks" in diagnose(facts(even, before=before)).verdict


def test_a_switch_that_counts_no_losses_leaves_two_possibilities() -> None:
    before = [worker(worker_status(rank, received=10)) for rank in made.RANKS]
    now = [
        worker(worker_status(rank, counters={"out_of_order_received": 9 if rank == 1 else 0}))
        for rank in made.RANKS
    ]
    found = diagnose(facts(now, before=before, both={"losses": {}}))
    assert only_trouble(found) == "gaps"
    assert "packets are lost or overtake each other on link h2:s1, from s1 to h2" in found.verdict


def test_copies_that_come_late() -> None:
    counters = Said([made.flow(1, unplaced=30, stale=12, completed=9)], "")
    found = diagnose(running(now={"counters": counters}))
    assert only_trouble(found) == "late-copies"
    assert "42 packets of job train rank 1 (h2) came in 0.6 s that belong to messages which are over" in (
        found.verdict
    )


def test_many_links_that_lose_are_one_finding() -> None:
    def ports(lost: int) -> dict[tuple[str, int], Losses]:
        return {("s1", port): {"receive.on_request": lost} for port in range(1, 5)}

    found = diagnose(running(then={"losses": ports(0)}, now={"losses": ports(3)}))
    assert only_trouble(found) == "loss"
    assert "4 links lose packets: h1:s1 from h1 to s1: 3 in 0.6 s; h2:s1 from h2 to s1: 3" in found.verdict


def test_links_that_lose_in_both_directions_are_counted_once() -> None:
    def ports(lost: int) -> dict[tuple[str, int], Losses]:
        counts = {"receive.on_request": lost, "transmit.on_request": lost}
        return {("s1", port): counts for port in (1, 2)}

    found = diagnose(running(then={"losses": ports(0)}, now={"losses": ports(3)}))
    assert only_trouble(found) == "loss"
    assert "2 links lose packets: h1:s1 from h1 to s1: 3 in 0.6 s; h1:s1 from s1 to h1: 3" in found.verdict


def test_a_link_between_switches_that_loses_at_both_ends_is_not_several() -> None:
    def ports(lost: int) -> dict[tuple[str, int], Losses]:
        counts = {"receive.on_request": lost, "transmit.on_request": lost}
        return {(link.a, link.a_port): counts, (link.b, link.b_port): counts}

    fabric = fabric_state("c1")
    link = fabric.links[0]
    processes = {f"switch {switch.name}": made.processes()["owner"] for switch in fabric.switches}
    both = {"jobs": Said([], ""), "lines": {}, "processes": {**made.processes(), **processes}}
    found = diagnose(
        facts([], cluster=fabric, both=both, then={"losses": ports(0)}, now={"losses": ports(3)})
    )
    assert {finding.where for finding in found.findings if finding.code == "loss"} == {link.name}


def test_frames_that_nobody_wants() -> None:
    port = pb.Port(switch="s1", port=4, host="h4")
    port.drops["spoofed"].packets = 6
    unnamed = pb.Port(switch="s1", port=9)
    unnamed.drops["unnamed"].packets = 7
    found = diagnose(
        running(
            now={
                "counters": Said([made.flow(2, foreign=3)], ""),
                "ports": Said([port, unnamed], ""),
            }
        )
    )
    said = text(found)
    assert (
        "switch s1: packets for job train rank 2 (h3)'s queue pair that are not from its peer were dropped: 3"
        in said
    )
    assert (
        "RoCE packets with another host's address, or marked as a switch marks sums, came from h4 and were "
        "dropped: 6 in 0.6 s" in said
    )
    assert (
        "switch s1: frames came in by port 9, which the configuration does not name, and were dropped: 7"
        in said
    )
    assert "needs a line in the controller's configuration" in said
    assert {"foreign-traffic", "spoofed", "unnamed-port"} <= set(found.codes)


def test_a_receive_ring_that_overflows() -> None:
    before = [worker(worker_status(0, received=1))]
    found = diagnose(facts([worker(worker_status(0, counters={"ring_drops": 40}))], before=before))
    assert only_trouble(found) == "ring-overflow"
    assert (
        "rank 0 (h1): its machine is too slow: 40 frames found no room in the receive ring" in found.verdict
    )


def test_rnr_naks_and_resent_packets_are_good_to_know() -> None:
    before = [
        worker(worker_status(rank, received=10, counters={"retransmitted_packets": 0})) for rank in made.RANKS
    ]
    now = [worker(worker_status(rank, counters={"retransmitted_packets": 2})) for rank in made.RANKS]
    found = diagnose(
        facts(
            now,
            before=before,
            then={"counters": Said([made.flow(1, not_ready=1)], "")},
            now={"counters": Said([made.flow(1, not_ready=4)], "")},
        )
    )
    assert found.is_healthy
    assert "8 packets sent again in 0.6 s" in found.verdict
    assert "rank 1 (h2)'s device was asked to wait (RNR NAK) 3 times" in text(found)


# Switches.


def away(state: str, **processes: ProcessState) -> Facts:
    return facts(
        waiting_for(9, worker(0)),
        both={
            "processes": made.processes(**processes),
            "status": Said(made.status(s1=state) if state else made.status(), ""),
        },
        last_words={"switch s1": "terminate called"},
    )


@pytest.mark.parametrize(
    ("state", "process", "code", "says"),
    [
        ("unreachable", ProcessState.GONE, "switch-dead", "switch s1 is dead, its process has ended"),
        ("", ProcessState.STOPPED, "switch-stopped", "switch s1 is stopped (process 102, SIGSTOP)"),
        (
            "restarted: its program and entries are gone, loading the program",
            ProcessState.RUNS,
            "switch-restarting",
            "switch s1 was restarted with nothing in it, and is being given its program again",
        ),
        (
            "somebody has replaced its program",
            ProcessState.RUNS,
            "program-replaced",
            "somebody has replaced the P4 program of switch s1",
        ),
        ("unreachable: no answer", ProcessState.RUNS, "switch-away", "no connection with switch s1"),
    ],
)
def test_what_a_switch_may_be(state: str, process: ProcessState, code: str, says: str) -> None:
    found = diagnose(away(state, switch_s1=process))
    assert found.codes[0] == f"waits:{code}"
    assert found.verdict.startswith("job train waits: ")
    assert says in found.verdict
    assert found.findings[0].do


def test_another_controller_of_a_switch_stops_no_job() -> None:
    found = diagnose(
        running(both={"status": Said(made.status(s1="another controller is primary (election id 9)"), "")})
    )
    assert only_trouble(found) == "p4runtime-taken"
    assert "switch s1 is taken by another P4Runtime controller" in found.verdict


# The controller.


def silent(why: str, *, late: bool = False) -> dict[str, Any]:
    return {name: Said(None, why, late) for name in ("jobs", "status", "counters", "ports", "links")}


@pytest.mark.parametrize(
    ("process", "code"),
    [
        (ProcessState.GONE, "controller-dead"),
        (ProcessState.STOPPED, "controller-stopped"),
        (ProcessState.SLEEPS, "controller-silent"),
    ],
)
def test_without_the_controller_workers_still_tell(process: ProcessState, code: str) -> None:
    seen = facts(
        waiting_for(2, worker(2, state=ProcessState.STOPPED)),
        both={**silent("no answer"), "processes": made.processes(controller=process)},
        slots=Said(None, "no answer"),
        last_words={"controller": "MemoryError"},
        management=dict.fromkeys(made.HOSTS, "Connection refused"),
    )
    found = diagnose(seen)
    assert "waits for rank 2 (h3): its process (202) is stopped" in found.verdict
    assert code in found.codes
    assert "no-way-to-controller" not in found.codes
    assert diagnose(seen, "other").codes[0] == code


def test_without_the_controller_workers_tell_that_their_job_has_ended() -> None:
    failed = [worker(worker_status(rank, failure="rank 1 (h2) has died")) for rank in made.RANKS]
    found = diagnose(facts(failed, both={**silent("no answer"), "processes": made.processes()}))
    assert found.verdict == "job train has ended: rank 1 (h2) has died."


def test_a_full_disk() -> None:
    found = diagnose(running(disk=Disk(path="/run/x.db", free_bytes=0)))
    assert only_trouble(found) == "disk-full"
    assert "new ones are refused" in found.verdict
    assert diagnose(running(disk=Disk(path="/run/x.db", free_bytes=1 << 30))).is_healthy
    assert not diagnose(running(disk=Disk(path="/run/x.db", free_bytes=1 << 30, free_inodes=0))).is_healthy


def test_a_host_that_does_not_reach_the_controller() -> None:
    info = job(ranks=[0, 1, 3], phase=pb.JOINING)
    found = diagnose(
        facts(
            [],
            both={"jobs": Said([info], "")},
            management={**dict.fromkeys(made.HOSTS, ""), "h3": "Network is unreachable"},
        )
    )
    assert found.codes[0] == "no-way-to-controller"
    assert "h3 does not reach the controller at 172.31.255.254:50051: Network is unreachable" in found.verdict
    said = text(found)
    assert "job train: waits for rank 2 to join, 3 of 4 have" in said


# Jobs at other points of their lives.


def test_ranks_that_have_not_joined() -> None:
    found = diagnose(facts([], both={"jobs": Said([job(ranks=[0, 2], phase=pb.JOINING)], "")}))
    assert only_trouble(found) == "joining"
    assert found.verdict == "job train: waits for ranks 1 and 3 to join, 2 of 4 have."
    assert "there: rank 0 (h1), rank 2 (h3)" in text(found)
    assert diagnose(facts([], both={"jobs": Said([job(ranks=[], phase=pb.CREATED)], "")})).is_healthy


def test_a_job_that_is_set_up() -> None:
    assert diagnose(facts([], both={"jobs": Said([job(phase=pb.READY)], "")})).is_healthy
    found = diagnose(
        facts(
            [],
            both={
                "jobs": Said([job(phase=pb.INSTALLING)], ""),
                "status": Said(made.status(s1="unreachable"), ""),
            },
        )
    )
    assert "the switches are being written; the controller has no connection with switch s1" in found.verdict


def test_why_a_job_ended() -> None:
    gone = job(phase=pb.ENDED)
    gone.ended.CopyFrom(pb.Ended(reason="rank 1 (h2) has died", rank=1))
    found = diagnose(facts([], both={"jobs": Said([gone], "")}))
    assert found.verdict == "job train has ended: rank 1 (h2) has died."
    assert found.findings[0].rank == 1
    live = job("other")
    found = diagnose(facts([], both={"jobs": Said([gone, live], "")}))
    assert found.is_healthy, "another job runs: what ended before is history"
    assert diagnose(facts([], both={"jobs": Said([gone, live], "")}), "train").codes[0] == "ended-early"
    for how in ({"cause": "MISMATCH"}, {"mismatch": True}):  # the last: of a controller without causes
        gone.ended.CopyFrom(pb.Ended(reason="rank 0: barrier; rank 1: all_reduce", **how))
        found = diagnose(facts([], both={"jobs": Said([gone], "")}))
        assert found.codes[0] == "mismatch"
        assert "same collectives in the same order" in text(found)
    gone.ended.CopyFrom(pb.Ended(reason="all workers have left", cause="DELETED"))
    assert not diagnose(facts([], both={"jobs": Said([gone], "")})).is_healthy, "the text says nothing"
    gone.ended.CopyFrom(pb.Ended(reason="nobody is there any more", cause="ALL_LEFT"))
    assert diagnose(facts([], both={"jobs": Said([gone], "")})).is_healthy


def test_what_is_wrong_now_comes_before_what_has_ended() -> None:
    """Jobs that ended long ago are counted; one of the last minutes comes last, unless it is asked for."""
    gone = []
    for number in range(7):
        one = job(f"old{number}", phase=pb.ENDED, ended_s_ago=7200.0)
        one.ended.CopyFrom(pb.Ended(reason="rank 1 (h2) has died", rank=1))
        gone.append(one)
    found = diagnose(facts([], both={"jobs": Said(gone, "")}))
    assert found.codes == ("ended-jobs",)
    assert found.is_healthy
    assert found.findings[0].says == "7 jobs have ended: old0, old1, old2, old3, old4 and 2 more"
    assert "p4reduce job clear" in text(found)
    gone[3].ended_s_ago = 60.0
    cut = {"jobs": Said(gone, ""), "status": Said(made.status(s1="unreachable"), "")}
    found = diagnose(facts([], both=cut))
    assert found.codes[0] != "ended-early"
    assert found.codes[-2:] == ("ended-early", "ended-jobs")
    assert diagnose(facts([], both=cut), "old3").codes[0] == "ended-early"


def test_who_did_not_join_a_job_that_has_just_been_given_up() -> None:
    gone = job(phase=pb.ENDED, generation=0, ranks=(0, 2), ended_s_ago=30.0)
    gone.ended.CopyFrom(pb.Ended(reason="rank 0 on h1 could not start: ranks 1, 3 have not joined", rank=0))
    found = diagnose(facts([], both={"jobs": Said([gone, job("other")], "")}))
    assert only_trouble(found) == "not-begun"
    assert "job train ended 30.0 s ago before it had begun, as ranks 1 and 3 did not join" in found.verdict
    gone.ended_s_ago = 3600.0
    assert diagnose(facts([], both={"jobs": Said([gone, job("other")], "")})).is_healthy


def test_a_job_that_runs_by_ring_and_why() -> None:
    queued = job(mode=pb.RING, mode_reason="no room")
    queued.waitlisted.CopyFrom(pb.Waitlisted(position=2, reason="s1 has 64 slots left", waiting_s=30))
    found = diagnose(running(both={"jobs": Said([queued], "")}))
    assert only_trouble(found) == "waits-for-slots"
    assert "number 2 in the queue for slots, for 30.0 s: s1 has 64 slots left" in found.verdict
    ring = job(mode=pb.RING, mode_reason="switch s1 is away")
    found = diagnose(running(both={"jobs": Said([ring], "")}))
    assert only_trouble(found) == "ring-fallback"
    assert "not in the network: switch s1 is away" in found.verdict
    ring.spec.mode = pb.RING
    assert diagnose(running(both={"jobs": Said([ring], "")})).is_healthy, "it was asked for"


def test_a_renewal_and_whom_it_waits_for() -> None:
    info = job(renewing=True, renewal_reason="switch s1 was restarted", awaited=[2])
    found = diagnose(
        facts(waiting_for(2, worker(2, state=ProcessState.STOPPED)), both={"jobs": Said([info], "")})
    )
    assert found.codes[0] == "renewing"
    assert found.verdict == (
        "job train: is being renewed (switch s1 was restarted), waits for rank 2 (h3) to answer: its process "
        "(202) is stopped (SIGSTOP)."
    )
    moving = job(awaited=[1, 2])
    found = diagnose(facts(idle(), both={"jobs": Said([moving], "")}))
    assert (
        "is being moved between ring and switch, waits for rank 1 (h2) and rank 2 (h3) to answer"
        in found.verdict
    )
    over = job(renewals=2, renewal_reason="switch s1 was restarted")
    found = diagnose(running(both={"jobs": Said([over], "")}))
    assert found.is_healthy
    assert "went on under a new generation 2 times, last because: switch s1 was restarted" in text(found)


# All of it together.


def test_injected_faults_and_dead_clusters_are_good_to_know() -> None:
    found = diagnose(running(rules=["#1 loss of 1% on h1"], left_behind=["old"]))
    assert found.is_healthy
    said = text(found)
    assert "a fault is injected on purpose: #1 loss of 1% on h1" in said
    assert "p4reduce down old" in said


def test_the_worst_comes_first_and_json_has_all() -> None:
    found = diagnose(
        facts(
            waiting_for(2, worker(2, state=ProcessState.STOPPED)),
            samples=[made.samples(lost_up=70)],
            slots=Said([slot([2])], ""),
        )
    )
    severities = [finding.severity for finding in found.findings]
    assert severities == sorted(severities)
    as_json = found.to_json()
    assert as_json["is_healthy"] is False
    assert [row["code"] for row in as_json["findings"]] == ["waits:worker-stopped", "loss"]
    assert as_json["findings"][0]["rank"] == 2


def test_an_uplink_that_is_down_and_whether_its_traffic_has_moved() -> None:
    fabric = fabric_state("c1")
    lines = {
        name: Line(
            name=name, is_up=name != "l1:s1", up=Traffic(), down=Traffic(), rate_mbit=None, uplink=True
        )
        for name in ("l1:s1", "l1:s2", "l2:s1", "l2:s2")
    }

    def said(dead: str = "", **down: bool) -> Diagnosis:
        links = [
            pb.Link(a=a, b=b, up=not down.get(f"{a}{b}", False), state="up")
            for a in ("l1", "l2")
            for b in ("s1", "s2")
        ]
        both = {"jobs": Said([], ""), "lines": lines, "links": Said(links, "")}
        processes = {f"switch {switch.name}": made.processes()["owner"] for switch in fabric.switches}
        if dead:
            processes[f"switch {dead}"] = Process(7, ProcessState.GONE)
        both["processes"] = {**made.processes(), **processes}
        return diagnose(facts([], cluster=fabric, both=both))

    assert only_trouble(said(l1s1=True)) == "uplink-down"
    lines["l1:s1"] = dataclasses.replace(lines["l1:s1"], is_up=True)
    assert "look at both ends" in text(said(l1s1=True))
    spine = said("s1", l1s1=True, l2s1=True)
    assert only_trouble(spine) == "switch-dead"
    assert "link l1:s1 carries nothing, as switch s1 does not run: what l1 sent over it has moved" in text(
        spine
    )
    assert "look at both ends" not in text(spine), "nothing is wrong with its links"
    lines["l1:s1"] = dataclasses.replace(lines["l1:s1"], is_up=False)
    assert said(l1s1=True).verdict == "link l1:s1 is down: what l1 sent over it has moved to s2."
    assert "the controller will notice by its probes, and move what l1 sends to s2" in said().verdict
    assert "there is no other way out of l1" in said(l1s1=True, l1s2=True).verdict


# Several GPUs a machine.


def plane(number: int, **fields: Any) -> pb.JobInfo:
    """Return a plane of gang train, whose machines have two GPUs; its ranks are the machines."""
    gang = pb.Gang(name="train", plane=number, planes=2)
    return job(f"train/{number}", spec=pb.JobSpec(name=f"train/{number}", world_size=4, gang=gang), **fields)


def test_who_keeps_a_gang_waiting_is_named_by_machine_and_gpu() -> None:
    """GPU 1 of machine 2 is late: its plane waits for it, and so does GPU 0 of its machine."""
    late = worker(worker_status(2, job="train/1", local_rank=1), job="train/1")
    waits = worker(worker_status(2, job="train/0", local_rank=0, waits_for=(1,)), job="train/0")
    others = [
        worker(in_call(rank, job=f"train/{number}", local_rank=number), job=f"train/{number}")
        for number in range(2)
        for rank in (0, 1, 3)
    ]
    planes = {"jobs": Said([plane(0), plane(1)], ""), "counters": Said([], "")}
    found = text(diagnose(facts([late, waits, *others], both=planes)))
    assert "job train/1: waits for GPU 1 of machine 2 (h3): it has not called" in found
    assert "job train/0: waits for GPU 0 of machine 2 (h3): it waits for GPU 1 of its own machine" in found


def test_a_gpu_s_process_that_was_killed_is_named_by_machine_and_gpu() -> None:
    gone = worker(1, job="train/1", state=ProcessState.GONE)
    others = [worker(in_call(rank, job="train/1", local_rank=1), job="train/1") for rank in (0, 2, 3)]
    info = plane(1)
    info.workers[1].connected = False
    info.workers[1].heard_s_ago = 1.2
    found = diagnose(facts([gone, *others], both={"jobs": Said([info], ""), "counters": Said([], "")}))
    assert "job train/1: waits for GPU 1 of machine 1 (h2): its process (201) is gone" in found.verdict


def test_a_gang_that_waits_for_workers_says_once_which_gpus_of_which_machines() -> None:
    there, begun = plane(0, phase=pb.JOINING), plane(1, phase=pb.JOINING, ranks=(0,))
    found = diagnose(facts([], both={"jobs": Said([there, begun], "")}))
    assert only_trouble(found) == "joining"
    assert found.verdict == (
        "gang train: waits for GPU 1 of machine 1 (h2), GPU 1 of machine 2 (h3) and GPU 1 of machine 3 (h4) "
        "to join, 5 of 8 have."
    )
    alone = diagnose(facts([], both={"jobs": Said([plane(1, phase=pb.JOINING, ranks=(2,))], "")}))
    assert "waits for GPUs 0 and 1 of machine 0, GPUs 0 and 1 of machine 1, GPU 0 of machine 2" in text(alone)
