"""A worker in a running job as a machine: who starts, in which mode, and what becomes of what is cut.

Each script is rows of what happens, and all that is to be done for it. A word is a call ("not start 1": it
says no; "run 0": start, result, end), a dict what the machine says of itself then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any, TypeAlias

import pytest

from controller.api.messages import (
    Called,
    Compare,
    Held,
    HoldAt,
    Mode,
    Moved,
    Pause,
    Paused,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Start,
    Up,
    Worker,
)
from host_agent.member import (
    IN_NETWORK_LIMIT,
    Action,
    Again,
    Connect,
    Cut,
    Drop,
    Exhausted,
    Inconsistent,
    Member,
    Offer,
    Repair,
    Say,
    Settle,
    Stage,
    WentOn,
)
from host_agent.membership import MembershipChange, Request, View
from host_agent.recovery import Window

Event: TypeAlias = "Request | str | dict[str, Any]"
Row: TypeAlias = "Event | tuple[Event | Action, ...]"

NEIGHBOUR = Worker(rank=0, mac="", ip=IPv4Address("10.0.0.1"), qpn_out=1, psn_out=1, qpn_in=2)
READY = Ready(
    job_id=5,
    generation=77,
    window=8,
    message_packets=16,
    path_mtu=1024,
    mode=Mode.RING,
    mode_reason="no room",
    successor=NEIGHBOUR,
    predecessor=NEIGHBOUR,
    heartbeat_interval_s=1.0,
    heartbeat_timeout_s=5.0,
)
FRESH = {"qpn_out": 300, "psn_out": 9, "qpn_in": 301}
RENEW, AGAIN = Renew(1, "a switch restarted"), Renew(2, "another one did")
CUT, CUT_AGAIN = Cut(RENEW.reason, planned=False), Cut(AGAIN.reason, planned=False)


def renewing(number: int, collective: int = 0, *, over: int = 0) -> Say:
    return Say(Renewing(renewal=number, collective=collective, called=0, over=over, **FRESH))


def renewed(number: int, collective: int = 0, *, holder: int | None = None, dead: bool = False) -> Renewed:
    """Return a Renewed of that number. `dead`: without rank 0."""
    ready = replace(
        READY,
        generation=77 + number,
        window=2,
        rank=0 if dead else 1,
        world_size=2 if dead else 3,
        mode=Mode.IN_NETWORK,
        mode_reason="",
    )
    members = (1, 2) if dead else (0, 1, 2)
    return Renewed(renewal=number, ready=ready, collective=collective, holder=holder, members=members)


def connect(number: int) -> Connect:
    return Connect(number, renewed(number).ready)


def went_on(number: int, before: Mode = Mode.IN_NETWORK) -> WentOn:
    return WentOn(renewed(number).ready, before, None)


def do(one: Member, event: Event) -> None:
    if isinstance(event, dict):
        assert {name: getattr(one, name) for name in event} == event
    elif not isinstance(event, str):
        one.hear(event)
    elif event.startswith("run "):
        number = int(event[4:])
        assert one.start(number)
        one.replay_log.finished = (number + 1) % 2**32
        one.ended()
    else:
        name, *numbers = event.removeprefix("not ").split()
        says = getattr(one, name)(*map(int, numbers), **(FRESH if name == "offered" else {}))
        assert (says is False) == event.startswith("not "), event


def play(rows: Sequence[Row], ready: Ready = READY) -> Member:
    """Return a member after a script: in each row, events come first, then the actions that they cause."""
    one = Member(ready, View.first(1, 3))
    for row in rows:
        both = row if isinstance(row, tuple) else (row,)
        events = [it for it in both if not isinstance(it, Action)]
        for event in events:
            do(one, event)
        assert one.actions() == [it for it in both if isinstance(it, Action)], row
    return one


IDLE: list[Row] = [  # as far as to the last of a renewal's steps, of a worker that runs nothing
    (RENEW, CUT, Offer(1)),
    ("offered 1", renewing(1)),
    (renewed(1), connect(1)),
    ("connected 1", Say(Up())),
]
PARKED: list[Row] = ["start 0", (RENEW, CUT), ("parked", Offer(1)), *IDLE[1:]]
HELD: list[Row] = [*PARKED[:3], ("offered 1", renewing(1)), (renewed(1, holder=2), connect(1)), IDLE[3]]
REPAIR = Repair(1, 0, 2, Mode.IN_NETWORK, View.first(1, 3))

SCRIPTS: dict[str, list[Row]] = {
    "a pause lets what runs go on and starts nothing": [
        "start 0",
        "not start 1",
        (Pause(7), Say(Paused(7, 1))),
        "ended",  # where it is to be held, it does not know yet
        ("not start 1", {"is_holding": True}),
        Moved(7, Mode.IN_NETWORK),
        ("start 1", {"mode": Mode.IN_NETWORK, "is_holding": False, "marks": 2}),
    ],
    "what comes before the agreed one runs in the old mode, the rest in the new": [
        (Pause(1), Say(Paused(1, 0))),
        "not start 0",
        HoldAt(1, 2),
        ("run 0", {"mode": Mode.RING}),
        ("run 1", {"mode": Mode.RING}, "not start 2", Settle(1)),
        ("settled 1", Say(Held(1))),
        Moved(1, Mode.IN_NETWORK),
        ("run 2", {"mode": Mode.IN_NETWORK}, "not settled 1"),
    ],
    "a step that is said again, as the session broke, is answered again": [
        (Pause(4), Say(Paused(4, 0))),
        (HoldAt(4, 0), Settle(4)),
        ("settled 4", Say(Held(4))),
        (Pause(4), "not settled 4", Say(Paused(4, 0))),
        (HoldAt(4, 0), Settle(4)),
        ("settled 4", Say(Held(4))),
    ],
    "a busy worker settles when it is done": ["start 0", HoldAt(4, 1), ("ended", Settle(4))],
    "a move that is over settles nothing": [
        (HoldAt(1, 0), Settle(1)),
        (Moved(1, Mode.RING, "full"), "not is_settling 1", "not settled 1", {"mode_reason": "full"}),
    ],
    "numbers that never start, of cancelled futures, hold nobody up": [
        HoldAt(1, 3),
        ("not start 4", Settle(1)),
        (Moved(1, Mode.IN_NETWORK), "start 4"),
    ],
    "numbers wrap": [
        (f"run {2**32 - 3}", HoldAt(9, 0)),
        ("not start 1", Settle(9)),
        Moved(9, Mode.RING),
        f"run {2**32 - 1}",
        (Pause(1), Say(Paused(1, 0))),
        HoldAt(1, 1),
        ("run 0", Settle(1)),
        "not start 1",
    ],
    "moves by ring are counted and have their reason": [
        Moved(1, Mode.IN_NETWORK, "room"),
        {"ring_moves": 0, "ring_reason": "no room", "mode_reason": "room"},
        (Moved(1, Mode.RING, "a fault"), {"ring_moves": 1, "ring_reason": "a fault"}),
        (Moved(1, Mode.RING, "still"), {"ring_moves": 1, "ring_reason": "still"}),
    ],
    "an idle worker is renewed step by step": [
        {"renewal": 0, "reason": ""},
        *IDLE,
        {"renewal": 1, "reason": RENEW.reason},
        ("not start 0", {"marks": 2}),
        (Start(), went_on(1, Mode.RING)),
        {"generation": 78, "mode": Mode.IN_NETWORK, "renewals": 1, "is_renewing": False, "marks": 3},
        "start 0",
    ],
    "what is said of a step that is over is not heard": [
        *IDLE[:2],
        ("not offered 1", "not connected 1", "not repaired 1"),
        *IDLE[2:],
        ("not offered 1", "not connected 1", "not repaired 1"),
        (Start(), went_on(1, Mode.RING), "not connected 1", "not repaired 1"),
    ],
    "what runs is parked and goes on when all do": [
        *PARKED,
        (Start(), went_on(1, Mode.RING), Again()),
        ("ended", "start 1"),
    ],
    "what is parked and given up does not go on": [
        *PARKED[:3],
        "ended",
        *IDLE[1:],
        (Start(), went_on(1, Mode.RING)),
    ],
    "what has its result before it meets the cut ends by itself": [
        "start 0",
        (RENEW, CUT),
        ("ended", Offer(1)),
    ],
    "a result that others lack is given before anything goes on": [
        *HELD,
        (Start(), REPAIR),
        "not start 1",
        ("repaired 1", WentOn(renewed(1, holder=2).ready, Mode.RING, None), Again()),
    ],
    "a repair is run by those who are left": [
        *IDLE[:2],
        (renewed(1, holder=1, dead=True), Connect(1, renewed(1, dead=True).ready)),
        IDLE[3],
        (Start(), Repair(1, 0, 1, Mode.IN_NETWORK, View(rank=0, world_size=2, members=(1, 2)))),
    ],
    "each renewal waits for its own Start": [
        *PARKED,
        (Start(), went_on(1, Mode.RING), Again()),
        (AGAIN, CUT_AGAIN),  # it runs again, and is not parked
        ("parked", Offer(2)),
        ("offered 2", renewing(2, over=1)),
        (renewed(2), connect(2)),
        ("connected 2", Say(Up())),
        (Start(), went_on(2), Again()),
    ],
    "a Start of the generation before starts nothing": [
        *IDLE,
        (AGAIN, CUT_AGAIN, Offer(2)),
        ("offered 2", Start(), renewing(2)),
        (renewed(2), connect(2)),
        ("connected 2", Say(Up())),
        (Start(), went_on(2, Mode.RING)),
    ],
    "a Start may come before the connection is there, as Up was said in a session that broke": [
        *IDLE[:3],
        Start(),
        ("connected 1", Say(Up()), went_on(1, Mode.RING)),
    ],
    "an older renewal is not heard, and the same is answered again": [
        (AGAIN, CUT_AGAIN, Offer(2)),
        ("offered 2", renewing(2)),
        (RENEW, renewed(1)),
        (AGAIN, renewing(2)),
        (renewed(2), connect(2)),
        renewed(2),
        AGAIN,
    ],
    "a renewal that ends a held move settles nothing": [
        (HoldAt(1, 0), Settle(1)),
        (RENEW, "not settled 1", replace(CUT, planned=True), Offer(1)),
    ],
    "a renewal ends a move, and cuts nothing where that held all": [
        (Pause(1), Say(Paused(1, 0))),
        (RENEW, "not settled 1", replace(CUT, planned=True), Offer(1)),
        *IDLE[1:],
        (Start(), "start 0", went_on(1, Mode.RING)),
    ],
    "a move that comes while a result is given settles after it": [
        "run 0",
        (RENEW, CUT, Offer(1)),
        ("offered 1", renewing(1, 1)),
        (renewed(1, holder=1), connect(1)),
        ("connected 1", Say(Up())),
        (Start(), replace(REPAIR, holder=1)),
        (HoldAt(6, 1),),
        ("repaired 1", went_on(1, Mode.RING), Settle(6)),
    ],
    "what cannot be ends it": [
        *IDLE[:2],
        (renewed(1, 7), Inconsistent(1, "the job goes on with collective 7, but 0 are finished here")),
    ],
    "who has died is told by the ranks that all had": [
        *IDLE[:2],
        (renewed(1, dead=True), Connect(1, renewed(1, dead=True).ready)),
        IDLE[3],
        (
            Start(),
            {"view": View(rank=0, world_size=2, members=(1, 2))},
            WentOn(
                renewed(1, dead=True).ready,
                Mode.RING,
                MembershipChange(
                    old_rank=1,
                    rank=0,
                    old_world_size=3,
                    world_size=2,
                    lost=(0,),
                    generation=78,
                    reason=RENEW.reason,
                ),
            ),
        ),
    ],
    "a job that is over holds nobody": [*IDLE[:2], "stop", "start 0", "not wants 1"],
    "a job that is over hears nothing": [*IDLE[:2], "stop", (AGAIN, Pause(1), renewed(1))],
    "a job that is over connects nobody": [*IDLE[:3], ("stop", "not connected 1")],
    "a job that is over settles nothing": ["start 0", (HoldAt(1, 1), "stop", "ended"), "not settled 1"],
    "a job that is over asks for nothing": ["start 0", (RENEW, "stop"), "ended"],
    "behind 2^31 messages a generation goes by ring, which is told once": [
        f"mode_of {IN_NETWORK_LIMIT}",  # as it does
        Moved(1, Mode.IN_NETWORK),
        f"mode_of {IN_NETWORK_LIMIT - 1}",
        (f"mode_of {IN_NETWORK_LIMIT}", Exhausted()),
        f"mode_of {2**33}",
        (RENEW, CUT, Offer(1)),
        *IDLE[1:],
        (Start(), went_on(1)),
        (f"mode_of {IN_NETWORK_LIMIT}", Exhausted()),
        f"mode_of {2**33}",
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    play(SCRIPTS[name])


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in (Stage.NONE, Stage.QUIET)])
def test_a_newer_renewal_starts_it_over_at_any_moment(stage: Stage) -> None:
    """Let what was under way for the first renewal come late."""
    rows = [*HELD, (Start(), REPAIR)][: list(Stage).index(stage) + 1]
    late: list[Row] = [
        {"stage": stage},
        (AGAIN, CUT_AGAIN, Offer(2)),
        ("not wants 1", "not offered 1", renewed(1), "not connected 1", "not repaired 1", Start()),
        {"stage": Stage.OFFERING},
    ]
    play([*rows, *late])


def test_a_result_of_an_elastic_job_is_delivered_by_acknowledgements_or_a_renewal() -> None:
    elastic = replace(READY, lease_s=1.0)
    held, free = {"is_delivered": False}, {"is_delivered": True}
    play([free, "run 0", free])
    play([free, ("run 0", held), ("delivered", free), ("run 1", held)], elastic)
    play([("run 0", held), (RENEW, CUT, Offer(1)), ("delivered", held)], elastic)  # of which generation?
    rows: list[Row] = [("run 0", held), (RENEW, CUT, Offer(1)), ("offered 1", renewing(1, 1))]
    rows += [(renewed(1, holder=1), connect(1)), IDLE[3], (Start(), replace(REPAIR, holder=1)), held]
    play([*rows, ("repaired 1", went_on(1, Mode.RING)), free], elastic)


def test_a_gangs_result_waits_for_no_acknowledgement_as_all_gpus_finish_it_together() -> None:
    one = play([], replace(READY, lease_s=1.0))
    one.gang_collective = 0
    do(one, "run 0")
    assert one.is_delivered


def test_a_collective_of_all_gpus_is_finished_unless_a_renewal_asks_for_it() -> None:
    """Check that this worker's answer holds until the renewal is over; a job that is over has none."""
    one = play([])
    one.gang_collective = 2**32 - 1
    assert one.finish_gang_collective()
    assert one.gang_collective == 0
    do(one, RENEW)
    do(one, "offered 1")
    assert one.actions()[-1] == Say(Renewing(renewal=1, collective=0, gang_collective=0, called=0, **FRESH))
    assert not one.finish_gang_collective()
    assert one.gang_collective == 0
    one.stop()
    assert one.finish_gang_collective()
    assert one.gang_collective == 1


