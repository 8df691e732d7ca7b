"""Communicators of machines with several GPUs: what users rely on, with all ranks in one process."""

from __future__ import annotations

import gc
import itertools
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.api.messages import Mode
from host_agent.communicator import RingFallbackWarning
from host_agent.error_feedback import ErrorFeedback
from host_agent.errors import (
    CollectiveTimeoutError,
    CommunicatorClosedError,
    CommunicatorError,
    JobEndedError,
    MismatchError,
    UsageError,
    WorkerLostError,
)
from host_agent.front import Collectives
from host_agent.machine.channel import SLOT_BYTES
from host_agent.machine.communicator import MachineCommunicator
from host_agent.quantisation import BFLOAT16, Blocks, block_sum, divide, error_bound
from p4reduce.simulation.faults.schedule import Rates
from tests.host_agent.fakes import FakeRack
from tests.host_agent.machine.machines import Machines

pytestmark = pytest.mark.filterwarnings("error")
DTYPES = [np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
BLOCKS = Blocks.of(path_mtu=1024, message_packets=4, half=False)  # of a FakeRack


@pytest.fixture
def machines() -> Iterator[Callable[..., Machines]]:
    """Makes machines, which end with the test."""
    made: list[Machines] = []

    def make(*args: Any, **how: Any) -> Machines:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RingFallbackWarning)
            made.append(Machines(*args, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


def tensors(workers: int, size: int, dtype: Any, seed: int = 1) -> list[NDArray[Any]]:
    """Return tensors like gradients: layers of very different magnitudes, some zeros."""
    random = np.random.default_rng(seed)
    if dtype == np.int32:
        return [random.integers(-(2**31), 2**31, size, dtype=np.int32) for _ in range(workers)]
    layers = 2.0 ** -np.repeat(np.arange(0, 24, 3), -(-size // 8))[:size]
    return [(random.standard_normal(size) * layers).astype(dtype) for _ in range(workers)]


def same(results: list[Any]) -> Any:
    """Return the result that all ranks got alike."""
    for result in results:
        if isinstance(result, Exception):
            raise result
        assert result.tobytes() == results[0].tobytes()
    return results[0]


SIZES = [1, 1000, 40_000]


@pytest.mark.parametrize("mode", [Mode.IN_NETWORK, Mode.RING], ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_a_sum_of_float32_has_the_bits_of_a_flat_sum_in_the_network(
    machines: Callable[..., Machines], mode: Mode, size: int, op: str
) -> None:
    """Check the promise: one GPU a machine and many train alike, to the last bit."""
    arrays = tensors(6, size, np.float32)
    result = same(machines(2, 3, mode=mode).run(lambda c: c.all_reduce(arrays[c.rank], op)))
    divisor = 6 if op == "avg" else 1
    if 6 * arrays[0].nbytes <= 1024:
        exact = np.add.reduce([array.astype(np.float64) for array in arrays]) / divisor
        assert result == pytest.approx(exact, rel=1e-6)
        return
    expected, special = block_sum(arrays, BLOCKS, half=False, divisor=divisor)
    assert not special.any()
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "pipeline", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["pipeline", "phases"]
)
@pytest.mark.parametrize(
    "dtype",
    [DTYPES[1], *(pytest.param(each, marks=pytest.mark.slow) for each in (DTYPES[0], *DTYPES[2:]))],
    ids=str,
)
def test_many_pieces_give_what_one_gives(
    machines: Callable[..., Machines], pipeline: bool, dtype: np.dtype[Any]
) -> None:
    size = 2 * SLOT_BYTES // 4 + 12_345  # three pieces, the last one short
    arrays = tensors(4, size, dtype)
    result = same(machines(2, 2, pipeline=pipeline).run(lambda c: c.all_reduce(arrays[c.rank])))
    if dtype == np.int32:
        assert result.tobytes() == np.add.reduce(arrays, dtype=np.int32).tobytes()
    elif dtype == np.float32:
        assert result.tobytes() == block_sum(arrays, BLOCKS, half=False)[0].tobytes()
    else:
        exact = np.add.reduce([array.astype(np.float64) for array in arrays])
        largest = max(float(np.abs(array.astype(np.float64)).max()) for array in arrays)
        bound = error_bound(largest, world_size=4, dtype=dtype)
        assert np.abs(result.astype(np.float64) - exact).max() <= 2 * bound  # rounded once more a machine


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", [Mode.IN_NETWORK, Mode.RING], ids=lambda mode: mode.name.lower())
def test_extremes_are_exact(
    machines: Callable[..., Machines], mode: Mode, dtype: np.dtype[Any], op: str
) -> None:
    arrays = tensors(6, 5000, dtype)
    result = same(machines(3, 2, mode=mode).run(lambda c: c.all_reduce(arrays[c.rank], op)))
    expected = arrays[0].astype(np.float64)
    for array in arrays[1:]:
        expected = (np.maximum if op == "max" else np.minimum)(expected, array.astype(np.float64))
    assert (result.astype(np.float64) == expected).all()


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.float32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("op", ["sum", "avg", "max", "prod"])
def test_what_no_switch_makes_goes_by_the_planes_rings(
    machines: Callable[..., Machines], dtype: Any, op: str
) -> None:
    arrays = [np.arange(1, 4001, dtype=dtype) % 7 - 3 + rank for rank in range(6)]  # exact in any order
    result = same(machines(3, 2).run(lambda c: c.all_reduce(arrays[c.rank], op)))
    fold = {"max": np.maximum, "prod": np.multiply}.get(op, np.add)
    expected = fold.reduce(arrays)
    if op == "avg":
        expected = divide(expected, 6)
    tolerance = 1e-6 if dtype is np.float32 and op == "avg" else 0.0
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_an_average_of_int32_is_cut_off_towards_zero(machines: Callable[..., Machines]) -> None:
    mine = [[-7, 7, 1], [-1, 1, 1], [0, 0, 0], [0, 0, 1]]
    result = same(machines(2, 2).run(lambda c: c.all_reduce(np.array(mine[c.rank], np.int32), "avg")))
    assert result.tolist() == [-2, 2, 0]


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_infinities_and_nans_come_through(machines: Callable[..., Machines], dtype: np.dtype[Any]) -> None:
    """Add blocks with an Inf or NaN as floats; the other blocks are as without them."""
    arrays = tensors(4, 9000, dtype)
    arrays[1][3] = np.inf
    arrays[3][3] = -np.inf
    arrays[2][4500] = np.nan
    arrays[0][8999] = np.inf
    group = machines(2, 2)
    with np.errstate(invalid="ignore"):
        result = same(group.run(lambda c: c.all_reduce(arrays[c.rank]))).astype(np.float64)
        exact = np.add.reduce([array.astype(np.float64) for array in arrays])
    assert np.isnan(result[[3, 4500]]).all()
    assert result[8999] == np.inf
    finite = np.isfinite(exact)
    assert np.isfinite(result[finite]).all()
    largest = max(float(np.abs(array[finite].astype(np.float64)).max()) for array in arrays)
    bound = error_bound(largest, world_size=4, dtype=dtype)
    assert np.abs(result[finite] - exact[finite]).max() <= 2 * bound


def test_one_gpu_a_machine_or_many_the_bits_are_the_same(machines: Callable[..., Machines]) -> None:
    """Compare also blocks with an Inf or NaN, and tensors too small for the network."""
    cases = [tensors(4, size, np.float32, seed=size) for size in (3, 60, 7000)]
    cases[2][1][[3, 5000]] = np.inf, np.nan
    cases[2][3][[3, 6999]] = -np.inf, 3e38
    cases[1][0][7] = np.inf

    def work(c: Collectives) -> Any:
        return [c.all_reduce(case[c.rank], op).tobytes() for case in cases for op in ("sum", "avg")]

    with np.errstate(invalid="ignore", over="ignore"):
        flat = FakeRack(4).run(work)
        assert machines(2, 2).run(work) == flat


def test_float32_over_16_bits(machines: Callable[..., Machines]) -> None:
    arrays = tensors(4, 20_000, np.float32)
    group = machines(2, 2)
    whole = group.racks[0].communicators[0].counters().data_bytes_sent
    result = same(group.run(lambda c: c.all_reduce(arrays[c.rank], wire="16bit")))
    sent = group.racks[0].communicators[0].counters().data_bytes_sent - whole
    assert sent < 20_000 / 2 * 3  # half a tensor's elements, two bytes each, and headers
    exact = np.add.reduce([array.astype(np.float64) for array in arrays])
    largest = max(float(np.abs(array).max()) for array in arrays)
    bound = error_bound(largest, world_size=4, dtype=np.dtype(np.float16))
    assert np.abs(result - exact).max() <= 2 * bound
    with pytest.raises(UsageError, match="error feedback is for jobs with one GPU a machine"):
        group.communicators[0].all_reduce(arrays[0], wire="16bit", feedback=ErrorFeedback())


def test_the_result_goes_where_the_user_wants_it(machines: Callable[..., Machines]) -> None:
    arrays = tensors(4, 30_000, np.float32)
    expected, _ = block_sum(arrays, BLOCKS, half=False)

    def work(c: Collectives) -> Any:
        into = arrays[c.rank].copy()
        assert c.all_reduce(into, out=into) is into
        return into

    assert same(machines(2, 2).run(work)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("mode", [Mode.IN_NETWORK, Mode.RING], ids=lambda mode: mode.name.lower())
def test_all_collectives(machines: Callable[..., Machines], mode: Mode) -> None:
    group = machines(2, 2, mode=mode)
    blocks = [np.arange(8, dtype=np.int32).reshape(4, 2) * (rank + 1) for rank in range(4)]

    def work(c: Collectives) -> Any:
        c.barrier()
        whole = c.broadcast(np.array([f"rank {c.rank}", "x"], "U6"), root=3)
        rows = c.all_gather(np.array([[c.rank, 7]], np.uint8))
        mine = c.reduce_scatter(blocks[c.rank])
        reduced = c.reduce(blocks[c.rank], root=2)
        nothing = c.all_reduce(np.empty(0, np.float32))
        return whole.tolist(), rows.tolist(), mine.tolist(), reduced, nothing.size

    results = group.run(work)
    summed = blocks[0] * 10
    for rank, (whole, rows, mine, reduced, nothing) in enumerate(results):
        assert whole == ["rank 3", "x"]
        assert rows == [[[other, 7]] for other in range(4)]
        assert mine == summed[rank : rank + 1].tolist()
        assert (reduced is None) == (rank != 2)
        assert nothing == 0
    assert (results[2][3] == summed).all()


def test_collectives_may_wait_in_a_queue(machines: Callable[..., Machines]) -> None:
    arrays = tensors(4, 3000, np.float32)

    def work(c: Collectives) -> Any:
        futures: list[Future[Any]] = [c.all_reduce(arrays[c.rank] * n, async_op=True) for n in range(1, 5)]
        last = c.all_reduce(np.array([c.rank], np.int32))
        return [future.result() for future in futures], last.tolist()

    for sums, last in machines(2, 2).run(work):
        assert last == [6]
        for n, result in enumerate(sums, start=1):
            expected, _ = block_sum([array * n for array in arrays], BLOCKS, half=False)
            assert result.tobytes() == expected.tobytes()


def test_bytes_over_a_nic_and_inside_a_machine(machines: Callable[..., Machines]) -> None:
    """Count what a machine sends, a tensor once, and what each GPU takes from others, 2(n-1)/n tensors."""
    array = np.ones(120_000, np.int32)
    group = machines(2, 3)
    group.run(lambda c: c.all_reduce(array))
    machine = group.communicators[:3]
    payload = sum(c.counters().data_packets_sent for c in machine) * 1024
    message = 4 * 1024  # 256 bytes of it say what it is
    assert array.nbytes <= payload <= array.nbytes * message / (message - 256) + 3 * message
    inside = [c.machine.bytes_received for c in machine]
    assert sum(inside) == 3 * (2 * 2 / 3) * array.nbytes


def test_bad_links_between_machines(machines: Callable[..., Machines]) -> None:
    arrays = tensors(4, 50_000, np.float32)
    group = machines(2, 2, faults=Rates(loss=0.02, duplicate=0.02, reorder=0.05))
    result = same(group.run(lambda c: c.all_reduce(arrays[c.rank])))
    assert result.tobytes() == block_sum(arrays, BLOCKS, half=False)[0].tobytes()


def test_who_it_is(machines: Callable[..., Machines]) -> None:
    group = machines(2, 3)
    assert [c.rank for c in group.communicators] == list(range(6))
    for c in group.communicators:
        assert c.world_size == 6
        assert c.members == tuple(range(6))
        assert c.mode is Mode.IN_NETWORK
        assert c.mode_reason == ""
        assert (c.machine.rank, c.machine.size) == (c.rank % 3, 3)
        assert c.failure is None


def test_statistics_count_what_the_user_called(machines: Callable[..., Machines]) -> None:
    def work(c: Collectives) -> Any:
        c.all_reduce(np.ones(300_000, np.float32))  # several collectives of the plane
        c.barrier()
        return c.statistics()

    for statistics in machines(2, 2).run(work):
        assert statistics.collectives == 2
        assert statistics.bytes_sent > 300_000 / 2 * 4


def test_statistics_stay_when_the_job_is_over(machines: Callable[..., Machines]) -> None:
    def work(c: Collectives) -> Any:
        c.all_reduce(np.ones(300, np.float32))
        before = c.statistics()
        c.leave()
        return before.collectives, before.bytes_sent > 0, c.statistics().bytes_sent >= before.bytes_sent

    assert machines(2, 2).run(work) == [(1, True, True)] * 4


def test_a_call_whose_plane_is_taken_down_hears_why(
    machines: Callable[..., Machines], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take the plane down when the call's turn has begun: no error of the connection reaches the user."""
    found_well, looks = MachineCommunicator._require_no_failure, []

    def require_no_failure(self: MachineCommunicator, call: Any) -> None:
        found_well(self, call)
        if self.rank == 1:
            looks.append(call)
            if len(looks) == 2:  # the first is when it is admitted
                group.racks[1].controller.end("rank 1 (h1) died", rank=1)
                self.plane.leave()

    monkeypatch.setattr(MachineCommunicator, "_require_no_failure", require_no_failure)
    group = machines(2, 2, timeout_s=None)
    results = group.run(lambda c: c.all_reduce(np.ones(100, np.float32)))
    assert all(isinstance(result, CommunicatorError) for result in results), results


# Errors


def test_calls_that_differ_end_the_job_for_all_and_say_who_called_what(
    machines: Callable[..., Machines],
) -> None:
    group = machines(2, 2)
    results = group.run(lambda c: c.all_reduce(np.ones(2000 if c.rank < 3 else 1999, np.float32)))
    for result in results:
        assert isinstance(result, MismatchError), result
    assert any("2000 float32" in str(result) and "1999 float32" in str(result) for result in results)
    for result in group.run(lambda c: c.barrier()):
        assert isinstance(result, (MismatchError, CommunicatorClosedError))


def records(name: str) -> NDArray[Any]:
    """Return an array whose type's name is too long to be said whole; its last field is called `name`."""
    return np.zeros(9, np.dtype([(f"field{n}", np.int32) for n in range(40)] + [(name, np.int32)]))


CALLS: dict[str, Callable[[Collectives], Any]] = {
    "barrier": lambda c: c.barrier(),
    "all_gather of 9 int32": lambda c: c.all_gather(np.ones(9, np.int32)),
    "broadcast of 9 int32 from rank 0": lambda c: c.broadcast(np.ones(9, np.int32)),
    "broadcast of 9 int32 from rank 1": lambda c: c.broadcast(np.ones(9, np.int32), root=1),
    "SUM) of 9 int32": lambda c: c.all_reduce(np.ones(9, np.int32)),
    "SUM) of 9 int32 (ring)": lambda c: c.all_reduce(np.ones(9, np.int32), strategy="ring"),
    "SUM) of 9 float32": lambda c: c.all_reduce(np.ones(9, np.float32)),
    "MAX) of 9 float32": lambda c: c.all_reduce(np.ones(9, np.float32), "max"),
    "SUM) of 99999 float32": lambda c: c.all_reduce(np.ones(99_999, np.float32)),
    "SUM) of 99999 float32 over 16 bits": lambda c: c.all_reduce(np.ones(99_999, np.float32), wire="16bit"),
    "SUM) of 99999 float32 without a pipeline": lambda c: c.all_reduce(
        np.ones(99_999, np.float32), pipeline=False
    ),
    "SUM) of 0 float32": lambda c: c.all_reduce(np.ones(0, np.float32)),
    "all_gather of 9 [('field0'": lambda c: c.all_gather(records("one")),
    "all_gather of 9 [('field0', '<i4')": lambda c: c.all_gather(records("another")),
    "cancelled": lambda c: cancelled(c),
}


def cancelled(c: Collectives) -> Any:
    """Cancel a call before it runs, and then make one that all make."""
    goes = threading.Event()
    blocks = c._turns._queue.submit(goes.wait, 20)
    future = c.all_reduce(np.ones(9, np.int32), async_op=True)
    assert future.cancel()
    goes.set()
    blocks.result(20)
    c.barrier()


PAIRS = list(itertools.combinations(CALLS, 2))


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
@pytest.mark.parametrize("crossed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_whatever_two_of_a_machine_have_called_all_hear_it(
    machines: Callable[..., Machines], pair: tuple[str, str], crossed: bool
) -> None:
    """Swap the calls on the other machine if `crossed`, so that each plane differs, too."""

    def work(c: Collectives) -> Any:
        machine, gpu = divmod(c.rank, 2)
        return CALLS[pair[gpu ^ (machine if crossed else 0)]](c)

    results = machines(2, 2, timeout_s=None).run(work)
    assert all(isinstance(result, MismatchError) for result in results), results
    assert any(pair[0] in str(result) and pair[1] in str(result) for result in results)


def test_a_call_of_nothing_is_a_step_too(machines: Callable[..., Machines]) -> None:
    """Leave it out on GPU 1, whose next call has the same words as the others' second."""

    def work(c: Collectives) -> Any:
        if c.rank % 2 == 0:
            c.all_reduce(np.ones(0, np.int32))
        return [c.all_reduce(np.full(100, value, np.int32)) for value in (1, 100)]

    results = machines(2, 2, timeout_s=None).run(work)
    assert all(isinstance(result, MismatchError) for result in results), results


@pytest.mark.parametrize("odd", [0, 1], ids=["one GPU", "one machine"])
def test_a_call_of_nothing_or_cancelled_by_some_never_shifts_the_others(
    machines: Callable[..., Machines], odd: int
) -> None:
    """Check that all fail: the sums after such a call would mix calls of different numbers."""

    def work(c: Collectives) -> Any:
        if (c.rank % 2, c.rank // 2)[odd]:
            c.all_reduce(np.ones(0, np.int32))
        return [c.all_reduce(np.full(100, value, np.int32)) for value in (1, 100, 1)]

    results = machines(2, 2, timeout_s=None).run(work)
    assert all(isinstance(result, MismatchError) for result in results), results


def test_the_next_call_warns_of_the_ring_where_it_stands(machines: Callable[..., Machines]) -> None:
    made = machines(2, 2)
    for rack in made.racks:
        rack.move(Mode.RING, "no room")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            made.run(lambda c: c.barrier())
    assert [(str(w.message), w.filename) for w in caught] == [
        ("this job is summed by ring all-reduce from now on: no room", __file__)
    ] * 4


def test_what_all_cancel_is_over_for_all(machines: Callable[..., Machines]) -> None:
    def work(c: Collectives) -> Any:
        cancelled(c)
        return c.all_reduce(np.full(100, 7, np.int32))

    assert (same(machines(2, 2, timeout_s=None).run(work)) == 28).all()


def test_who_leaves_after_a_call_that_only_it_cancelled_hears_so(machines: Callable[..., Machines]) -> None:
    def work(c: Collectives) -> Any:
        if c.rank != 1:
            return c.all_reduce(np.ones(9, np.int32))
        goes = threading.Event()
        c._turns._queue.submit(goes.wait, 20)
        assert c.all_reduce(np.ones(9, np.int32), async_op=True).cancel()
        goes.set()
        return c.leave()

    results = machines(2, 2, timeout_s=None).run(work)
    assert all(isinstance(result, MismatchError) for result in results), results


def test_who_leaves_after_a_call_that_it_cancelled_hears_that_the_job_has_failed(
    machines: Callable[..., Machines],
) -> None:
    """Check a worker of which no call has raised anything; one that has heard the error leaves in peace."""
    has_failed = threading.Barrier(4)

    def work(c: Collectives) -> Any:
        goes = threading.Event()
        c._turns._queue.submit(goes.wait, 20)
        if c.rank:
            assert c.all_reduce(np.ones(9, np.int32), async_op=True).cancel()
        has_failed.wait(20)
        if not c.rank:
            c.abort("enough")
        elif c.rank == 2:
            with pytest.raises(CommunicatorError):
                c.all_reduce(np.ones(9, np.int32))
        while c.failure is None:
            time.sleep(0.01)
        goes.set()
        return c.leave(timeout_s=20)

    results = machines(2, 2, timeout_s=None).run(work)
    assert results[0] is results[2] is None
    assert isinstance(results[1], CommunicatorError)
    assert isinstance(results[3], CommunicatorError)


def test_who_has_left_has_given_the_machines_memory_back(machines: Callable[..., Machines]) -> None:
    """Check that it is freed without garbage collection: each job would keep some MiB and descriptors."""
    made = machines(2, 2)
    regions = [weakref.ref(region) for c in made.communicators for region in c._meeting.regions]
    same(made.run(lambda c: c.all_reduce(np.ones(100_000, np.float32))))
    gc.disable()
    try:
        made.run(lambda c: c.leave(timeout_s=20))
        assert [region for region in regions if region() is not None] == []
    finally:
        gc.enable()


def test_who_aborts_hears_nothing_of_what_it_cancelled(machines: Callable[..., Machines]) -> None:
    """Check that the user sees the error in the `with` block."""

    def work(c: Collectives) -> Any:
        if c.rank:
            while c.failure is None:
                time.sleep(0.01)
            return None
        goes = threading.Event()
        c._turns._queue.submit(goes.wait, 20)
        with c:
            assert c.all_reduce(np.ones(9, np.int32), async_op=True).cancel()
            goes.set()
            raise ZeroDivisionError

    results = machines(2, 2, timeout_s=None).run(work)
    assert isinstance(results[0], ZeroDivisionError), results


def test_leaving_waits_for_another_threads_call(machines: Callable[..., Machines]) -> None:
    def work(c: Collectives) -> Any:
        begun = threading.Event()

        def call() -> None:
            begun.set()
            sums.append(c.all_reduce(np.full(100_000, c.rank, np.int32)))

        sums: list[Any] = []
        other = threading.Thread(target=call)
        other.start()
        begun.wait(20)
        assert isinstance(c, MachineCommunicator)
        while not c._called:
            time.sleep(0)
        c.leave(timeout_s=20)
        other.join(20)
        return sums[0]

    assert (same(machines(2, 2, timeout_s=None).run(work)) == 6).all()


def test_a_call_is_made_before_another_thread_leaves_or_is_refused(machines: Callable[..., Machines]) -> None:
    """Close the queue between a call's admission and its submission."""

    def work(c: Collectives) -> Any:
        made, is_shut, submit, close = (
            threading.Event(),
            threading.Event(),
            c._turns._queue.submit,
            c._turns.close,
        )

        def submits(*args: Any) -> Any:
            made.set()
            is_shut.wait(0.2)
            return submit(*args)

        def closes() -> None:
            close()
            is_shut.set()

        def leaves() -> None:
            made.wait(20)
            c.leave(timeout_s=20)

        c._turns._queue.submit = submits  # type: ignore[method-assign, assignment]
        c._turns.close = closes  # type: ignore[method-assign, assignment]
        other = threading.Thread(target=leaves)
        other.start()
        future = c.all_reduce(np.full(9, c.rank, np.int32), async_op=True)
        other.join(20)
        return future.result(20)

    assert (same(machines(2, 2, timeout_s=None).run(work)) == 6).all()


def test_who_leaves_while_another_threads_call_fails_only_closes(machines: Callable[..., Machines]) -> None:
    """Leave before the worker's machine has heard of the failure."""
    c = machines(1, 2, timeout_s=None).communicators[0]
    fail, is_stopped, goes = c._meeting.fail, threading.Event(), threading.Event()

    def fails_later(error: Any) -> None:
        is_stopped.set()
        goes.wait(20)
        fail(error)

    def breaks(*args: Any) -> Any:
        raise ZeroDivisionError

    c._meeting.fail, c._next = fails_later, breaks  # type: ignore[method-assign]
    with ThreadPoolExecutor() as pool:
        call = pool.submit(c.all_reduce, np.ones(9, np.int32))
        is_stopped.wait(20)
        leaving = pool.submit(c.leave, timeout_s=20)
        wait([leaving], 0.2)
        goes.set()
        assert leaving.result(20) is None
        with pytest.raises(ZeroDivisionError):
            call.result(20)


@pytest.mark.parametrize("ringed", [(0,), (1,), (0, 1)], ids=str)
def test_in_network_is_refused_on_all_where_some_planes_go_by_ring(
    machines: Callable[..., Machines], ringed: tuple[int, ...]
) -> None:
    """Move planes one after the other, as they hear of a move."""
    made = machines(2, 2, timeout_s=None)
    for plane in ringed:
        made.racks[plane].move(Mode.RING)

    def work(c: Collectives) -> Any:
        array = np.full(100, 2, np.int32)
        with pytest.raises(UsageError, match="in-network was asked for, but no switch aggregates"):
            c.all_reduce(array, out=array, strategy="in-network")
        assert (array == 2).all()
        return c.all_reduce(array)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RingFallbackWarning)
        assert (same(made.run(work)) == 8).all()


def test_who_leaves_before_the_others_of_its_machine(machines: Callable[..., Machines]) -> None:
    """Let a plane leave after two sums, so that no other plane hears of it; the others call a third."""

    def work(communicator: Collectives) -> None:
        for _ in range(2 if communicator.rank % 2 else 3):
            communicator.all_reduce(np.ones(3, np.int32))
        communicator.leave(timeout_s=20)

    answers = machines(2, 2, timeout_s=None).run(work)
    for rank in (0, 2):
        assert isinstance(answers[rank], MismatchError)
        # Its own machine's, or the other's, which the controller may tell first.
        assert re.search("rank [13] has left after 2 collectives", str(answers[rank]))


def test_machines_that_differ_are_told_apart_by_the_switch(machines: Callable[..., Machines]) -> None:
    results = machines(2, 2).run(
        lambda c: c.all_reduce(np.ones(2000, np.int32), "sum" if c.rank < 2 else "max")
    )
    assert all(isinstance(result, (MismatchError, JobEndedError)) for result in results), results
    assert any(isinstance(result, MismatchError) for result in results)


def test_a_gpu_that_dies_is_named(machines: Callable[..., Machines]) -> None:
    group = machines(2, 2, timeout_s=None)

    def work(c: Collectives) -> Any:
        if c.rank == 3:
            time.sleep(0.2)
            group.meetings[3]._closing = True  # a dead process notices nothing
            for peer in group.meetings[3]._peers.values():  # as the kernel does when a process ends
                peer.shutdown(2)
            return None
        return c.all_reduce(np.ones(100_000, np.float32))

    results = group.run(work)
    for peer in group.meetings[3]._peers.values():
        peer.close()
    assert isinstance(results[2], WorkerLostError)
    assert "GPU 1 of machine 1 (" in str(results[2])
    assert ", rank 3) died" in str(results[2])
    assert results[2].rank == 3
    assert all(isinstance(result, Exception) for result in results[:3])


def test_a_worker_says_whom_of_its_machine_it_waits_for(machines: Callable[..., Machines]) -> None:
    """Ask the plane's socket as the doctor does: GPU 1 of machine 1 is late, and GPU 0 waits for it."""
    group = machines(2, 2, timeout_s=None)
    seen: list[dict[str, Any]] = []

    def work(c: Collectives) -> None:
        if c.rank == 3:
            mate = group.communicators[2]
            assert isinstance(mate, MachineCommunicator)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                seen.append(mate.plane.status("train")["machine"])
                if seen[-1]["waits_for"]:
                    break
                time.sleep(0.01)
        c.all_reduce(np.ones(100_000, np.int32))

    assert group.run(work) == [None] * 4
    assert seen[-1] == {"local_rank": 0, "size": 2, "waits_for": [1]}


def test_what_ends_a_plane_ends_all(machines: Callable[..., Machines]) -> None:
    group = machines(2, 2, timeout_s=None)
    ends: list[Any] = []
    for c in group.communicators:
        c.on_end(ends.append)
    timer = threading.Timer(0.2, lambda: group.racks[1].controller.end("rank 1 (h1) died", rank=1))
    timer.start()
    results = group.run(lambda c: c.all_reduce(np.ones(100, np.float32)) if c.rank != 2 else time.sleep(1))
    for rank in (0, 1, 3):
        assert isinstance(results[rank], (WorkerLostError, JobEndedError)), results[rank]
    assert {c.failure is not None for c in group.communicators} == {True}
    assert len(ends) >= 4


def test_an_aborted_job_says_why(machines: Callable[..., Machines]) -> None:
    group = machines(2, 2)

    def work(c: Collectives) -> Any:
        if c.rank == 0:
            c.abort("no more data")
            return c.all_reduce(np.ones(2, np.float32))
        return c.all_reduce(np.ones(20_000, np.float32))

    results = group.run(work)
    assert all(
        isinstance(result, (JobEndedError, CommunicatorClosedError, WorkerLostError)) for result in results
    )
    assert "no more data" in str(results[1])


def test_a_slow_gpu_is_named_when_time_is_up(machines: Callable[..., Machines]) -> None:
    group = machines(2, 2, timeout_s=0.5)
    results = group.run(lambda c: c.all_reduce(np.ones(5000, np.float32)) if c.rank != 1 else time.sleep(2))
    assert isinstance(results[0], CollectiveTimeoutError)
    assert "all_reduce(SUM) of 5000 float32: GPU 1 (rank 1) of this machine" in str(results[0])


def test_bad_arguments_change_nothing(machines: Callable[..., Machines]) -> None:
    group = machines(2, 2)
    for c in group.communicators:
        with pytest.raises(UsageError, match="uint8 cannot be reduced"):
            c.all_reduce(np.ones(3, np.uint8))
        with pytest.raises(UsageError, match="no switch makes the sum of float64"):
            c.all_reduce(np.ones(3), strategy="in-network")
        with pytest.raises(UsageError, match="root 4"):
            c.broadcast(np.ones(3, np.int32), root=4)
        with pytest.raises(UsageError):
            c.reduce_scatter(np.ones(3, np.int32))
    assert same(group.run(lambda c: c.all_reduce(np.ones(3, np.int32)))).tolist() == [4, 4, 4]


def test_all_leave_together(machines: Callable[..., Machines]) -> None:
    group = machines(2, 2)

    def work(c: Collectives) -> Any:
        with c:
            total = c.all_reduce(np.ones(3, np.int32))
        with pytest.raises(CommunicatorClosedError, match="left its job"):
            c.barrier()
        return total.tolist()

    assert group.run(work) == [[4, 4, 4]] * 4
    assert all(rank.left for rack in group.racks for rank in rack.memberships)


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ({"world_size": 6, "gpus_per_host": 4}, "6 workers cannot be 4 on each machine"),
        ({"world_size": 18, "gpus_per_host": 9}, "1 to 8"),
        ({"world_size": 4, "gpus_per_host": 0}, "1 to 8"),
        ({"world_size": 4, "gpus_per_host": 2, "intra_rate_bit_s": 0}, "is no rate"),
        ({"world_size": 4, "gpus_per_host": 2, "rank": 4}, "rank 4 is no rank"),
    ],
)
def test_what_cannot_be_joined_is_refused_before_anything_happens(how: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        MachineCommunicator.join("127.0.0.1:1", **{"job": "train", "rank": 0, **how})
