"""Workers have called different things: all hear what each of them has called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.api.messages import Abort, Called, Compare, Ended, Heartbeat, Leave, Left, Waiting
from controller.jobs.comparing import LONGEST_CALL, Comparison
from controller.jobs.job import Job
from tests.controller.jobs.made import PLAN, TIMING, running, token, told

SUM = Called(4, "all_reduce(SUM) of 4 int32 in-network")
COPY = Called(4, "broadcast of 4 int32 from rank 0 in-network")
NOTHING = Called(4, "")


def elastic(size: int) -> Job:
    job = running(size)
    job.spec = replace(job.spec, elastic=True)
    return job


def end_of(job: Job) -> Ended:
    """Check that all were told alike how the job has ended, and return that."""
    events = [event for _, event in told(job)]
    assert isinstance(job.outcome, Ended)
    assert events == [job.outcome] * len(job.workers)
    return job.outcome


@pytest.mark.parametrize("job", [running(3), elastic(3)], ids=["plain", "elastic"])
def test_all_are_asked_and_told(job: Job) -> None:
    job.hear(1, Abort("message 3 came back as another", COPY), 10.0)
    assert told(job) == [(rank, Compare(4)) for rank in range(3)]
    job.hear(0, SUM, 10.1)
    job.hear(1, COPY, 10.1)
    assert job.live
    job.hear(2, SUM, 10.2)
    end = end_of(job)
    assert end.mismatch
    assert end.rank is None
    assert end.reason.startswith(
        "the workers disagree about collective 4: rank 0, 2: all_reduce(SUM) of 4 int32 in-network; rank 1: "
        "broadcast of 4 int32 from rank 0 in-network. All workers"
    )
    assert end.reason.endswith("(message 3 came back as another)")


def test_who_has_not_called_it_has_some_time() -> None:
    job = running(3)
    job.hear(1, Abort("", COPY), 10.0)
    job.hear(0, NOTHING, 10.1)
    job.hear(2, SUM, 10.1)
    for rank in range(3):
        job.hear(rank, Heartbeat(number=0), 14.0)
    job.tick(10.0 + TIMING.lost_timeout_s)
    assert job.live
    job.tick(10.1 + TIMING.lost_timeout_s)
    told(job)
    assert isinstance(job.outcome, Ended)
    assert "rank 0 has not called it; rank 1: broadcast of" in job.outcome.reason


def test_who_calls_it_meanwhile_is_named() -> None:
    job = running(2)
    job.hear(1, Abort("", COPY), 10.0)
    job.hear(0, NOTHING, 10.1)
    told(job)
    job.hear(0, SUM, 11.0)
    assert "rank 0: all_reduce(SUM)" in end_of(job).reason


@pytest.mark.parametrize("job", [running(3), elastic(3)], ids=["plain", "elastic"])
def test_workers_that_fail_or_die_meanwhile(job: Job) -> None:
    """Let a worker's retries run out after the first has stopped: that neither ends the job nor drops one."""
    job.hear(1, Abort("", COPY), 10.0)
    job.hear(0, Abort("rank 0: no acknowledgement after 7 timeouts"), 12.0)
    job.closed(2)
    assert job.live
    job.hear(0, SUM, 10.1)
    assert isinstance(job.outcome, Ended)
    assert job.outcome.mismatch
    assert "rank 2 has not said what it has called: rank 2 (h3, 10.0.0.3) closed its" in job.outcome.reason


def test_a_worker_without_a_session_is_asked_when_it_is_back() -> None:
    job = running(2)
    job.broken(0)
    job.hear(1, Abort("", COPY), 10.0)
    assert told(job) == [(1, Compare(4))]
    job.resume(0, token(0), 11.0)
    assert (0, Compare(4)) in told(job)