@pytest.mark.parametrize("finished", [False, True])
def test_what_no_gpu_has_finished_is_begun_anew(finished: bool) -> None:
    """Check that it begins anew, as the machine's part may differ, unless this worker has finished it."""
    one = play(["run 0", "start 1", (RENEW, CUT), ("parked", Offer(1))])
    one.gang_collective = 4 if finished else 3
    do(one, "offered 1")
    told = replace(renewed(1, 1), gang_collective=3, gang_renewal=8)
    for event in (told, "connected 1", Start()):
        do(one, event)
    assert one.actions()[-2:] == [went_on(1, Mode.RING), Again() if finished else Drop()]
    assert (one.begun_anew, one.next_collective) == ((0, 2) if finished else (8, 1))
    assert one.gang_renewal == 8


@pytest.mark.parametrize("over", [0, 5, 8])
def test_what_others_have_begun_anew_meanwhile_is_dropped_here_too(over: int) -> None:
    """Check `over`: it says whether the others went on after renewal 8, and refused that collective."""
    one = play(["run 0", "start 1", (RENEW, CUT), ("parked", Offer(1))])
    one.gang_collective = 3
    first = replace(renewed(1, 1), gang_collective=3, gang_renewal=8)
    second = replace(renewed(2, 1), gang_collective=4, gang_renewal=9, over=over)
    for event in ("offered 1", first, "connected 1", AGAIN, "offered 2", second, "connected 2", Start()):
        do(one, event)
    assert one.actions()[-1] == (Drop() if over == 8 else Again())
    assert (one.begun_anew, one.next_collective) == ((9, 1) if over == 8 else (0, 2))


