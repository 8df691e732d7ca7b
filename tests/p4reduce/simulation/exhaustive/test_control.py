"""Small jobs with the controller hold in every order of messages and deaths; and what is planted is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.api.messages import Renewing
from controller.jobs.job import Job
from controller.jobs.renewals import Renewal
from controller.orchestration.allocations import Allocations
from controller.slots.allocator import SwitchAllocator
from host_agent.member import Member, Stage
from host_agent.recovery import ReplayLog
from host_agent.session import Session
from p4reduce.simulation.exhaustive.catalogue import ALL, UnknownScopeError, explorer_of, scope_of
from p4reduce.simulation.exhaustive.control import ControlExplorer
from p4reduce.simulation.exhaustive.control_scopes import CONTROL_SCOPES, ControlScope
from p4reduce.simulation.exhaustive.found import Found
from p4reduce.simulation.exhaustive.parts import Parts
from tests.p4reduce.simulation.planted import NEVER, Planted

SHORT = [name for name in CONTROL_SCOPES if not name.startswith("large")]
QUICK = ["control-pair", "control-kill"]
MINUTES = ["control-away", "control-crash-elastic", "control-move", "control-renumber", "control-stall"]


def control_scope(name: str, **changes: Any) -> ControlScope:
    return replace(CONTROL_SCOPES[name], **changes)


def require_whole(found: Found) -> None:
    assert not found.wrong, found.choices
    assert not found.interrupted
    assert found.ends >= 1
    assert found.checks["ways to an end"] == found.states
    assert found.checks["collectives entered"]
    assert found.checks["workers that are over"]


@pytest.mark.parametrize("name", QUICK)
def test_a_scope_holds(name: str) -> None:
    require_whole(ControlExplorer(control_scope(name)).explore())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        *sorted({*SHORT} - {*QUICK, *MINUTES}),
        *(pytest.param(name, marks=pytest.mark.long) for name in MINUTES),
    ],
)
def test_a_longer_scope_holds(name: str) -> None:
    require_whole(ControlExplorer(control_scope(name)).explore())


def test_all_scopes_are_known_by_name() -> None:
    assert set(CONTROL_SCOPES) < set(ALL)
    for name in CONTROL_SCOPES:
        assert isinstance(explorer_of(scope_of(name)), ControlExplorer)
    with pytest.raises(UnknownScopeError, match=r"no scope 'none': known are pair, .*control-pair"):
        scope_of("none")


class Noting(ControlExplorer):
    """Keeps what there was in the end."""

    def __init__(self, scope: ControlScope) -> None:
        super().__init__(scope)
        self.ended: set[Any] = set()

    def why_bad_end(self, state: Any) -> str:
        controller = self.controllers.facts[state.controller]
        workers = tuple(self.facts(state, rank) for rank in self.ranks)
        self.ended.add((workers, controller, state.excused, state.budget))
        return super().why_bad_end(state)


@pytest.mark.parametrize("name", ["control-pair", pytest.param("control-kill", marks=pytest.mark.slow)])
def test_what_is_left_out_makes_no_difference_to_the_ends(name: str) -> None:
    less, all_of_it = Noting(control_scope(name)), Noting(control_scope(name, reduced=False))
    few, many = less.explore(), all_of_it.explore()
    require_whole(few)
    require_whole(many)
    assert few.states < many.states
    assert less.ended == all_of_it.ended


@pytest.mark.slow
def test_a_state_is_reached_again_by_what_led_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it for the controller and workers: the one that is made anew comes to the same bytes."""
    again, checked = Parts._again, []

    def compared(self: Parts[Any], state: int) -> Any:
        part = again(self, state)
        assert self._numbers[part.digest()] == state
        checked.append(state)
        return part

    monkeypatch.setattr(Parts, "_again", compared)
    require_whole(ControlExplorer(control_scope("control-kill")).explore())
    assert len(checked) > 50


# Planted defects.


def a_member_forgets_a_pause(patch: pytest.MonkeyPatch) -> None:
    """Let a member say Paused, and start the next collective all the same."""
    may_run = Member._may_run

    def forgets(self: Member, collective: int) -> bool:
        if self._move is None and not self.is_renewing:
            return True
        return may_run(self, collective)

    patch.setattr(Member, "_may_run", forgets)


def a_start_is_believed_twice(patch: pytest.MonkeyPatch) -> None:
    """Let what was heard for one renewal count for the next."""
    hear_renew = Member._hear_renew

    def keeps(self: Member, renew: Any) -> None:
        hear_renew(self, renew)
        self._started = True

    patch.setattr(Member, "_hear_renew", keeps)


