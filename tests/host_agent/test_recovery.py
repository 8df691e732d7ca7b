"""Wherever a job is cut, every rank gets the exact sum, and all the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.api.messages import Mode
from host_agent.collectives.plan import Call, Disagreement, Shared, Steps, Strategy, Wait
from host_agent.quantisation import BFLOAT16
from host_agent.recovery import Attempt, LinkCut, ReplayLog, Window, is_consistent, refusal, through_renewals
from host_agent.wire.aggregation import Reduction
from p4reduce.simulation.cases import DTYPES, REDUCTIONS, Case
from p4reduce.simulation.faults.schedule import Rates
from tests.host_agent.beyond import Beyond
from tests.host_agent.renewed_rack import RenewedRack

MODES = [Mode.IN_NETWORK, Mode.RING]
I32, F32 = np.dtype(np.int32), np.dtype(np.float32)
# With windows of four messages of 192 elements, sums of 3000 need 16 messages.
CASES = [
    Case("in_network", "all_reduce", I32, 3000),
    Case("in_network", "all_reduce", F32, 3000, Reduction.AVG),
    Case("in_network", "all_reduce", BFLOAT16, 3000, Reduction.MIN),
    Case("in_network", "all_reduce", F32, 500),  # small: whole tensors travel
    Case("in_network", "all_reduce", F32, 3000, Reduction.SUM, root=1, non_finite=True),
    Case("in_network", "all_reduce", F32, 3000, half=True),
    Case("in_network", "broadcast", F32, 900, root=1),
    Case("in_network", "all_gather", F32, 300),
    Case("in_network", "reduce_scatter", I32, 700),
    Case("in_network", "barrier", I32, 0),
    Case("ring", "all_reduce", F32, 90_000),  # larger than what a ring keeps
    Case("ring", "all_gather", BFLOAT16, 70_000),
    Case("ring", "reduce_scatter", F32, 500),
    Case("ring", "broadcast", I32, 900, root=2),
    # What is Inf or NaN at first is added once more, from the inputs.
    Beyond("ring", "all_reduce", F32, 600, Reduction.AVG),
    Beyond("ring", "all_reduce", F32, 70_000, Reduction.AVG),
    Beyond("ring", "reduce_scatter", BFLOAT16, 500, Reduction.AVG),
]


def first_finished(rack: RenewedRack, count: int) -> Callable[[int], bool]:
    """Cut when the first rank has finished so many."""
    return lambda events: any(member.replay_log.finished >= count for member in rack.members)


def after(cut: int) -> Callable[[int], bool]:
    """Cut after so many events."""
    return lambda events: events >= cut


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.module}-{case.name}-{case.dtype}-{case.elements}"
)
def test_a_cut_right_after_one_rank_has_finished(case: Case, mode: Mode) -> None:
    """Let its user spoil the result at once: the others get what was kept."""
    before = Case("in_network", "all_reduce", I32, 10)
    for seed, in_place in enumerate([False, True]):
        mtu = 1024 if case.elements > 10_000 else 256
        rack = RenewedRack([before, case, before], 3, in_place=in_place, seed=seed, path_mtu=mtu)
        assert not rack.run(mode, until=first_finished(rack, 2))
        counts = [member.replay_log.finished for member in rack.members]
        assert sorted(set(counts)) == [1, 2]
        assert rack.run(MODES[seed])
        assert rack.repaired == 1
        for number in range(3):
            rack.check(number)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [I32, BFLOAT16], ids=str)
def test_a_rank_that_lacks_a_whole_window_gets_it(dtype: np.dtype[Any], in_place: bool) -> None:
    case = Case("in_network", "all_reduce", dtype, 3001, Reduction.MAX)
    rack = RenewedRack([case], 3, in_place=in_place, seed=1)
    others_done = lambda events: [m.replay_log.finished for m in rack.members] == [1, 0, 1]  # noqa: E731
    assert not rack.run(Mode.IN_NETWORK, until=others_done, deaf=1)
    kept = rack.members[0].replay_log.kept(0).size
    assert kept == rack.shape.elements(dtype.itemsize) * dtype.itemsize < 3001 * dtype.itemsize
    assert rack.run(Mode.IN_NETWORK)
    rack.check(0)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[:10], ids=lambda case: f"{case.name}-{case.dtype}-{case.elements}")
def test_a_cut_at_any_event(case: Case) -> None:
    """Cut after every so many events: all messages' boundaries are among them."""
    _cut_at_any_event(case, Mode.IN_NETWORK)


