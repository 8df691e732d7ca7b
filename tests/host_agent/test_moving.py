"""A running job moves between ring and switch: every sum is exact, whatever the workers are doing."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from controller.api.messages import HoldAt, Mode, Moved, Pause
from host_agent.communicator import Communicator
from host_agent.errors import CommunicatorClosedError, JobEndedError, UsageError, WorkerLostError
from simulation.faults.schedule import Rates
from tests.host_agent.fakes import FakeRack

pytestmark = pytest.mark.filterwarnings("ignore::host_agent.communicator.RingFallbackWarning")

BAD_LINKS = Rates(loss=0.03, duplicate=0.03, reorder=0.05, corrupt=0.01)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def until_collective(rack: FakeRack, number: int) -> None:
    """Wait until rank 0 has run so many."""
    deadline = time.monotonic() + 30
    while rack.communicators[0].statistics().collectives < number:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def values(rank: int, number: int, dtype: Any) -> Any:
    """Whole numbers: their sums are exact in floating point as well."""
    return ((np.arange(700) * (number + 3) + rank * 17) % 1000 - 500).astype(dtype)


def exact(number: int, dtype: Any, world_size: int) -> Any:
    return sum(values(rank, number, np.int64) for rank in range(world_size)).astype(dtype)


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
            futures = [c.all_reduce_async(values(c.rank, number + i, dtype)) for i in range(3)]
            for i, future in enumerate(futures):
                np.testing.assert_array_equal(future.result(30), exact(number + i, dtype, 3))
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
    """Its strategy is that of its number on all workers, however early one of them called it."""
    rack = FakeRack(2, mode=Mode.RING, reason="no room")
    first = rack.communicators[0]
    early: list[Future[Any]] = [first.all_reduce_async(np.full(9, i, np.int32)) for i in range(4)]
    moved = pool.submit(rack.move, Mode.IN_NETWORK)  # rank 1 has started nothing

    def late() -> list[int]:
        c = rack.communicators[1]
        return [int(c.all_reduce(np.full(9, i, np.int32))[0]) for i in range(4)]

    assert pool.submit(late).result(30) == [0, 2, 4, 6]
    assert [int(f.result(30)[0]) for f in early[:4]] == [0, 2, 4, 6]
    begun = moved.result(30)  # 1, or 0 where rank 0 had not started either
    assert [c.statistics().ring for c in rack.communicators] == [begun, begun]


def test_workers_that_do_nothing_are_held_and_so_are_those_that_leave(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(3, mode=Mode.RING, reason="no room")
    rack.run(lambda c: c.barrier())
    leaving = pool.submit(rack.communicators[1].leave)
    assert rack.move(Mode.IN_NETWORK) == 1
    assert rack.move(Mode.RING, "again") == 1
    others = [pool.submit(rack.communicators[rank].leave) for rank in (0, 2)]
    for future in (leaving, *others):
        future.result(30)


def test_what_is_queued_when_a_worker_leaves_waits_for_the_move(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(2, mode=Mode.RING, reason="no room")
    rack.controller.say(Pause(1))
    assert rack.controller.gather("paused", 1) == {0: 0, 1: 0}
    futures = [c.all_reduce_async(np.ones(3, np.int32)) for c in rack.communicators]
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


def test_steps_that_are_said_again_are_answered_again() -> None:
    """The session broke in between: the controller says where it is."""
    rack = FakeRack(2, mode=Mode.RING, reason="no room")
    for _ in range(2):
        rack.controller.say(Pause(5))
        assert rack.controller.gather("paused", 5) == {0: 0, 1: 0}
    for _ in range(2):
        rack.controller.say(HoldAt(5, 0))
        rack.controller.gather("held", 5)
    rack.controller.say(Moved(5, Mode.RING, "the switch went away"))
    rack.controller.say(Moved(0, Mode.RING, "the switch is away"))
    assert rack.run(lambda c: int(c.all_reduce(np.ones(1, np.int32))[0])) == [2, 2]
    assert rack.communicators[1].mode_reason == "the switch is away"


@pytest.mark.slow
def test_nothing_is_held_before_all_is_acknowledged() -> None:
    """Rank 1's result can be there while rank 0's own packets are not acknowledged: Held waits."""
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


def test_a_job_that_ends_in_the_middle_of_a_move_ends_for_those_who_are_held(
    pool: ThreadPoolExecutor,
) -> None:
    rack = FakeRack(2, mode=Mode.RING, reason="no room")
    rack.controller.say(Pause(1))
    rack.controller.gather("paused", 1)
    waiting = [pool.submit(c.all_reduce, np.ones(1, np.int32)) for c in rack.communicators]
    queued = rack.communicators[0].barrier_async()
    rack.controller.end("rank 1 died", 1)
    with pytest.raises(WorkerLostError, match="rank 1 died"):
        waiting[0].result(30)
    with pytest.raises(JobEndedError, match="rank 1 died"):
        waiting[1].result(30)
    with pytest.raises(WorkerLostError):
        queued.result(30)
    for c in rack.communicators:
        c.leave()


def test_a_worker_that_aborts_while_it_is_held_ends_the_job(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(2, mode=Mode.RING, reason="no room")
    rack.controller.say(Pause(1))
    rack.controller.gather("paused", 1)
    waiting = [pool.submit(c.all_reduce, np.ones(1, np.int32)) for c in rack.communicators]
    rack.communicators[0].abort("no more")
    with pytest.raises(CommunicatorClosedError, match="no more"):
        waiting[0].result(30)
    with pytest.raises(WorkerLostError, match="no more"):
        waiting[1].result(30)


def test_ctrl_c_interrupts_a_worker_that_is_held(pool: ThreadPoolExecutor) -> None:
    rack = FakeRack(2, mode=Mode.RING, reason="no room")
    rack.controller.say(Pause(1))
    rack.controller.gather("paused", 1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            rack.communicators[0].all_reduce(np.ones(1, np.int32))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert rack.controller.ended is not None
    assert "KeyboardInterrupt" in rack.controller.ended.reason
    with pytest.raises(WorkerLostError):
        rack.communicators[1].all_reduce(np.ones(1, np.int32))


def test_asking_for_the_switch_is_refused_on_all_workers_alike_and_taken_after_the_move() -> None:
    rack = FakeRack(2, mode=Mode.RING, reason="no room")

    def ask(c: Communicator) -> Any:
        return c.all_reduce(np.ones(1, np.int32), strategy="in-network").tolist()

    for error in rack.run(ask):
        assert isinstance(error, UsageError)
        assert "no switch aggregates for this job: no room" in str(error)
    rack.move(Mode.IN_NETWORK)
    assert rack.run(ask) == [[2], [2]]