def a_member_says_up_and_goes_on(patch: pytest.MonkeyPatch) -> None:
    """Let a member go on without waiting for the others."""
    connected = Member.connected

    def goes_on(self: Member, renewal: int) -> bool:
        wanted = connected(self, renewal)
        if wanted and self.stage is Stage.STARTING:
            self._started = True
            self._perhaps_repair()
        return wanted

    patch.setattr(Member, "connected", goes_on)


def up_is_not_said_again(patch: pytest.MonkeyPatch) -> None:
    say_again = Session._say_again

    def forgets(self: Session) -> None:
        self._up = False
        say_again(self)

    patch.setattr(Session, "_say_again", forgets)


def a_lease_is_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Return results whether or not the job has gone on without this worker."""
    patch.setattr(Session, "confirm", lambda self, now: True)


def a_given_result_is_made_again(patch: pytest.MonkeyPatch) -> None:
    """Make a given result again, though another worker has it, and its user may have it."""
    patch.setattr(ReplayLog, "restored", property(lambda self: False))


def the_holder_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Renewal, "holders", property(lambda self: ()))


def renewed_before_all_have_answered(patch: pytest.MonkeyPatch) -> None:
    answered = Renewal.answered

    def early(self: Renewal, rank: int, answer: Renewing) -> bool:
        last = answered(self, rank, answer)
        if not last and len(self.answers) == 1:
            for other in self.missing:
                self.answers[other] = replace(answer, qpn_in=answer.qpn_in + 64)
            self.waiting.clear()
            return True
        return last

    patch.setattr(Renewal, "answered", early)


def started_before_all_are_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Renewal, "is_up", lambda self, rank: True)


def held_at_the_rearmost(patch: pytest.MonkeyPatch) -> None:
    """Hold a job where its rearmost worker is, though another has begun the next collective."""
    patch.setattr("controller.jobs.moves.furthest", min)


def slots_are_not_freed(patch: pytest.MonkeyPatch) -> None:
    """Keep the slots of a job that has ended before it ran."""
    release = SwitchAllocator.release
    freed = Allocations.freed

    def keeps(self: Allocations, running: Any, name: str) -> None:
        early = not any(worker.up for worker in running.job.workers.values())
        if early:
            patch.setattr(SwitchAllocator, "release", lambda self, region: None)
        freed(self, running, name)
        patch.setattr(SwitchAllocator, "release", release)

    patch.setattr(Allocations, "freed", keeps)


def phases_are_not_saved(patch: pytest.MonkeyPatch) -> None:
    """Save no phase, so that a controller that is started knows nothing of it."""
    patch.setattr("controller.database.store.Store.save_phase", lambda self, *what, **how: None)


def nobody_knows_who_joins_again(patch: pytest.MonkeyPatch) -> None:
    """Keep no generation of who joins again: a restarted controller answers nobody's heartbeats."""
    join_again = Job.join_again

    def forgets(self: Job, rank: int, now: float) -> None:
        known = self.workers[rank].generation
        join_again(self, rank, now)
        self.workers[rank].generation = known

    patch.setattr(Job, "join_again", forgets)


AWAY = control_scope("control-away", collectives=1)
IMPATIENT = "nobody failed, and patience was over"
PLANTED = [
    Planted("pause forgotten", a_member_forgets_a_pause, control_scope("control-move"), IMPATIENT),
    Planted("held too early", held_at_the_rearmost, control_scope("control-move"), IMPATIENT),
    Planted("slots not freed", slots_are_not_freed, control_scope("control-kill"), "has slots taken"),
]
SLOWLY = [
    Planted(
        "Up not said again", up_is_not_said_again, control_scope("control-break"), "not all workers came"
    ),
    Planted("Start believed twice", a_start_is_believed_twice, AWAY, "are not connected"),
    Planted("not waited for Start", a_member_says_up_and_goes_on, AWAY, "are not connected"),
    Planted(
        "a lease for ever", a_lease_is_for_ever, control_scope("control-stall"), "has gone on without it"
    ),
    Planted("holder forgotten", the_holder_is_forgotten, AWAY, "but 1 are finished here"),
    Planted("Renewed early", renewed_before_all_have_answered, AWAY, "are not connected"),
    Planted("Start early", started_before_all_are_up, control_scope("control-renumber"), "are not connected"),
    Planted("phase not saved", phases_are_not_saved, control_scope("control-crash"), "generations that run"),
    Planted("a given result made again", a_given_result_is_made_again, control_scope("control-away"), NEVER),
    Planted(
        "nobody knows who joins again",
        nobody_knows_who_joins_again,
        control_scope("control-crash-elastic"),
        "from here no end can be reached",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_defect_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.require_found(monkeypatch)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", SLOWLY, ids=lambda planted: planted.name)
def test_a_planted_defect_is_found_by_many_states(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.require_found(monkeypatch)
