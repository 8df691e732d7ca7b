"""A running job moves between ring and switch, and goes on under new generations: every sum is exact."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest

from controller.api.messages import HoldAt, Mode, Moved, Pause
from host_agent.communicator import Communicator
from host_agent.errors import (
    CollectiveTimeoutError,
    CommunicatorClosedError,
    CommunicatorError,
    JobEndedError,
    RingFallbackWarning,
    UsageError,
    WorkerLostError,
)
from host_agent.membership import MembershipChange
from host_agent.transport import EventType, TransportClosedError
from p4reduce.simulation.faults.schedule import Rates
from tests.host_agent.fakes import FakeRack
from tests.host_agent.waiting import BAD_LINKS, eventually

pytestmark = pytest.mark.filterwarnings("ignore::host_agent.errors.RingFallbackWarning")

ONES = np.ones(5, np.int32)
Stop: TypeAlias = Callable[[FakeRack], None]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def until_collective(rack: FakeRack, number: int) -> None:
    """Wait until the first of those who live has run so many."""
    first = rack.communicators[rack.members[0]]
    eventually(lambda: first.statistics().collectives >= number)


def values(rank: int, number: int, dtype: Any) -> Any:
    """Return whole numbers: their sums are exact in floating point as well."""
    return ((np.arange(3000) * (number + 3) + rank * 17) % 1000 - 500).astype(dtype)


def exact(number: int, dtype: Any, ranks: list[int]) -> Any:
    return sum(values(rank, number, np.int64) for rank in ranks).astype(dtype)


# ---- Both


def held(rack: FakeRack) -> None:
    """Hold all workers in the middle of a move."""
    rack.controller.say(Pause(1))
    rack.controller.gather("paused", 1)


def cut(rack: FakeRack) -> None:
    """Cut all connections in the middle of a renewal."""
    rack.begin_renewal("switch l1 has restarted")
    rack.gather_answers()


stopped = pytest.mark.parametrize("stop", [held, cut], ids=["held", "cut"])


@stopped
def test_a_job_that_ends_meanwhile_ends_for_all(pool: ThreadPoolExecutor, stop: Stop) -> None:
    rack = FakeRack(2)
    waiting = pool.submit(rack.communicators[0].all_reduce, ONES)
    queued = rack.communicators[0].barrier(async_op=True)
    stop(rack)
    later = pool.submit(rack.communicators[1].all_reduce, ONES)
    rack.controller.end("rank 1 died", 1)
    for future in (waiting, queued):
        with pytest.raises(WorkerLostError, match="rank 1 died"):
            future.result(30)
    with pytest.raises(JobEndedError, match="rank 1 died"):
        later.result(30)
    for c in rack.communicators:
        c.leave()
        assert c._execution._thread is None or not c._execution._thread.is_alive()


@stopped
@pytest.mark.parametrize("called", ["before", "after"])
def test_a_worker_that_aborts_meanwhile_ends_the_job(
    pool: ThreadPoolExecutor, stop: Stop, called: str
) -> None:
    rack = FakeRack(2)
    stop(rack)
    if called == "after":
        rack.communicators[0].abort("no more")
    waiting = [pool.submit(c.all_reduce, ONES) for c in rack.communicators]
    if called == "before":
        rack.communicators[0].abort("no more")
    with pytest.raises(CommunicatorClosedError, match="no more"):
        waiting[0].result(30)
    with pytest.raises(WorkerLostError, match="no more"):
        waiting[1].result(30)


@stopped
@pytest.mark.parametrize("runs", [False, True], ids=["waiting", "running"])
def test_ctrl_c_interrupts_a_collective(stop: Stop, runs: bool) -> None:
    rack = FakeRack(2)
    if not runs:
        stop(rack)
    begun = threading.Timer(0.05 if runs else 0.0, stop if runs else int, (rack,) if runs else ())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    begun.start()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            rack.communicators[0].all_reduce(np.ones(5, np.int32))
    finally:
        timer.join()
        begun.join()
        signal.signal(signal.SIGINT, before)
    assert rack.controller.ended is not None
    assert "KeyboardInterrupt" in rack.controller.ended.reason
    with pytest.raises(WorkerLostError):
        rack.communicators[1].all_reduce(ONES)
    for c in rack.communicators:
        c.leave()


def test_workers_that_do_nothing_take_part_and_so_do_those_that_leave(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(3)
    rack.run(lambda c: c.all_reduce(ONES))
    leaving = pool.submit(rack.communicators[1].leave)
    assert rack.move(Mode.RING, "moved out") == 1
    assert rack.move(Mode.IN_NETWORK) == 1
    assert rack.renew() == 1
    assert rack.renew(Mode.RING) == 1
    others = [pool.submit(rack.communicators[rank].leave) for rank in (0, 2)]
    for future in (leaving, *others):
        future.result(30)


# ---- Moves


@pytest.mark.parametrize("faults", [Rates(), BAD_LINKS], ids=["good links", "bad links"])
@pytest.mark.parametrize("dtype", [np.int32, np.float32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("first", [Mode.RING, Mode.IN_NETWORK], ids=lambda mode: mode.name)
def test_every_sum_is_exact_while_a_job_moves_there_and_back(
    pool: ThreadPoolExecutor, first: Mode, dtype: Any, faults: Rates
) -> None:
    rack = FakeRack(3, mode=first, reason="no free slots", faults=faults, ring=(1, 0, 2))
    enough = threading.Event()

    def work(c: Communicator) -> int:
        number, last = 0, 0
        while not last:
            futures = [c.all_reduce(values(c.rank, number + i, dtype), async_op=True) for i in range(3)]
            for i, future in enumerate(futures):
                np.testing.assert_array_equal(future.result(30), exact(number + i, dtype, [0, 1, 2]))
            number += 3
            gathered = c.all_gather(np.full(2, c.rank, dtype))
            np.testing.assert_array_equal(gathered[:, 0], np.arange(3))
            last = int(c.all_reduce(np.full(1, enough.is_set(), np.int32), "max")[0])
            number += 2
        return number

    running = pool.submit(rack.run, work)
    second = Mode.RING if first is Mode.IN_NETWORK else Mode.IN_NETWORK
    until_collective(rack, 8)
    there = rack.move(second, "moved out")
    until_collective(rack, there + 8)
    assert {c.mode for c in rack.communicators} == {second}
    back = rack.move(first, "moved back")
    assert there < back
    until_collective(rack, back + 8)
    enough.set()
    numbers = running.result(60)
    assert numbers == [numbers[0]] * 3, numbers
    for c in rack.communicators:
        statistics = c.statistics()
        switched = statistics.in_network
        assert 0 < switched < statistics.collectives
        assert c.mode is first
    counters = rack.simulation.job.counters
    assert counters["aggregated"] == 3 * counters["completed"]


def test_after_the_move_the_switch_adds_up_and_before_it_does_not(
    pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rack = FakeRack(2, mode=Mode.RING, reason="8192 of 8192 slots are in use")
    assert rack.run(lambda c: int(c.all_reduce(np.ones(4, np.int32))[0])) == [2, 2]
    assert rack.communicators[0].mode_reason == "8192 of 8192 slots are in use"
    assert rack.simulation.job.counters["aggregated"] == 0
    assert rack.move(Mode.IN_NETWORK) == 1
    assert rack.run(lambda c: int(c.all_reduce(np.ones(4, np.int32))[0])) == [2, 2]
    assert rack.simulation.job.counters["completed"] == 1
    assert [(c.mode, c.mode_reason) for c in rack.communicators] == [(Mode.IN_NETWORK, "")] * 2
    assert [c.statistics().in_network for c in rack.communicators] == [1, 1]
    assert "from collective 1 on summed by the switch" in caplog.text
    rack.move(Mode.RING, "moved out for job b")
    assert "from collective 2 on by ring all-reduce: moved out for job b" in caplog.text


def test_a_collective_that_was_called_before_the_move_travels_as_it_is_when_it_starts(
    pool: ThreadPoolExecutor,
) -> None:
    """Check that its strategy is that of its number on all workers, however early one of them called it."""
    rack = FakeRack(2, mode=Mode.RING, reason="no room")
    first = rack.communicators[0]
    early: list[Future[Any]] = [first.all_reduce(np.full(9, i, np.int32), async_op=True) for i in range(4)]
    moved = pool.submit(rack.move, Mode.IN_NETWORK)  # rank 1 has started nothing

    def late() -> list[int]:
        c = rack.communicators[1]
        return [int(c.all_reduce(np.full(9, i, np.int32))[0]) for i in range(4)]

    assert pool.submit(late).result(30) == [0, 2, 4, 6]
    assert [int(f.result(30)[0]) for f in early[:4]] == [0, 2, 4, 6]
    begun = moved.result(30)  # 1, or 0 where rank 0 had not started either
    assert [c.statistics().ring for c in rack.communicators] == [begun, begun]


def test_what_is_queued_when_a_worker_leaves_waits_for_the_move(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(2, mode=Mode.RING, reason="no room")
    rack.controller.say(Pause(1))
    assert rack.controller.gather("paused", 1) == {0: 0, 1: 0}
    futures = [c.all_reduce(np.ones(3, np.int32), async_op=True) for c in rack.communicators]
    leaving = [pool.submit(c.leave) for c in rack.communicators]
    rack.controller.say(HoldAt(1, 0))
    rack.controller.gather("held", 1)
    rack.simulation.install()
    assert not any(future.done() for future in futures)
    assert not any(future.done() for future in leaving)
    rack.controller.say(Moved(1, Mode.IN_NETWORK, ""))
    assert [f.result(30).tolist() for f in futures] == [[2, 2, 2]] * 2
    for future in leaving:
        future.result(30)


@pytest.mark.slow
def test_nothing_is_held_before_all_is_acknowledged() -> None:
    """Check that Held waits: rank 1's result can be there before rank 0's own packets are acknowledged."""
    rack = FakeRack(2, mode=Mode.IN_NETWORK, faults=Rates(loss=0.3))
    for _ in range(10):
        rack.run(lambda c: c.all_reduce(np.ones(2000, np.int32)))
        rack.controller.say(Pause(1))
        rack.controller.gather("paused", 1)
        rack.controller.say(HoldAt(1, rack.communicators[0].statistics().collectives))
        rack.controller.gather("held", 1)
        for worker in rack.simulation.workers:
            progress = worker.endpoint.progress()
            assert progress.operations == 0
            assert progress.acked_messages == progress.posted_messages == progress.received_messages
        rack.controller.say(Moved(1, Mode.IN_NETWORK, ""))


def test_asking_for_the_switch_is_refused_on_all_workers_alike_and_taken_after_the_move() -> None:
    rack = FakeRack(2, mode=Mode.RING, reason="no room")

    def ask(c: Communicator) -> Any:
        return c.all_reduce(ONES, strategy="in-network").tolist()

    for error in rack.run(ask):
        assert isinstance(error, UsageError)
        assert "no switch aggregates for this job: no room" in str(error)
    rack.move(Mode.IN_NETWORK)
    assert rack.run(ask) == [[2] * 5] * 2


# ---- Renewals


@pytest.mark.parametrize("faults", [Rates(), BAD_LINKS], ids=["good links", "bad links"])
@pytest.mark.parametrize("dtype", [np.int32, np.float32], ids=lambda dtype: dtype.__name__)
def test_every_sum_is_exact_while_a_job_is_renewed_again_and_again(
    pool: ThreadPoolExecutor, dtype: Any, faults: Rates
) -> None:
    rack = FakeRack(3, faults=faults)
    enough = threading.Event()

    def work(c: Communicator) -> int:
        number, last = 0, 0
        while not last:
            arrays = [values(c.rank, number + i, dtype) for i in range(3)]
            futures = [c.all_reduce(array, out=array, async_op=True) for array in arrays]
            for i, future in enumerate(futures):
                np.testing.assert_array_equal(future.result(30), exact(number + i, dtype, [0, 1, 2]))
                arrays[i][...] = 77  # the user goes on with it
            number += 3
            gathered = c.all_gather(np.full(2, c.rank, dtype))
            np.testing.assert_array_equal(gathered[:, 0], np.arange(3))
            part = c.reduce_scatter(values(c.rank, number, dtype))
            np.testing.assert_array_equal(
                part, exact(number, dtype, [0, 1, 2])[c.rank * 1000 : (c.rank + 1) * 1000]
            )
            c.barrier()
            last = int(c.all_reduce(np.full(1, enough.is_set(), np.int32), "max")[0])
            number += 4
        return number

    running = pool.submit(rack.run, work)
    done = 0
    for mode in (Mode.IN_NETWORK, Mode.RING, Mode.RING, Mode.IN_NETWORK, Mode.IN_NETWORK):
        until_collective(rack, done + 2)
        done = rack.renew(mode)
    until_collective(rack, done + 8)
    enough.set()
    numbers = running.result(60)
    assert numbers == [numbers[0]] * 3, numbers
    for c in rack.communicators:
        statistics = c.statistics()
        assert statistics.renewals == 5
        assert statistics.collectives == numbers[0]
        assert 0 < statistics.in_network < statistics.collectives
        assert c.mode is Mode.IN_NETWORK
        assert c.generation == c.ready.generation + 5
    # What went over all connections that there were.
    assert (
        rack.communicators[0].counters().messages_sent
        > rack.links[0].worker.endpoint.counters().messages_sent
        > 0
    )


def test_what_is_called_and_queued_during_a_renewal_waits_for_it(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(2)
    rack.begin_renewal("switch l1 has restarted")
    futures = [c.all_reduce(ONES, async_op=True) for c in rack.communicators]
    called = [pool.submit(c.all_reduce, ONES) for c in rack.communicators]
    answers = rack.gather_answers()
    assert not any(future.done() for future in [*futures, *called])
    rack.say_renewed(answers, Mode.IN_NETWORK)
    rack.start_again()
    assert [f.result(30).tolist() for f in [*futures, *called]] == [[2] * 5] * 4


@pytest.mark.parametrize("how_far", ["asked", "answered", "renewed", "up"])
def test_a_renewal_is_replaced_by_the_next_wherever_it_is(pool: ThreadPoolExecutor, how_far: str) -> None:
    rack = FakeRack(3)
    waiting = [pool.submit(c.all_reduce, ONES) for c in rack.communicators[:2]]
    rack.begin_renewal("switch l1 has restarted")
    if how_far != "asked":
        answers = rack.gather_answers()
        if how_far != "answered":
            rack.say_renewed(answers, Mode.IN_NETWORK)
            if how_far == "up":
                for _ in range(3):
                    rack.controller.ups.get(timeout=20)
    for _ in range(2):
        rack.renew(reason="switch l1 has restarted again")
    waiting.append(pool.submit(rack.communicators[2].all_reduce, ONES))
    assert [f.result(30).tolist() for f in waiting] == [[3] * 5] * 3


def test_a_renewal_in_the_middle_of_the_repair(pool: ThreadPoolExecutor) -> None:
    """Cut the connections again when rank 0 has finished, and the others do not have its result yet."""
    for _ in range(5):
        rack = FakeRack(3)
        waiting = [pool.submit(c.all_reduce, values(c.rank, 0, np.int32)) for c in rack.communicators]
        rack.renew()
        rack.begin_renewal("again")  # whatever they are doing
        answers = rack.gather_answers()
        rack.say_renewed(answers, Mode.RING)
        rack.start_again()
        rack.renew(Mode.IN_NETWORK)
        for future in waiting:
            np.testing.assert_array_equal(future.result(30), exact(0, np.int32, [0, 1, 2]))


def test_leaving_lets_go_of_a_collective_that_was_cut(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(2)
    waiting = pool.submit(rack.communicators[0].all_reduce, ONES)
    rack.begin_renewal("switch l1 has restarted")
    rack.gather_answers()
    with contextlib.suppress(threading.BrokenBarrierError):  # the others do not leave
        rack.communicators[0].leave(timeout_s=0.1)
    with pytest.raises(CommunicatorClosedError):
        waiting.result(30)
    rack.controller.end("it is over", None)


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "called-meanwhile"])
def test_with_a_time_limit_a_renewal_that_comes_no_further_is_given_up(
    pool: ThreadPoolExecutor, cut: bool
) -> None:
    rack = FakeRack(2, timeout_s=0.5)
    first = rack.communicators[0]
    if not cut:
        rack.begin_renewal("switch l1 has restarted")
    waiting = pool.submit(first.all_reduce, ONES)
    if cut:
        eventually(lambda: first._execution.member.next_collective == 1)
        rack.begin_renewal("switch l1 has restarted")
    cause = "switch l1 has restarted"
    stall = "no further for 0.5 s"
    words = f"which has come {stall}: {cause}" if cut else f"waits for a renewal ({cause}) of its job"
    with pytest.raises(CollectiveTimeoutError, match=re.escape(words)) as raised:
        waiting.result(30)
    assert stall in str(raised.value)
    with pytest.raises(JobEndedError, match="no further"):
        rack.communicators[1].all_reduce(ONES)


def test_with_a_time_limit_a_move_that_comes_no_further_is_given_up() -> None:
    rack = FakeRack(2, timeout_s=0.5)
    held(rack)
    with pytest.raises(CollectiveTimeoutError, match=r"waits for a move of its job.*no further for 0\.5 s"):
        rack.communicators[0].all_reduce(ONES)


def test_a_worker_that_cannot_make_new_connections_says_so_to_all(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = FakeRack(2)
    monkeypatch.setattr(rack.communicators[1]._execution, "queue_pairs", None)
    waiting = pool.submit(rack.communicators[0].all_reduce, ONES)
    rack.begin_renewal("switch l1 has restarted")
    with pytest.raises(
        WorkerLostError, match=r"could not go on .*\(switch l1 has restarted\): it has no way"
    ):
        waiting.result(30)
    with pytest.raises(CommunicatorError, match="could not go on"):
        rack.communicators[1].all_reduce(ONES)


def test_going_over_to_the_ring_and_back_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rack = FakeRack(2)
    rack.renew(Mode.RING, "switch l1 is away for 10 s")
    assert rack.run(lambda c: int(c.all_reduce(ONES)[0])) == [2, 2]
    eventually(lambda: "by ring all-reduce from now on: switch l1 is away for 10 s" in caplog.text)
    assert [(c.mode, c.mode_reason) for c in rack.communicators] == [
        (Mode.RING, "switch l1 is away for 10 s")
    ] * 2
    rack.renew(Mode.IN_NETWORK, "switch l1 is back")
    rack.run(lambda c: c.barrier())
    eventually(lambda: "the switch sums again" in caplog.text)
    assert [c.statistics().in_network for c in rack.communicators] == [1, 1]


def test_the_next_call_warns_of_the_ring_where_it_stands_once_a_worker() -> None:
    rack = FakeRack(2)
    rack.renew(Mode.RING, "switch l1 is away")
    calls = [
        lambda c: c.all_reduce(ONES),
        lambda c: c.all_reduce(ONES, async_op=True).result(20),
        lambda c: c.barrier(),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in calls:
            rack.run(call)
    assert [(w.category, str(w.message), w.filename) for w in caught] == [
        (
            RingFallbackWarning,
            "this job is summed by ring all-reduce from now on: switch l1 is away",
            __file__,
        )
    ] * 2
    rack.renew(Mode.IN_NETWORK, "switch l1 is back")
    rack.run(lambda c: c.barrier())
    assert [c.statistics().ring_reason for c in rack.communicators] == ["switch l1 is away"] * 2
    rack.renew(Mode.RING, "switch l1 is away again")
    eventually(lambda: all(c.mode is Mode.RING for c in rack.communicators))
    with pytest.warns(RingFallbackWarning, match="away again"):
        rack.run(lambda c: c.barrier(async_op=True).result(20))


def renewed(rack: FakeRack, generation: int) -> bool:
    """Tell whether all workers have a later generation."""
    return all(c.generation > generation for c in rack.communicators)


def test_a_job_that_has_been_in_the_switch_between_two_calls_is_warned_of_again() -> None:
    rack = FakeRack(2)
    for modes in ([Mode.RING], [Mode.IN_NETWORK, Mode.RING]):
        for mode in modes:
            before = rack.communicators[0].generation
            rack.renew(mode, f"the way is {mode.name}")
            eventually(partial(renewed, rack, before))
        eventually(lambda: all(c.mode is Mode.RING for c in rack.communicators))
        with pytest.warns(RingFallbackWarning, match="the way is RING"):
            rack.run(lambda c: c.barrier())


def test_who_takes_the_warning_for_an_error_gets_it_from_a_call_that_has_done_nothing() -> None:
    rack = FakeRack(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RingFallbackWarning)
        rack.renew(Mode.RING, "switch l1 is away")
        eventually(lambda: all(c.mode is Mode.RING for c in rack.communicators))
        for error in rack.run(lambda c: c.all_reduce(ONES)):
            assert isinstance(error, RingFallbackWarning)
        assert rack.run(lambda c: int(c.all_reduce(ONES)[0])) == [2, 2]


# ---- Workers that die


@pytest.mark.parametrize("faults", [Rates(), BAD_LINKS], ids=["good links", "bad links"])
@pytest.mark.parametrize("mode", [Mode.IN_NETWORK, Mode.RING], ids=lambda mode: mode.name)
def test_an_elastic_job_sums_with_a_dead_worker_for_all_or_without_it_for_all(
    pool: ThreadPoolExecutor, mode: Mode, faults: Rates
) -> None:
    rack = FakeRack(4, faults=faults)
    enough = threading.Event()
    seen: dict[int, list[list[Any]]] = {0: [], 2: [], 3: []}

    def work(c: Communicator) -> None:
        me = c.rank
        number, last = 0, 0
        while not last:
            array = values(me, number, np.int32)
            c.all_reduce(array, out=array)
            if me in seen:
                seen[me].append(array.tolist())
            number += 1
            last = int(c.all_reduce(np.full(1, enough.is_set(), np.int32), "max")[0])

    running = pool.submit(rack.run, work)
    until_collective(rack, 7)
    rack.die(1)
    rack.renew(mode, "rank 1 (h2) died", lost=[1])
    until_collective(rack, rack.communicators[0].statistics().collectives + 6)
    enough.set()
    outcomes = running.result(60)
    assert isinstance(outcomes[1], JobEndedError)
    assert [outcomes[rank] for rank in (0, 2, 3)] == [None] * 3
    assert seen[0] == seen[2] == seen[3]
    kinds = []
    for number, result in enumerate(seen[0]):
        if result == exact(number, np.int32, [0, 1, 2, 3]).tolist():
            kinds.append("with")
        else:
            assert result == exact(number, np.int32, [0, 2, 3]).tolist()
            kinds.append("without")
    assert kinds == sorted(kinds)
    assert set(kinds) == {"with", "without"}


def test_ranks_and_world_size_change_and_the_user_is_told(
    pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    rack = FakeRack(3)
    changes: list[MembershipChange] = []
    rack.communicators[2].on_change(changes.append)
    rack.die(1)
    alive = [rack.communicators[rank] for rank in (0, 2)]
    waiting = [pool.submit(c.all_reduce, np.full(3, 10 * (c.rank + 1), np.float32), "avg") for c in alive]
    rack.renew(reason="rank 1 (h2) died: no heartbeat for 15 s", lost=[1])
    assert [f.result(30).tolist() for f in waiting] == [[20.0] * 3] * 2  # (10 + 30) / 2
    assert [(c.rank, c.world_size) for c in alive] == [(0, 2), (1, 2)]
    eventually(lambda: bool(changes))
    (change,) = changes
    assert (change.old_rank, change.rank, change.old_world_size, change.world_size) == (2, 1, 3, 2)
    assert change.lost == (1,)
    assert change.generation == rack.communicators[2].generation
    assert rack.communicators[2].status("train")["generation"] == change.generation
    assert "going on as rank 1 of 2" in caplog.text
    gathered = [pool.submit(c.all_gather, np.full(2, c.rank, np.int32)) for c in alive]
    assert [f.result(30).tolist() for f in gathered] == [[[0, 0], [1, 1]]] * 2
    for future in [pool.submit(c.leave) for c in alive]:
        future.result(30)


def test_roots_are_workers_not_numbers(pool: ThreadPoolExecutor) -> None:
    """Call broadcasts before a death: each is from whom it was asked of, or is refused on all."""
    rack = FakeRack(4)
    alive = [rack.communicators[rank] for rank in (0, 2, 3)]
    rack.die(1)
    from_2 = [c.broadcast(np.full(4, c.rank, np.int32), root=2, async_op=True) for c in alive]
    to_3 = [c.reduce(np.full(4, c.rank, np.int32), root=3, async_op=True) for c in alive]
    from_1 = [c.broadcast(np.full(4, c.rank, np.int32), root=1, async_op=True) for c in alive]
    rack.renew(reason="rank 1 died", lost=[1])
    assert [f.result(30).tolist() for f in from_2] == [[2] * 4] * 3
    results = [f.result(30) for f in to_3]
    assert results[0] is results[1] is None
    assert results[2] is not None
    assert results[2].tolist() == [5] * 4
    for future in from_1:
        with pytest.raises(UsageError, match="the worker that was the root has died"):
            future.result(30)
    after = [pool.submit(c.all_reduce, ONES) for c in alive]
    assert [f.result(30).tolist() for f in after] == [[3] * 5] * 3


def test_parts_that_can_not_be_divided_any_more_are_refused_on_all(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(4)
    alive = [rack.communicators[rank] for rank in (0, 1, 3)]
    rack.die(2)
    before = [pool.submit(c.reduce_scatter, np.ones(8, np.int32)) for c in alive[:2]]
    time.sleep(0.02)
    rack.renew(reason="rank 2 died", lost=[2])
    for future in [*before, pool.submit(alive[2].reduce_scatter, np.ones(8, np.int32))]:
        with pytest.raises(UsageError, match="not a multiple of 3 workers"):
            future.result(30)
    after = [pool.submit(c.reduce_scatter, np.ones(6, np.int32)) for c in alive]
    assert [f.result(30).tolist() for f in after] == [[3, 3]] * 3


def test_a_call_that_some_would_refuse_is_done_by_all_where_a_renewal_comes_between(
    pool: ThreadPoolExecutor,
) -> None:
    """Call it on one worker while the job goes by ring, and on the other when switches add up again."""
    with pytest.warns(RingFallbackWarning):
        rack = FakeRack(2, mode=Mode.RING)
    first, second = rack.communicators

    def strict(c: Communicator) -> Any:
        return c.all_reduce(ONES, strategy="in-network")

    early = pool.submit(strict, first)
    eventually(lambda: first._execution.member.next_collective == 1)
    rack.renew(Mode.IN_NETWORK)
    assert strict(second).tolist() == early.result(30).tolist() == [2] * 5


def test_a_call_that_somebody_has_refused_is_refused_by_all(pool: ThreadPoolExecutor) -> None:
    """Let one worker find out before the renewal that both have called it, and the other after it."""
    with pytest.warns(RingFallbackWarning):
        rack = FakeRack(2, mode=Mode.RING)
    calls = [pool.submit(c.all_reduce, ONES, strategy="in-network") for c in rack.communicators]
    eventually(lambda: any(call.done() for call in calls))
    rack.renew(Mode.IN_NETWORK)
    for call in calls:
        with pytest.raises(UsageError, match="in-network was asked for"):
            call.result(30)
    after = [pool.submit(c.all_reduce, ONES) for c in rack.communicators]
    assert [f.result(30).tolist() for f in after] == [[2] * 5] * 2


def test_a_job_goes_on_with_one_worker(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(2)
    (alive,) = rack.communicators[1:]
    array = np.arange(4, dtype=np.float32)
    waiting = pool.submit(alive.all_reduce, array, out=array)
    rack.die(0)
    rack.renew(Mode.RING, "rank 0 died", lost=[0])
    assert waiting.result(30).tolist() == [0, 1, 2, 3]
    assert (alive.rank, alive.world_size) == (0, 1)
    assert alive.all_gather(ONES).shape == (1, 5)
    alive.leave()


# ---- Results of elastic jobs


def unacknowledged(rack: FakeRack, monkeypatch: pytest.MonkeyPatch, *, last: int = 1) -> threading.Event:
    """Hold back acknowledgements of rank 0's operations from its `last` one on, until the event is set."""
    arrived, link = threading.Event(), rack.links[0]
    poll = link._poll

    def waits(op_id: int, until: EventType) -> bool:
        if until is EventType.RECEIVED or op_id < last or arrived.is_set():
            return poll(op_id, until)
        if link.aborted is not None:
            raise TransportClosedError(link.aborted)
        return False

    monkeypatch.setattr(link, "_poll", waits)
    return arrived


