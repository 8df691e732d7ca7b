"""The gang's machine: what a call may do among those of its worker's mates, event by event."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest

from host_agent.machine.gang import (
    CANCELLED,
    Action,
    Ask,
    Asked,
    Differ,
    Finish,
    Gang,
    Notice,
    Place,
    Return,
    Said,
    Stage,
    Start,
    Tell,
    Way,
    World,
)

SUM = Asked("a sum", b"s" * 32)
STRICT = Asked("a strict sum", b"x" * 32, strict=True)
ALL = World(0, (0, 1, 2, 3))
WITHOUT = World(0, (0, 1))  # the machine with the ranks 2 and 3 has died
AT = Place(0, (ALL,))
LANES = (0, 0)


def gang(*, elastic: bool = False, size: int = 2, local_rank: int = 0, first_rank: int = 0) -> Gang:
    return Gang(local_rank, size, first_rank, elastic)


def said(asked: Asked, step: int = 0, renewal: int = 0, way: Way = Way.UNKNOWN) -> Said:
    return Said(step, renewal, way, asked.what, asked.digest)


def notice(asked: Asked, step: int = 0, renewal: int = 0, way: Way = Way.UNKNOWN, lanes: int = 0) -> Notice:
    return Notice(step, renewal, (lanes, lanes), (said(asked, step, renewal, way),))


def acts(one: Gang) -> list[Action]:
    """Return all actions but what the gang tells its mates."""
    return [action for action in one.actions() if not isinstance(action, Tell)]


def begun(asked: Asked = SUM, *, elastic: bool = False, size: int = 2, place: Place = AT) -> Gang:
    one = gang(elastic=elastic, size=size)
    one.begin(asked, LANES, place)
    return one


def test_a_call_starts_when_all_mates_are_at_its_step() -> None:
    one = begun(size=3)
    assert one.actions() == [Tell(notice(SUM))]
    assert list(one.late) == [1, 2]
    one.heard(2, notice(SUM))
    assert not acts(one)
    assert list(one.late) == [1]
    one.heard(1, notice(SUM))
    assert acts(one) == [Start(ALL, 0, 0, LANES)]
    assert one.late == (), "what runs waits for nobody"
    one.has_result()
    assert acts(one) == [Return(None)]
    assert one.step == 1


def test_the_last_who_comes_starts_at_once() -> None:
    one = gang()
    one.heard(1, notice(SUM))
    one.begin(SUM, LANES, AT)
    assert acts(one) == [Start(ALL, 0, 0, LANES)]


def test_a_mate_that_comes_later_to_the_same_step_is_waited_for() -> None:
    one = begun()
    one.heard(1, notice(SUM))
    one.has_result()
    one.begin(SUM, LANES, AT)
    assert acts(one)[-1:] == [Return(None)]
    assert one.late == (1,), "it is one step behind"
    one.heard(1, Notice(1, 0, LANES, (said(SUM, 0), said(SUM, 1))))
    assert acts(one) == [Start(ALL, 0, 0, LANES)]


def test_a_mate_may_be_a_step_ahead() -> None:
    """Hear from a mate that has seen this worker's notice before this one has seen the mate's."""
    one = begun(CANCELLED)
    one.heard(1, Notice(1, 0, LANES, (said(CANCELLED, 0), said(SUM, 1))))
    assert acts(one) == [Return(None)]


@pytest.mark.parametrize("other", [replace(SUM, digest=b"t" * 32), STRICT, CANCELLED])
def test_calls_that_differ_are_named_with_their_ranks(other: Asked) -> None:
    one = begun()
    one.heard(1, notice(other))
    (differs,) = acts(one)
    assert isinstance(differs, Differ)
    assert "rank 0: a sum" in differs.reason
    assert f"rank 1: {other.what}" in differs.reason
    assert ("with other settings" in differs.reason) == (other.what == SUM.what)


def test_a_difference_shows_before_all_mates_have_come_or_heard_of_a_renewal() -> None:
    one = begun(size=3, elastic=True)
    one.heard(2, notice(STRICT, renewal=5))
    assert isinstance(acts(one)[-1], Differ)


@pytest.mark.parametrize(("calls", "gone"), [(0, True), (1, False)])
def test_who_has_left_before_a_step_is_not_waited_for(calls: int, gone: bool) -> None:
    one = begun()
    one.left(1, calls)
    told = acts(one)
    assert bool(told) == gone
    if gone:
        (differs,) = told
        assert isinstance(differs, Differ)
        assert "rank 1 has left after 0 collectives; rank 0: a sum, as one more" in differs.reason


@pytest.mark.parametrize(
    ("has_left", "told"),
    [
        (False, "rank 4: a strict sum; rank 5: a sum"),
        (True, "rank 4 has left after 0 collectives; rank 5: a sum, as one more"),
    ],
)
def test_ranks_are_told_as_those_of_the_job(has_left: bool, told: str) -> None:
    one = gang(first_rank=4, local_rank=1)
    one.begin(SUM, LANES, AT)
    if has_left:
        one.left(0, 0)
    else:
        one.heard(0, notice(STRICT))
    (differs,) = acts(one)
    assert isinstance(differs, Differ)
    assert told in differs.reason


def test_a_strict_call_asks_all_planes_first() -> None:
    one = begun(STRICT)
    one.heard(1, notice(STRICT))
    assert acts(one) == [Ask(Start(ALL, 0, 0, LANES))]
    one.found_way(Way.IN_NETWORK)
    assert one.actions() == [Tell(notice(STRICT, way=Way.IN_NETWORK))]
    assert one.late == (1,)
    one.heard(1, notice(STRICT, way=Way.IN_NETWORK))
    assert acts(one) == [Start(ALL, 0, 0, LANES)]


def test_a_strict_call_waits_for_those_whose_planes_have_not_said() -> None:
    one = begun(STRICT, size=3)
    one.heard(1, notice(STRICT, way=Way.IN_NETWORK))
    one.heard(2, notice(STRICT))
    one.found_way(Way.IN_NETWORK)
    assert (acts(one)[1:], one.late) == ([], (2,))


@pytest.mark.parametrize(
    ("ways", "planes"),
    [
        ((Way.IN_NETWORK, Way.BY_RING, Way.IN_NETWORK), "the plane of GPU 1 of each machine goes by ring"),
        ((Way.BY_RING, Way.IN_NETWORK, Way.BY_RING), "the planes of GPU 0, 2 of each machine go by ring"),
    ],
)
def test_the_last_plane_that_says_how_it_goes_settles_a_strict_call(
    ways: tuple[Way, ...], planes: str
) -> None:
    one = begun(STRICT, size=3)
    for mate in (1, 2):
        one.heard(mate, notice(STRICT, way=ways[mate]))
    one.found_way(ways[0])
    last = acts(one)[-1]
    assert isinstance(last, Return)
    assert last.refused == f"in-network was asked for, but no switch aggregates for this job: {planes}"


@pytest.mark.parametrize("mine", [Way.IN_NETWORK, Way.BY_RING])
@pytest.mark.parametrize("theirs", [Way.IN_NETWORK, Way.BY_RING])
@pytest.mark.parametrize("early", [False, True], ids=["mine first", "theirs first"])
def test_a_strict_call_is_refused_on_all_if_one_plane_goes_by_ring(
    mine: Way, theirs: Way, early: bool
) -> None:
    one = begun(STRICT)
    one.heard(1, notice(STRICT, way=theirs if early else Way.UNKNOWN))
    one.found_way(mine)
    one.heard(1, notice(STRICT, way=theirs))
    last = acts(one)[-1]
    if Way.BY_RING in (mine, theirs):
        assert isinstance(last, Return)
        assert last.refused is not None
        assert "no switch aggregates" in last.refused
    else:
        assert last == Start(ALL, 0, 0, LANES)


def test_a_mate_that_was_refused_before_may_be_in_its_next_call() -> None:
    one = begun(STRICT)
    one.heard(1, notice(STRICT))
    one.found_way(Way.IN_NETWORK)
    one.heard(1, Notice(1, 0, LANES, (said(STRICT, 0, 0, Way.BY_RING), said(SUM, 1))))
    last = acts(one)[-1]
    assert isinstance(last, Return)
    assert last.refused is not None


class TestElastic:
    def test_mates_meet_after_the_same_renewal(self) -> None:
        one = begun(elastic=True)
        one.heard(1, notice(SUM, renewal=3))
        assert not acts(one)
        assert one.late == (1,)
        one.stands(Place(3, (ALL, WITHOUT)))
        assert one.actions() == [Tell(notice(SUM, renewal=3)), Start(WITHOUT, 3, 0, LANES)]

    def test_who_stands_where_it_stood_tells_nobody(self) -> None:
        one = begun(elastic=True)
        acts(one)
        one.stands(AT)
        assert one.actions() == []

    def test_lanes_go_on_behind_whoever_has_come_furthest(self) -> None:
        one = gang(elastic=True)
        one.begin(SUM, (5, 2), AT)
        one.heard(1, Notice(0, 0, (4, 7), (said(SUM),)))
        assert acts(one) == [Start(ALL, 0, 0, (5, 7))]

    def test_a_result_is_this_workers_when_its_plane_says_so(self) -> None:
        one = begun(elastic=True)
        one.heard(1, notice(SUM))
        acts(one)
        one.has_result()
        assert acts(one) == [Finish(0)]
        assert one.step == 0
        one.finished()
        assert acts(one) == [Return(None)]
        assert one.step == 1

    @pytest.mark.parametrize("stage", [Stage.ASKING, Stage.AGREEING, Stage.RUNNING, Stage.FINISHING])
    def test_what_is_dropped_meets_again(self, stage: Stage) -> None:
        asked = SUM if stage in (Stage.RUNNING, Stage.FINISHING) else STRICT
        one = begun(asked, elastic=True)
        one.heard(1, notice(asked))
        if stage is Stage.AGREEING:
            one.found_way(Way.IN_NETWORK)
        if stage is Stage.FINISHING:
            one.has_result()
        assert one.stage is stage
        one.dropped((3, 3), Place(1, (ALL, WITHOUT)))
        assert one.actions() == [Tell(notice(asked, renewal=1, lanes=3))]
        one.heard(1, notice(asked, renewal=1, lanes=2))
        last = acts(one)[-1]
        assert (last.start if isinstance(last, Ask) else last) == Start(WITHOUT, 1, 0, (3, 3))

    def test_a_way_from_before_a_renewal_does_not_count(self) -> None:
        one = begun(STRICT, elastic=True, place=Place(1, (ALL, WITHOUT)))
        one.heard(1, notice(STRICT, renewal=1))
        one.found_way(Way.IN_NETWORK)
        one.heard(1, notice(STRICT, renewal=0, way=Way.IN_NETWORK))
        assert (acts(one)[1:], one.late) == ([], (1,))

    @pytest.mark.parametrize(
        ("asked", "place", "refused"),
        [
            (replace(SUM, root=2), Place(1, (ALL, WITHOUT)), "a sum: the worker that was the root has died"),
            (
                replace(SUM, root=2),
                Place(1, (WITHOUT,)),
                "root 2 is no rank of a job of 2 workers (0..1)",
            ),
            (replace(SUM, root=1), Place(1, (ALL, WITHOUT)), None),
            (replace(SUM, root=3, member=1), Place(1, (WITHOUT,)), None),  # seen before ranks closed up
            (replace(SUM, rows=4), Place(1, (ALL, WITHOUT)), None),
            (
                replace(SUM, rows=5),
                Place(1, (ALL, WITHOUT)),
                "a sum: the first dimension, 5, is not a multiple of 4 workers",
            ),
            (
                replace(SUM, rows=2),
                Place(1, (ALL, WITHOUT)),
                "a sum: the first dimension, 2, is not a multiple of 4 workers",
            ),
            (
                replace(SUM, rows=8),
                Place(1, (ALL, World(0, (0, 1, 2)), WITHOUT)),
                "a sum: the first dimension, 8, is not a multiple of 3 workers",
            ),
        ],
    )
    def test_what_those_who_are_left_cannot_do_is_refused(
        self, asked: Asked, place: Place, refused: str | None
    ) -> None:
        one = begun(asked, elastic=True, place=place)
        one.heard(1, notice(asked, renewal=1))
        last = acts(one)[-1]
        if refused is None:
            assert isinstance(last, Start)
            return
        assert last == Finish(1)
        one.finished()
        (over,) = acts(one)
        assert isinstance(over, Return)
        assert over.refused is not None
        assert refused in over.refused

    def test_a_root_keeps_its_worker_when_ranks_close_up(self) -> None:
        left = World(0, (2, 3))
        one = begun(replace(SUM, root=3), elastic=True, place=Place(1, (ALL, left)))
        one.heard(1, notice(replace(SUM, root=3), renewal=1))
        assert acts(one) == [Start(left, 1, 1, LANES)]


class Mates:
    """The gangs of a machine, whose notices arrive in any order, each mate's newest only."""

    def __init__(self, calls: list[list[Asked]], random: Random) -> None:
        self.calls, self.random = calls, random
        size = len(calls)
        self.gangs = [gang(size=size, local_rank=rank) for rank in range(size)]
        self.board: list[Notice | None] = [None] * size
        self.started: list[list[int]] = [[] for _ in calls]
        self.ends: list[str | None] = [None] * size
        self.left: dict[int, int] = {}

    def play(self) -> None:
        """Play until nobody can do anything any more."""
        idle = 0
        while idle < 30 * len(self.gangs):
            idle = 0 if self.step(self.random.randrange(len(self.gangs))) else idle + 1

    def step(self, rank: int) -> bool:
        one, before = self.gangs[rank], (self.gangs[rank].stage, self.gangs[rank].step)
        if self.ends[rank] is not None:
            return False
        if one.stage is Stage.IDLE:
            if one.step == len(self.calls[rank]):
                self.ends[rank] = "left"
                self.left[rank] = one.step
                return True
            one.begin(self.calls[rank][one.step], LANES, AT)
        mate = self.random.choice([other for other in range(len(self.gangs)) if other != rank])
        told = self.board[mate]
        if told is not None:
            one.heard(mate, told)
        if mate in self.left and one.stage is Stage.MEETING:
            one.left(mate, self.left[mate])
        self.carry_out(rank)
        return (one.stage, one.step) != before

    def carry_out(self, rank: int) -> None:
        one = self.gangs[rank]
        while actions := one.actions():
            for action in actions:
                match action:
                    case Tell(told):
                        self.board[rank] = told
                    case Ask():
                        one.found_way(Way.IN_NETWORK)
                    case Start():
                        self.started[rank].append(one.step)
                        one.has_result()
                    case Differ():
                        self.ends[rank] = "differs"
                        return


