"""One worker's iterations: what overlaps what, what waits for what, and that wrong sums are found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from host_agent.quantisation import Blocks, block_sum
from p4reduce.workloads.errors import VerificationError, WorkloadError
from p4reduce.workloads.gradients import Gradients, summands
from p4reduce.workloads.replaying import Player
from p4reduce.workloads.tensors import dtype_of
from p4reduce.workloads.traffic.model import GRADIENTS
from tests.p4reduce.workloads.replays import FakeClock, FakeReducer, Meeting, ThreadReducer

pytestmark = pytest.mark.slow

SECOND = 10**9
# Three layers of 10, 20 and 30 elements; forward 1 s each, backward 2 s each; a bucket a layer.
LAYERS = [[10, SECOND, 2 * SECOND], [20, SECOND, 2 * SECOND], [30, SECOND, 2 * SECOND]]
BUCKETS = [[2], [1], [0]]


def play(
    *,
    element_s: float = 0.0,
    latency_s: float = 0.0,
    layers: list[list[int]] = LAYERS,
    buckets: list[list[int]] = BUCKETS,
    **arguments: Any,
) -> tuple[dict[str, Any], FakeReducer]:
    clock = FakeClock()
    reducer = FakeReducer(clock, element_s=element_s, latency_s=latency_s)
    arguments.setdefault("iterations", 1)
    return Player(clock).replay(reducer, layers=layers, buckets=buckets, **arguments), reducer


def spans(answer: dict[str, Any], kind: str) -> list[tuple[Any, ...]]:
    """Return (iteration, what, start, end) of a kind's spans, in order of time."""
    found = [s for s in answer["spans"] if s["kind"] == kind]
    rows = [(s["iteration"], s["what"], round(s["start_s"], 6), round(s["end_s"], 6)) for s in found]
    return sorted(rows, key=lambda row: row[2:])


def times(answer: dict[str, Any]) -> list[tuple[float, float, float]]:
    return [(i["start_s"], i["end_s"], i["wait_s"]) for i in answer["iterations"]]


def test_sums_overlap_the_layers_that_still_compute() -> None:
    answer, reducer = play(element_s=0.1)  # 3 s, 2 s and 1 s; ready at 5, 7 and 9 s
    assert reducer.sizes == [30, 20, 10]
    assert spans(answer, "compute") == [(0, "forward", 0, 3), (0, "backward", 3, 9)]
    assert spans(answer, "communicate") == [
        (0, "bucket 0", 5, 8),
        (0, "bucket 1", 8, 10),  # ready at 7, but sums are made one after the other
        (0, "bucket 2", 10, 11),
    ]
    assert spans(answer, "wait") == [(0, "gradients", 9, 11)]
    assert times(answer) == [pytest.approx((0, 11, 2))]


def test_an_iteration_begins_when_all_gradients_of_the_last_are_there() -> None:
    answer, _ = play(element_s=0.1, iterations=3)
    assert times(answer) == [pytest.approx((11 * n, 11 * n + 11, 2)) for n in range(3)]
    assert spans(answer, "compute")[2:4] == [(1, "forward", 11, 14), (1, "backward", 14, 20)]


def test_where_sums_take_no_time_nobody_waits() -> None:
    answer, _ = play(iterations=2)
    assert times(answer) == [pytest.approx((0, 9, 0)), pytest.approx((9, 18, 0))]
    assert spans(answer, "wait") == []


def test_without_computing_only_sums_are_left() -> None:
    answer, _ = play(element_s=0.1, layers=[[layer[0], 0, 0] for layer in LAYERS])
    assert times(answer) == [pytest.approx((0, 6, 6))]
    assert spans(answer, "compute") == []
    assert spans(answer, "wait") == [(0, "gradients", 0, 6)]


def test_warm_up_does_not_count() -> None:
    answer, reducer = play(element_s=0.1, warm_up=1, iterations=2)
    assert len(reducer.sizes) == 9
    assert times(answer) == [pytest.approx((11, 22, 2)), pytest.approx((22, 33, 2))]
    assert {span["iteration"] for span in answer["spans"]} == {-1, 0, 1}


def test_buckets_of_several_layers_go_when_the_last_is_ready() -> None:
    answer, reducer = play(element_s=0.1, buckets=[[2, 1], [0]])
    assert reducer.sizes == [50, 10]
    assert spans(answer, "communicate") == [(0, "bucket 0", 7, 12), (0, "bucket 1", 12, 13)]


