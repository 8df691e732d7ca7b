"""Small gangs hold in every order of what their workers see of each other; and what is planted is found."""

from __future__ import annotations

import pytest

from host_agent.machine.gang import Asked, Gang, Place
from p4reduce.simulation.exhaustive.catalogue import ALL, explorer_of, scope_of
from p4reduce.simulation.exhaustive.found import Found
from p4reduce.simulation.exhaustive.gang import GangExplorer
from p4reduce.simulation.exhaustive.gang_scopes import GANG_SCOPES
from p4reduce.simulation.exhaustive.mate import MatePart
from tests.p4reduce.simulation.defects import ranks_change_over_at_once
from tests.p4reduce.simulation.planted import NEVER, Planted, sets

QUICK = [
    "gang-pair",
    "gang-empty",
    "gang-cancel",
    "gang-cancel-one",
    "gang-cancel-machine",
    "gang-differ",
    "gang-differ-machines",
    "gang-leave",
    "gang-elastic-differ",
]
SHORT = [name for name in GANG_SCOPES if not name.startswith("large")]


def require_whole(found: Found) -> None:
    assert not found.wrong, found.choices
    assert not found.interrupted
    assert found.ends >= 1
    assert found.checks["ways to an end"] == found.states


@pytest.mark.parametrize("name", QUICK)
def test_a_scope_holds(name: str) -> None:
    require_whole(GangExplorer(GANG_SCOPES[name]).explore())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted({*SHORT} - {*QUICK}))
def test_a_longer_scope_holds(name: str) -> None:
    require_whole(GangExplorer(GANG_SCOPES[name]).explore())


def test_all_scopes_are_known_by_name() -> None:
    assert set(GANG_SCOPES) < set(ALL)
    for name in GANG_SCOPES:
        assert isinstance(explorer_of(scope_of(name)), GangExplorer)


def test_calls_are_compared_and_returned() -> None:
    same = GangExplorer(GANG_SCOPES["gang-pair"]).explore()
    assert same.checks["outcomes against others'"]
    assert not same.checks["calls that differ"]
    other = GangExplorer(GANG_SCOPES["gang-differ"]).explore()
    assert other.checks["calls that differ"]


def test_an_order_is_played_in_words() -> None:
    said = list(GangExplorer(GANG_SCOPES["gang-cancel-one"]).play(["call:0", "call:1", "see:1:0"]))
    assert said[0].endswith("worker 0 calls cancel, call 0")
    assert "worker 1 is over: the workers called different collectives: rank 0: (cancelled)" in said[-1]


# Planted defects.


def a_cancelled_call_takes_no_step(patch: pytest.MonkeyPatch) -> None:
    """Give a cancelled call's number to the next call."""
    begin = Gang.begin

    def skip(self: Gang, asked: Asked, lanes: tuple[int, ...], place: Place) -> None:
        if not asked.is_cancelled:
            begin(self, asked, lanes, place)
            return
        self._asked = asked
        self._return()
        self.step -= 1

    patch.setattr(Gang, "begin", skip)


def mates_meet_after_any_renewal(patch: pytest.MonkeyPatch) -> None:
    def is_there(self: Gang, mate: int) -> bool:
        notice = self._mates.get(mate)
        return notice is not None and notice.step >= self.step

    patch.setattr(Gang, "_is_there", is_there)


def one_gpu_keeps_what_is_begun_anew(patch: pytest.MonkeyPatch) -> None:
    """Let one GPU keep what it has while its mates drop theirs: it waits for what they had."""
    begin_anew = MatePart._begin_anew

    def keeps(self: MatePart) -> None:
        if self.machine.gang.local_rank != 1:
            begin_anew(self)

    patch.setattr(MatePart, "_begin_anew", keeps)


def a_difference_is_told_without_the_mates_call(patch: pytest.MonkeyPatch) -> None:
    """Name only one of both calls."""
    difference = Gang._difference

    def short(self: Gang) -> str:
        return difference(self).partition(";")[0]

    patch.setattr(Gang, "_difference", short)


PLANTED = [
    Planted(
        "mates are not compared",
        sets(Gang, "_difference", lambda self: ""),
        GANG_SCOPES["gang-cancel-one"],
        "which users make differently",
    ),
    Planted(
        "one call is named",
        a_difference_is_told_without_the_mates_call,
        GANG_SCOPES["gang-differ"],
        "does not hear of both calls",
    ),
    Planted(
        "a cancelled call takes no step",
        a_cancelled_call_takes_no_step,
        GANG_SCOPES["gang-cancel"],
        "all users call the same",
    ),
    Planted(
        "a mate that left is not noticed",
        sets(Gang, "_in_vain", lambda self: ""),
        GANG_SCOPES["gang-leave"],
        NEVER,
    ),
    Planted(
        "mates meet after any renewal",
        mates_meet_after_any_renewal,
        GANG_SCOPES["gang-elastic-restart"],
        "takes post 0 of GPU 0 for step 0 after renewal 2",
    ),
    Planted(
        "one GPU keeps what is begun anew",
        one_gpu_keeps_what_is_begun_anew,
        GANG_SCOPES["gang-elastic-restart"],
        "",
    ),
]
SLOWLY = [
    Planted(
        "a plane is refused alone",
        sets(Gang, "_way_of", lambda self, mate: self._way),
        GANG_SCOPES["gang-strict"],
        NEVER,
    ),
    Planted(
        "ranks change over at once",
        ranks_change_over_at_once,
        GANG_SCOPES["gang-elastic-kill"],
        "is no rank of a job of 2 workers",
    ),
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_defect_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.require_found(monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", SLOWLY, ids=lambda planted: planted.name)
def test_a_planted_defect_is_found_by_many_states(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.require_found(monkeypatch)
