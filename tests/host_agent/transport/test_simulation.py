"""Whole jobs on a simulated clock: endpoints, faulty links, the switch model; a seed decides everything."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.transport import SwitchOp
from host_agent.wire.headers import Opcode, RocePacket
from p4reduce.simulation.faults.schedule import Rates
from tests.host_agent.rack import CheckedSwitch, Simulation
from tests.host_agent.transport.fabric import ring_configs, router
from tests.host_agent.transport.peer import passing, sum_of
from tests.host_agent.transport.programs import (
    FAULTS,
    PSNS,
    SEEDS,
    Program,
    aggregate,
    contributions,
    gather,
    programs_of,
    run,
    switched,
)

pytestmark = pytest.mark.slow


@settings(deadline=None, max_examples=50)
@given(
    ranks=st.integers(2, 5),
    elements=st.integers(0, 2000),
    path_mtu=st.sampled_from([256, 1024]),
    window=st.sampled_from([1, 2, 8]),
    message_packets=st.sampled_from([2, 4]),
    first_psn=PSNS,
    selective=st.booleans(),
    faults=FAULTS,
    seed=SEEDS,
)
def test_passing_around_a_faulty_ring(
    ranks: int, elements: int, first_psn: int, faults: Rates, seed: int, **how: Any
) -> None:
    psns = [(first_psn + rank) % 2**24 for rank in range(ranks)]
    configs = ring_configs(ranks, first_psns=psns, **how)
    fabric = Simulation(configs, switch=router(configs), faults=faults, seed=seed)
    programs = [Program(rank) for rank in range(ranks)]
    gather(programs, elements, seed)
    run(fabric, programs)


@settings(deadline=None, max_examples=50)
@given(
    ranks=st.integers(2, 5),
    elements=st.integers(0, 2500),
    path_mtu=st.sampled_from([256, 1024]),
    window=st.sampled_from([1, 2, 8]),
    message_packets=st.sampled_from([2, 4]),
    first_psns=st.lists(PSNS, min_size=5, max_size=5),
    selective=st.booleans(),
    in_flight_bytes=st.sampled_from([None, 1, 5000]),
    faults=FAULTS,
    seed=SEEDS,
)
def test_sums_through_a_faulty_fabric(
    ranks: int, elements: int, first_psns: list[int], seed: int, **how: Any
) -> None:
    fabric = switched(ranks, seed=seed, first_psns=first_psns[:ranks], **how)
    programs = [Program(rank) for rank in range(ranks)]
    aggregate(programs, SwitchOp.SUM, elements, seed)
    run(fabric, programs)


@settings(deadline=None, max_examples=50)
@given(ranks=st.integers(2, 4), count=st.integers(2, 8), selective=st.booleans(), faults=FAULTS, seed=SEEDS)
def test_many_operations_posted_at_once(
    ranks: int, count: int, selective: bool, faults: Rates, seed: int
) -> None:
    fabric = switched(ranks, faults=faults, seed=seed, selective=selective)
    programs = [Program(rank) for rank in range(ranks)]
    for number in range(count):
        aggregate(programs, SwitchOp.SUM, 100 * number, number)
    for program in programs:
        for operation in program.operations:
            fabric.post(program.rank, operation)
        program.posted = count
    run(fabric, programs)


def kind_of(frame: bytes) -> str:
    packet = RocePacket.parse(frame)
    if packet.aeth is None:
        return Opcode(packet.bth.opcode).name
    return {0: "ACK", 1: "RNR", 3: "NAK"}[packet.aeth.syndrome >> 5]


@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("victims", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("outbound", [True, False])
@pytest.mark.parametrize("kind", ["SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "ACK"])
@pytest.mark.parametrize("skip", [0, 5, -1])
def test_single_losses_cost_milliseconds_and_no_timeout(
    selective: bool, victims: tuple[int, ...], times: int, outbound: bool, kind: str, skip: int
) -> None:
    """Lose frames of one kind on a worker's link: after `skip` others (-1: the last), `times` in a row."""
    ranks, elements = 3, 192 * 10
    total = 10 if kind != "SEND_MIDDLE" else 20
    start = total - 1 if skip < 0 else skip
    seen = dict.fromkeys(range(ranks), 0)

    def drop(port: int, out: bool, frame: bytes) -> bool:
        if port not in victims or out is not outbound or kind_of(frame) != kind:
            return False
        seen[port] += 1
        return start < seen[port] <= start + times

    fabric = switched(ranks, drop=drop, selective=selective)
    programs = programs_of(ranks, ["sum"], elements)
    began = fabric.now_ns
    run(fabric, programs)
    assert fabric.now_ns - began < 10_000_000


