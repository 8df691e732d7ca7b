"""Chakra traces of GPU runs: the processor launches ahead, and all time is the device's.

Each shape of a trace has the times that whoever recorded it would name: forward, and before each gradient.
"""

from __future__ import annotations

import random

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.chakra import from_binary
from p4reduce.workloads.traffic.model import Workload
from tests.p4reduce.workloads.traffic.traces import (
    ALL_GATHER,
    COMM_COLL_NODE,
    all_reduce,
    delimited,
    metadata,
    node,
)

FORWARD = "aten::linear"
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"
STEP = "Optimizer.step#SGD.step"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COMPUTING = 7
"""The stream of kernels that compute."""


class Recording:
    """A trace as chakra_converter writes it: operators in a row, and what each of them launched.

    Times are in milliseconds. Launching takes a hundredth of one. Where `launched`, what runs on the device
    depends on its operator.
    """

    def __init__(self, *, launched: bool = True, timed: bool = True) -> None:
        self.nodes: list[bytes] = []
        self._launched = launched
        self._timed = timed
        self.operators: list[int] = []
        self._processor = 0.0

    def _us(self, at: float) -> int:
        return round(at * 1000) if self._timed else 0

    def _id(self) -> int:
        return len(self.nodes) + 1

    def operator(
        self,
        name: str,
        *,
        at: float | None = None,
        after: tuple[int, ...] = (),
        callers: tuple[int, ...] = (),
        number: int = -1,
    ) -> int:
        identity = self._id()
        if at is not None:
            self._processor = at
        before = (*self.operators[-1:], *after)
        self.nodes.append(
            node(
                identity,
                name,
                after=before,
                callers=callers,
                start_us=self._us(self._processor),
                duration_us=10,
                is_cpu_op=True,
                seq_id=number,
            )
        )
        self.operators.append(identity)
        self._processor += 0.01
        return identity

    def _after(self, after: tuple[int, ...], launched: bool | None) -> tuple[int, ...]:
        by_operator = self._launched if launched is None else launched
        return (*self.operators[-1:], *after) if by_operator else after

    def kernel(
        self,
        at: float,
        duration: float,
        *,
        after: tuple[int, ...] = (),
        launched: bool | None = None,
        stream: int = COMPUTING,
        name: str = "gemm",
    ) -> int:
        identity = self._id()
        self.nodes.append(
            node(
                identity, name, after=self._after(after, launched), start_us=self._us(at),
                duration_us=round(duration * 1000), is_cpu_op=False, stream=stream,
            )
        )  # fmt: skip
        return identity

    def sum(self, at: float, size: int, *, after: tuple[int, ...] = (), launched: bool | None = None) -> int:
        identity = self._id()
        self.nodes.append(
            all_reduce(
                identity, NCCL, size, after=self._after(after, launched), start_us=self._us(at),
                duration_us=3000, is_cpu_op=False,
            )
        )  # fmt: skip
        return identity

    def read(self) -> Workload:
        return from_binary(delimited(metadata(), *self.nodes), name="made", where="made.et")


def _times(workload: Workload) -> tuple[float, list[tuple[int, float]]]:
    """Return the forward pass in ms, and bytes and ms of each gradient, the first one first."""
    layers = reversed(workload.layers)
    return workload.forward_ns / 1e6, [(layer.numel * 4, layer.backward_ns / 1e6) for layer in layers]


def _three(*, by_operator: bool, chained: bool, timed: bool = True) -> Recording:
    """Return three kernels of 10 ms forward, three of 20 ms backward, each followed by an all-reduce."""
    made = Recording(launched=by_operator, timed=timed)
    last: tuple[int, ...] = ()
    at = 0.1
    for _ in range(3):
        made.operator(FORWARD)
        kernel = made.kernel(at, 10, after=last)
        at += 10
        last = (kernel,) if chained else ()
    for size in (400, 800, 1600):
        made.operator(BACKWARD)
        kernel = made.kernel(at, 20, after=last)
        at += 20
        last = (kernel,) if chained else ()
        made.operator("c10d::allreduce_")
        made.sum(at, size, after=last)
    made.operator(STEP)
    return made


