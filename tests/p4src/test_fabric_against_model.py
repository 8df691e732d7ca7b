"""The compiled program and the model decide alike as leaf and as spine, packet by packet.

A seed of the simulator runs on model switches. What came to each of them, and what the controller wrote to
it, is played again to the program and to a second model, with packets between that no switch or host sends:
frames again, damaged, cut, at the wrong port, with other fields and a right ICRC.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from ipaddress import IPv4Address
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from controller.fabric.addresses import switch_ip, switch_mac
from controller.fabric.routes import base_entries
from host_agent.wire.headers import Ethernet, IPv4, Udp
from p4reduce.oracle.tree_packets import TREE_PORT, Kind, TreePacket
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.recording import Came, Restarted, Step
from p4reduce.simulation.faults.schedule import Schedule
from p4reduce.simulation.network import fabric_config
from tests.p4reduce.simulation.worlds import recorded
from tests.p4src.entry_pair import EntryPair
from tests.p4src.strange import something_else

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair() -> Iterator[EntryPair]:
    made = EntryPair()
    yield made
    made.plane.close()


def replay(pair: EntryPair, steps: list[Step], chance: Random, strange: float) -> None:
    """Check that both do the same with all of it; `strange`: how often something comes between."""
    pair.reset()
    frames: list[tuple[int, bytes]] = []
    for step in steps:
        if isinstance(step, Came):
            frames.append((step.port, step.frame))
            pair.process(*frames[-1])
            while chance.random() < strange:
                pair.process(*something_else(chance, frames))
        elif isinstance(step, Restarted):
            pair.restart()
        else:
            pair.write(step.insert, delete=step.delete)
    pair.assert_counters_agree()


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), strange=st.sampled_from([0.0, 0.1, 0.5]))
@example(seed=164, strange=0.5)  # a forged op on one switch, behind another one's numbers
def test_whatever_comes_to_a_leaf_or_a_spine_is_decided_alike(
    pair: EntryPair, seed: int, strange: float
) -> None:
    compare(pair, seed, strange)


def with_spines(seed: int) -> Schedule:
    """Return the first schedule from a seed on that has leaves and spines."""
    return next(schedule for schedule in map(draw, itertools.count(seed)) if schedule.spines)


def compare(pair: EntryPair, seed: int, strange: float) -> None:
    chance = Random(seed)
    for name, steps in recorded(with_spines(seed)).items():
        try:
            replay(pair, steps, chance, strange)
        except AssertionError as error:
            raise AssertionError(f"{name}, seed {seed}, strange {strange}: {error}") from error


def mac(device_id: int, port: int) -> bytes:
    return switch_mac(device_id, port).to_bytes(6, "big")


@pytest.mark.parametrize("kind", [Kind.ECHO_REQUEST, Kind.ECHO_REPLY])
def test_echoes_while_a_port_is_being_written(pair: EntryPair, kind: Kind) -> None:
    """A controller writes one table after the other, and what it sent before is on its way."""
    config = fabric_config(1, [1, 1])
    leaf, link = config.switches[0], config.links[0]
    near, far = leaf.device_id, config.switch(link.b).device_id
    echo = TreePacket(
        ethernet=Ethernet(dst=mac(near, link.a_port), src=mac(far, link.b_port)),
        ip=IPv4(src=IPv4Address(switch_ip(far)), dst=IPv4Address(switch_ip(near)), total_length=0),
        udp=Udp(length=0, src_port=TREE_PORT, dst_port=TREE_PORT),
        kind=kind,
        message=7,
    ).build()
    pair.reset()
    for entry in base_entries(config, leaf):
        pair.process(link.a_port, echo)
        pair.write([entry])
    pair.process(link.a_port, echo)
    pair.assert_counters_agree()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("start", range(0, int(os.environ.get("P4REDUCE_SEEDS", "40")), 20))
def test_many_seeds(pair: EntryPair, start: int) -> None:
    """The error names the seed. $P4REDUCE_SEEDS says how many, for a longer run."""
    for seed in range(start, start + 20):
        compare(pair, 8 * seed, 0.3)
