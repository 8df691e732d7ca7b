"""The Communicator: what its user relies on, with all ranks in one process."""

from __future__ import annotations

import signal
import threading
import time
import warnings
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.api.messages import Called, Mode
from host_agent.communicator import Communicator, RingFallbackWarning
from host_agent.errors import (
    CollectiveTimeoutError,
    CommunicatorClosedError,
    JobEndedError,
    NotAggregatedError,
    UsageError,
    WorkerLostError,
)
from host_agent.quantisation import BFLOAT16, error_bound
from host_agent.runner import Alone
from host_agent.transport import Operation
from p4reduce.simulation.faults.schedule import Rates
from p4reduce.simulation.rack import configs
from tests.host_agent.fakes import (
    FakeController,
    FakeMembership,
    FakeRack,
    SimulatedFabric,
    SimulatedLink,
    ready_of,
)
from tests.host_agent.rack import Simulation
from topologies.processes import wait_until

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(params=[Mode.IN_NETWORK, Mode.RING], ids=lambda mode: mode.name.lower())
def rack(request: pytest.FixtureRequest) -> FakeRack:
    """The workers of a job in the network or by ring, which answer alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RingFallbackWarning)
        return FakeRack(3, mode=request.param, reason="no free slots")


def ramp(rank: int, size: int = 1000, dtype: Any = np.float32) -> NDArray[Any]:
    return (np.arange(size) % 100 + rank).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float16, BFLOAT16, np.int64, np.float64], ids=str)
def test_all_reduce_sums_every_supported_type(rack: FakeRack, dtype: Any) -> None:
    results = rack.run(lambda c: c.all_reduce(ramp(c.rank, dtype=dtype)))
    exact = sum(ramp(rank, dtype=np.float64) for rank in range(3))
    for result in results:
        assert result.dtype == dtype
        exact_type = np.dtype(dtype).itemsize == 8 or dtype == np.int32
        bound = 0 if exact_type else error_bound(101, world_size=3, dtype=dtype) + 2
        assert np.abs(result.astype(np.float64) - exact).max() <= bound
        assert result.tobytes() == results[0].tobytes()


@pytest.mark.parametrize(
    ("op", "expected"),
    [("sum", [3, 9]), ("avg", [1, 3]), ("MAX", [2, 7]), ("min", [0, -1]), ("prod", [0, -21])],
)
def test_reductions_go_by_name(rack: FakeRack, op: str, expected: list[int]) -> None:
    mine = [[0, -1], [1, 3], [2, 7]]
    for result in rack.run(lambda c: c.all_reduce(np.array(mine[c.rank], np.float32), op)):
        assert result.tolist() == expected


def test_shape_is_kept_and_any_memory_layout_is_taken(rack: FakeRack) -> None:
    def work(c: Communicator) -> Any:
        fortran = np.asfortranarray(np.full((5, 7), c.rank, np.float32))
        strided = np.full(20, c.rank, np.int32)[::3]
        swapped = np.full(4, c.rank, ">i4")
        scalar = np.array(c.rank, np.float32)
        return [c.all_reduce(a) for a in (fortran, strided, swapped, scalar)]

    for results in rack.run(work):
        assert [r.shape for r in results] == [(5, 7), (7,), (4,), ()]
        assert all((r == 3).all() for r in results)


def test_out_takes_the_result_in_place_and_the_input_is_otherwise_left_alone(rack: FakeRack) -> None:
    def work(c: Communicator) -> Any:
        kept, reused = ramp(c.rank), ramp(c.rank)
        fresh = c.all_reduce(kept)
        returned = c.all_reduce(reused, out=reused)
        return kept, fresh, reused, returned is reused

    for rank, (kept, fresh, reused, same) in enumerate(rack.run(work)):
        assert same
        np.testing.assert_array_equal(kept, ramp(rank))
        np.testing.assert_array_equal(fresh, reused)


def test_empty_arrays_are_reduced_to_empty_arrays(rack: FakeRack) -> None:
    for result in rack.run(lambda c: c.all_reduce(np.zeros((0, 3), np.float32))):
        assert result.shape == (0, 3)


def test_reduce_gives_the_result_to_the_root_only(rack: FakeRack) -> None:
    results = rack.run(lambda c: c.reduce(ramp(c.rank), root=1))
    assert results[0] is None
    assert results[2] is None
    np.testing.assert_array_equal(results[1], sum(ramp(rank) for rank in range(3)))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.float64, BFLOAT16, np.bool_], ids=str)
def test_broadcast_copies_any_type_bit_for_bit(rack: FakeRack, dtype: Any) -> None:
    sent = np.random.default_rng(0).integers(0, 2, 8 * 37).astype(dtype)[3:]
    for result in rack.run(lambda c: c.broadcast(sent if c.rank == 2 else np.zeros_like(sent), root=2)):
        assert result.tobytes() == sent.tobytes()
        assert result.dtype == sent.dtype


STRUCT = np.dtype([("a", "i4"), ("b", "i8")])


@pytest.mark.parametrize(
    "dtype", [np.complex64, np.complex128, np.longdouble, "S5", "U3", "V7", "M8[s]", STRUCT], ids=str
)
def test_all_gather_takes_any_element_of_a_fixed_size(rack: FakeRack, dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    sent = [np.frombuffer(bytes([rank + 1]) * size * 6, dtype).reshape(2, 3) for rank in range(3)]
    for result in rack.run(lambda c: c.all_gather(sent[c.rank])):
        assert result.dtype == sent[0].dtype
        assert result.shape == (3, 2, 3)
        assert result.tobytes() == b"".join(array.tobytes() for array in sent)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, BFLOAT16], ids=str)
def test_all_gather_stacks_by_rank(rack: FakeRack, dtype: Any) -> None:
    for result in rack.run(lambda c: c.all_gather(ramp(c.rank, 50, dtype).reshape(5, 10))):
        assert result.shape == (3, 5, 10)
        for rank in range(3):
            np.testing.assert_array_equal(result[rank], ramp(rank, 50, dtype).reshape(5, 10))


def test_reduce_scatter_and_all_gather_make_an_all_reduce(rack: FakeRack) -> None:
    def work(c: Communicator) -> Any:
        array = ramp(c.rank, 90, np.int32).reshape(9, 10)
        block = c.reduce_scatter(array)
        return block.shape, c.all_gather(block).reshape(9, 10), c.all_reduce(array)

    for shape, gathered, reduced in rack.run(work):
        assert shape == (3, 10)
        np.testing.assert_array_equal(gathered, reduced)


def test_a_barrier_holds_until_the_last_one_comes(rack: FakeRack) -> None:
    entered: list[int] = []
    gate = threading.Event()

    def work(c: Communicator) -> int:
        if c.rank == 1:
            gate.wait(10)
        entered.append(c.rank)
        if c.rank != 1:
            gate.set()
        c.barrier()
        return len(entered)

    assert rack.run(work) == [3, 3, 3]


def test_futures_complete_in_the_order_of_the_calls_and_mix_with_waiting_calls(rack: FakeRack) -> None:
    def work(c: Communicator) -> Any:
        done: list[int] = []
        futures = [c.all_reduce(np.full(300, i, np.int32), async_op=True) for i in range(4)]
        for i, future in enumerate(futures):
            future.add_done_callback(lambda _, i=i: done.append(i))  # type: ignore[misc]
        last = c.all_reduce(np.full(3, 100, np.int32))
        c.barrier(async_op=True).result(20)
        root = c.reduce(np.ones(2, np.int32), root=0, async_op=True).result(20)
        return [int(f.result(20)[0]) for f in futures], done, int(last[0]), root is None

    for rank, (values, done, last, nothing) in enumerate(rack.run(work)):
        assert values == [0, 3, 6, 9]
        assert done == [0, 1, 2, 3]
        assert last == 300
        assert nothing == (rank != 0)


def test_the_old_names_of_asynchronous_collectives_work_and_name_the_new_ones(rack: FakeRack) -> None:
    ones = np.ones(3, np.int32)
    given: dict[str, tuple[Any, ...]] = {
        "all_reduce": (ones, "max"),
        "reduce": (ones, 1),
        "broadcast": (ones, 2),
        "all_gather": (ones,),
        "reduce_scatter": (ones,),
        "barrier": (),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for c in rack.communicators:
            futures = [getattr(c, f"{name}_async")(*words) for name, words in given.items()]
    again = [getattr(c, name)(*words, async_op=True) for name, words in given.items()]
    rack.run(
        lambda other: None if other is c else [getattr(other, name)(*words) for name, words in given.items()]
    )
    for old, new in zip(futures, again, strict=True):
        np.testing.assert_array_equal(old.result(20), new.result(20))
    told = [str(warning.message) for warning in caught if warning.category is DeprecationWarning]
    assert len(told) == 3 * len(given)
    assert [getattr(Communicator, f"{name}_async").__name__ for name in given] == [
        f"{name}_async" for name in given
    ]
    for name, text in zip(given, told, strict=False):
        assert f"{name}_async is deprecated" in text
        assert f"{name}(..., async_op=True)" in text


def test_a_strategy_can_be_chosen_per_call_and_both_give_the_same_integers() -> None:
    rack = FakeRack(3)

    def work(c: Communicator) -> Any:
        array = ramp(c.rank, dtype=np.int32)
        both = [c.all_reduce(array, strategy=s) for s in ("in-network", "ring")]
        c.all_gather(array, strategy="in-network")
        c.reduce_scatter(array[:999], strategy="in-network")
        return both, c.statistics()

    for (switched, ringed), statistics in rack.run(work):
        np.testing.assert_array_equal(switched, ringed)
        assert (statistics.collectives, statistics.in_network, statistics.ring) == (4, 3, 1)
        assert statistics.packets_sent > 0
        assert statistics.bytes_sent > 4000


def test_infinities_go_around_the_ring_and_are_counted() -> None:
    rack = FakeRack(3)
    mine = [[1.0, np.inf], [2.0, 1.0], [np.nan, 1.0]]

    def work(c: Communicator) -> Any:
        array = np.tile(np.array(mine[c.rank], np.float32), 1000)
        return c.all_reduce(array), c.statistics().non_finite_fallbacks

    for result, fallbacks in rack.run(work):
        assert np.isnan(result[::2]).all()
        assert np.isposinf(result[1::2]).all()
        assert fallbacks == 1


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_small_floats_take_one_message_and_are_rounded_once(dtype: Any, op: str) -> None:
    rack = FakeRack(3)
    mine = (np.random.default_rng(7).standard_normal((3, 77)) * 1000).astype(dtype)
    mine[1, :3] = np.inf, -np.inf, np.nan
    mine[2, :3] = 1, np.inf, 1

    def work(c: Communicator) -> Any:
        return (
            c.all_reduce(mine[c.rank], op),
            c.statistics().non_finite_fallbacks,
            c._execution.runner.link.progress(),
        )

    with np.errstate(invalid="ignore"):
        exact = mine.astype(np.float64).sum(axis=0) / (3 if op == "avg" else 1)
    results = rack.run(work)
    assert len({result.tobytes() for result, _, _ in results}) == 1
    for result, fallbacks, progress in results:
        np.testing.assert_array_equal(result.astype(np.float64), exact.astype(dtype).astype(np.float64))
        assert fallbacks == 0
        assert progress.posted_messages == 1


def test_a_job_without_slots_warns_once_and_works() -> None:
    with pytest.warns(RingFallbackWarning, match="no free slots on switch 3") as caught:
        rack = FakeRack(2, mode=Mode.RING, reason="no free slots on switch 3")
    assert len(caught) == 2  # one a worker
    for result in rack.run(lambda c: c.all_reduce(ramp(c.rank))):
        np.testing.assert_array_equal(result, ramp(0) + ramp(1))


def test_who_takes_the_warning_for_an_error_keeps_nobody_waiting() -> None:
    config, *_ = configs(2)
    controller, simulation = FakeController(2), Simulation(configs(2))
    membership, link = FakeMembership(controller, 0), SimulatedLink(SimulatedFabric(simulation), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RingFallbackWarning)
        with pytest.raises(RingFallbackWarning, match="no free slots"):
            Communicator(
                rank=0,
                world_size=2,
                ready=ready_of(config, mode=Mode.RING, reason="no free slots"),
                link=link,
                membership=membership,
            )
    assert controller.ended is not None
    assert controller.ended.reason.startswith("rank 0 is not to be summed by ring: this job")
    assert (membership.closed, link.closed) == (True, True)


def test_asking_for_the_switch_in_a_ring_job_is_refused_with_the_reason() -> None:
    with pytest.warns(RingFallbackWarning):
        rack = FakeRack(2, mode=Mode.RING, reason="switch down")
    for refused in rack.run(lambda c: c.all_reduce(ramp(0), strategy="in-network")):
        assert isinstance(refused, UsageError)
        assert "switch down" in str(refused)
    assert [sum.tolist() for sum in rack.run(lambda c: c.all_reduce(np.ones(2, np.int32)))] == [[2, 2]] * 2


def test_one_worker_needs_no_network() -> None:
    (config, *_) = configs(2)
    alone = Communicator(
        rank=0,
        world_size=1,
        ready=ready_of(config, mode=Mode.RING),
        link=Alone(),
        membership=FakeMembership(FakeController(1), 0),
    )
    array = ramp(0, 12).reshape(3, 4)
    with alone:
        for op in ("sum", "avg", "max", "min"):
            np.testing.assert_array_equal(alone.all_reduce(array, op), array)
        np.testing.assert_array_equal(alone.broadcast(array), array)
        np.testing.assert_array_equal(alone.all_gather(array), array[None])
        np.testing.assert_array_equal(alone.reduce_scatter(array), array)
        alone.barrier()
        assert alone.statistics().packets_sent == 0


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda c: c.all_reduce(np.zeros(3, np.uint8)), "uint8 cannot be reduced; convert to one of int32"),
        (lambda c: c.all_reduce([True, False]), "bool cannot be reduced"),
        (
            lambda c: c.all_reduce(np.zeros(3), strategy="in-network"),
            r"no switch makes the sum of float64: leave the strategy out \(or say strategy='ring'\)",
        ),
        (lambda c: c.all_reduce(np.zeros(3, np.int32), "prod", strategy="in-network"), "the prod of int32"),
        (lambda c: c.all_reduce(np.zeros(3), wire="16bit"), "a wire of 16 bits is for sum and avg of floats"),
        (
            lambda c: c.all_reduce(np.zeros(3, np.float32), "product"),
            "'product' is no reduction; there are sum",
        ),
        (lambda c: c.all_reduce(np.zeros(3, np.float32), strategy="tree"), "'tree' is no strategy"),
        (
            lambda c: c.all_reduce(np.zeros(3, np.float32), out=np.zeros(4, np.float32)),
            r"out is float32\[4\]",
        ),
        (lambda c: c.all_reduce(np.zeros(3, np.float32), out=np.zeros(6, np.float32)[::2]), "C-contiguous"),
        (
            lambda c: c.all_reduce((both := np.zeros(12, np.int32))[:8], out=both[4:]),
            "out overlaps the array in part",
        ),
        (
            lambda c: c.broadcast((both := np.zeros(12, np.uint8))[4:], out=both[:8]),
            "out overlaps the array in part",
        ),
        (lambda c: c.broadcast(np.zeros(3), root=3), "root 3 is no rank of a job of 3 workers"),
        (lambda c: c.broadcast(np.array([None])), "dtype object cannot be sent"),
        (lambda c: c.reduce_scatter(np.zeros((4, 3), np.float32)), "not a multiple of 3 workers"),
    ],
)
def test_wrong_arguments_are_named_and_leave_the_communicator_usable(call: Any, complaint: str) -> None:
    rack = FakeRack(3)
    with pytest.raises(UsageError, match=complaint):
        call(rack.communicators[0])
    assert all(r.tolist() == [3] for r in rack.run(lambda c: c.all_reduce(np.ones(1, np.int32))))


def test_a_message_that_no_switch_summed_is_an_error_and_its_data_is_not_used() -> None:
    rack = FakeRack(3)
    rack.simulation.switch.members.clear()  # a plain router
    outs = [np.full(10, 7, np.int32) for _ in range(3)]
    errors = rack.run(lambda c: c.all_reduce(np.ones(10, np.int32), out=outs[c.rank]))
    assert any(isinstance(error, NotAggregatedError) for error in errors), errors
    assert all(isinstance(error, (NotAggregatedError, WorkerLostError)) for error in errors), errors
    assert all((out == 7).all() for out in outs)


def test_a_collective_that_stalls_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    rack = FakeRack(2, timeout_s=0.2)
    results = rack.run(lambda c: c.all_reduce(ramp(0, 5000)) if c.rank == 0 else None)
    assert isinstance(results[0], CollectiveTimeoutError)
    assert "all_reduce(SUM) of 5000 float32" in str(results[0])
    assert "first message without a result is 0 of 10 posted" in str(results[0])
    assert "p4reduce doctor" in str(results[0])
    assert "rank 1 (h1, 10.0.0.2) is in no collective" in str(results[0])
    with pytest.raises(WorkerLostError, match="no progress"):
        rack.communicators[1].barrier()


def test_no_result_is_returned_before_the_worker_is_known_to_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an elastic job, which goes on without a worker that the controller does not hear."""
    known = threading.Event()

    def confirm(membership: FakeMembership, *, timeout_s: float) -> bool:
        return membership.rank == 1 or known.wait(min(timeout_s, 20))

    monkeypatch.setattr(FakeMembership, "confirm", confirm)
    rack = FakeRack(2)
    futures = [c.all_reduce(ramp(c.rank), async_op=True) for c in rack.communicators]
    futures[1].result(20)
    assert not wait(futures[:1], timeout=0.2).done
    known.set()
    assert np.array_equal(futures[0].result(20), futures[1].result(0))
    rack.run(lambda c: c.leave())


