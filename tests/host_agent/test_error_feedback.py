"""float32 on a wire of 16 bits: the sum is the reference's, and what each worker rounds away is not lost."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from controller.api.messages import Mode
from host_agent.communicator import Communicator
from host_agent.error_feedback import ErrorFeedback
from host_agent.errors import MismatchError, UsageError
from host_agent.quantisation import Blocks, block_sum, error_bound
from p4reduce.simulation.faults.schedule import Rates
from tests.host_agent.fakes import FakeRack
from tests.host_agent.waiting import BAD_LINKS, eventually

pytestmark = pytest.mark.filterwarnings("ignore::host_agent.errors.RingFallbackWarning")

SIZE = 5003
BLOCKS = Blocks.of(path_mtu=1024, message_packets=4, half=True)  # of FakeRack


def gradient(rank: int, number: int = 0, size: int = SIZE) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a gradient of layers whose magnitudes differ."""
    rng = np.random.default_rng(100 * number + rank)
    layers = np.exp2(-(np.arange(size) % SIZE) // 700)
    return (rng.standard_normal(size) * layers).astype(np.float32)


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sum_has_the_bits_of_the_reference(ranks: int, op: str) -> None:
    rack = FakeRack(ranks)
    results = rack.run(lambda c: c.all_reduce(gradient(c.rank), op, wire="16bit"))
    inputs = [gradient(rank) for rank in range(ranks)]
    expected, special = block_sum(inputs, BLOCKS, half=True, divisor=ranks if op == "avg" else 1)
    assert not special.any()
    for result in results:
        assert result.dtype == np.float32
        assert result.tobytes() == expected.tobytes()


def test_half_as_many_bytes_travel() -> None:
    rack = FakeRack(2)

    def work(c: Communicator) -> tuple[int, int]:
        before = c.counters().data_bytes_sent
        c.all_reduce(np.ones(100_000, np.float32))
        full = c.counters().data_bytes_sent
        c.all_reduce(np.ones(100_000, np.float32), wire="16bit")
        return full - before, c.counters().data_bytes_sent - full

    for full, half in rack.run(work):
        assert 0.5 < half / full < 0.52


class Rounds:
    """All-reduces of new gradients with one handle on each of `ranks` ranks, and what each sent for it."""

    def __init__(self, ranks: int, op: str = "sum", size: int = SIZE) -> None:
        self.op, self.ranks, self.size = op, ranks, size
        self.sent: list[dict[int, Any]] = []
        self.owed: list[dict[int, Any]] = []
        self.results: list[dict[int, Any]] = []
        self.lock = threading.Lock()

    def one(self, c: Communicator, feedback: ErrorFeedback, number: int) -> None:
        before = feedback.owed if number else np.zeros(self.size, np.float32)
        given = gradient(c.rank, number, self.size)
        given.setflags(write=False)
        result = c.all_reduce(given, self.op, wire="16bit", feedback=feedback)
        with self.lock:
            while len(self.sent) <= number:
                for kept in (self.sent, self.owed, self.results):
                    kept.append({})
            self.sent[number][c.rank] = given + before
            self.owed[number][c.rank] = feedback.owed
            self.results[number][c.rank] = result

    def check(self) -> int:
        """Count the rounds in which all ranks owe something; check that results sum what they do not owe."""
        owing = 0
        for sent, owed, results in zip(self.sent, self.owed, self.results, strict=True):
            divisor = self.ranks if self.op == "avg" else 1
            rounded = [sent[rank] - owed[rank] for rank in range(self.ranks)]
            for result in results.values():
                assert result.tobytes() == results[0].tobytes()
            exact = sum(one.astype(np.float64) for one in sent.values()) / divisor
            for block in BLOCKS.slices(self.size):
                largest = max(float(np.abs(one[block]).max()) for one in sent.values())
                bound = error_bound(largest, world_size=self.ranks, dtype=np.float32, half=True)
                assert np.abs(results[0][block] - exact[block]).max() <= bound
                for rank in range(self.ranks):
                    assert np.abs(owed[rank][block]).max() <= largest * 2.0**-11
            if all(one.any() for one in owed.values()):
                owing += 1
                expected, _ = block_sum(rounded, BLOCKS, half=True, divisor=divisor)
                assert results[0].tobytes() == expected.tobytes()
        return owing


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("faults", [None, BAD_LINKS], ids=["good links", "bad links"])
def test_what_is_rounded_away_goes_into_the_next_sum(op: str, faults: Rates | None) -> None:
    rack, rounds = FakeRack(3, faults=faults), Rounds(3, op)

    def work(c: Communicator) -> None:
        feedback = ErrorFeedback()
        for number in range(6):
            rounds.one(c, feedback, number)

    assert rack.run(work) == [None] * 3
    assert rounds.check() == 6


@pytest.mark.slow
def test_what_is_too_small_to_be_seen_is_seen_in_the_end() -> None:
    """Sum 2^-30 beside 1 in a block: it is less than half of what the block can tell apart."""
    rack, times, small = FakeRack(2), 64, 2.0**-30

    def work(c: Communicator) -> tuple[Any, Any]:
        array = np.full(4000, small, np.float32)
        array[::128] = 1.0  # one a block
        feedback = ErrorFeedback()
        without = sum(c.all_reduce(array, wire="16bit")[1] for _ in range(times))
        return without, sum(c.all_reduce(array, wire="16bit", feedback=feedback)[1] for _ in range(times))

    for without, with_it in rack.run(work):
        assert without == 0
        assert abs(with_it - 2 * times * small) <= 2 * 2.0**-25


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.IN_NETWORK, Mode.RING])
def test_a_sum_that_is_cut_in_the_middle_adds_nothing_twice(mode: Mode) -> None:
    rack, rounds = FakeRack(3), Rounds(3, size=150_000)

    def work(c: Communicator) -> None:
        feedback = ErrorFeedback()
        for number in range(2):
            rounds.one(c, feedback, number)

    def half_way() -> bool:
        return any(worker.endpoint.progress().received_messages > 120 for worker in simulation.workers)

    def pump() -> None:
        """Move frames until the second sum is under way and some of it has come, then stop."""
        while simulation.frames_under_way() and not half_way():
            simulation.step()

    simulation, rack.fabric.pump = rack.simulation, pump  # type: ignore[method-assign]
    with ThreadPoolExecutor() as pool:
        running = pool.submit(rack.run, work)
        eventually(half_way)
        assert not any(rounds.results[1:])
        assert rack.renew(mode) == 1
        assert running.result(60) == [None] * 3
    assert rounds.check() == (2 if mode is Mode.IN_NETWORK else 1)  # by ring, nothing is owed


