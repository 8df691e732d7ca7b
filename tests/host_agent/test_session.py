"""A worker's session as a machine: what it wants done, event by event."""

from __future__ import annotations

import itertools
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import pairwise

import pytest

from controller.api.messages import (
    Abort,
    Ended,
    Heartbeat,
    Join,
    Lacking,
    Leave,
    Left,
    Mode,
    Moved,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Resume,
    Resumed,
    Start,
    Up,
    Waiting,
    Worker,
)
from host_agent.session import FIRST_RETRY_NS, NS, Action, Away, Break, Close, Open, Send, Session, State

WORKER = Worker(
    rank=1, mac="02:00:00:00:01:02", ip=IPv4Address("10.1.0.2"), qpn_out=257, psn_out=5, qpn_in=513
)
JOIN = Join(job="train", world_size=3, worker=WORKER, path_mtu_max=4096)
READY = Ready(
    job_id=5,
    generation=77,
    window=8,
    message_packets=16,
    path_mtu=1024,
    mode=Mode.IN_NETWORK,
    successor=WORKER,
    predecessor=WORKER,
    heartbeat_interval_s=1.0,
    heartbeat_timeout_s=5.0,
    resume_token=b"secret",
)
ANSWER = Renewing(renewal=4, qpn_out=300, psn_out=9, qpn_in=301, collective=12)
RENEWED = Renewed(
    renewal=4, ready=replace(READY, generation=78, rank=0, world_size=2, resume_token=b"newer"), collective=12
)


def resumed(ready: Ready = READY, join: Join = JOIN, answered: tuple[int, ...] = ()) -> Open:
    return Open(
        Resume(
            job="train",
            generation=ready.generation,
            rank=ready.rank if ready.world_size else 1,
            token=ready.resume_token,
            joined=join,
            ready=ready,
            answered=answered,
        )
    )


def ready(given: Ready = READY) -> Session:
    """Return a session that has heard Ready at 0."""
    session = Session(JOIN)
    session.begin(0)
    session.heard(given, 0)
    session.actions()
    return session


def until(session: Session, end: int) -> list[tuple[float, Action]]:
    """Return what a session does by itself until `end`, and when."""
    done: list[tuple[float, Action]] = []
    while (due := session.next_timeout()) is not None and due <= end:
        session.timeout(due)
        done += [(due / NS, action) for action in session.actions()]
    return done


# What is said to one in each state, and where that leads; anything else leads nowhere.
STEPS = {
    (State.JOINING, "ready"): State.CONNECTING,
    (State.JOINING, "no"): State.REFUSED,
    (State.CONNECTING, "start"): State.RUNNING,
    (State.CONNECTING, "renew"): State.RENEWING,
    (State.RUNNING, "renew"): State.RENEWING,
    (State.RENEWING, "renewed"): State.CONNECTING,
    (State.RENEWING, "start"): State.RUNNING,  # this worker has nothing to answer
}
ON_THE_WAY = {
    State.JOINING: [],
    State.CONNECTING: ["ready"],
    State.RUNNING: ["ready", "start"],
    State.RENEWING: ["ready", "start", "renew"],
    State.REFUSED: ["no"],
    State.LEFT: ["ready", "left"],
    State.ENDED: ["ready", "ended"],
    State.CLOSED: ["ready", "close"],
}
ENDS = {"left": State.LEFT, "ended": State.ENDED, "close": State.CLOSED}


def do(session: Session, event: str) -> None:
    if event == "no":
        session.broken("no", 0, final=True)
    elif event == "close":
        session.close()
    elif event == "renewed":
        session.say(ANSWER)
        session.heard(RENEWED, 0)
    else:
        given = {
            "ready": READY,
            "start": Start(),
            "renew": Renew(4, "why"),
            "left": Left(),
            "ended": Ended(reason="over"),
            "moved": Moved(1, Mode.RING, "no room"),
            "heartbeat": Heartbeat(),
        }
        session.heard(given[event], 0)  # type: ignore[arg-type]


EVENTS = ["ready", "start", "renew", "renewed", "moved", "heartbeat", *ENDS]