@pytest.mark.parametrize("how", ["leaving", "not yet told", "told at once"])
def test_a_worker_that_was_given_up_hears_it_while_it_waits_for_that(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that it returns no result. leave() once waited for ever for one that asked again and again."""
    asked, rack = threading.Event(), FakeRack(2)
    ended = threading.Event()

    def end() -> None:
        rack.controller.end("job train goes on without this worker", rank=0)

    def confirm(membership: FakeMembership, *, timeout_s: float) -> bool:
        asked.set()
        if membership.rank == 0 and how == "leaving":
            assert ended.wait(20)
        elif membership.rank == 0:
            threading.Timer(0.05, end).start() if how == "not yet told" else end()
        return membership.rank == 1

    monkeypatch.setattr(FakeMembership, "confirm", confirm)
    futures = [c.all_reduce(ramp(c.rank), async_op=True) for c in rack.communicators]
    assert asked.wait(20)
    if how == "leaving":
        leaving = threading.Thread(target=rack.communicators[0].leave)
        leaving.start()
        while not rack.communicators[0]._execution._closed:
            time.sleep(0.001)
        end()
        ended.set()
        leaving.join(20)
        assert not leaving.is_alive()
    with pytest.raises(JobEndedError, match="goes on without this worker"):
        futures[0].result(20)


def test_what_has_run_lets_go_of_its_array() -> None:
    rack = FakeRack(2)
    arrays = [np.ones(5, np.int32) for _ in range(2)]
    alive = [weakref.ref(array) for array in arrays]
    rack.run(lambda c: c.all_reduce(arrays[c.rank]))
    arrays.clear()
    assert wait_until(lambda: all(one() is None for one in alive), timeout_s=20)


def test_what_is_cancelled_lets_go_of_its_array() -> None:
    rack = FakeRack(2)
    c = rack.communicators[0]
    first = c.all_reduce(ramp(0), async_op=True)  # waits for the other rank
    arrays = []
    for _ in range(3):
        array = ramp(0).copy()
        arrays.append(weakref.ref(array))
        future = c.all_reduce(array, async_op=True)
        assert future.cancel()
        del array, future
    rack.communicators[1].all_reduce(ramp(1))
    first.result(20)
    assert wait_until(lambda: all(array() is None for array in arrays), timeout_s=20)


def test_who_cannot_ask_whether_it_belongs_gives_up_after_timeout_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def confirm(membership: FakeMembership, *, timeout_s: float) -> bool:
        if membership.rank == 0:
            time.sleep(timeout_s)
        return membership.rank == 1

    monkeypatch.setattr(FakeMembership, "confirm", confirm)
    rack = FakeRack(2, timeout_s=0.2)
    results = rack.run(lambda c: c.all_reduce(ramp(0)))
    assert isinstance(results[0], CollectiveTimeoutError)
    assert "has its result, but the controller has not said for 0.2 s that this worker" in str(results[0])


def test_the_end_of_the_job_interrupts_whoever_waits_and_whoever_comes_later() -> None:
    rack = FakeRack(2)

    def work(c: Communicator) -> Any:
        if c.rank == 1:
            rack.controller.end("rank 1 on host h2 stopped sending heartbeats", rank=1)
            return None
        return c.all_reduce(ramp(0))

    lost, _ = rack.run(work)
    assert isinstance(lost, WorkerLostError)
    assert lost.rank == 1
    assert "h2" in str(lost)
    for _ in range(2):
        with pytest.raises(WorkerLostError, match="heartbeats"):
            rack.communicators[0].all_reduce(ramp(0))
    with pytest.raises(JobEndedError):
        rack.communicators[1].barrier()


def test_queued_futures_fail_with_the_job() -> None:
    rack = FakeRack(2)
    futures = [rack.communicators[0].all_reduce(ramp(0), async_op=True) for _ in range(3)]
    rack.controller.end("controller was asked to delete the job")
    for future in futures:
        with pytest.raises(JobEndedError, match="delete the job"):
            future.result(20)
    rack.communicators[0].leave()


def test_leaving_is_a_barrier_and_closes_everything() -> None:
    rack = FakeRack(3)

    def work(c: Communicator) -> Any:
        with c:
            c.barrier()
        c.leave()  # again: nothing happens
        return c

    for rank, c in enumerate(rack.run(work)):
        assert rack.memberships[rank].left
        assert rack.memberships[rank].closed
        assert rack.links[rank].closed
        with pytest.raises(CommunicatorClosedError, match="left its job"):
            c.barrier()


def test_an_exception_in_a_with_block_ends_the_job_for_the_others_instead_of_hanging() -> None:
    rack = FakeRack(2)

    def work(c: Communicator) -> Any:
        with c:
            if c.rank == 1:
                raise RuntimeError("out of data")
            c.all_reduce(ramp(0))

    lost, own = rack.run(work)
    assert isinstance(own, RuntimeError)
    assert isinstance(lost, WorkerLostError)
    assert "RuntimeError: out of data" in str(lost)
    assert not any(m.left for m in rack.memberships)


def test_bad_links_show_in_the_statistics_and_not_in_the_sums() -> None:
    rack = FakeRack(3, faults=Rates(loss=0.05, duplicate=0.05))
    results = rack.run(lambda c: (c.all_reduce(ramp(c.rank, 20000, np.int32)), c.statistics()))
    expected = sum(ramp(rank, 20000, np.int32) for rank in range(3))
    for result, statistics in results:
        np.testing.assert_array_equal(result, expected)
        assert statistics.retransmissions > 0


def test_neighbouring_parts_of_one_array_do_not_overlap(rack: FakeRack) -> None:
    def work(c: Communicator) -> Any:
        both = np.concatenate([ramp(c.rank, 100, np.int32), np.zeros(100, np.int32)])
        return c.all_reduce(both[:100], out=both[100:])

    for result in rack.run(work):
        np.testing.assert_array_equal(result, sum(ramp(rank, 100, np.int32) for rank in range(3)))


def test_a_waiting_call_in_a_callback_is_refused_and_an_async_one_is_not() -> None:
    rack = FakeRack(2)

    def work(c: Communicator) -> Any:
        errors: list[BaseException] = []
        second: Future[Any] = Future()
        gate = threading.Event()

        def callback(_: Future[Any]) -> None:
            for call in (lambda: c.all_reduce(ramp(0)), c.barrier, c.leave):
                try:
                    call()
                except UsageError as error:
                    errors.append(error)
            second.set_result(c.all_reduce(np.ones(1, np.int32), async_op=True))

        def hold(_: Future[Any]) -> None:
            gate.wait(20)

        first = c.barrier(async_op=True)
        first.add_done_callback(hold)
        first.add_done_callback(callback)
        gate.set()
        total = second.result(20).result(20)
        return [str(error) for error in errors], int(total[0]), c.all_reduce(np.ones(1, np.int32))[0]

    for errors, total, after in rack.run(work):
        assert len(errors) == 3
        assert all("in a future's callback" in error for error in errors)
        assert total == 2
        assert after == 2


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_collective_lets_go_of_the_arrays_before_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rack = FakeRack(2)
    aborted_first: list[bool] = []
    tell = rack.memberships[0].abort

    def abort(reason: str, mismatch: Called | None = None, plane: int | None = None) -> None:
        aborted_first.append(rack.links[0].aborted is not None)
        tell(reason, mismatch)

    monkeypatch.setattr(rack.memberships[0], "abort", abort)
    monkeypatch.setattr(rack.links[0], "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rack.communicators[0].all_reduce(ramp(0))
    assert aborted_first == [True]
    with pytest.raises(WorkerLostError, match="rank 0: KeyboardInterrupt"):
        rack.communicators[1].all_reduce(ramp(0))


@pytest.mark.parametrize("running", [False, True])
def test_an_interrupt_ends_the_collective(monkeypatch: pytest.MonkeyPatch, running: bool) -> None:
    """Check that the collective stops writing into `out`. Not running: it waits for one in the queue."""
    rack = FakeRack(2)
    c, link = rack.communicators[0], rack.links[0]
    posted, post = threading.Event(), link.post

    def note(operation: Operation) -> int:
        op_id = post(operation)
        posted.set()
        return op_id

    def press_ctrl_c() -> None:
        assert posted.wait(20)
        time.sleep(0.05)  # so that it waits by then, most of the time
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presses = threading.Thread(target=press_ctrl_c)
    with monkeypatch.context() as patch:
        patch.setattr(link, "post", note)
        presses.start()
        if not running:
            c.all_reduce(ramp(0), async_op=True)
        with pytest.raises(KeyboardInterrupt):
            c.all_reduce(ramp(0), out=np.zeros(1000, np.float32))
        presses.join()
    assert link.aborted is not None
    with pytest.raises(WorkerLostError, match="rank 0: KeyboardInterrupt"):
        rack.communicators[1].all_reduce(ramp(0))
    c.leave()


def test_an_interrupt_while_leaving_waits_for_the_queue_ends_the_job_and_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rack = FakeRack(2)
    c = rack.communicators[0]
    pending = c.all_reduce(ramp(0), async_op=True)
    shutdown = ThreadPoolExecutor.shutdown

    def interrupted(self: ThreadPoolExecutor, **how: Any) -> None:
        if not how.get("cancel_futures"):
            raise KeyboardInterrupt
        shutdown(self, **how)

    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "shutdown", interrupted)
        with pytest.raises(KeyboardInterrupt):
            c.leave()
    assert (pending.done(), rack.memberships[0].closed, rack.links[0].closed) == (True, True, True)
    assert not rack.memberships[0].left
    with pytest.raises(WorkerLostError, match="rank 0: KeyboardInterrupt"):
        rack.communicators[1].all_reduce(ramp(0))


def test_what_the_connection_refuses_leaves_the_job_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    rack = FakeRack(2)

    def refuse(operation: Operation) -> int:
        raise ValueError("more than 2^32 - 1 elements")

    with monkeypatch.context() as patch:
        for link in rack.links:
            patch.setattr(link, "post", refuse)
        for error in rack.run(lambda c: c.all_gather(ramp(0))):
            assert isinstance(error, UsageError)
            assert "more than 2^32 - 1 elements" in str(error)
    assert all(r.tolist() == [2] for r in rack.run(lambda c: c.all_reduce(np.ones(1, np.int32))))


@pytest.mark.parametrize(("mode", "words"), [(Mode.IN_NETWORK, "in-network"), (Mode.RING, "ring")])
def test_a_mode_prints_as_its_name(mode: Mode, words: str) -> None:
    assert f"{mode}" == str(mode) == words