@pytest.mark.slow
@pytest.mark.parametrize("most_kept", [0, 256 * 1024], ids=["large", "small"])
@pytest.mark.parametrize("case", CASES[-3:], ids=lambda case: f"{case.name}-{case.dtype}-{case.elements}")
def test_a_cut_while_a_ring_adds_once_more(
    case: Case, most_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host_agent.collectives.ring._MOST_KEPT", most_kept)
    _cut_at_any_event(case, Mode.RING)


def _cut_at_any_event(case: Case, mode: Mode) -> None:
    cases = [replace(case, elements=min(case.elements, 600))] * 2
    whole = RenewedRack(cases, 3, in_place=True, seed=1, window=2, packets=2)
    assert whole.run(mode)
    for cut in range(1, whole.events, max(1, whole.events // 8)):
        rack = RenewedRack(cases, 3, in_place=True, seed=1, window=2, packets=2)
        assert not rack.run(mode, until=after(cut), stagger=20)
        assert rack.run(mode)
        for number in range(2):
            rack.check(number)


ANY = st.builds(
    Case,
    module=st.sampled_from(["in_network", "ring"]),
    name=st.sampled_from(
        ["all_reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"]
    ),
    dtype=st.sampled_from(DTYPES),
    elements=st.one_of(st.integers(0, 3), st.integers(0, 700), st.integers(700, 2500)),
    reduction=st.sampled_from(REDUCTIONS),
    root=st.integers(0, 31),
    non_finite=st.booleans(),
    half=st.booleans(),
    scaled=st.booleans(),
)
WINDOWS = st.sampled_from([(1, 2, 256), (2, 4, 256), (4, 2, 512), (8, 2, 256), (4, 4, 1024)])
FAULTS = st.builds(
    Rates,
    loss=st.sampled_from([0, 0.03]),
    duplicate=st.sampled_from([0, 0.1]),
    reorder=st.sampled_from([0, 0.2]),
)


@pytest.mark.slow
@given(
    size=st.integers(2, 6),
    window=WINDOWS,
    cases=st.lists(ANY, min_size=1, max_size=4),
    cuts=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 40)), min_size=1, max_size=5),
    modes=st.lists(st.sampled_from(MODES), min_size=6, max_size=6),
    faults=FAULTS,
    in_place=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
def test_any_number_of_cuts_anywhere(
    size: int,
    window: tuple[int, int, int],
    cases: list[Case],
    cuts: list[tuple[int, int]],
    modes: list[Mode],
    faults: Rates,
    in_place: bool,
    seed: int,
) -> None:
    """Cut also while the last cut is still being repaired, on bad links, from switch to ring and back."""
    messages, packets, path_mtu = window
    rack = RenewedRack(
        cases,
        size,
        in_place=in_place,
        seed=seed,
        window=messages,
        packets=packets,
        path_mtu=path_mtu,
        faults=faults,
    )
    windows = [Window(*window), Window(4, 4, 1024)]
    over = False
    for (cut, stagger), mode in zip(cuts, modes, strict=False):
        over = rack.run(mode, until=after(cut), stagger=stagger, window=windows[cut % 2])
        if over:
            break
    if not over:
        assert rack.run(modes[-1])
    for number in range(len(cases)):
        rack.check(number)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_job_that_loses_workers_sums_with_them_everywhere_or_without_them_everywhere(mode: Mode) -> None:
    case = Case("in_network", "all_reduce", I32, 1000)
    seen = set()
    for seed in range(12):
        rack = RenewedRack([case] * 3, 4, in_place=bool(seed % 2), seed=seed)
        cut = first_finished(rack, 1 + seed % 3) if seed % 5 == 0 else after(12 * seed + 5)
        assert not rack.run(mode, until=cut, stagger=30)
        assert rack.run(MODES[seed // 2 % 2], lost=[seed % 4])
        left = [member.identity for member in rack.members]
        assert len(left) == 3
        for number, given_ in enumerate(rack.given):
            results = {member.results[number].tobytes() for member in rack.members}
            assert len(results) == 1
            with_it = np.sum(given_, axis=0, dtype=np.int32).tobytes()
            without = np.sum([given_[rank] for rank in left], axis=0, dtype=np.int32).tobytes()
            seen.add(results == {with_it})
            assert results in ({with_it}, {without})
    assert seen == {True, False}


def test_a_job_goes_on_down_to_one_worker() -> None:
    case = Case("in_network", "all_reduce", F32, 700)
    rack = RenewedRack([case] * 6, 4, in_place=True, seed=5)
    for _ in range(3):
        assert not rack.run(Mode.IN_NETWORK, until=after(150), lost=[])
        rack.members.pop(0)
    assert len(rack.members) == 1
    (member,) = rack.members
    before = len(member.results)
    assert rack.run(Mode.RING)
    for number in range(before + 1, 6):
        np.testing.assert_array_equal(member.results[number], rack.given[number][member.identity])


def test_the_count_of_collectives_wraps() -> None:
    replay_log = ReplayLog(Window(4, 4, 1024))
    replay_log.finished = 2**32 - 1
    call = Call(rank=0, world_size=2, collective=2**32 - 1, shared=Shared(np.arange(3, dtype=np.int32)))
    replay_log.begin(None)
    replay_log.attempt(call)
    replay_log.finish()
    assert replay_log.finished == 0
    assert replay_log.kept(2**32 - 1).view(np.int32).tolist() == [0, 1, 2]
    assert is_consistent(0, 2**32 - 1, held=True)
    assert is_consistent(0, 0, held=False)
    assert not is_consistent(0, 2**32 - 1, held=False)
    assert not is_consistent(1, 2**32 - 1, held=True)


def test_results_that_differ_between_those_who_have_one_are_an_error() -> None:
    """Check the error for what cannot be: nobody shall go on with such results."""
    replay_log = ReplayLog(Window(4, 4, 1024))
    call = Call(rank=0, world_size=2, collective=0, shared=Shared(np.arange(3, dtype=np.int32)))
    replay_log.begin(None)
    replay_log.attempt(call)
    replay_log.finish()
    replay_log.take(0, np.arange(3, dtype=np.int32).view(np.uint8))
    with pytest.raises(Disagreement, match="differ between workers"):
        replay_log.take(0, np.arange(1, 4, dtype=np.int32).view(np.uint8))


def test_what_is_kept_of_a_sum_is_what_a_window_can_hold() -> None:
    window = Window(2, 2, 256)
    assert (window.elements(4), window.elements(2)) == (2 * 64, 2 * 128)
    replay_log = ReplayLog(window)
    place = np.arange(1000, dtype=np.int32)
    replay_log.begin(place)
    replay_log.attempt(Call(rank=0, world_size=2, collective=0, shared=Shared(place)))
    place += 5
    replay_log.restore_input()
    np.testing.assert_array_equal(place, np.arange(1000))
    replay_log.finish()
    np.testing.assert_array_equal(replay_log.kept(0).view(np.int32), np.arange(872, 1000))


def test_what_is_refused_at_first_has_its_input_restored_where_it_runs_after_a_renewal() -> None:
    replay_log, array, seen = ReplayLog(Window(2, 2, 256)), np.arange(5, dtype=np.int32), []

    def attempts() -> Iterator[Attempt]:
        yield Attempt(None, call(), refusal(call(), Strategy.RING))
        while True:
            yield Attempt(array, call(), overwrites())

    def call() -> Call:
        return Call(rank=0, world_size=2, collective=0)

    def overwrites() -> Steps[None]:
        seen.append(array.tolist())
        array[...] = 7
        yield Wait(1)

    each = attempts()
    run = through_renewals(replay_log, lambda: next(each))
    next(run)
    for _ in range(2):
        run.throw(LinkCut())
    assert seen == [[0, 1, 2, 3, 4]] * 2
