"""Rules of schedules in files, and refusals of files that break them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.playing import Outcome, run
from p4reduce.simulation.faults.schedule import Mishap, Schedule, ScheduleError, Strike, Work
from p4reduce.simulation.faults.shrinking import Shrinker

SCHEDULES = sorted((Path(__file__).parent / "schedules").glob("*.json"))
FABRIC = json.loads((Path(__file__).parent / "schedules" / "dropped-in-a-pause.json").read_text())
ANYTHING: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 33, 256, 2**24, 2**64, 10**400, -0.5, 0.5, 1e300),
    *(float("nan"), float("inf"), "", "x", "l1", "h1-1:l1", "\ud800", "RING", "link-down", "loss"),
    *([], {}, [0], ["x"], [[]], {"a": 1}, {"kind": "loss"}),
]
LONG = 200_000  # events


def refusal(**changed: Any) -> str:
    with pytest.raises(ScheduleError) as refused:
        Schedule.from_json(json.dumps({**FABRIC, **changed}))
    return str(refused.value)


def job(**changed: Any) -> list[Any]:
    return [{**FABRIC["jobs"][0], **changed}]


def work(**changed: Any) -> list[Any]:
    return job(work=[{**FABRIC["jobs"][0]["work"][0], **changed}])


def mishap(**changed: Any) -> list[Any]:
    return [{**FABRIC["mishaps"][0], **changed}]


def strike(**changed: Any) -> list[Any]:
    return [{"link": "h1-1>l1", "frame": 0, "kind": "loss", **changed}]


CALL = Work(module="in_network", name="all_reduce", dtype="int32", elements=4)


def gang_that_calls(works: list[list[Work]], cancels: list[list[list[int]]] | None = None) -> Schedule:
    """Return two machines of two GPUs: by plane what is called, and which rank cancels which call."""
    schedule = draw(0)
    plane = replace(schedule.jobs[0], hosts=[0, 1], gang=1)
    pairs = zip(works, cancels or [[]] * len(works), strict=True)
    return replace(schedule, jobs=[replace(plane, work=work, cancels=some) for work, some in pairs])


@pytest.mark.slow
def test_what_is_drawn_can_be_read_again() -> None:
    for seed in range(400):
        assert Schedule.from_json(draw(seed).to_json()) == draw(seed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"spines": "x"}, 'spines is "x": it should be a valid integer'),
        ({"spines": -1}, "spines is -1: it should be greater than or equal to 0"),
        ({"spines": 1.0}, "spines is 1.0: it should be a valid integer"),
        ({"spines": True}, "spines is true: it should be a valid integer"),
        ({"spines": 0}, "without spines, hosts is a list of 2: it should be a list of one"),
        ({"seed": 2**64}, f"seed is {2**64}: it should be less than or equal to {2**64 - 1}"),
        ({"hosts": []}, "hosts is a list of 0: List should have at least 1 item"),
        ({"hosts": [2, 99]}, "hosts[1] is 99: it should be less than or equal to 32"),
        ({"spread": "x"}, 'spread is "x": it should be one of "jobs", "messages"'),
        ({"spread": "x" * 99}, f'spread is "{"x" * 39}...: it should be one of "jobs", "messages"'),
        ({"slots": 10**400}, f"slots is 1{'0' * 39}...: it should be less than or equal to 8192"),
        ({"jobs": []}, "jobs is a list of 0: List should have at least 1 item"),
        ({"jobs": [3]}, "jobs[0] is 3: it should be an object"),
        ({"host_rates": {"loss": 2}}, "host_rates.loss is 2: it should be less than or equal to 1"),
        (
            {"host_rates": {"loss": float("nan")}},
            "host_rates.loss is NaN: it should be less than or equal to 1",
        ),
        ({"uplink_rates": None}, "uplink_rates is null: it should be an object"),
        ({"extra": 1}, "extra is 1: known here are seed, spines, hosts, jobs, "),
        ({"latencies": {"gap/l1>s1": "x"}}, 'latencies."gap/l1>s1" is "x": it should be a valid integer'),
        (
            {"latencies": {"psn/256": 2**24}},
            'latencies."psn/256" is 16777216: it should be a PSN of 24 bits',
        ),
        (
            {"timing": {"hosts": 1}},
            'a name in timing is "hosts": it should be one of heartbeat_interval_s, ',
        ),
        ({"timing": {"heartbeat_interval_s": 9}}, "heartbeat_interval_s must be above 0 and below"),
        ({"jobs": job(hosts=[0, 3])}, "jobs[0].hosts[1] is 3: it should be the number of a host"),
        (
            {"jobs": job(qpns=[256])},
            "jobs[0].qpns is a list of 1: it should be a list of 2, one for each rank",
        ),
        ({"jobs": job(qpns=[256, 2**24])}, "jobs[0], rank 1: qpn_out 16777216 is not within 2..16777215"),
        (
            {"jobs": job(late_ns=[1])},
            "jobs[0].late_ns is a list of 1: it should be a list of 2, one for each rank",
        ),
        ({"jobs": job(rnr=[2])}, "jobs[0].rnr[0] is 2: it should be a rank below 2"),
        ({"jobs": job(after=1)}, "jobs[0].after is 1: it should be an earlier job: 0 at most"),
        ({"jobs": job(window=3)}, "a window of 3 messages is not possible"),
        ({"jobs": job(path_mtu=1000)}, "path MTU 1000 is none of 256, 512"),
        ({"jobs": job(elastic=1)}, "jobs[0].elastic is 1: it should be a valid boolean"),
        ({"jobs": job(mode="TREE")}, 'jobs[0].mode is "TREE": it should be one of "", "IN_NETWORK", "RING"'),
        ({"jobs": work(name="reduce_scatter")}, '.work[0].name is "reduce_scatter": it should be another'),
        (
            {"jobs": work(elements=10**12)},
            "jobs[0].work[0].elements is 1000000000000: it should be less than",
        ),
        ({"mishaps": mishap(kind="meteor")}, 'mishaps[0].kind is "meteor": it should be one of "worker-'),
        ({"mishaps": mishap(job=2)}, "mishaps[0].job is 2: it should be 1 to 1"),
        ({"mishaps": mishap(since=2)}, "mishaps[0].since is 2: it should be 1 at most"),
        ({"mishaps": mishap(at_ns=-5)}, "mishaps[0].at_ns is -5: it should be greater than or equal to 0"),
        ({"mishaps": [{"kind": "disk-full"}]}, "mishaps[0].at_ns is missing"),
        (
            {"mishaps": mishap(kind="link-down", what="h9:l1")},
            'mishaps[0].what is "h9:l1": it should be one of h1-1:l1, ',
        ),
        (
            {"mishaps": mishap(kind="switch-restart", what="s2")},
            'mishaps[0].what is "s2": it should be one of l1, l2, s1',
        ),
        ({"strikes": strike(link="h1:l1")}, 'strikes[0].link is "h1:l1": it should be one of h1-1>l1, '),
        ({"strikes": strike(frame=None)}, "strikes[0].frame is null: it should be a valid integer"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_a_refusal_names_the_field_its_value_and_what_would_do(changed: dict[str, Any], said: str) -> None:
    assert said in refusal(**changed)


def test_a_field_with_a_default_may_be_left_out() -> None:
    needed = {name: FABRIC[name] for name in ("p4reduce_schedule", "seed", "spines", "hosts", "jobs")}
    assert Schedule.from_json(json.dumps(needed)).host_rates.loss == 0


@pytest.mark.parametrize("text", ["[" * 100_000, '{"seed": ' + "9" * 5000 + "}", "NaN", '"\\ud800"', "{"])
def test_what_json_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="this is no"):
        Schedule.from_json(text)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each object or list of a document, with each of its keys."""
    for key, value in list(document.items() if isinstance(document, dict) else enumerate(document)):
        yield document, key
        if isinstance(value, dict | list):
            yield from places(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        *SCHEDULES[::4],
        *(pytest.param(path, marks=pytest.mark.long) for path in SCHEDULES if path not in SCHEDULES[::4]),
    ],
    ids=lambda path: path.stem,
)
def test_whatever_a_file_has_is_refused_or_played(path: Path) -> None:
    """Replace one value after the other by what it may not be, or leave it out.

    A tenth of what is not refused is played, and less where that is long.
    """
    chance = random.Random(path.name)
    original, read = json.loads(path.read_text()), []
    for n in range(len(list(places(original)))):
        document = copy.deepcopy(original)
        parent, key = list(places(document))[n]
        for value in [*ANYTHING, places]:
            if value is places:
                del parent[key]
            else:
                parent[key] = value
            with suppress(ScheduleError):
                read.append(((key, value), Schedule.from_json(json.dumps(document))))
    events = 0
    some = chance.sample(read, len(read) // 10)
    assert len(some) > 10
    for played, (changed, schedule) in enumerate(some):
        if played > 10 and events > LONG:
            break
        outcome = run(schedule)
        events += outcome.events
        assert not outcome.error or "for no reason: " in outcome.error, changed
        assert schedule.in_words()


def test_what_is_made_short_can_be_played_again() -> None:
    """Check that no fault stays of hosts, switches and jobs that are gone."""
    schedule = next(s for s in map(draw, range(500)) if s.spines > 1 and len(s.jobs) > 2 and len(s.hosts) > 2)
    mishaps = [
        Mishap(1, "link-down", f"l{len(schedule.hosts)}:s{schedule.spines}"),
        Mishap(2, "switch-restart", f"s{schedule.spines}", since=3),
        Mishap(3, "worker-kill", job=3, since=2),
    ]
    strikes = [Strike(f"l1>s{schedule.spines}", 0, "loss")]
    played: list[Schedule] = []

    def fails(one: Schedule) -> Outcome:
        played.append(one)
        return Outcome(one, error="it fails" if one.mishaps or one.strikes else "")

    began = replace(schedule, mishaps=mishaps, strikes=strikes)
    shrunk = Shrinker(Outcome(began, error="it fails"), fails, seconds=60).shrink()
    assert shrunk.schedule.faults == 1
    assert len(shrunk.schedule.jobs) == 1
    for one in played:
        assert Schedule.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("is_cancelled_by_all", "cancels", "differs_at"),
    [
        (False, [[], []], None),
        (False, [[[0, 1]], []], 1),
        (False, [[[0, 1], [1, 1]], []], 1),
        (False, [[[0, 1], [1, 1]], [[0, 1], [1, 1]]], None),
        (True, [[[0, 1]], []], None),
    ],
)
def test_who_cancels_what_others_do_not_differs(
    is_cancelled_by_all: bool, cancels: list[list[list[int]]], differs_at: int | None
) -> None:
    work = [CALL, replace(CALL, cancelled=is_cancelled_by_all)]
    assert gang_that_calls([work, work], cancels).differs_at(0) == differs_at


def test_machines_do_not_notice_who_does_without_an_empty_call() -> None:
    cancelled_by_one_machine = [[[0, 1]], [[0, 1]]]
    empty = replace(CALL, elements=0)
    for other, differs_at in ((empty, None), (replace(empty, strict=True), 1), (CALL, 1)):
        work = [CALL, other]
        assert gang_that_calls([work, work], cancelled_by_one_machine).differs_at(0) == differs_at


def test_planes_that_call_otherwise_differ() -> None:
    other = [CALL, replace(CALL, strict=True)]
    assert gang_that_calls([[CALL, CALL], other]).differs_at(0) == 1
    assert gang_that_calls([[CALL, CALL], [CALL]]).differs_at(0) == 1
    cancelled = [[replace(work, cancelled=True) for work in calls] for calls in ([CALL, CALL], other)]
    assert gang_that_calls(cancelled).differs_at(0) is None
