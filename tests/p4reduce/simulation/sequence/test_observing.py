"""Observations of a run: they are what happened in it, and it happens as it does without them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from p4reduce.oracle.rules import Writes
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.playing import run
from p4reduce.simulation.faults.schedule import Mishap, Schedule, Strike
from p4reduce.simulation.sequence.steps import Step
from tests.p4reduce.simulation.planted import change_rule
from tests.p4reduce.simulation.sequence.shown import EXAMPLES, NAMES, example, observed, steps_of


def rules(steps: list[Step]) -> list[str]:
    """Return the rules that packets met, in order."""
    return [step.rule.name for step in steps if step.rule is not None]


def said(steps: list[Step]) -> str:
    return "\n".join(line for step in steps for line in step.said)


@pytest.mark.parametrize("seed", [1, 2, 8, 17, 42])
def test_a_run_is_the_same_when_it_is_observed(seed: int) -> None:
    alone, (outcome, _) = run(draw(seed)), observed(draw(seed))
    for name in ("error", "events", "packets", "simulated_s", "trace", "strikes", "jobs"):
        assert getattr(outcome, name) == getattr(alone, name), name


@pytest.mark.long
def test_many_runs_are_the_same_and_end_with_the_same_words() -> None:
    for seed in range(100, 125):
        alone, (outcome, _) = run(draw(seed)), observed(draw(seed))
        assert (outcome.error, outcome.events, outcome.trace) == (alone.error, alone.events, alone.trace), (
            seed
        )


def test_every_packet_is_an_arrow_and_every_arrow_comes_or_is_lost() -> None:
    outcome, observer = observed(draw(8))
    steps = observer.parts.chosen(failed=False).steps
    left = [arrow for step in steps for arrow in step.left]
    came = [step.came for step in steps if step.came is not None]
    assert len([arrow for arrow in left if not arrow.is_copy]) == outcome.packets
    assert outcome.strikes
    struck = Counter(kind for arrow in left for kind in arrow.strikes)
    assert struck == Counter(strike.kind for strike in outcome.strikes)
    arrived = {id(arrow) for arrow in came}
    late = max(step.now_ns for step in steps)  # what is under way when all is over comes no more
    assert all(id(arrow) in arrived or arrow.lost or arrow.arrives_ns >= late for arrow in left)
    for step in steps:
        if step.came is not None:
            assert (step.came.arrives_ns, step.came.target) == (step.now_ns, step.where)


def test_each_link_fault_is_marked_on_the_packet_that_it_struck() -> None:
    kinds = ["loss", "duplicate", "reorder", "corrupt", "stale"]
    strikes = [Strike("h1-1>l1", n, kind, after_ns=5_000, bit=900) for n, kind in enumerate(kinds[:3])]
    strikes += [Strike("h1-2>l1", n, kind, after_ns=5_000, bit=900) for n, kind in enumerate(kinds[3:])]
    steps = steps_of(replace(example("plain-sum"), strikes=strikes))
    found = {kind: arrow for step in steps for arrow in step.left for kind in arrow.strikes}
    assert set(found) == set(kinds)
    assert found["loss"].lost == "the link loses it"
    assert found["corrupt"].packet.kind == "broken"
    assert {found[kind].late_ns for kind in ("duplicate", "reorder", "stale")} == {5_000}
    assert [found[kind].is_copy for kind in kinds] == [False, True, False, False, True]
    assert "counts it as bad_icrc" in said(steps)


def test_a_plain_sum_claims_adds_and_completes_each_slot() -> None:
    steps = steps_of(example("plain-sum"))
    assert Counter(rules(steps)) == {"1 claim": 3, "2 add": 3, "2 complete": 3}
    assert not any(step.is_fault for step in steps)
    slot = [step.changes["l1/1"] for step in steps if "l1/1" in step.changes]
    numbers = [list(map(int, state["numbers"].split())) for state in slot if state is not None]
    brought = [
        list(map(int, dict(step.came.packet.layers)["payload"][1].split()))
        for step in steps
        if step.came is not None and step.touched == "l1/1"
    ]
    assert numbers == [[sum(column) for column in zip(*brought[: n + 1], strict=True)] for n in range(3)]
    assert [state["in"] for state in slot if state] == [[0], [0, 1], [0, 1, 2]]
    assert [state["sum"] for state in slot if state] == [False, False, True]


def test_a_lost_result_is_answered_from_the_slot() -> None:
    steps = steps_of(example("lost-result"))
    lost = next(n for n, step in enumerate(steps) if any(arrow.lost for arrow in step.left))
    assert steps[lost].mark == "2 complete"
    assert next(step.mark for step in steps[lost:] if step.where == "h1-2" and step.mark) == "gap"
    replayed = [step for step in steps[lost:] if step.rule is not None and step.rule.name == "4 replay"]
    assert [[arrow.target for arrow in step.left] for step in replayed] == [["h1-2"]] * 3
    assert all(step.came is not None and step.came.again for step in replayed)


def test_what_follows_a_lost_first_is_unplaced() -> None:
    steps = steps_of(example("lost-first-packet"))
    marks = [step.mark for step in steps if step.mark]
    assert marks.index("unplaced") < marks.index("gap") < marks.index("4 replay")
    assert "h1-1" in {step.where for step in steps if step.mark == "gap"}


def test_what_a_straggler_s_peers_repeat_is_dropped() -> None:
    found = rules(steps_of(example("straggler")))
    assert found[:2] == ["1 claim", "2 add"]
    assert found[-1] == "2 complete"
    assert set(found[2:-1]) == {"3 duplicate"}


def test_a_switch_that_restarts_has_lost_its_slots_and_the_job_a_new_generation() -> None:
    _, observer = observed(example("switch-that-restarts"))
    steps = list(observer.parts.chosen(failed=False).steps)
    empty = next(n for n, step in enumerate(steps) if step.changes.get("l1/0", 0) is None)
    assert steps[empty].kind == "fault"
    slots = [
        state for step in steps for state in step.changes.values() if state is not None and "slot" in state
    ]
    assert len({slot["generation"] for slot in slots}) == 2
    assert "l1 is down, or has no program yet" in said(steps[empty:])
    [mark] = observer.marks
    again = next(step.now_ns for step in steps[empty:] if step.rule is not None)
    assert mark.until_ns is not None
    assert mark.from_ns < mark.until_ns < again
    assert all(
        arrow.lost
        for step in steps
        for arrow in [step.came]
        if arrow and mark.from_ns < step.now_ns < mark.until_ns and step.where == "l1"
    )


def test_leaves_and_spines_have_rules_of_their_own() -> None:
    steps = steps_of(example("two-racks"))
    found = {step.rule.name: step for step in steps if step.rule is not None}
    assert {"2 whole rack", "sum for rack", "3 up again", "4 replay"} <= set(found)
    assert found["2 whole rack"].left[0].packet.label == "PARTIAL m0.0"
    spine = found["2 complete"].changes["s1/0"]
    assert spine is not None
    assert spine["of"] == ["l1", "l2"]
    kinds = Counter(arrow.packet.kind for step in steps for arrow in step.left)
    assert kinds["partial"] == 3
    assert kinds["result"] == 3


def test_the_protocol_links_every_example() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "protocol.md").read_text()
    assert sorted(re.findall(r"\(\.\./examples/protocol/([\w-]+)\.json\)", page)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_what_it_is_about_and_all_its_checks_hold(name: str) -> None:
    schedule = example(name)
    outcome, observer = observed(schedule)
    assert schedule.about
    assert not outcome.error
    assert len(observer.parts.chosen(failed=False).steps) < 100  # to be gone through by hand


def test_workers_stand_where_their_endpoints_say() -> None:
    steps = steps_of(example("plain-sum"))
    last = {
        name: state for step in steps for name, state in step.changes.items() if name.startswith("worker")
    }
    assert [state and (state["posted"], state["acked"], state["received"]) for state in last.values()] == [
        (2, 2, 2)
    ] * 3


def test_a_stopped_worker_s_packets_wait_and_a_dead_one_s_are_nobody_s() -> None:
    def with_mishap(kind: str, lasts_ns: int) -> str:
        mishap = Mishap(18_000, kind, job=1, rank=0, lasts_ns=lasts_ns, since=1)
        return said(steps_of(replace(example("plain-sum"), mishaps=[mishap])))

    assert "rank 0 (h1-1) is stopped: sum m0.0 First waits in its queue" in with_mishap(
        "worker-pause", 300_000
    )
    assert "nobody at h1-1 takes sum m0.0 First: there is no such queue pair" in with_mishap("worker-kill", 0)


def test_what_comes_by_a_link_that_is_down_is_lost() -> None:
    mishap = Mishap(5_000, "link-down", "h1-3:l1", lasts_ns=20_000, since=1)
    steps = steps_of(replace(example("plain-sum"), mishaps=[mishap]))
    assert "m0.0 First is lost: the link is down" in said(steps)


def test_packets_over_a_backup_network_are_seen_too() -> None:
    schedule = example("switch-that-restarts")
    job = replace(schedule.jobs[0], backup=True)
    away = [replace(schedule.mishaps[0], lasts_ns=20_000_000_000)]
    steps = steps_of(replace(schedule, jobs=[job], mishaps=away))
    hosts = {"h1-1", "h1-2", "h1-3"}
    straight = [arrow for step in steps for arrow in step.left if {arrow.source, arrow.target} <= hosts]
    assert len(straight) > 3


def test_a_run_that_fails_ends_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    change_rule(monkeypatch, "3 duplicate", writes=Writes.ADD)
    schedule = example("straggler")
    outcome, observer = observed(schedule, most=10)
    assert "is wrong at 64 of 64 elements" in outcome.error
    part = observer.parts.chosen(failed=True)
    assert len(part.steps) == 10
    assert part.after == 0
    assert (part.steps[-1].kind, part.steps[-1].said) == ("error", [outcome.error])
    assert part.steps[-2].where == "h1-1"  # who got the wrong sum
    assert "3 duplicate" in {step.mark for step in part.steps}  # the rule that did it


def test_small_numbers_are_small() -> None:
    schedule: Schedule = example("plain-sum")
    arrays = schedule.jobs[0].work[0].case().inputs(3, 0)
    assert all(array.min() > 0 and array.max() < 100 for array in arrays)
