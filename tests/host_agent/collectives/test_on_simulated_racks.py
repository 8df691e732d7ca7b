"""Collectives over the real state machines and the switch's rules, on links that do their worst.

The rack fails a test by itself where a slot is overwritten while a rank lacks its sum, or nothing
ever ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host_agent.collectives import in_network
from host_agent.collectives.plan import Call, Steps
from host_agent.quantisation import Blocks, block_sum
from host_agent.transport.events import FailureCode
from host_agent.wire.aggregation import Flags, Reduction
from p4reduce.simulation.cases import DTYPES, REDUCTIONS, RING_DTYPES, Case, same_bits
from p4reduce.simulation.faults.schedule import Rates
from p4reduce.simulation.rack import configs
from tests.host_agent.rack import Simulation, check, program

BAD_LINKS = Rates(loss=0.05, duplicate=0.05, reorder=0.1, corrupt=0.02)

CASES = st.builds(
    Case,
    module=st.sampled_from(["in_network", "ring"]),
    name=st.sampled_from(
        ["all_reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"]
    ),
    dtype=st.sampled_from(DTYPES),
    elements=st.one_of(st.integers(0, 3), st.integers(0, 700), st.integers(700, 1100)),
    reduction=st.sampled_from(REDUCTIONS),
    root=st.integers(0, 31),
    non_finite=st.booleans(),
    half=st.booleans(),
    scaled=st.booleans(),
)
FAULTS = st.builds(
    Rates,
    loss=st.sampled_from([0, 0.02, 0.1]),
    duplicate=st.sampled_from([0, 0.1]),
    reorder=st.sampled_from([0, 0.2]),
    corrupt=st.sampled_from([0, 0.05]),
)
SHAPES = st.sampled_from([(1, 2, 256), (2, 4, 256), (4, 2, 512), (8, 2, 256), (4, 4, 1024)])


def run_and_check(sim: Simulation, cases: list[Case], seed: int, ring: tuple[int, ...] = ()) -> None:
    world_size = len(sim.workers)
    inputs = [case.inputs(world_size, seed + number) for number, case in enumerate(cases)]
    outputs = [[case.output(world_size) for _ in range(world_size)] for case in cases]
    try:
        sim.run(program(cases, inputs, outputs, ring))
        assert [worker.failure for worker in sim.workers] == [None] * world_size
    finally:
        sim.close()
    for number, case in enumerate(cases):
        check(case, inputs[number], outputs[number])
    counters = sim.job.counters
    assert counters["aggregated"] == world_size * counters["completed"]
    assert counters["mismatch"] == 0
    assert counters["foreign"] == 0 or sim.faults.corrupt  # of another opcode


@pytest.mark.slow
@given(
    ring=st.integers(2, 8).flatmap(lambda size: st.permutations(range(size))),
    shape=SHAPES,
    cases=st.lists(CASES, min_size=1, max_size=4),
    faults=FAULTS,
    before_wrap=st.integers(0, 40),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_sequence_of_collectives_is_right_on_any_links_and_ring(
    ring: list[int],
    shape: tuple[int, int, int],
    cases: list[Case],
    faults: Rates,
    before_wrap: int,
    seed: int,
) -> None:
    window, packets, path_mtu = shape
    psns = [(0xFFFFFF - before_wrap + 1000 * rank) & 0xFFFFFF for rank in range(len(ring))]
    workers = configs(len(ring), window=window, packets=packets, path_mtu=path_mtu, psns=psns, ring=ring)
    run_and_check(Simulation(workers, faults=faults, seed=seed), cases, seed, tuple(ring))


@pytest.mark.parametrize("module", ["in_network", "ring"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda r: r.name)
def test_every_type_and_reduction_on_bad_links(
    module: str, dtype: np.dtype[Any], reduction: Reduction
) -> None:
    case = Case(module, "all_reduce", dtype, 3001, reduction)
    run_and_check(Simulation(configs(4, path_mtu=512), faults=BAD_LINKS, seed=3), [case], seed=4)


@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [
        *((dtype, reduction) for dtype in RING_DTYPES for reduction in REDUCTIONS),
        *((dtype, Reduction.PROD) for dtype in (*DTYPES, *RING_DTYPES)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_what_no_switch_makes_goes_around_the_ring(
    name: str, dtype: np.dtype[Any], reduction: Reduction
) -> None:
    case = Case("ring", name, dtype, 1000, reduction)
    run_and_check(Simulation(configs(4, path_mtu=512), faults=BAD_LINKS, seed=7), [case], seed=8)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda r: r.name)
def test_infinities_and_nans_come_through(dtype: np.dtype[Any], reduction: Reduction) -> None:
    case = Case("in_network", "all_reduce", dtype, 500, reduction, root=1, non_finite=True)
    run_and_check(Simulation(configs(3, path_mtu=512), faults=BAD_LINKS, seed=5), [case, case], seed=6)


LAYERS = 2.0 ** -np.repeat(
    np.arange(0, 40, 2), 300
)  # a tensor whose layers differ by as much as gradients do


@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.AVG], ids=lambda r: r.name)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_a_sum_has_the_bits_of_the_reference(dtype: np.dtype[Any], reduction: Reduction) -> None:
    """Sum layers of all magnitudes, zeros, one huge element, subnormals, and blocks with an Inf or a NaN."""
    workers = configs(4, path_mtu=512, window=2, packets=4)
    random = np.random.default_rng(7)
    inputs = [(random.standard_normal(LAYERS.size) * LAYERS).astype(dtype) for _ in workers]
    for array in inputs:
        array[700:1000], array[5000:5400] = 0, np.finfo(np.float16).smallest_subnormal
    inputs[1][3000], inputs[2][4400], inputs[3][4700] = 40_000, np.inf, np.nan
    outputs = [array.copy() for array in inputs]

    def run(rank: int) -> Steps[bool]:
        call = Call(rank=rank, world_size=4, collective=0, reduction=reduction)
        return (yield from in_network.all_reduce(call, outputs[rank], outputs[rank]))

    sim = Simulation(workers, faults=BAD_LINKS, seed=8)
    try:
        assert sim.run(run) == [False] * 4
    finally:
        sim.close()
    half = dtype.itemsize == 2
    blocks = Blocks.of(path_mtu=512, message_packets=4, half=half)
    divisor = 4 if reduction is Reduction.AVG else 1
    expected, special = block_sum(inputs, blocks, half=half, divisor=divisor)
    assert special[[4400, 4700]].all()
    assert special.sum() <= 2 * blocks.block_elements
    for out in outputs:
        same_bits(out[~special], expected[~special])
        same_bits(out, outputs[0])
        assert np.isnan(out[4700])
        assert out[4400] == np.inf


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [16, 32])
def test_large_racks(world_size: int) -> None:
    cases = [
        Case("in_network", "all_reduce", np.dtype(np.float32), 2000),
        Case("ring", "all_reduce", np.dtype(np.int32), 500),
        Case("in_network", "broadcast", np.dtype(np.float32), 100, root=world_size - 1),
    ]
    workers = configs(world_size, path_mtu=1024)
    run_and_check(Simulation(workers, faults=Rates(loss=0.01), seed=world_size), cases, seed=1)


def test_the_same_input_gives_the_same_bits_whatever_the_links_do() -> None:
    results = set()
    for seed, faults in enumerate([Rates(), BAD_LINKS, BAD_LINKS]):
        case = Case("in_network", "all_reduce", np.dtype(np.float32), 5000)
        inputs = [case.inputs(4, seed=9)]
        outputs = [[case.output(4) for _ in range(4)]]
        Simulation(configs(4, path_mtu=1024), faults=faults, seed=seed).run(program([case], inputs, outputs))
        results.add(outputs[0][0].tobytes())
    assert len(results) == 1


def test_a_straggler_is_waited_for_and_costs_no_more_than_gentle_resends() -> None:
    """Let rank 2 enter ten seconds late."""
    sim = Simulation(configs(3, path_mtu=1024))
    arrays = [np.full(4000, rank, np.int32) for rank in range(3)]

    def wait_for_straggler(rank: int) -> Steps[None]:
        call = Call(rank=rank, world_size=3, collective=0, reduction=Reduction.SUM)
        yield from in_network.all_reduce(call, arrays[rank], arrays[rank])

    late = sim.workers[2]
    for rank in (0, 1):
        sim.workers[rank].program = wait_for_straggler(rank)
        sim.advance(rank)
    while sim.now_ns < 10_000_000_000 and sim.step():
        pass
    resent = sim.workers[0].endpoint.counters().retransmitted_packets
    assert 0 < resent < 200
    late.program = wait_for_straggler(2)
    sim.advance(2)
    while not sim.settled() and sim.step():
        pass
    assert all((array == 3).all() for array in arrays)
    assert sim.job.counters["duplicate"] > 0


@pytest.mark.parametrize(
    ("other", "telling"),
    [
        (Case("in_network", "all_reduce", np.dtype(np.int32), 999), "size"),
        (Case("in_network", "all_reduce", np.dtype(np.int32), 5000), "number of messages"),
        (Case("in_network", "all_reduce", np.dtype(np.float32), 1000), "element type"),
        (Case("in_network", "all_reduce", np.dtype(np.int32), 1000, Reduction.MAX), "operation"),
        (Case("in_network", "all_reduce", np.dtype(np.int32), 1000, Reduction.AVG), "reduction"),
        (Case("in_network", "barrier", np.dtype(np.int32), 0), "collective"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("odd_rank", [0, 2])
@pytest.mark.parametrize("path_mtu", [256, 512, 1024])
def test_workers_that_disagree_all_hear_of_it(
    other: Case, telling: str, odd_rank: int, path_mtu: int
) -> None:
    sim = Simulation(configs(3, path_mtu=path_mtu))
    usual = Case("in_network", "all_reduce", np.dtype(np.int32), 1000)
    cases = [other if rank == odd_rank else usual for rank in range(3)]

    def disagree(rank: int) -> Steps[Any]:
        call = cases[rank].call(rank, 3)
        return cases[rank].steps(call, cases[rank].inputs(3, seed=0)[rank], cases[rank].output(3))

    for rank, worker in enumerate(sim.workers):
        worker.program = disagree(rank)
        sim.advance(rank)
    while not all(worker.failure for worker in sim.workers) and sim.now_ns < 5_000_000_000:
        assert sim.step()
    for worker in sim.workers:
        assert worker.failure is not None, telling
        assert worker.failure.code is FailureCode.MISMATCH
        assert worker.failure.header[5] == Flags.RESULT | Flags.MISMATCH