def has_its_result(rack: FakeRack, rank: int) -> bool:
    return rack.communicators[rank]._execution.member.replay_log.finished == 1


def test_a_result_of_an_elastic_job_is_held_until_the_successor_has_it(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it, since a suspended worker could otherwise return what the others make again without it."""
    rack = FakeRack(2, elastic=True)
    arrived = unacknowledged(rack, monkeypatch)
    first, second = (pool.submit(c.all_reduce, ONES) for c in rack.communicators)
    assert second.result(30).tolist() == [2] * 5
    eventually(lambda: has_its_result(rack, 0))
    assert not first.done()
    arrived.set()
    assert first.result(30).tolist() == [2] * 5


def test_a_result_is_held_until_a_renewal_is_over_that_gives_it_to_the_others(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = FakeRack(2, elastic=True)
    unacknowledged(rack, monkeypatch)
    first, second = (pool.submit(c.all_reduce, ONES) for c in rack.communicators)
    assert second.result(30).tolist() == [2] * 5
    eventually(lambda: has_its_result(rack, 0))
    rack.begin_renewal("a switch restarted")
    answers = rack.gather_answers()
    assert not first.done()
    rack.say_renewed(answers, Mode.IN_NETWORK)
    assert not first.done()
    rack.start_again()
    assert first.result(30).tolist() == [2] * 5


def test_a_job_that_ends_while_a_result_is_held_says_so(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = FakeRack(2, elastic=True)
    unacknowledged(rack, monkeypatch)
    first, second = (pool.submit(c.all_reduce, ONES) for c in rack.communicators)
    second.result(30)
    eventually(lambda: has_its_result(rack, 0))
    rack.controller.end("the others went on without rank 0", 0)
    with pytest.raises(JobEndedError, match="went on without rank 0"):
        first.result(30)


def test_a_worker_whose_successor_does_not_acknowledge_its_result_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rack = FakeRack(2, elastic=True, timeout_s=0.5)
    unacknowledged(rack, monkeypatch)
    error, result = rack.run(lambda c: c.all_reduce(ONES))
    assert isinstance(error, CollectiveTimeoutError)
    assert "has its result, but its successor has not acknowledged all of it" in str(error)
    assert result.tolist() == [2] * 5


def test_who_lacks_only_acknowledgements_has_finished_a_sum_by_ring(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that it does not make again what its predecessor may have returned."""
    rack = FakeRack(2, mode=Mode.RING, elastic=True)
    unacknowledged(rack, monkeypatch, last=2)
    first, second = (pool.submit(c.all_reduce, ONES) for c in rack.communicators)
    assert second.result(30).tolist() == [2] * 5
    running = rack.communicators[0]._execution.member.replay_log._running
    assert running is not None
    eventually(lambda: running.complete)
    rack.begin_renewal("rank 1 died", lost=[1])
    answers = rack.gather_answers()
    assert answers[0].collective == 1
    rack.say_renewed(answers, Mode.RING)
    rack.start_again()
    assert first.result(30).tolist() == [2] * 5


def test_a_call_during_a_renewal_keeps_the_root_that_its_user_saw(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(3)
    rack.run(lambda c: c.barrier())
    rack.die(0)
    rack.begin_renewal("rank 0 died", lost=[0])
    answers = rack.gather_answers()
    calls = [
        pool.submit(c.broadcast, np.full(5, 42 if c.rank == 1 else 0, np.int32), root=1)
        for c in rack.communicators[1:]
    ]
    while not all(c._execution.member.called == 2 for c in rack.communicators[1:]):
        time.sleep(0.01)
    rack.say_renewed(answers, Mode.IN_NETWORK)
    rack.start_again()
    assert [call.result(30).tolist() for call in calls] == [[42] * 5] * 2