@pytest.mark.parametrize("seed", range(300))
def test_in_any_order_equal_calls_end_and_different_ones_never_run(seed: int) -> None:
    """Check that from the first difference on no call runs on anybody, and that somebody hears of it."""
    random = Random(seed)
    size, length = random.randint(2, 4), random.randint(0, 5)
    calls = [random.choice([SUM, STRICT, CANCELLED]) for _ in range(length)]
    each = [list(calls) for _ in range(size)]
    differ_at = None
    if length and random.random() < 0.6:
        differ_at = random.randrange(length)
        odd = each[random.randrange(size)]
        if random.random() < 0.5:
            odd[differ_at] = Asked("another", b"a" * 32)
        else:
            del odd[differ_at:]
    mates = Mates(each, random)
    mates.play()
    if differ_at is None:
        assert mates.ends == ["left"] * size
        return
    assert "differs" in mates.ends
    assert all(step < differ_at for started in mates.started for step in started)


def test_no_order_of_notices_keeps_two_mates_apart() -> None:
    """Let each look at the other before or after either tells: all orders of their first ten steps."""
    for order in itertools.product((0, 1), repeat=10):
        mates = Mates([[SUM, CANCELLED, STRICT], [SUM, CANCELLED, STRICT]], Random(0))
        for rank in order:
            mates.step(rank)
        mates.play()
        assert mates.ends == ["left", "left"]