def test_front_layers_first() -> None:
    # 6 s, 4 s and 2 s; ready at 5, 7 and 9 s: when the first is summed, all are ready, and the front goes.
    answer, reducer = play(element_s=0.2, priority=True, warm_up=1, iterations=2)
    assert reducer.sizes == [30, 10, 20] * 3
    assert reducer.masks == 9
    assert spans(answer, "communicate")[:3] == [
        (-1, "bucket 0", 5, 11),
        (-1, "bucket 2", 11, 13),
        (-1, "bucket 1", 13, 17),
    ]
    # The next iteration begins with the first layer's gradients; the second layer waits for its own.
    assert spans(answer, "wait")[:2] == [(-1, "gradients", 9, 13), (0, "gradients", 14, 17)]
    assert spans(answer, "compute")[2:5] == [
        (0, "forward", 13, 14),
        (0, "forward", 17, 19),
        (0, "backward", 19, 25),
    ]
    assert times(answer) == [pytest.approx((13, 29, 7)), pytest.approx((29, 45, 7))]
    without, _ = play(element_s=0.2, warm_up=1, iterations=2)
    assert times(without) == [pytest.approx((17, 34, 8)), pytest.approx((34, 51, 8))]


def test_nobody_sleeps_layer_by_layer() -> None:
    clock = FakeClock()
    layers = [[1, 1000, 1000] for _ in range(500)]
    Player(clock).replay(
        FakeReducer(clock), layers=layers, buckets=[list(reversed(range(500)))], iterations=1
    )
    assert clock.sleeps <= 3


def test_memory_is_kept_and_resent_packets_are_those_of_the_replay() -> None:
    clock = FakeClock()
    player, reducer = Player(clock), FakeReducer(clock)
    for _ in range(3):
        answer = player.replay(reducer, layers=LAYERS, buckets=BUCKETS, iterations=2)
        assert answer["retransmissions"] == 7 * 6
        assert answer["iterations"][0]["start_s"] == 0
    player.replay(reducer, layers=LAYERS[:2], buckets=[[1, 0]], iterations=1)  # another model


def _off_by_one(array: NDArray[Any]) -> None:
    array[array.size // 2] += 1


def _moved(array: NDArray[Any]) -> None:
    array[...] = np.roll(array, 1)


def _lost(array: NDArray[Any]) -> None:
    array *= 0


@pytest.mark.parametrize("spoil", [_off_by_one, _moved, _lost])
@pytest.mark.parametrize("priority", [False, True])
def test_a_wrong_sum_is_found(spoil: Any, priority: bool) -> None:
    clock = FakeClock()
    reducer = FakeReducer(clock)
    reducer.spoil = lambda array: spoil(array) if len(reducer.sizes) == 5 else None
    with pytest.raises(VerificationError, match=r"the sum of bucket 1 is wrong on rank 0: element \d+ is"):
        Player(clock).replay(reducer, layers=LAYERS, buckets=BUCKETS, iterations=3, priority=priority)


@pytest.mark.parametrize("priority", [False, True])
@pytest.mark.parametrize("fail_at", [0, 2, 4])
def test_a_failure_reaches_whoever_waits(priority: bool, fail_at: int) -> None:
    clock = FakeClock()
    reducer = FakeReducer(clock, element_s=0.1)
    reducer.fail_at = fail_at
    with pytest.raises(ConnectionError, match="the cable is out"):
        Player(clock).replay(reducer, layers=LAYERS, buckets=BUCKETS, iterations=3, priority=priority)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": [[0], [1], [2]]}, "every layer once, from the last to the first"),
        ({"buckets": [[2], [1]]}, "every layer once"),
        ({"iterations": 0}, "at least one iteration"),
    ],
)
def test_plans_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        play(**changes)


@pytest.mark.parametrize("dtype", GRADIENTS)
@pytest.mark.parametrize("priority", [False, True])
def test_ranks_that_are_not_equally_fast_sum_the_same(priority: bool, dtype: str) -> None:
    size, iterations = 4, 3
    meeting = Meeting(size)
    reducers = [ThreadReducer(meeting, rank) for rank in range(size)]
    random = np.random.default_rng(5)
    numels = [int(n) for n in random.integers(1, 3000, 12)]
    buckets = [[11, 10], [9], [8, 7, 6], [5], [4, 3], [2], [1], [0]]

    def rank(reducer: ThreadReducer) -> dict[str, Any]:
        own = np.random.default_rng(reducer.rank)
        layers = [[numel, *(int(ns) for ns in own.integers(0, 1_000_000, 2))] for numel in numels]
        try:
            return Player().replay(
                reducer,
                layers=layers,
                buckets=buckets,
                iterations=iterations,
                priority=priority,
                dtype=dtype,
            )
        except BaseException:
            meeting.give_up()
            raise

    with ThreadPoolExecutor(size) as pool:
        answers = list(pool.map(rank, reducers))
    assert len({tuple(reducer.sizes) for reducer in reducers}) == 1
    assert len(reducers[0].sizes) == len(buckets) * iterations
    assert [len(answer["iterations"]) for answer in answers] == [iterations] * size
    assert {kind for reducer in reducers for kind in reducer.types} == {dtype_of(dtype)}
    for reducer in reducers:
        reducer.close()