@pytest.mark.parametrize("job", [running(3), elastic(3)], ids=["plain", "elastic"])
def test_who_waits_for_one_that_has_left(job: Job) -> None:
    job.hear(1, Leave(4), 10.0)
    assert told(job) == [(1, Waiting((0, 2)))]
    job.hear(0, Heartbeat(generation=PLAN.generation, running=3), 10.1)
    job.hear(0, Heartbeat(generation=PLAN.generation, running=None), 10.1)
    assert told(job) == []
    job.hear(2, Heartbeat(generation=PLAN.generation, running=4), 10.2)
    assert told(job) == [(0, Compare(4)), (2, Compare(4))]
    job.hear(0, NOTHING, 10.3)
    job.hear(2, SUM, 10.3)
    job.hear(0, Leave(4), 10.4)
    assert "rank 0-1 has left after 4 collectives; rank 2: all_reduce(SUM)" in end_of(job).reason


def test_who_leaves_hears_who_has_not() -> None:
    job = running(3)
    job.hear(1, Leave(4), 10.0)
    job.hear(0, Leave(4), 10.1)
    assert told(job) == [(1, Waiting((0, 2))), (0, Waiting((2,))), (1, Waiting((2,)))]
    job.hear(2, Leave(4), 10.2)
    assert told(job) == [(0, Left()), (1, Left()), (2, Left())]


def test_who_waits_already_when_another_leaves() -> None:
    job = running(2)
    job.hear(0, Heartbeat(generation=PLAN.generation, running=4), 10.0)
    assert told(job) == []
    job.hear(1, Leave(4), 10.1)
    assert told(job) == [(0, Compare(4))]
    job.hear(0, SUM, 10.2)
    assert "rank 0: all_reduce(SUM) of 4 int32 in-network; rank 1 has left after 4" in end_of(job).reason


def test_a_session_that_is_broken_while_another_leaves() -> None:
    """Check that the worker is asked again once it is back: the first question never reached it."""
    job = running(2)
    job.broken(0)
    job.hear(1, Leave(4), 10.0)
    job.resume(0, token(0), 11.0)
    told(job)
    job.hear(0, Heartbeat(generation=PLAN.generation, running=4), 12.0)
    assert told(job) == [(0, Compare(4))]


def test_a_refused_call_in_between() -> None:
    """Check that the waiting worker is asked, which is ahead. A refused call's number may be another's last,
    or nobody's.
    """
    job = running(2)
    job.hear(1, Leave(2**32 - 1), 10.0)
    job.hear(0, Heartbeat(generation=PLAN.generation, running=0), 10.1)
    assert told(job) == [(1, Waiting((0,))), (0, Compare(0))]


def test_who_leaves_when_all_have_called_the_same_disturbs_nobody() -> None:
    job = running(3)
    job.hear(2, Heartbeat(generation=PLAN.generation, running=2**32 - 1), 9.9)
    job.hear(1, Leave(0), 10.0)  # after 2^32
    job.hear(2, Heartbeat(generation=PLAN.generation, running=2**32 - 1), 10.1)
    job.hear(2, Heartbeat(generation=PLAN.generation, running=None), 10.2)
    job.hear(0, Leave(0), 10.2)
    job.hear(2, Leave(0), 10.3)
    assert job.outcome == Left()


def test_many_ranks_are_few_words() -> None:
    comparison = Comparison(9, frozenset(range(256)), "", 0.0)
    for rank in range(256):
        what = "x" * 1000 if rank % 64 == 63 else f"barrier{' by ring' * (rank % 2)}"
        comparison.called(rank, Called(9, what))
    assert comparison.is_complete
    odd = ", ".join(str(rank) for rank in range(256) if rank % 2 and rank % 64 != 63)
    assert (
        f"; rank {odd}: barrier by ring; rank 63, 127, 191, 255: {'x' * LONGEST_CALL}." in comparison.outcome
    )


def test_who_takes_it_for_another_collective_says_so() -> None:
    comparison = Comparison(2**32 - 1, frozenset({0, 1}), "", 0.0)
    comparison.called(0, Called(2**32 - 1, "barrier"))
    comparison.called(1, Called(0, "barrier"))
    comparison.called(1, Called(2**32 - 1, "all_reduce"))
    assert "rank 0: barrier; rank 1: barrier, as its collective 0." in comparison.outcome