@pytest.mark.parametrize("missed", [False, True])
def test_what_was_dropped_once_is_not_dropped_again(missed: bool) -> None:
    """Check that a later renewal goes by itself alone, also if the first one's Start was not heard."""
    one = play(["run 0", "start 1", (RENEW, CUT), ("parked", Offer(1))])
    one.gang_collective = 3
    first = replace(renewed(1, 1), gang_collective=3, gang_renewal=8)
    second = replace(renewed(2, 1), gang_collective=3, gang_renewal=9, over=8)
    third = replace(renewed(3, 1), gang_collective=4, gang_renewal=10, over=9)
    began: list[Event] = ["offered 1", first, "connected 1"]
    done: list[Event] = [] if missed else [Start(), "ended", "start 1"]
    parked: list[Event] = [] if missed else ["parked"]
    for event in [*began, *done, AGAIN, *parked, "offered 2", second, "connected 2", Start()]:
        do(one, event)
    assert (one.actions()[-1], one.begun_anew) == (Drop(), 9)
    once_more: list[Event] = ["ended", "start 1", replace(AGAIN, renewal=3), "parked", "offered 3", third]
    for event in [*once_more, "connected 3", Start()]:
        do(one, event)
    assert (one.actions()[-1], one.begun_anew) == (Again(), 9)