THREE = (30, [(400, 20), (800, 20), (1600, 20)])


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("chained", [False, True])
def test_the_processor_launches_ahead(chained: bool, timed: bool) -> None:
    """Check it where all is launched in the first 0.2 ms, before the first kernel has ended."""
    workload = _three(by_operator=True, chained=chained, timed=timed).read()
    assert _times(workload) == THREE
    assert workload.source == (
        "Chakra execution trace made.et; forward time spread over the layers as backward time is"
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_order_in_the_file_tells_nothing(seed: int) -> None:
    made = _three(by_operator=True, chained=seed % 2 == 0)
    random.Random(seed).shuffle(made.nodes)
    assert _times(made.read()) == THREE


def test_ids_of_kernels_after_those_of_all_operators() -> None:
    """Check that without start times a kernel comes with its operator, whatever its id."""
    nodes = [
        node(1, FORWARD, is_cpu_op=True),
        node(2, BACKWARD, after=(1,), is_cpu_op=True),
        node(3, "c10d::allreduce_", after=(2,), is_cpu_op=True),
        node(4, BACKWARD, after=(3,), is_cpu_op=True),
        node(5, "c10d::allreduce_", after=(4,), is_cpu_op=True),
        *(
            node(identity, "gemm", after=(operator,), duration_us=duration_us, is_cpu_op=False)
            for identity, operator, duration_us in [(11, 1, 10_000), (12, 2, 20_000), (13, 4, 30_000)]
        ),
        all_reduce(14, NCCL, 400, after=(3,), is_cpu_op=False),
        all_reduce(15, NCCL, 800, after=(5,), is_cpu_op=False),
    ]
    workload = from_binary(delimited(metadata(), *nodes), name="made", where="made.et")
    assert _times(workload) == (10, [(400, 20), (800, 30)])


def test_kernels_that_depend_on_each_other_alone() -> None:
    """The times of gradients are the device's. Where the backward pass begins is left open, and said."""
    workload = _three(by_operator=False, chained=True).read()
    assert _times(workload) == THREE
    assert (
        "kernels depend on no operator of the backward pass, which begins after 0 to 50 ms of computing: "
        "30 ms are taken as forward"
    ) in workload.source


def test_kernels_that_depend_on_nothing() -> None:
    """NCCL's kernels start when their gradients are there, as nothing else tells."""
    workload = _three(by_operator=False, chained=False).read()
    assert _times(workload) == THREE
    assert "which begins after 0 to 50 ms of computing" in workload.source


def test_the_processor_bounds_what_is_forward_where_it_waits() -> None:
    """The third kernel started before the processor came to the backward pass: it is forward."""
    made = Recording(launched=False)
    made.operator(FORWARD)
    for at in (1, 11, 21):
        made.kernel(at, 10)
    made.operator(BACKWARD, at=29)
    made.kernel(31, 15)
    made.sum(46, 400)
    workload = made.read()
    assert _times(workload) == (30, [(400, 15)])
    assert "which begins after 30 to 45 ms of computing: 30 ms are taken as forward" in workload.source


def test_iterations_whose_kernels_depend_on_no_operator_are_refused() -> None:
    made = _three(by_operator=False, chained=True)
    made.operator(FORWARD, at=95)
    made.operator(BACKWARD)
    made.kernel(96, 20)
    made.sum(116, 400)
    made.operator(STEP)
    with pytest.raises(
        WorkloadError, match=r"made\.et has several iterations, and its kernels depend on no op"
    ):
        made.read()


def test_of_several_iterations_the_first_though_the_second_is_launched_ahead() -> None:
    made = _three(by_operator=True, chained=False)
    made.kernel(90.1, 5)
    made.operator(FORWARD)
    made.kernel(95.1, 10)
    made.operator(BACKWARD)
    made.kernel(105.1, 20)
    made.operator("c10d::allreduce_")
    made.sum(125.1, 400)
    assert _times(made.read()) == THREE


def test_a_kernel_that_depends_on_kernels_alone_came_with_the_last_of_them() -> None:
    """Check operators of two kernels, the second depending on the first; the rest is as in other traces."""
    made = Recording()
    at = 1.0
    made.operator(FORWARD)
    made.kernel(at + 5, 5, after=(made.kernel(at, 5),), launched=False)
    at += 10
    for size in (400, 800):
        made.operator(BACKWARD)
        made.kernel(at + 15, 5, after=(made.kernel(at, 15),), launched=False)
        at += 20
        made.operator("c10d::allreduce_")
        made.sum(90, size)
    workload = made.read()
    assert _times(workload) == (10, [(400, 20), (800, 20)])
    assert "no operator" not in workload.source


def test_kernels_without_an_operator_among_others_are_counted() -> None:
    """A copy that nothing launched: it ran first, so it is forward."""
    made = _three(by_operator=True, chained=False)
    made.kernel(0.05, 0.05, launched=False, name="Memcpy HtoD")
    workload = made.read()
    assert _times(workload) == (30.05, THREE[1])
    assert "starts tell when kernels were launched that depend on no operator (1)" in workload.source


def test_operators_between() -> None:
    """Operators that launch nothing take no time, also where they run long, or wait for a kernel."""
    made = Recording()
    made.operator("aten::empty", at=0)
    made.operator(FORWARD)
    kernel = made.kernel(0.5, 10)
    made.operator("aten::item", after=(kernel,))
    made.operator("aten::view", at=11)
    made.operator(BACKWARD, at=12)
    made.operator("aten::t")
    made.kernel(12.5, 20)
    made.operator("record_param_comms")
    made.sum(32.5, 400)
    assert _times(made.read()) == (10, [(400, 20)])


@pytest.mark.parametrize("chained", [False, True])
def test_sums_that_wait_for_each_other(chained: bool) -> None:
    """NCCL's kernels run one after the other: they start long after their gradients are there."""
    made = Recording()
    made.operator(FORWARD)
    made.kernel(1, 10)
    last: tuple[int, ...] = ()
    for begin, start, size in [(11, 31, 400), (31, 131, 800), (51, 231, 1600)]:
        made.operator(BACKWARD)
        made.kernel(begin, 20)
        made.operator("c10d::allreduce_")
        last = (made.sum(start, size, after=last if chained else ()),)
    assert _times(made.read()) == (10, [(400, 20), (800, 20), (1600, 20)])


def test_sums_of_the_forward_pass_and_other_collectives() -> None:
    """Statistics that are summed before the backward pass are no gradients; nor is what is gathered."""
    made = Recording()
    made.operator(FORWARD)
    made.kernel(1, 10)
    made.operator("c10d::allreduce_")
    made.sum(11, 64)
    made.operator(FORWARD)
    made.kernel(14, 10)
    made.operator(BACKWARD)
    made.kernel(24, 20)
    made.operator("c10d::_allgather_base_")
    made.nodes.append(
        node(
            100, "ncclDevKernel_AllGather_RING_LL", COMM_COLL_NODE, after=(made.operators[-1],),
            start_us=44_000, duration_us=3000, is_cpu_op=False, comm_type=ALL_GATHER, comm_size=4,
        )
    )  # fmt: skip
    made.operator("c10d::allreduce_")
    made.sum(44, 400)
    workload = made.read()
    assert _times(workload) == (20, [(400, 20)])
    assert "3 ms in which the device computed nothing are left out" in workload.source


def test_kernels_that_run_at_once_count_once() -> None:
    """Weight gradients on a second stream beside the main one: 50 ms pass in which 70 are computed."""
    made = Recording()
    made.operator(FORWARD)
    made.kernel(1, 10)
    made.operator(BACKWARD)
    made.kernel(11, 20)
    made.operator(BACKWARD)
    made.kernel(21, 20, stream=8)
    made.operator("c10d::allreduce_")
    made.sum(41, 400)
    made.operator(BACKWARD)
    made.kernel(31, 20)
    made.operator("c10d::allreduce_")
    made.sum(51, 800)
    assert _times(made.read()) == (10, [(400, 30), (800, 10)])


def test_a_sum_does_not_wait_for_other_streams() -> None:
    """Check a sum that starts before all that was launched earlier ends: it waited for its own gradient."""
    made = Recording()
    made.operator(FORWARD)
    made.kernel(1, 10)
    made.operator(BACKWARD)
    made.kernel(11, 40, stream=8)
    made.operator(BACKWARD)
    made.kernel(11, 20)
    made.operator("c10d::allreduce_")
    made.sum(31, 400)
    made.operator("c10d::allreduce_")
    made.sum(51, 800)
    assert _times(made.read()) == (10, [(400, 20), (800, 20)])


def test_what_forward_operators_launched_on_other_streams_may_run_on() -> None:
    made = Recording()
    made.operator(FORWARD)
    made.kernel(1, 35, stream=8)
    made.operator(FORWARD)
    made.kernel(1, 10)
    made.operator(BACKWARD)
    made.kernel(11, 40)
    made.operator("c10d::allreduce_")
    made.sum(51, 400)
    assert _times(made.read()) == (10, [(400, 40)])


def test_a_copy_for_the_next_iteration_does_not_begin_the_backward_pass() -> None:
    """The processor launches it in the backward pass, and it runs at once, beside the forward pass."""
    made = Recording()
    made.operator(FORWARD)
    made.kernel(1, 10)
    made.operator(BACKWARD)
    made.kernel(2, 1, stream=9, name="Memcpy HtoD")
    made.kernel(11, 20)
    made.operator("c10d::allreduce_")
    made.sum(31, 400)
    assert _times(made.read()) == (10, [(400, 20)])


def test_streams_without_start_times_are_said() -> None:
    made = Recording(timed=False)
    made.operator(FORWARD)
    made.kernel(1, 10)
    made.operator(BACKWARD)
    made.kernel(11, 20)
    made.kernel(11, 20, stream=8)
    made.operator("c10d::allreduce_")
    made.sum(31, 400)
    workload = made.read()
    assert _times(workload) == (10, [(400, 40)])
    assert "kernels of 2 streams are taken one after the other: they have no start times" in workload.source


def test_kernels_some_of_which_have_no_start_time() -> None:
    made = Recording()
    made.operator(FORWARD)
    made.kernel(0, 10)
    made.operator(FORWARD)
    made.kernel(0, 10)
    made.operator(BACKWARD)
    made.kernel(21, 20)
    made.operator("c10d::allreduce_")
    made.sum(41, 400)
    workload = made.read()
    assert _times(workload) == (20, [(400, 20)])
    assert "kernels are taken one after the other: 2 have no start time" in workload.source


def test_overlapping_launches() -> None:
    """An operator that began before the sum's launches a kernel after it: the sum cannot wait for that.

    The operator inside has begun later, and its kernel runs first.
    """
    made = Recording()
    made.operator(FORWARD)
    made.kernel(1, 10)
    made.operator(BACKWARD, at=0.5)
    outer = made.operators[-1]
    made.operator("aten::mm", at=0.6)
    made.kernel(11, 20)
    made.operator("c10d::allreduce_", at=0.7)
    made.sum(31, 400)
    made.kernel(31, 5, after=(outer,), launched=False)
    made.operator("c10d::allreduce_", at=0.9)
    made.sum(36, 800)
    assert _times(made.read()) == (10, [(400, 20), (800, 5)])


def test_launches_from_two_threads() -> None:
    """Autograd's thread launches; the main thread's operators have ids, and starts, in between."""
    nodes = [
        node(1, FORWARD, start_us=1, is_cpu_op=True),
        node(2, "gemm", after=(1,), start_us=500, duration_us=10_000, is_cpu_op=False, stream=7),
        node(3, "loss.backward", start_us=30, after=(1,), is_cpu_op=True),
        node(10, BACKWARD, start_us=40, after=(1,), is_cpu_op=True),
        node(11, "gemm", after=(10,), start_us=10_500, duration_us=20_000, is_cpu_op=False, stream=7),
        node(12, "c10d::allreduce_", start_us=50, after=(10,), is_cpu_op=True),
        all_reduce(13, NCCL, 400, after=(12,), start_us=30_500, is_cpu_op=False),
        node(4, "aten::detach", start_us=45, after=(3,), is_cpu_op=True),
        node(5, STEP, start_us=60, after=(4, 12), is_cpu_op=True),
        node(6, "adam", after=(5,), start_us=40_000, duration_us=7000, is_cpu_op=False, stream=7),
    ]
    workload = from_binary(delimited(metadata(), *nodes), name="made", where="made.et")
    assert _times(workload) == (10, [(400, 20)])


def test_idle_time_is_left_out_and_said() -> None:
    """The processor is slower than the device: kernels of 10, 20 and 20 ms with gaps of 5, 7 and 9 ms."""
    made = Recording()
    made.operator(FORWARD, at=1)
    made.kernel(2, 10)
    made.operator(BACKWARD, at=16)
    made.kernel(17, 20)
    made.operator("c10d::allreduce_", at=17)
    made.sum(37, 400)
    made.operator(BACKWARD, at=43)
    made.kernel(44, 20)
    made.operator("c10d::allreduce_", at=44)
    made.sum(64, 800)
    made.operator(STEP, at=72)
    made.kernel(73, 9)
    workload = made.read()
    assert _times(workload) == (10, [(400, 20), (800, 20)])
    assert "12 ms in which the device computed nothing are left out" in workload.source


def test_a_device_by_itself() -> None:
    """Kernels of one stream in order, without operators: names and starts tell."""
    made = Recording(launched=False)
    made.kernel(31, 20, name="layer_norm_backward")
    made.sum(51, 400)
    made.kernel(21, 10, name="layer_norm")
    made.kernel(1, 20)
    made.kernel(51, 30, name="gelu_backward")
    made.sum(90, 800)
    workload = made.read()
    assert _times(workload) == (30, [(400, 20), (800, 30)])
    assert "operator" not in workload.source


@pytest.mark.parametrize("seed", range(20))
def test_one_stream_is_read_alike_whatever_its_kernels_depend_on(seed: int) -> None:
    """Random passes: operators with some kernels each, which depend on them, on each other, or on both."""
    drawn = random.Random(seed)
    made = Recording()
    last: tuple[int, ...] = ()
    at = 1.0

    def launch() -> float:
        nonlocal at, last
        took = 0.0
        for index in range(drawn.randint(1, 3)):
            duration = drawn.randint(1, 9)
            by_operator = index == 0 or drawn.random() < 0.5
            kernel = made.kernel(
                at,
                duration,
                launched=by_operator,
                after=last if not by_operator or drawn.random() < 0.5 else (),
            )
            last = (kernel,)
            at += duration
            took += duration
        return took

    forward = 0.0
    for _ in range(drawn.randint(1, 4)):
        made.operator(FORWARD)
        forward += launch()
    expected = []
    free = 0.0
    for size in range(400, 2000, 400):
        took = 0.0
        for _ in range(drawn.randint(1, 3)):
            made.operator(BACKWARD)
            took += launch()
        made.operator("c10d::allreduce_")
        start = max(at, free)
        made.sum(start, size, after=drawn.choice([(), last]))
        free = start + drawn.randint(1, 40)
        expected.append((size, took))
    made.operator(STEP)
    drawn.shuffle(made.nodes)
    assert _times(made.read()) == (forward, expected)


def test_numbers_for_truth_values_and_start_times_as_attributes() -> None:
    """Converters of early 2024 write `is_cpu_op` as 0 or 1, and the start as the attribute `ts`."""
    nodes = [
        node(1, FORWARD, ts=10, duration_us=10, is_cpu_op=1),
        node(2, "gemm", after=(1,), ts=1000, duration_us=10_000, is_cpu_op=0),
        node(3, BACKWARD, after=(1,), ts=20, duration_us=10, is_cpu_op=1),
        node(4, "gemm", after=(3,), ts=11_000, duration_us=20_000, is_cpu_op=0),
        node(5, "gemm", after=(3,), ts=15_000, duration_us=16_000, is_cpu_op=0),
        all_reduce(6, NCCL, 400, after=(4, 5)),
    ]
    workload = from_binary(delimited(metadata(), *nodes), name="made", where="made.et")
    assert _times(workload) == (10, [(400, 20)])


def test_collectives_that_are_recorded_as_computing_do_not_compute() -> None:
    """A converter knows the names of some of NCCL's kernels only."""
    made = _three(by_operator=True, chained=False)
    made.nodes.insert(
        10, node(90, "ncclSymkDevKernel_AllGather_LL", start_us=35_000, duration_us=900_000, is_cpu_op=False)
    )
    assert _times(made.read()) == THREE


def test_computing_without_durations_is_said() -> None:
    """Generated traces may have operations to be done in place of durations."""
    nodes = [
        node(1, "matmul", is_cpu_op=0, num_ops=1000),
        node(2, "matmul_backward", after=(1,), is_cpu_op=0, num_ops=1000),
        all_reduce(3, "sum", 400, after=(2,)),
    ]
    workload = from_binary(delimited(metadata(), *nodes), name="made", where="made.et")
    assert _times(workload) == (0, [(400, 0)])
    assert "no node has a duration: computing takes no time" in workload.source


class Micro:
    """Micro-batches: 10 ms forward, and 20 ms backward for each of their gradients."""

    def __init__(self, *, numbered: bool = True, timed: bool = True) -> None:
        self.made = Recording(timed=timed)
        self._numbered = numbered
        self._number = 0
        self.at = 1.0

    def _kernel(self, took: float) -> None:
        self.made.kernel(self.at, took)
        self.at += took

    def batch(self, *sizes: int, gradients: int = 2, statistics: int = 0, forward: str = FORWARD) -> None:
        self._number += gradients
        self.made.operator(forward, number=self._number if self._numbered else -1)
        self._kernel(10)
        if statistics:
            self.made.operator("c10d::allreduce_")
            self.made.sum(self.at, statistics)
        for index in range(gradients):
            self.made.operator(BACKWARD)
            self._kernel(20)
            if sizes:
                self.made.operator("c10d::allreduce_")
                self.made.sum(self.at, sizes[index])

    def step(self) -> Micro:
        self.made.operator(STEP)
        self._kernel(7)
        return self


ACCUMULATED = (30.0, [(400, 100.0), (800, 20.0)])
"""Forward time and gradients of three passes, the last of which sums 400 and 800 bytes."""


@pytest.mark.parametrize("timed", [False, True])
def test_accumulated_gradients_are_ready_in_the_last_pass(*, timed: bool) -> None:
    """Check passes as with DDP's `no_sync`: the last alone sums. Forward and backward are what ran."""
    micro = Micro(timed=timed)
    for sizes in ((), (), (400, 800)):
        micro.batch(*sizes)
    workload = micro.step().made.read()
    assert _times(workload) == ACCUMULATED
    assert "the iteration has 3 backward passes" in workload.source
    assert "left out" not in workload.source


@pytest.mark.parametrize(
    "first", [(400, 800), (800, 400), (900, 300)], ids=["the same", "in another order", "in other buckets"]
)
def test_gradients_that_are_summed_in_each_pass_count_once(first: tuple[int, int]) -> None:
    """DDP without `no_sync`; its first iteration has other buckets than the next ones."""
    micro = Micro()
    micro.batch(*first)
    micro.batch(*first)
    micro.batch(400, 800)
    workload = micro.step().made.read()
    assert _times(workload) == ACCUMULATED
    assert "all-reduces of gradients that a later pass sums are left out (4)" in workload.source


def test_gradients_of_other_passes_count_too() -> None:
    """The first pass sums one that the second has not; what is forward after it is ready is not its time."""
    micro = Micro()
    micro.batch(400, 1600)
    micro.batch(400, 800)
    assert _times(micro.step().made.read()) == (10, [(1600, 40), (400, 30), (800, 20)])


def test_names_tell_of_forward_passes() -> None:
    micro = Micro(numbered=False)
    for sizes in ((), (), (400, 800)):
        micro.batch(*sizes, forward="DistributedDataParallel.forward")
    assert _times(micro.step().made.read()) == ACCUMULATED


def test_passes_that_nothing_tells_apart() -> None:
    """Check that all after the first backward pass's begin counts as backward. Equal sizes show it."""
    micro = Micro(numbered=False)
    for _ in range(3):
        micro.batch(400, 800)
    workload = micro.step().made.read()
    assert workload.forward_ns == 10_000_000
    assert len(workload.layers) == 6
    assert "the sizes of all-reduces repeat 3 times" in workload.source
    assert "each gradient is counted 3 times" in workload.source


def test_computing_anew_is_backward() -> None:
    """A checkpoint's forward operators have new numbers, and are called by the backward pass."""
    made = Recording()
    made.operator(FORWARD, number=1)
    made.kernel(1, 10)
    called_by = made.operator("autograd::engine::evaluate_function: CheckpointFunctionBackward")
    inside = made.operator("aten::to", callers=(called_by,))
    made.operator(FORWARD, number=2, callers=(inside,))
    made.kernel(11, 10)
    made.operator(BACKWARD)
    made.kernel(21, 20)
    made.operator("c10d::allreduce_")
    made.sum(41, 400)
    made.operator(STEP)
    workload = made.read()
    assert _times(workload) == (10, [(400, 30)])
    assert "passes" not in workload.source


def test_statistics_of_each_forward_pass_are_no_gradients() -> None:
    micro = Micro()
    for sizes in ((), (400, 800)):
        micro.batch(*sizes, statistics=64)
    workload = micro.step().made.read()
    assert _times(workload) == (20, [(400, 60), (800, 20)])
    assert "all-reduces of the forward pass are left out (2)" in workload.source


def test_gradients_that_are_summed_after_the_backward_pass() -> None:
    """Sum by the main thread, whose operators have numbers, before the next micro-batch and the step."""
    micro = Micro()
    for _ in range(2):
        micro.batch()
        micro.made.operator("c10d::allreduce_", number=micro._number + 1)
        micro.made.sum(micro.at, 400)
    assert _times(micro.step().made.read()) == (20, [(400, 80)])


def test_steps_of_other_gradients_are_said() -> None:
    """Check steps of a GAN's gradients, which come in turn."""
    micro = Micro()
    for sizes in ((400, 800), (1600, 3200), (400, 800), (1600, 3200)):
        micro.batch(*sizes)
        micro.step()
    workload = micro.made.read()
    assert _times(workload) == (10, [(400, 20), (800, 20)])
    assert "next step is of 4800 bytes of gradients in place of 1200, and is left out" in workload.source


def test_steps_of_the_same_gradients_need_no_note() -> None:
    micro = Micro()
    for _ in range(3):
        micro.batch()
        micro.batch(400, 800)
        micro.step()
    workload = micro.made.read()
    assert _times(workload) == (20, [(400, 60), (800, 20)])
    assert "step" not in workload.source