def test_an_infinity_is_not_owed() -> None:
    rack = FakeRack(2)

    def work(c: Communicator) -> Any:
        array = gradient(c.rank)
        array[1000] = np.inf
        feedback = ErrorFeedback()
        return c.all_reduce(array, wire="16bit", feedback=feedback), feedback.owed

    block = next(b for b in BLOCKS.slices(SIZE) if b.start <= 1000 < b.stop)
    for result, owed in rack.run(work):
        assert result[1000] == np.inf
        assert not owed[block].any()
        assert np.isfinite(owed).all()
        assert owed.any()
        near = gradient(0)[block].astype(np.float64) + gradient(1)[block]
        others = np.arange(block.start, block.stop) != 1000
        np.testing.assert_allclose(result[block][others], near[others], atol=1e-6)


def test_what_is_rounded_to_infinity_is_not_owed() -> None:
    rack = FakeRack(2)

    def work(c: Communicator) -> Any:
        feedback = ErrorFeedback()
        largest = np.full(5003, np.finfo(np.float32).max if c.rank else 0, np.float32)
        first = c.all_reduce(largest, wire="16bit", feedback=feedback)
        return first, c.all_reduce(gradient(c.rank), wire="16bit", feedback=feedback)

    for first, second in rack.run(work):
        assert (first == np.inf).all()
        assert np.isfinite(second).all()


@pytest.mark.parametrize("mode", [Mode.RING, Mode.IN_NETWORK])
def test_small_tensors_and_a_ring_owe_nothing(mode: Mode) -> None:
    rack = FakeRack(2, mode=mode)

    def work(c: Communicator) -> Any:
        feedback = ErrorFeedback()
        array = gradient(c.rank)[: 5003 if mode is Mode.RING else 100]
        return c.all_reduce(array, wire="16bit", feedback=feedback), feedback.owed

    for result, owed in rack.run(work):
        exact = (gradient(0).astype(np.float64) + gradient(1))[: result.size]
        np.testing.assert_allclose(result, exact, rtol=1e-6, atol=1e-7)
        assert owed.size == result.size
        assert not owed.any()


def test_a_rank_with_another_wire_is_a_mismatch() -> None:
    rack = FakeRack(2)
    results = rack.run(lambda c: c.all_reduce(gradient(0), wire="16bit" if c.rank else "full"))
    assert all(isinstance(result, MismatchError) for result in results), results
    assert "float32 over 16 bits" in str(results[0])