def test_all_workers_see_who_is_left_from_the_same_call_on() -> None:
    one = play([*IDLE[:2]])
    told = replace(renewed(1, dead=True), ranks_from=2)
    for event in (told, "connected 1", Start()):
        do(one, event)
    left = View(rank=0, world_size=2, members=(1, 2))
    assert [one.view_at(call) for call in (0, 1, 2, 3)] == [View.first(1, 3)] * 2 + [left] * 2
    assert one.view == left


def test_what_is_begun_again_after_a_death_sees_who_was_there_when_it_was_called() -> None:
    one = play(["run 0", "start 1", (RENEW, CUT), ("parked", Offer(1)), ("offered 1", renewing(1, 1))])
    for event in (replace(renewed(1, 1, dead=True), ranks_from=2), "connected 1", Start()):
        do(one, event)
    assert [one.view_at(call).members for call in (1, 2)] == [(0, 1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("over", "seen"), [(1, [(0, 1, 2), (1, 2), (1, 2), (1,)]), (0, [(0, 1, 2)] * 3 + [(1,)])]
)
def test_a_worker_that_missed_a_start_sees_what_others_saw(over: int, seen: list[tuple[int, ...]]) -> None:
    """Let others go on after the first renewal and make two calls, if `over` says so."""
    one = play([*IDLE[:2]])
    last = replace(renewed(2).ready, rank=0, world_size=1)
    gone = Renewed(renewal=2, ready=last, collective=0, members=(1,), over=over, ranks_from=3)
    first = replace(renewed(1, dead=True), ranks_from=1)
    for event in (first, "connected 1", {"called": 0}, AGAIN, "offered 2", gone, "connected 2", Start()):
        do(one, event)
    assert [one.view_at(call).members for call in range(4)] == seen
    assert [view.members for view in one.views_since(1)] == list(dict.fromkeys(seen[1:]))


def test_renewing_says_which_renewal_is_over() -> None:
    one = play(IDLE[:2])
    for event in (renewed(1), "connected 1", Start(), AGAIN, "offered 2"):
        do(one, event)
    said = one.actions()[-1]
    assert isinstance(said, Say)
    assert isinstance(said.message, Renewing)
    assert said.message.over == 1


class Forgotten(list[Any]):
    """A list whose first item another thread deletes as soon as the items have been looked at."""

    def __iter__(self) -> Iterator[Any]:
        yield from self[:]
        del self[0]


def test_who_is_there_can_be_asked_while_who_has_died_is_forgotten() -> None:
    one = play(IDLE[:2])
    for event in (replace(renewed(1, dead=True), ranks_from=2), "connected 1", Start()):
        do(one, event)
    one._views = Forgotten(one._views)
    assert one.view_at(2).members == (1, 2)


@pytest.mark.parametrize("is_gang", [False, True])
def test_who_has_died_is_not_there_again_when_numbers_wrap(is_gang: bool) -> None:
    """Check that a death holds: 2^31 calls later, an early call would be ahead again as a serial number."""
    one = play(IDLE[:2])
    one.gang_collective = 0 if is_gang else None
    for event in (replace(renewed(1, dead=True), ranks_from=2), "connected 1", Start()):
        do(one, event)
    for call in (2, 2**31 + 1, 2**31 + 2, 2**32 - 1, 0, 2):
        assert one.view_at(call).members == (1, 2), call
        if is_gang:
            one.gang_collective = call
            assert one.finish_gang_collective()
        else:
            do(one, f"run {call}")


def test_the_mode_behind_the_last_message_and_what_a_generation_allows() -> None:
    one = play([*IDLE, (Start(), went_on(1, Mode.RING))])
    assert one.replay_log.window == Window(2, 16, 1024)
    modes = [one.mode_of(numbered) for numbered in (0, IN_NETWORK_LIMIT - 1, IN_NETWORK_LIMIT, 2**32)]
    assert modes == [Mode.IN_NETWORK, Mode.IN_NETWORK, Mode.RING, Mode.RING]


def test_the_others_are_told_what_was_called_as_a_collective() -> None:
    one = play([])
    one.calls.made(0, lambda: "all_reduce")
    do(one, "run 0")
    one.hear(Compare(1))
    one.calls.made(1, lambda: "barrier")
    one.calls.made(1, lambda: "barrier by ring")  # it has begun
    one.calls.made(2, lambda: "broadcast")
    one.stop()  # it fails, too, and whoever asks wants to know why
    one.hear(Compare(0))
    one.calls.cancelled(2)
    one.hear(Compare(2))
    # Said before it stopped: nothing, as all that waits is dropped then.
    assert one.actions() == [Say(Called(0, "all_reduce")), Say(Called(2, ""))]


def test_calls_are_told_when_they_are_made_and_for_a_while() -> None:
    one = play([])
    one.hear(Compare(0))
    one.calls.made(0, lambda: "barrier")
    one.calls.made(1, lambda: "another")
    assert one.actions() == [Say(Called(0, "")), Say(Called(0, "barrier"))]
    for number in range(17):
        one.calls.made(number, lambda: "barrier")
        do(one, f"run {number}")
    assert [one.calls.of(number).what for number in (0, 1)] == ["", "barrier"]