def test_no_loss_no_retransmission() -> None:
    fabric = switched(4, path_mtu=1024, window=8, message_packets=16)
    programs = [Program(rank) for rank in range(4)]
    aggregate(programs, SwitchOp.SUM, 100_000, 1)
    gather(programs, 20_000, 2)
    aggregate(programs, SwitchOp.MAX, 1, 3)
    run(fabric, programs)
    assert isinstance(fabric.switch, CheckedSwitch)
    assert fabric.switch.reused_slots > 100
    for endpoint in fabric.endpoints:
        counters = endpoint.counters()
        assert counters.retransmitted_packets == counters.naks_sent == counters.duplicates_received == 0
        assert counters.timeouts == counters.go_backs == counters.stale_acks == 0


@pytest.mark.parametrize("passed", [False, True])
def test_a_straggler_of_ten_seconds(passed: bool) -> None:
    """Check that its peers resend little, ever more rarely, and go on at once when it is back."""
    fabric = switched(4)
    programs = [Program(rank) for rank in range(4)]
    if passed:
        gather(programs, 192 * 3, 1)
    else:
        aggregate(programs, SwitchOp.SUM, 192 * 6, 1)
    for program in programs[1:]:
        program.advance(fabric)
    fabric.run_for(10)
    waited = fabric.frames_sent
    for endpoint in fabric.endpoints[1:]:
        assert endpoint.counters().timeouts <= 15
        assert endpoint.counters().retransmitted_packets <= 20 * 4
    began = fabric.now_ns
    run(fabric, programs)
    assert fabric.now_ns - began < 30_000_000
    assert fabric.frames_sent - waited < 1000


def test_a_worker_that_is_paused_in_the_middle() -> None:
    fabric = switched(3)
    programs = programs_of(3, ["sum"], 192 * 40)
    for program in programs:
        program.advance(fabric)
    fabric.until(lambda: fabric.endpoints[1].progress().received_messages >= 10)
    fabric.asleep.add(1)
    fabric.run_for(10)
    fabric.asleep.clear()
    fabric.flush(1)
    run(fabric, programs)


def test_a_link_that_is_down_for_a_while() -> None:
    down = True
    fabric = switched(3, drop=lambda rank, out, frame: down and rank == 2)
    programs = programs_of(3, ["sum"], 192 * 20)
    for program in programs:
        program.advance(fabric)
    fabric.run_for(3)
    down = False
    run(fabric, programs, limit_s=5)


def test_raw_contributions_are_never_taken_for_sums() -> None:
    """Leave the switch out: the successor's copy arrives without the RESULT flag."""
    configs = ring_configs(2)
    fabric = Simulation(configs, switch=router(configs))
    values = contributions(2, 10)
    for rank in range(2):
        fabric.post(rank, sum_of(values[rank], np.zeros(10, np.int32)))
    with pytest.raises(AssertionError, match="NOT_A_RESULT"):
        fabric.until(lambda: fabric.completed(1))


def test_workers_that_disagree_all_learn_of_it() -> None:
    fabric = switched(3)
    for rank in range(3):
        fabric.post(rank, sum_of(np.zeros(10 + (rank == 1), np.int32)))
    fabric.run_for(1)
    for worker in fabric.workers:
        assert worker.failure is not None
        assert worker.failure.code.name == "MISMATCH"


def test_a_receiver_that_posts_late_is_waited_for() -> None:
    """Pass data: a window of messages is taken in early; then RNR holds the sender, not timeouts."""
    configs = ring_configs(2)
    fabric = Simulation(configs, switch=router(configs))
    data = np.arange(768 * 6, dtype=np.uint64).astype(np.uint8)
    received = np.zeros_like(data)
    fabric.post(0, passing(data, None, cut_elements=data.size))
    fabric.run_for(0.02)
    fabric.post(1, passing(None, received, cut_elements=data.size))
    fabric.until(lambda: fabric.completed(1))
    assert np.array_equal(received, data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("P4REDUCE_SEEDS", "80"))))
def test_many_seeds(seed: int) -> None:
    """Run a job of anything under faults of any kind; run one again by its number.

    Changing between aggregated and passed messages drains, and the slots' invariant holds.
    """
    random = Random(seed)
    ranks = random.randint(2, 8)
    faults = Rates(
        loss=random.choice([0.0, 0.001, 0.01, 0.05, 0.2]),
        duplicate=random.choice([0.0, 0.01, 0.2]),
        reorder=random.choice([0.0, 0.01, 0.2]),
        corrupt=random.choice([0.0, 0.01]),
    )
    fabric = switched(
        ranks,
        faults=faults,
        seed=seed,
        path_mtu=random.choice([256, 512, 1024]),
        window=random.choice([1, 2, 4, 8]),
        message_packets=random.choice([2, 4, 16]),
        first_psns=[random.choice([0, 2**24 - random.randint(1, 100)]) for _ in range(ranks)],
        selective=random.random() < 0.5,
    )
    programs = [Program(rank) for rank in range(ranks)]
    for number in range(random.randint(1, 6)):
        elements = random.choice([0, 1, random.randint(0, 5000)])
        if random.random() < 0.3:
            gather(programs, elements, number)
        else:
            aggregate(programs, random.choice([SwitchOp.SUM, SwitchOp.MAX]), elements, number)
    run(fabric, programs)
