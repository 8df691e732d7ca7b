"""A worker in a running job as a machine: who starts, in which mode, and what becomes of what is cut."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from controller.api.messages import (
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
    Again,
    Connect,
    Cut,
    Inconsistent,
    Member,
    Offer,
    Repair,
    Say,
    Settle,
    Stage,
    WentOn,
)
from host_agent.membership import View

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
VIEW = View.first(1, 3)
FRESH = {"qpn_out": 300, "psn_out": 9, "qpn_in": 301}


def renewing(number: int, collective: int = 0) -> Say:
    return Say(Renewing(renewal=number, collective=collective, **FRESH))


def renewed(number: int, collective: int = 0, holder: int | None = None, **other: object) -> Renewed:
    ready = replace(READY, generation=77 + number, rank=1, world_size=3, mode=Mode.IN_NETWORK, mode_reason="")
    return Renewed(
        renewal=number,
        ready=replace(ready, **other),  # type: ignore[arg-type]
        collective=collective,
        holder=holder,
        members=(0, 1, 2),
    )


def member() -> Member:
    return Member(READY, VIEW)


def ran(one: Member, collective: int) -> Mode:
    """It starts, and has its result."""
    assert one.start(collective)
    mode = one.mode
    one.ledger.finished = (collective + 1) % 2**32
    one.ended()
    return mode


def up_to(one: Member, stage: Stage, number: int = 1) -> None:
    """A renewal of an idle worker, as far as that."""
    one.hear(Renew(number, "a switch restarted"))
    if stage is Stage.OFFERING:
        return
    assert one.offered(number, **FRESH)
    if stage is Stage.AGREEING:
        return
    one.hear(renewed(number, one.ledger.finished))
    if stage is Stage.CONNECTING:
        return
    assert one.connected(number)


# Moves


def test_a_pause_lets_what_runs_go_on_and_starts_nothing() -> None:
    one = member()
    one.start(0)
    one.hear(Pause(7))
    assert one.actions() == [Say(Paused(7, 1))]
    one.ended()
    assert not one.start(1)
    assert one.actions() == []  # where it is to be held, it does not know yet
    one.hear(Moved(7, Mode.IN_NETWORK))
    assert one.start(1)
    assert one.mode is Mode.IN_NETWORK


def test_what_comes_before_the_agreed_collective_runs_in_the_old_mode_and_the_rest_in_the_new() -> None:
    one = member()
    one.hear(Pause(1))
    assert not one.start(0)
    one.hear(HoldAt(1, 2))
    assert [ran(one, 0), ran(one, 1)] == [Mode.RING, Mode.RING]
    assert not one.start(2)
    assert one.actions() == [Say(Paused(1, 0)), Settle(1)]
    assert one.settled(1)
    assert one.actions() == [Say(Held(1))]
    one.hear(Moved(1, Mode.IN_NETWORK))
    assert ran(one, 2) is Mode.IN_NETWORK
    assert not one.settled(1)


def test_a_step_that_is_said_again_is_answered_again() -> None:
    """The session broke, and the controller does not know what was said in it."""
    one = member()
    for _ in range(2):
        one.hear(Pause(4))
        one.hear(HoldAt(4, 0))
        one.settled(4)
        assert one.actions() == [Say(Paused(4, 0)), Settle(4), Say(Held(4))]


def test_a_busy_worker_settles_when_it_is_done() -> None:
    one = member()
    one.start(0)
    one.hear(HoldAt(4, 1))
    assert one.actions() == []
    one.ended()
    assert one.actions() == [Settle(4)]


def test_a_move_that_is_over_settles_nothing() -> None:
    one = member()
    one.hear(HoldAt(1, 0))
    one.hear(Moved(1, Mode.RING, "no room after all"))
    one.actions()
    assert not one.is_settling(1)
    assert not one.settled(1)
    assert one.actions() == []
    assert one.mode_reason == "no room after all"


def test_numbers_that_never_start_hold_nobody_up() -> None:
    """A queued future that is cancelled leaves a gap; what comes after it says that all before has run."""
    one = member()
    one.hear(HoldAt(1, 3))
    assert one.actions() == []
    assert not one.start(4)
    assert one.actions() == [Settle(1)]
    one.hear(Moved(1, Mode.IN_NETWORK))
    assert one.start(4)


def test_numbers_wrap() -> None:
    one, last = member(), 2**32 - 1
    one.next_collective = last
    assert ran(one, last) is Mode.RING
    one.hear(Pause(1))
    one.hear(HoldAt(1, 1))
    assert ran(one, 0) is Mode.RING
    assert not one.start(1)


def test_moves_by_ring_are_counted_and_have_their_reason() -> None:
    one = Member(replace(READY, mode=Mode.IN_NETWORK, mode_reason=""), VIEW)
    moves = ((Mode.RING, "a queue"), (Mode.IN_NETWORK, ""), (Mode.RING, "a fault"), (Mode.RING, "still"))
    for mode, reason in moves:
        one.hear(Moved(1, mode, reason))
    assert (one.ring_moves, one.ring_reason) == (2, "still")


# Renewals


def test_an_idle_worker_is_renewed_step_by_step() -> None:
    one = member()
    one.hear(Renew(1, "a switch restarted"))
    assert one.actions() == [Cut("a switch restarted", planned=False), Offer(1)]
    assert not one.start(0)
    one.offered(1, **FRESH)
    assert one.actions() == [renewing(1)]
    one.hear(renewed(1))
    assert one.actions() == [Connect(1, renewed(1).ready)]
    one.connected(1)
    assert one.actions() == [Say(Up())]
    assert not one.start(0)
    one.hear(Start())
    assert one.actions() == [WentOn(renewed(1).ready, Mode.RING, None)]
    assert one.start(0)
    assert (one.generation, one.mode, one.renewals, one.is_renewing) == (78, Mode.IN_NETWORK, 1, False)


def test_what_runs_is_parked_and_goes_on_when_all_do() -> None:
    one = member()
    one.start(0)
    one.hear(Renew(1, "a switch restarted"))
    assert one.actions() == [Cut("a switch restarted", planned=False)]
    one.parked()
    assert one.actions() == [Offer(1)]
    one.offered(1, **FRESH)
    one.hear(renewed(1))
    one.connected(1)
    one.hear(Start())
    assert one.actions()[-2:] == [WentOn(renewed(1).ready, Mode.RING, None), Again()]
    one.ended()
    assert one.start(1)


def test_what_ends_by_itself_is_waited_for() -> None:
    """It had its result before it met the cut."""
    one = member()
    one.start(0)
    one.hear(Renew(1, "a switch restarted"))
    one.actions()
    one.ledger.finished = 1
    one.ended()
    assert one.actions() == [Offer(1)]
    one.offered(1, **FRESH)
    assert one.actions() == [renewing(1, 1)]


def test_a_result_that_others_lack_is_given_before_anything_goes_on() -> None:
    one = member()
    one.start(0)
    one.hear(Renew(1, "a switch restarted"))
    one.parked()
    one.offered(1, **FRESH)
    one.hear(renewed(1, 0, holder=2))
    one.connected(1)
    one.actions()
    one.hear(Start())
    assert one.actions() == [Repair(1, 0, 2, Mode.IN_NETWORK, VIEW)]
    assert not one.start(1)
    one.repaired(1)
    assert one.actions() == [WentOn(renewed(1).ready, Mode.RING, None), Again()]


@pytest.mark.parametrize(
    "stage", [Stage.OFFERING, Stage.AGREEING, Stage.CONNECTING, Stage.STARTING, Stage.REPAIRING]
)
def test_a_newer_renewal_starts_it_over_at_any_moment(stage: Stage) -> None:
    one = member()
    one.start(0)
    one.hear(Renew(1, "a switch restarted"))
    one.parked()
    if stage is not Stage.OFFERING:
        one.offered(1, **FRESH)
    if stage not in (Stage.OFFERING, Stage.AGREEING):
        one.hear(renewed(1, 0, holder=2))
    if stage in (Stage.STARTING, Stage.REPAIRING):
        one.connected(1)
    if stage is Stage.REPAIRING:
        one.hear(Start())
    assert one.stage is stage
    one.actions()
    one.hear(Renew(2, "another one did"))
    assert one.actions() == [Cut("another one did", planned=False), Offer(2)]
    # What was under way for the first one comes late.
    assert not one.wants(1)
    assert not one.offered(1, **FRESH)
    one.hear(renewed(1))
    assert not one.connected(1)
    assert not one.repaired(1)
    one.hear(Start())
    assert one.actions() == []
    assert one.stage is Stage.OFFERING


def test_an_older_renewal_is_not_heard_and_the_same_one_is_answered_again() -> None:
    one = member()
    up_to(one, Stage.AGREEING, number=5)
    one.actions()
    one.hear(Renew(4, "long ago"))
    assert one.actions() == []
    one.hear(Renew(5, "a switch restarted"))
    assert one.actions() == [renewing(5)]
    one.hear(renewed(5))
    one.hear(renewed(5))
    assert one.actions() == [Connect(5, renewed(5).ready)]
    one.hear(Renew(5, "a switch restarted"))
    assert one.actions() == []


def test_a_renewal_ends_a_move_and_cuts_nothing_where_that_held_all() -> None:
    one = member()
    one.hear(Pause(1))
    one.hear(HoldAt(1, 0))
    one.actions()
    one.hear(Renew(1, "the job moves into the switch"))
    assert one.actions() == [Cut("the job moves into the switch", planned=True), Offer(1)]
    assert not one.settled(1)
    one.offered(1, **FRESH)
    one.hear(renewed(1))
    one.connected(1)
    one.hear(Start())
    assert one.start(0)


def test_a_move_that_comes_while_a_result_is_given_settles_after_it() -> None:
    """The controller goes on when all are up; who gives the result has nothing to run itself."""
    one = member()
    ran(one, 0)
    up_to(one, Stage.AGREEING)
    one.hear(renewed(1, 0, holder=1))
    one.connected(1)
    one.hear(Start())
    one.hear(Pause(6))
    one.hear(HoldAt(6, 1))
    assert Settle(6) not in one.actions()
    one.repaired(1)
    assert one.actions() == [WentOn(renewed(1).ready, Mode.RING, None), Settle(6)]


def test_each_renewal_waits_for_its_own_start() -> None:
    one = member()
    up_to(one, Stage.STARTING, number=1)
    one.hear(Start())
    up_to(one, Stage.STARTING, number=2)
    assert one.is_renewing
    one.hear(Start())
    assert (one.is_renewing, one.renewals, one.generation) == (False, 2, 79)


def test_what_was_parked_once_is_not_taken_for_parked_the_next_time() -> None:
    one = member()
    one.start(0)
    one.hear(Renew(1, "a switch restarted"))
    one.parked()
    one.offered(1, **FRESH)
    one.hear(renewed(1))
    one.connected(1)
    one.hear(Start())
    one.actions()
    one.hear(Renew(2, "another one did"))  # it runs again
    assert one.actions() == [Cut("another one did", planned=False)]


def test_a_repair_is_run_in_the_new_seat() -> None:
    one = member()
    up_to(one, Stage.AGREEING)
    one.hear(replace(renewed(1, holder=1, rank=0, world_size=2), members=(1, 2)))
    one.connected(1)
    one.actions()
    one.hear(Start())
    (wanted,) = one.actions()
    assert isinstance(wanted, Repair)
    assert (wanted.view.rank, wanted.view.world_size, wanted.view.members) == (0, 2, (1, 2))


def test_start_may_come_before_this_worker_has_its_connection() -> None:
    """It said Up, and its session broke: the controller has heard it, and this worker is asked anew."""
    one = member()
    up_to(one, Stage.CONNECTING)
    one.hear(Start())
    assert one.is_renewing
    one.connected(1)
    assert not one.is_renewing


def test_a_start_of_the_generation_before_starts_nothing() -> None:
    one = member()
    up_to(one, Stage.AGREEING)
    one.hear(Start())
    one.hear(renewed(1))
    one.connected(1)
    assert one.is_renewing


def test_what_cannot_be_ends_it() -> None:
    one = member()
    up_to(one, Stage.AGREEING)
    one.actions()
    one.hear(renewed(1, 7))
    assert one.actions() == [Inconsistent(1, "the job goes on with collective 7, but 0 are finished here")]


def test_who_has_died_is_told_by_the_ranks_that_all_had() -> None:
    one = member()
    up_to(one, Stage.AGREEING)
    one.hear(replace(renewed(1, rank=0, world_size=2), members=(1, 2)))
    one.connected(1)
    one.actions()
    one.hear(Start())
    (news,) = one.actions()
    assert isinstance(news, WentOn)
    assert news.change is not None
    assert (news.change.old_rank, news.change.rank, news.change.world_size) == (1, 0, 2)
    assert (news.change.lost, news.change.reason) == ((0,), "a switch restarted")
    assert (one.view.rank, one.view.member) == (0, 1)


def test_a_job_that_is_over_holds_nobody_and_asks_for_nothing() -> None:
    one = member()
    up_to(one, Stage.CONNECTING)
    one.stop()
    assert one.actions() == []
    assert one.start(0)  # and learns of it
    assert not one.wants(1)
    one.hear(Renew(2, "again"))
    one.hear(Pause(1))
    assert not one.connected(1)
    assert one.actions() == []
