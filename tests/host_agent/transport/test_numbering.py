"""Numbers of messages and PSNs that wrap, and the end of a generation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.member import IN_NETWORK_LIMIT
from host_agent.transport import Endpoint, SwitchOp
from host_agent.wire.aggregation import AggregationHeader, ElementType, Op, Reduction
from host_agent.wire.headers import Opcode
from p4reduce.simulation.faults.schedule import Rates
from tests.host_agent.rack import Simulation
from tests.host_agent.transport.fabric import ring_configs, router
from tests.host_agent.transport.peer import Peer, passing, sum_of
from tests.host_agent.transport.programs import FAULTS, SEEDS, Program, aggregate, gather, run
from tests.host_agent.transport.programs import switched as switched

OURS, THEIRS = 1000, 2000
BOUNDARIES = (IN_NETWORK_LIMIT, 2**31, 2**32)


def test_message_0_after_2_to_the_32_is_not_the_first_of_a_connection() -> None:
    """Check that a sum behind a PASS message waits for its acknowledgement and for all messages before it."""
    peer = Peer(Endpoint(replace(ring_configs(2)[0], first_message=2**32 - 1)))
    peer.endpoint.post(passing(np.ones(4, np.uint8), np.zeros(4, np.uint8)), peer.now)
    peer.endpoint.post(sum_of(np.ones(4, np.int32), collective=2), peer.now)
    assert peer.psns() == [OURS, OURS + 1]  # with path MTU 256 every message has two packets
    peer.ack(OURS + 1)
    assert peer.psns() == []
    header = AggregationHeader(
        job=peer.config.job_id,
        generation=peer.config.generation,
        message=2**32 - 1,
        rank=1,
        op=Op.PASS,
        packets=2,
        element_type=ElementType.RAW,
        reduction=Reduction.NONE,
        elements=4,
        collective=1,
    )
    peer.give(peer.data(THEIRS, header.pack(), opcode=Opcode.SEND_FIRST, summed=False))
    peer.give(peer.data(THEIRS + 1, bytes(256), opcode=Opcode.SEND_LAST, summed=False))
    assert peer.psns() == [OURS + 2, OURS + 3]
    assert peer.endpoint.progress().sent_messages == 1
    assert peer.endpoint.progress().numbered == 2**32 + 1


def test_no_aggregated_message_is_posted_behind_2_to_the_31() -> None:
    endpoint = Endpoint(ring_configs(2)[0])
    most = passing(None, None, cut_elements=2**32 - 1)
    while endpoint.progress().numbered + (2**32 - 1) // 768 + 1 <= 2**31:
        endpoint.post(most, 0)
    endpoint.post(sum_of(np.zeros(0, np.int32)), 0)  # one message
    endpoint.post(most, 0)
    assert endpoint.progress().numbered > 2**31
    with pytest.raises(ValueError, match=r"sums no message of a generation after the first 2\^31"):
        endpoint.post(sum_of(np.zeros(0, np.int32)), 0)
    endpoint.post(passing(None, None, cut_elements=5), 0)  # around the ring it goes on


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    ranks=st.integers(2, 4),
    near=st.sampled_from(BOUNDARIES),
    before=st.integers(0, 60),
    psn_before=st.integers(0, 60),
    window=st.sampled_from([1, 2, 8]),
    selective=st.booleans(),
    faults=FAULTS,
    seed=SEEDS,
)
def test_a_ring_goes_on_where_numbers_come_round(
    ranks: int, near: int, before: int, psn_before: int, faults: Rates, seed: int, **how: Any
) -> None:
    psns = [(2**24 - psn_before + rank) % 2**24 for rank in range(ranks)]
    configs = ring_configs(ranks, first_psns=psns, **how)
    configs = [replace(config, first_message=(near - before) % 2**32) for config in configs]
    fabric = Simulation(configs, switch=router(configs), faults=faults, seed=seed)
    programs = [Program(rank) for rank in range(ranks)]
    gather(programs, 700, seed)
    gather(programs, 300, seed)
    run(fabric, programs)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(before=st.integers(0, 60), psn_before=st.integers(0, 60), faults=FAULTS, seed=SEEDS)
def test_sums_and_ring_phases_go_on_to_the_limit(
    before: int, psn_before: int, faults: Rates, seed: int
) -> None:
    fabric = switched(
        3,
        faults=faults,
        seed=seed,
        first_psns=[(2**24 - psn_before + rank) % 2**24 for rank in range(3)],
        first_message=IN_NETWORK_LIMIT - before,
    )
    programs = [Program(rank) for rank in range(3)]
    for number in range(4):
        aggregate(programs, SwitchOp.SUM, 300, number)
        gather(programs, 100, number)
    run(fabric, programs)