@pytest.mark.parametrize(
    ("state", "event"), [*itertools.product(ON_THE_WAY, EVENTS), (State.JOINING, "no")], ids=str
)
def test_what_leads_where(state: State, event: str) -> None:
    session = Session(JOIN)
    session.begin(0)
    for one in ON_THE_WAY[state]:
        do(session, one)
    assert session.state is state
    over = state in (State.REFUSED, State.LEFT, State.ENDED, State.CLOSED)
    assert (session.is_over, session.is_member) == (over, not over)
    assert session.has_begun == (state in (State.RUNNING, State.RENEWING))
    do(session, event)
    expected = state if over else STEPS.get((state, event), ENDS.get(event, state))
    assert session.state is expected
    if over:
        session.actions()
        session.timeout(100 * NS)  # its clock may ring once more
        assert session.actions() == []
        why = session.refused, session.ended
        session.broken("the stream has ended", 2, final=True)
        assert (session.refused, session.ended) == why
        session.close()
        session.close()
        assert session.state is state
        assert session.next_timeout() is None
        assert session.actions() == ([] if "close" in (event, *ON_THE_WAY[state]) else [Close()])


def test_who_joins_tries_again_until_it_is_let_in_or_not() -> None:
    session = Session(JOIN)
    session.begin(0)
    assert session.actions() == [Open(JOIN)]
    assert session.is_first
    session.heard(Waiting((0, 2)), 1)
    assert session.missing_ranks == (0, 2)
    session.broken("gone", 2, final=False)
    assert session.last_error == "gone"
    assert not session.missing_ranks
    assert [session.is_first] == [False]
    assert until(session, 10 * NS) == [((2 + FIRST_RETRY_NS) / NS, Open(JOIN))]
    for second in range(10, 100):  # people are not told: the caller waits, and gets an error
        session.broken("gone", second * NS, final=False)
        assert [action for _, action in until(session, (second + 1) * NS)] == [Open(JOIN)]
    session.broken("there is no such thing", 100 * NS, final=True)
    assert session.refused == "there is no such thing"
    assert session.next_timeout() is None


@pytest.mark.parametrize(
    ("waiting", "missing", "have"),
    [
        (Waiting((2,)), "rank 2", "has"),
        (Waiting((0, 2)), "ranks 0, 2", "have"),
        (Waiting((), ("host-a GPU 1",)), "host-a GPU 1", "has"),
        (Waiting((0, 2), ("host-a GPU 1",)), "host-a GPU 1", "has"),
        (Waiting((), ("host-a GPU 1", "host-b GPU 0")), "host-a GPU 1, host-b GPU 0", "have"),
        (Waiting(()), "", "have"),
    ],
)
def test_who_is_missing_is_said_in_words(waiting: Waiting, missing: str, have: str) -> None:
    session = Session(JOIN)
    session.begin(0)
    session.heard(waiting, 1)
    assert (session.missing, session.have) == (missing, have)
    session.broken("gone", 2, final=False)
    assert session.missing == ""


def test_whom_a_collective_waits_for_is_kept() -> None:
    session = ready()
    session.heard(Lacking(3, "rank 2"), 1)
    assert session.lacking == Lacking(3, "rank 2")


def test_a_worker_has_the_rank_that_it_joined_with_until_it_is_told_another() -> None:
    session = Session(JOIN)
    assert session.rank == WORKER.rank
    session.heard(replace(READY, rank=2, world_size=3), 1)
    assert session.rank == 2


def test_who_has_said_nothing_has_nothing_to_repeat() -> None:
    session = ready()
    session.heard(Resumed(), 1)
    assert session.actions() == []
    assert not session.is_leaving
    session.say(Leave(7))
    assert session.is_leaving


