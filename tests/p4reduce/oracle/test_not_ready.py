"""RNR NAKs to a straggler's peers in whole jobs: never for what the receiver lacks, and no harm done."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.transport import SwitchOp
from host_agent.transport.events import FailureCode
from host_agent.wire import psn as psn_math
from p4reduce.oracle.rules import Fragment
from p4reduce.oracle.state import Job, Out
from p4reduce.simulation.faults.schedule import Rates
from p4reduce.simulation.rack import job_of, routes_of
from tests.host_agent.rack import CheckedSwitch, Simulation
from tests.host_agent.transport.fabric import ring_configs
from tests.host_agent.transport.programs import (
    FAULTS,
    PSNS,
    SEEDS,
    Program,
    aggregate,
    programs_of,
    run,
)

pytestmark = pytest.mark.slow

TIMER_10_US = 0x21


class JustSwitch(CheckedSwitch):
    """Holds what makes an RNR NAK safe: its PSN is the one that the receiver waits for."""

    answered = 0

    def not_ready(self, job: Job, fragment: Fragment) -> Out:
        self.answered += 1
        rank, psn = job.flows[fragment.sender].rank, fragment.psn
        receiver = (rank + 1) % len(self.workers)
        expected = self.workers[receiver].endpoint.progress().expected_psn
        assert psn_math.compare(expected, psn) >= 0, (
            f"rank {rank} hears that everything before {psn:#x} has arrived, and rank {receiver} still waits "
            f"for {expected:#x}"
        )
        return super().not_ready(job, fragment)


def rack(
    ranks: int,
    *,
    rnr_ranks: int = -1,
    adapters: Collection[int] = (),
    adapters_retry: int = 0,
    faults: Rates | None = None,
    seed: int = 0,
    **options: int | list[int],
) -> tuple[Simulation, JustSwitch]:
    """Return a rack; workers in the set `rnr_ranks` (by bit) get RNR NAKs, and some have an RDMA adapter."""
    configs = [
        replace(config, retry_limit=adapters_retry) if config.rank in adapters else config
        for config in ring_configs(ranks, **options)  # type: ignore[arg-type]
    ]
    job = job_of(configs, lambda rank: TIMER_10_US * (rnr_ranks >> rank & 1))
    switch = JustSwitch([job], routes_of(configs))
    return Simulation(configs, faults=faults, seed=seed, switch=switch, adapters=adapters), switch


@settings(deadline=None, max_examples=80)
@given(
    ranks=st.integers(2, 4),
    rnr_ranks=st.sampled_from([0b1111, 0b0101, 0b0010]),
    kinds=st.lists(st.sampled_from(["sum", "sum", "max", "gather"]), min_size=1, max_size=4),
    elements=st.integers(0, 1500),
    window=st.sampled_from([1, 2, 8]),
    first_psn=PSNS,
    late_s=st.sampled_from([0.0, 0.3, 3.0]),
    faults=FAULTS,
    seed=SEEDS,
)
def test_jobs_with_stragglers_over_bad_links_are_exact_and_no_nak_says_too_much(
    ranks: int,
    rnr_ranks: int,
    kinds: list[str],
    elements: int,
    window: int,
    first_psn: int,
    late_s: float,
    faults: Rates,
    seed: int,
) -> None:
    fabric, _ = rack(
        ranks,
        rnr_ranks=rnr_ranks,
        faults=faults,
        seed=seed,
        window=window,
        first_psns=[(first_psn + 3 * rank) % 2**24 for rank in range(ranks)],
    )
    programs = programs_of(ranks, kinds, elements)
    for program in programs[: -1 if late_s else None]:
        program.advance(fabric)
    fabric.run_for(late_s)
    run(fabric, programs)


@settings(deadline=None, max_examples=40)
@given(
    has_adapter=st.lists(st.sampled_from([True, True, True, False]), min_size=2, max_size=4),
    kinds=st.lists(st.sampled_from(["sum", "sum", "gather"]), min_size=1, max_size=4),
    elements=st.integers(0, 1500),
    window=st.sampled_from([1, 2, 8]),
    first_psn=PSNS,
    late_rank=st.integers(0, 3),
    late_s=st.sampled_from([0.1, 0.3]),
    loss=st.sampled_from([0.0, 0.01, 0.03]),
    seed=SEEDS,
)
def test_adapters_that_retry_seven_times_outlive_stragglers(
    has_adapter: list[bool],
    kinds: list[str],
    elements: int,
    window: int,
    first_psn: int,
    late_rank: int,
    late_s: float,
    loss: float,
    seed: int,
) -> None:
    """Check it beside userspace workers, which get no RNR NAKs; their timeouts (5 ms) end long before."""
    ranks = len(has_adapter)
    adapters = [rank for rank in range(ranks) if has_adapter[rank]]
    fabric, _ = rack(
        ranks,
        rnr_ranks=sum(1 << rank for rank in adapters),
        adapters=adapters,
        adapters_retry=7,
        faults=Rates(loss=loss),
        seed=seed,
        window=window,
        first_psns=[(first_psn + 3 * rank) % 2**24 for rank in range(ranks)],
    )
    programs = programs_of(ranks, kinds, elements)
    for program in programs:
        if program.rank != late_rank % ranks:
            program.advance(fabric)
    fabric.run_for(late_s)
    run(fabric, programs)


@pytest.mark.parametrize("adapters", [(), (0, 1, 2)])
@pytest.mark.parametrize("rnr_ranks", [0b111, 0])
def test_a_connection_with_a_retry_limit_outlives_a_straggler_of_ten_seconds(
    rnr_ranks: int, adapters: tuple[int, ...]
) -> None:
    """Check that it outlives the straggler by RNR NAKs, and gives up without them."""
    fabric, switch = rack(3, rnr_ranks=rnr_ranks, adapters=adapters, adapters_retry=3, retry_limit=3)
    programs = [Program(rank) for rank in range(3)]
    aggregate(programs, SwitchOp.SUM, 192 * 6, 1)
    for program in programs[:2]:
        program.advance(fabric)
    fabric.run_for(10)
    if rnr_ranks:
        assert switch.answered > 10
        run(fabric, programs)
    else:
        failures = [event.failure for event in fabric.workers[0].events if event.failure is not None]
        assert [failure.code for failure in failures] == [FailureCode.RETRY_LIMIT]