def test_types_of_16_bits_travel_so_anyway() -> None:
    rack = FakeRack(2)
    array = gradient(0).astype(np.float16)
    for plain, asked in rack.run(lambda c: (c.all_reduce(array), c.all_reduce(array, wire="16bit"))):
        assert plain.tobytes() == asked.tobytes()


def test_what_cannot_be_is_refused_before_anything_is_sent() -> None:
    rack = FakeRack(2)
    feedback = ErrorFeedback()
    array = gradient(0)

    def work(c: Communicator) -> list[str]:
        said = []
        calls: list[tuple[Any, dict[str, Any]]] = [
            (array, {"wire": "8bit"}),
            (array, {"feedback": feedback}),
            (array, {"wire": "16bit", "op": "max"}),
            (array.astype(np.int32), {"wire": "16bit"}),
            (array.astype(np.float16), {"wire": "16bit", "feedback": feedback}),
            (array, {"wire": "16bit", "feedback": ErrorFeedback}),
            (array, {"wire": "16bit", "feedback": True}),
        ]
        for given, how in calls:
            with pytest.raises(UsageError) as error:
                c.all_reduce(given, **how)
            said.append(str(error.value))
        own = ErrorFeedback()
        c.all_reduce(array, wire="16bit", feedback=own)
        with pytest.raises(
            UsageError, match=r"of tensors of 5003 elements, not of 10: give each tensor its own"
        ):
            c.all_reduce(array[:10], wire="16bit", feedback=own)
        own.reset()
        c.all_reduce(array[:10], wire="16bit", feedback=own)
        return said

    for *said, forgotten, no_handle in rack.run(work):
        assert forgotten.startswith("feedback has to be an ErrorFeedback, not <class")
        assert no_handle.startswith("feedback has to be an ErrorFeedback, not True: make one")
        assert said == [
            "'8bit' is no width of the wire; there are full, 16bit",
            "error feedback is for a wire of 16 bits: say wire='16bit', or leave it out",
            "a wire of 16 bits is for sum and avg of floats, not for max of float32",
            "a wire of 16 bits is for sum and avg of floats, not for sum of int32",
            "error feedback is for float32, not for float16",
        ]


def test_a_handle_is_one_communicators_at_a_time() -> None:
    """Check it, as two jobs that send from one buffer would both get wrong sums."""
    first, second = FakeRack(2), FakeRack(2)
    handles = [ErrorFeedback(), ErrorFeedback()]

    def work(c: Communicator) -> Any:
        return c.all_reduce(gradient(c.rank), wire="16bit", feedback=handles[c.rank])

    def refused(c: Communicator) -> Any:
        with pytest.raises(UsageError, match="in use by another communicator"):
            work(c)
        handles[c.rank].reset()
        return work(c)

    sums = [result.tobytes() for result in first.run(work)]
    assert [result.tobytes() for result in second.run(refused)] == sums


def test_after_a_failure_nothing_is_owed_and_another_job_may_use_the_handle() -> None:
    handles = [ErrorFeedback(), ErrorFeedback()]

    def fails(c: Communicator) -> None:
        feedback = handles[c.rank]
        c.all_reduce(gradient(c.rank), wire="16bit", feedback=feedback)
        assert feedback.owed.any()
        with pytest.raises(MismatchError):
            c.all_reduce(gradient(c.rank), "avg" if c.rank else "sum", wire="16bit", feedback=feedback)
        assert feedback.owed.size == SIZE
        assert not feedback.owed.any()

    assert FakeRack(2).run(fails) == [None] * 2
    again = FakeRack(2).run(lambda c: c.all_reduce(gradient(c.rank), wire="16bit", feedback=handles[c.rank]))
    fresh = FakeRack(2).run(lambda c: c.all_reduce(gradient(c.rank), wire="16BIT"))
    assert [result.tobytes() for result in again] == [result.tobytes() for result in fresh]


def test_a_call_that_is_refused_leaves_the_handle_as_it_was() -> None:
    rack = FakeRack(2, mode=Mode.RING)

    def work(c: Communicator) -> None:
        feedback = ErrorFeedback()
        with pytest.raises(UsageError):
            c.all_reduce(gradient(c.rank), wire="16bit", feedback=feedback, strategy="in-network")
        c.all_reduce(gradient(c.rank)[:100], wire="16bit", feedback=feedback)
        assert feedback.owed.size == 100
        copied = pickle.loads(pickle.dumps(feedback))
        assert copied.owed.tobytes() == feedback.owed.tobytes()

    assert rack.run(work) == [None] * 2