def test_what_may_not_have_been_heard_is_said_again_first_of_all_in_the_next_stream() -> None:
    session = ready()
    session.say(Up())
    session.broken("gone", NS // 2, final=False)
    session.say(Leave(7))  # nobody hears it
    assert session.actions() == [Send(Up())]
    assert until(session, NS * 6 // 10) == [(0.6, resumed())]
    session.heard(Resumed(), NS * 7 // 10)
    assert session.actions() == [Send(Up()), Send(Leave(7))]
    assert session.is_member
    session.say(Abort("enough"))
    assert not session.is_member
    session.heard(Resumed(), NS * 8 // 10)
    assert session.actions() == [Send(Abort("enough")), Send(Up()), Send(Abort("enough"))]


def test_what_was_said_for_the_generation_before_is_not_said_again() -> None:
    session = ready()
    session.say(Up())
    session.heard(Renew(4, "a switch restarted"), 1)
    session.actions()
    session.heard(Resumed(), 1)
    assert session.actions() == []
    session.say(ANSWER)
    session.say(Up())  # this worker was slow to say it
    session.heard(Start(), 2)
    assert session.state is State.RENEWING
    session.broken("gone", 3, final=False)
    session.actions()
    assert until(session, NS // 2) == [((3 + FIRST_RETRY_NS) / NS, resumed(answered=(4,)))]
    session.heard(Resumed(), NS // 2)
    assert session.actions() == [Send(ANSWER)]
    session.heard(replace(RENEWED, renewal=3), NS // 2)  # of one that was given up
    assert session.ready == READY
    session.heard(RENEWED, NS // 2)
    assert session.rank == 0
    session.heard(replace(RENEWED, ready=READY), NS // 2)  # to which it has answered nothing
    assert session.rank == 0
    session.broken("gone", NS // 2 + 1, final=False)
    ((_, opened),) = until(session, NS - 1)
    worker = replace(WORKER, qpn_out=300, psn_out=9, qpn_in=301)
    assert opened == resumed(RENEWED.ready, replace(JOIN, worker=worker))
    session.heard(Resumed(), NS)
    assert session.actions() == []


def test_it_says_every_renewal_that_it_has_answered_in_vain() -> None:
    session = ready()
    for number in (4, 4, 5):  # it is asked for the first once more, and then for another in its place
        session.heard(Renew(number, "a switch restarted"), 1)
        session.say(replace(ANSWER, renewal=number))
    session.actions()
    session.broken("gone", 3, final=False)
    assert until(session, NS // 2) == [((3 + FIRST_RETRY_NS) / NS, resumed(answered=(4, 5)))]
    session.heard(Resumed(), NS // 2)
    assert session.actions() == [Send(replace(ANSWER, renewal=5))]


def test_it_resumes_in_the_mode_that_the_job_has_now() -> None:
    session = ready()
    session.heard(Moved(3, Mode.RING, "no room"), 1)
    session.broken("gone", 2, final=False)
    ((_, opened),) = until(session, NS // 2)
    assert opened == resumed(replace(READY, mode=Mode.RING, mode_reason="no room"))


def test_heartbeats_say_what_is_known_and_a_silent_stream_is_broken() -> None:
    session = ready()
    session.counted, session.running = Heartbeat(generation=77, messages=1000), 12
    beats = [
        (float(at), Send(Heartbeat(generation=77, messages=1000, number=at, running=12)))
        for at in range(1, 7)
    ]
    assert until(session, 6 * NS) == [*beats, (6.0, Break())]
    assert until(session, 9 * NS) == []  # until it is said to be broken
    session.broken("cancelled", 9 * NS, final=False)
    opened, *later = until(session, 14 * NS)
    assert opened == (9.1, resumed())
    assert [at for at, _ in later] == [10.0, 11.0, 12.0, 13.0, 14.0]  # it is given as long again
    session.heard(None, 14 * NS)  # something of a later release is a sign of life, too
    assert Break() not in [action for _, action in until(session, 19 * NS)]


def test_while_the_controller_is_away_it_is_tried_each_second_and_people_are_told() -> None:
    session = ready()

    def away(now: int, end: int) -> tuple[list[float], list[Away]]:
        """Return when it tries again, and what people are told."""
        opened: list[float] = []
        told: list[Away] = []
        while now < end:
            session.broken("nobody is there", now, final=False)
            told += [action for action in session.actions() if isinstance(action, Away)]
            opened += [at for at, action in until(session, now + NS) if isinstance(action, Open)]
            now = round(opened[-1] * NS) + 1
        return opened, told

    opened, told = away(NS, 100 * NS)
    assert max(later - earlier for earlier, later in pairwise(opened)) < 1.01
    assert [one.for_ns // NS for one in told] == [10, 70]
    assert {one.why for one in told} == {"nobody is there"}
    session.heard(Heartbeat(), 200 * NS)  # it is back, and goes again
    assert session.last_error == ""
    opened, told = away(201 * NS, 212 * NS)
    assert opened[:3] == pytest.approx([201.1, 201.3, 201.7], abs=1e-6)
    assert [one.for_ns // NS for one in told] == [10]


def test_a_controller_that_knows_better_ends_the_job() -> None:
    session = ready()
    session.broken("job train ended", 1, final=True)
    assert session.ended == Ended(reason="the controller did not take this worker back: job train ended")
    assert session.state is State.ENDED


def test_the_end_is_taken_once_and_the_controller_hears_when_it_is_acted_upon() -> None:
    session = ready()
    first = Ended(reason="rank 2 is lost", rank=2)
    session.heard(first, 1)
    session.heard(Ended(reason="another"), 2)
    assert session.ended is first
    assert session.actions() == []  # it may still send to the others
    session.close()
    assert session.actions() == [Close()]


def test_who_is_asked_to_be_sure_asks_until_it_is_answered() -> None:
    session = ready(replace(READY, lease_s=3.0))
    assert not session.confirm(100)
    assert not session.confirm(200)  # another thread waits, too
    assert [type(action) for action in session.actions()] == [Send]
    asked = until(session, NS // 2)
    assert [at for at, _ in asked] == pytest.approx([0.02, 0.06, 0.14, 0.30], abs=1e-6)
    session.heard(Heartbeat(number=1), NS // 2)  # sent at 0
    session.heard(Heartbeat(number=2), NS // 2)  # sent at 0.02 s
    session.heard(Heartbeat(number=1), NS // 2)  # it took another way
    assert session.confirm(3 * NS + NS // 100)
    assert not session.holds_lease(3 * NS + NS // 50 + 100)
    assert until(session, NS * 9 // 10) == []  # nobody asks any more
    assert ready().confirm(10**15)  # where there is no lease


def test_an_answer_that_comes_too_late_is_none_and_the_next_time_it_asks_as_often() -> None:
    session = ready(replace(READY, lease_s=0.1, heartbeat_interval_s=1e6))
    for start in (0, 10 * NS):
        assert not session.confirm(start)
        (first,) = session.actions()
        asked = [at - start / NS for at, _ in until(session, start + NS)]
        assert asked == pytest.approx([0.02, 0.06, 0.14, 0.30, 0.62], abs=1e-6)
        assert isinstance(first, Send)
        assert isinstance(first.message, Heartbeat)
        session.heard(first.message, start + NS)  # its own number comes back, a second later
        ((at, last),) = until(session, start + 2 * NS)
        assert at - start / NS == pytest.approx(1.26, abs=1e-6)
        assert isinstance(last, Send)
        assert isinstance(last.message, Heartbeat)
        session.heard(last.message, round(at * NS))
        assert until(session, start + 9 * NS) == []


def test_a_heartbeat_between_two_questions_is_no_question() -> None:
    session = ready(replace(READY, lease_s=3.0, heartbeat_interval_s=0.11))
    session.confirm(0)
    session.actions()
    times = [at for at, _ in until(session, NS * 4 // 10)]
    assert times == pytest.approx([0.02, 0.06, 0.11, 0.14, 0.22, 0.30, 0.33], abs=1e-6)


def test_it_is_asked_for_once_a_second_at_least_and_answers_to_what_was_long_ago_are_none() -> None:
    session = ready(replace(READY, lease_s=1e6, heartbeat_interval_s=1e6, heartbeat_timeout_s=1e6))
    session.confirm(0)
    times = [at for at, _ in until(session, 100 * NS)]
    assert max(later - earlier for earlier, later in pairwise(times)) == pytest.approx(1.0)
    session.heard(Heartbeat(number=1), 100 * NS)
    assert not session.holds_lease(100 * NS)


def test_nothing_is_asked_for_when_nobody_waits_any_more() -> None:
    session = ready(replace(READY, lease_s=3.0))
    session.confirm(0)
    session.actions()
    session.ask_no_more()
    assert until(session, NS - 1) == []
