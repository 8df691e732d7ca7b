"""Ranks that call different things: never a result, and an error on every rank."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from controller.api.messages import Mode
from host_agent import execution
from host_agent.collectives.signature import signature
from host_agent.communicator import Communicator
from host_agent.errors import CommunicatorClosedError, MismatchError, UsageError
from host_agent.quantisation import BFLOAT16
from host_agent.transport import ProtocolError, RetryLimitError
from host_agent.transport.events import Failure, FailureCode
from host_agent.wire.aggregation import Kind, Reduction
from tests.host_agent.different_calls import Made, disagreeing
from tests.host_agent.fakes import FakeRack

pytestmark = pytest.mark.filterwarnings("ignore::host_agent.errors.RingFallbackWarning")
BOTH_WAYS = pytest.mark.parametrize("mode", [Mode.IN_NETWORK, Mode.RING], ids=["network", "ring"])
RECORD = np.dtype([("a", "i4"), ("b", "i4")])
OTHER_RECORD = np.dtype([("a", "i4"), ("b", "f4")])
# One field at the place of RECORD's second, and a name that looks like the two of RECORD.
WRITTEN_ALIKE = np.dtype({"names": ["a@0:<i4,b"], "formats": ["i4"], "offsets": [4], "itemsize": 8})
Work = Callable[[Communicator], Any]


def rack_of(world_size: int, mode: Mode) -> FakeRack:
    return FakeRack(world_size, mode=mode, reason="no slots" if mode is Mode.RING else "")


def zeros(size: int, dtype: Any = np.int32) -> Any:
    return np.zeros(size, dtype)


EXAMPLES: dict[str, tuple[Work, Work]] = {
    "all_gather, barrier": (
        lambda c: c.all_gather(np.array([41], np.int32), strategy="ring"),
        lambda c: c.barrier(),
    ),
    "all_reduce, barrier": (lambda c: c.all_reduce(zeros(1000)), lambda c: c.barrier()),
    "reduce_scatter, all_reduce": (  # gave [205] in place of 105 once, and [106, 1] of [105, 206]
        lambda c: c.reduce_scatter(np.arange(c.world_size, dtype=np.int32), strategy="ring"),
        lambda c: c.all_reduce(np.arange(c.world_size, dtype=np.int32), strategy="ring"),
    ),
    "all_gather, broadcast": (  # gave [100, 207] on both once
        lambda c: c.all_gather(np.array([7], np.int32)),
        lambda c: c.broadcast(np.array([100, *range(1, c.world_size)], np.int32)),
    ),
    "reduce, all_reduce": (lambda c: c.reduce(zeros(4)), lambda c: c.all_reduce(zeros(4))),
    "root of reduce": (lambda c: c.reduce(zeros(4), root=0), lambda c: c.reduce(zeros(4), root=1)),
    "root of broadcast": (lambda c: c.broadcast(zeros(4), root=0), lambda c: c.broadcast(zeros(4), root=1)),
    "types of as many bytes": (
        lambda c: c.broadcast(zeros(8, np.int8)),
        lambda c: c.broadcast(zeros(2, np.int32)),
    ),
    "types of the same size": (
        lambda c: c.all_gather(zeros(4, np.int64)),
        lambda c: c.all_gather(zeros(4, np.float64)),
    ),
    "texts": (lambda c: c.all_gather(zeros(4, "S5")), lambda c: c.all_gather(zeros(4, "S6"))),
    "records": (lambda c: c.all_gather(zeros(4, RECORD)), lambda c: c.all_gather(zeros(4, OTHER_RECORD))),
    "records that are written alike": (
        lambda c: c.broadcast(zeros(4, RECORD)),
        lambda c: c.broadcast(zeros(4, WRITTEN_ALIKE)),
    ),
    "dates": (lambda c: c.broadcast(zeros(4, "M8[s]")), lambda c: c.broadcast(zeros(4, "M8[ms]"))),
    "type": (lambda c: c.all_reduce(zeros(9)), lambda c: c.all_reduce(zeros(9, np.float32))),
    "small types": (lambda c: c.all_reduce(zeros(9, np.float16)), lambda c: c.all_reduce(zeros(9, BFLOAT16))),
    "size": (lambda c: c.all_reduce(zeros(9)), lambda c: c.all_reduce(zeros(8))),
    "small and large": (
        lambda c: c.all_reduce(zeros(9, np.float32)),
        lambda c: c.all_reduce(zeros(9000, np.float32)),
    ),
    "small int of just a message": (
        lambda c: c.all_reduce(zeros(960, np.float16)),
        lambda c: c.all_reduce(zeros(960)),
    ),
    "large size": (lambda c: c.all_reduce(zeros(1000)), lambda c: c.all_reduce(zeros(1001))),
    "large type": (lambda c: c.all_reduce(zeros(1000)), lambda c: c.all_reduce(zeros(1000, np.float32))),
    "large reduction": (lambda c: c.all_reduce(zeros(1000), "max"), lambda c: c.all_reduce(zeros(1000))),
    "average": (
        lambda c: c.all_reduce(zeros(9, np.float32), "avg"),
        lambda c: c.all_reduce(zeros(9, np.float32)),
    ),
    "reduction": (lambda c: c.all_reduce(zeros(9), "max"), lambda c: c.all_reduce(zeros(9), "min")),
    "order": (
        lambda c: (c.all_reduce(zeros(9)), c.all_gather(zeros(9))),
        lambda c: (c.all_gather(zeros(9)), c.all_reduce(zeros(9))),
    ),
}


def test_around_a_ring_of_two_both_errors_name_both_calls() -> None:
    errors = rack_of(2, Mode.RING).run(
        lambda c: c.broadcast(zeros(3, np.int8), root=1) if c.rank else c.all_reduce(zeros(5), "max")
    )
    require_mismatch(errors)
    for error in errors:
        assert "all_reduce(MAX) of 5 int32" in str(error), error
        assert "broadcast of 3 int8" in str(error), error


def test_all_errors_name_what_each_rank_has_called() -> None:
    errors = rack_of(5, Mode.IN_NETWORK).run(
        lambda c: (
            c.broadcast(zeros(3, np.int8), root=1) if c.rank in (1, 3) else c.all_reduce(zeros(5), "max")
        )
    )
    require_mismatch(errors)
    for error in errors:
        assert calls_in(error) == (
            0,
            {
                **dict.fromkeys((0, 2, 4), ": all_reduce(MAX) of 5 int32 in-network"),
                **dict.fromkeys((1, 3), ": broadcast of 3 int8 from rank 1 in-network"),
            },
        )
        assert "collective 0: rank 0, 2, 4: all_reduce(MAX)" in str(error)


@pytest.mark.slow
@BOTH_WAYS
def test_who_has_not_called_it_is_named_too(mode: Mode) -> None:
    rack = rack_of(3, mode)
    ended = threading.Event()

    def work(c: Communicator) -> Any:
        if c.rank == 1:
            assert ended.wait(30)
            return c.barrier()
        try:
            return c.all_reduce(zeros(5 + c.rank))
        except MismatchError:
            ended.set()
            raise

    if mode is Mode.IN_NETWORK:  # there nobody learns of it before all have called
        rack.controller.callbacks.append(lambda _: ended.set())
        threading.Timer(1.0, ended.set).start()
    errors = rack.run(work)
    require_mismatch(errors)
    for error in errors:
        number, calls = calls_in(error)
        assert number == 0
        assert calls[0].startswith(": all_reduce(SUM) of 5 int32 ")
        assert calls[2].startswith(": all_reduce(SUM) of 7 int32 ")
        assert calls[1] in (" has not called it", ": barrier in-network"), calls


@pytest.mark.parametrize("way", ["in-network", "ring"])
def test_who_waits_for_a_rank_that_has_left_hears_of_it(way: str) -> None:
    """Check that it neither hangs nor fails for want of progress, as it once did."""

    def work(c: Communicator) -> None:
        c.all_reduce(zeros(9), strategy=way)
        if c.rank != 1:
            c.all_reduce(zeros(9), "max", strategy=way)
        c.leave()

    errors = rack_of(3, Mode.IN_NETWORK).run(work)
    require_mismatch(errors)
    words = f": all_reduce(MAX) of 9 int32 {'by ring' if way == 'ring' else way}"
    for error in errors:
        assert calls_in(error) == (1, {0: words, 1: " has left after 1 collective", 2: words})


@pytest.mark.parametrize("refused_on", ["those that wait", "another one"])
def test_a_call_that_is_refused_waits_for_others_as_any_does(refused_on: str) -> None:
    waiting = refused_on == "those that wait"

    def work(c: Communicator) -> None:
        c.all_reduce(zeros(9))
        if (c.rank != 1) == waiting:
            with pytest.raises(UsageError):
                c.all_reduce(zeros(9), strategy="in-network")
        if c.rank != 1:
            c.all_reduce(zeros(9), "max")
        c.leave()

    errors = rack_of(3, Mode.RING).run(work)
    require_mismatch(errors)
    words, refused = ": all_reduce(MAX) of 9 int32 by ring", ": all_reduce(SUM) of 9 int32"
    left = " has left after 1 collective"
    for error in errors:
        named = {0: refused, 1: left, 2: refused} if waiting else {0: words, 1: refused, 2: words}
        assert calls_in(error) == (1, named)


def test_a_connection_that_fails_as_the_other_has_stopped_for_a_mismatch() -> None:
    rack = rack_of(3, Mode.RING)
    failed = threading.Event()

    def mismatch(op_id: int, **_: Any) -> None:
        raise ProtocolError(failure(FailureCode.MISMATCH))

    def retries_run_out(op_id: int, **_: Any) -> None:
        while rack.controller.job.comparison is None:
            time.sleep(0.001)
        failed.set()
        raise RetryLimitError(failure(FailureCode.RETRY_LIMIT))

    def work(c: Communicator) -> None:
        if c.rank == 2:
            assert failed.wait(30)
        c.all_reduce(zeros(9 + c.rank))

    rack.links[0].wait = mismatch  # type: ignore[method-assign]
    rack.links[1].wait = retries_run_out  # type: ignore[method-assign]
    errors = rack.run(work)
    require_mismatch(errors)
    for error in errors:
        assert calls_in(error)[1] == {
            rank: f": all_reduce(SUM) of {9 + rank} int32 by ring" for rank in range(3)
        }


def test_without_a_controller_the_error_has_what_is_known_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_ALL_NAMES_S", 0.1)
    rack = rack_of(2, Mode.IN_NETWORK)
    monkeypatch.setattr(rack.controller, "act", lambda call: None)
    errors = rack.run(lambda c: c.barrier() if c.rank else c.all_reduce(zeros(9)))
    require_mismatch(errors)
    assert "this one called all_reduce(SUM) of 9 int32" in str(errors[0])


@BOTH_WAYS
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_rank_gets_a_result(name: str, world_size: int, odd: int, mode: Mode) -> None:
    one, other = EXAMPLES[name]
    rack = rack_of(world_size, mode)
    require_mismatch(rack.run(lambda c: (other if c.rank == odd else one)(c)))
    with pytest.raises((CommunicatorClosedError, MismatchError)):
        rack.communicators[0].barrier()


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_ways_to_travel_that_differ(kind: str, odd: int) -> None:
    rack = FakeRack(3)
    errors = rack.run(
        lambda c: getattr(c, kind)(zeros(12), strategy="ring" if c.rank == odd else "in-network")
    )
    require_mismatch(errors)


def test_all_types_that_others_have_added_are_told_apart() -> None:
    """Compare types of which several have one code: only their own names differ."""
    kinds = (getattr(ml_dtypes, name) for name in ml_dtypes.__all__)
    types = [np.dtype(kind) for kind in kinds if isinstance(kind, type) and issubclass(kind, np.generic)]
    assert len(types) > 10
    told = {signature(Kind.BROADCAST, 0, Reduction.NONE, dtype, 12) for dtype in types}
    assert len(told) == len(types)


def failure(code: FailureCode) -> Failure:
    return Failure(code=code, message=0, psn=0, text=code.name, header=b"")


def calls_in(error: Exception) -> tuple[int, dict[int, str]]:
    """Return the number of the collective that an error is about, and what it says of each rank."""
    found = re.match(r"the workers disagree about collective (\d+): (.*?)\. All workers", str(error))
    assert found, error
    calls = {}
    for part in found[2].split("; rank "):
        said = re.match(r"(?:rank )?(\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)(.*)", part)
        assert said, part
        for run in said[1].split(", "):
            first, _, last = run.partition("-")
            calls.update(dict.fromkeys(range(int(first), int(last or first) + 1), said[2]))
    return int(found[1]), calls


def require_mismatch(errors: list[Any]) -> None:
    for error in errors:
        assert isinstance(error, MismatchError), errors
        assert "the workers disagree" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["now", "later"])
@BOTH_WAYS
@given(data=st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_any_calls_that_differ(mode: Mode, later: bool, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(2, 4))
    calls = data.draw(disagreeing(world_size, mode))
    first = next(
        n
        for n, made in enumerate(zip(*calls, strict=True))
        if len({m.means(mode, world_size) for m in made}) > 1
    )
    for rank, made in enumerate(calls):
        note(f"rank {rank}: {made}; the first that differs is {first}")
    outcomes = rack_of(world_size, mode).run(lambda c: outcomes_of(c, calls[c.rank], later=later))
    for rank, got in enumerate(outcomes):
        assert len(got) == len(calls[rank])
        for number, outcome in enumerate(got):
            if number >= first:
                assert isinstance(outcome, Exception), (rank, number, outcome)
            elif not isinstance(outcome, MismatchError):  # another rank was ahead of this one
                calls[rank][number].check(outcome, rank, world_size)
        error = next(one for one in got if isinstance(one, Exception))
        assert isinstance(error, MismatchError), (rank, got)
        expected = {other: f": {made[first].words(mode, world_size)}" for other, made in enumerate(calls)}
        assert calls_in(error) == (first, expected)


def outcomes_of(c: Communicator, calls: list[Made], *, later: bool) -> list[Any]:
    """Return what each call returned or raised."""

    def outcome(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # noqa: BLE001  the test looks at it
            return error

    begun = [outcome(partial(call.on, c, later=later)) for call in calls]
    return [outcome(one.result) if isinstance(one, Future) else one for one in begun]