@pytest.mark.parametrize("dtype", GRADIENTS)
@pytest.mark.parametrize("world_size", [2, 7, 64])
def test_gradients_sum_to_what_is_expected_on_any_number_of_ranks(world_size: int, dtype: str) -> None:
    sizes = [1, 1021, 200_003]
    ranks = _gradients(sizes, world_size=world_size, dtype=dtype)
    for bucket in range(len(sizes)):
        for one in ranks:
            one.renew(bucket, 3)
        buffers = [one.buffer(bucket) for one in ranks]
        for order in (buffers, buffers[::-1]):  # one after the other, in the gradients' own type
            total = np.zeros_like(buffers[0])
            for buffer in order:
                total += buffer
            kept, buffers[0][...] = buffers[0].copy(), total
            ranks[0].check(bucket)
            buffers[0][...] = kept
        buffers[0][...] = total
        with pytest.raises(VerificationError):
            ranks[1].check(bucket)  # nobody has put the sum there


@pytest.mark.parametrize("dtype", GRADIENTS)
@pytest.mark.parametrize("world_size", [2, 7, 64])
def test_fixed_point_has_gradients_exactly(world_size: int, dtype: str) -> None:
    own = [summands(rank, world_size=world_size, dtype=dtype_of(dtype)) for rank in range(world_size)]
    arrays = [one.astype(dtype_of(dtype)) for one in own]
    half = arrays[0].itemsize == 2
    racks = [list(range(rack, world_size, 8)) for rack in range(min(8, world_size))]
    blocks = Blocks.of(path_mtu=1024, message_packets=16, half=half)
    total, _ = block_sum(arrays, blocks, half=half, racks=racks)
    np.testing.assert_array_equal(total.astype(np.int64), np.add.reduce(own))


@pytest.mark.parametrize("dtype", GRADIENTS)
@pytest.mark.parametrize("factor", [0, 2])
def test_a_rank_that_is_missing_or_there_twice_is_found_at_every_place(dtype: str, factor: int) -> None:
    world_size, size = 64, 2000
    ranks = _gradients([size], world_size=world_size, dtype=dtype)
    for one in ranks:
        one.renew(0, 3)
    values = [one.buffer(0).astype(np.float64) for one in ranks]
    total = np.add.reduce(values)
    for number in (0, 31, 63):
        wrong = (total + (factor - 1) * values[number]).astype(dtype_of(dtype))
        assert np.all(wrong.astype(np.float64) != total)
        ranks[0].buffer(0)[...] = wrong
        with pytest.raises(VerificationError, match="element 0 is"):
            ranks[0].check(0)


@pytest.mark.parametrize("dtype", GRADIENTS)
def test_gradients_of_an_iteration_ago_are_no_sum_of_this_one(dtype: str) -> None:
    ours, theirs = _gradients([5000], world_size=2, dtype=dtype)
    ours.renew(0, 8)
    theirs.renew(0, 7)
    ours.buffer(0)[...] += theirs.buffer(0)
    with pytest.raises(VerificationError):
        ours.check(0)


def test_memory_is_for_one_type() -> None:
    (ours, _) = _gradients([8], world_size=2, dtype="float16")
    assert ours.fits([8], dtype_of("float16"))
    assert not ours.fits([8], dtype_of("bfloat16"))
    assert not ours.fits([9], dtype_of("float16"))


def test_too_many_workers_for_exact_sums() -> None:
    with pytest.raises(WorkloadError, match="65 workers are too many for sums that bfloat16 has exactly"):
        Gradients([1], rank=0, world_size=65, dtype=dtype_of("bfloat16"))


def _gradients(sizes: list[int], *, world_size: int, dtype: str) -> list[Gradients]:
    """Return every rank's gradients."""
    return [
        Gradients(sizes, rank=rank, world_size=world_size, dtype=dtype_of(dtype))
        for rank in range(world_size)
    ]
