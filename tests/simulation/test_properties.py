"""Jobs of any kind in any fabric, on a simulated clock: each seed is a fabric, jobs, faults and mishaps.

What a scenario (scenarios.py) is drawn from:

- 1 to 4 spines, 1 to 6 leaves with 1 to 4 hosts each; jobs of 2 to 6 workers anywhere: in one rack, one a
  rack, uneven, several on one host; up to 3 jobs at once (16 below) that share hosts, leaves, spines and
  slots, and wait where there is no room;
- collectives of all kinds one after the other, summed in the network or around the ring, so that PASS
  messages come between aggregated ones; SUM, AVG, MAX, MIN; windows of 1 to 8 messages, 2 to 8 packets;
  PSNs that wrap; stragglers;
- our own endpoints, simulated RDMA adapters that get RNR NAKs, and mixtures;
- on hosts' links and on uplinks, each way: loss up to 20 %, duplicates, packets up to 1 ms late, bit errors;
- messages or jobs shared out among the spines; spines that fail, come back empty, restart in between or all
  at once; uplinks that fail; and leaves that send their sums to other spines than the rest, each told at a
  time of its own.

What holds, or the run fails and names its seed: every collective is right on every rank and every job ends
(nobody waits for what never comes); no slot is claimed while a rank lacks what it holds; the sum of a
fragment is the same on all switches that make or store it; no RNR NAK says more than the receiver has said;
at the end every region is back with the allocators and no switch has anything of a job. Entries are the
controller's (controller/trees.py, routes.py).

`draw(SEED).run()` of scenarios.py is that run again.
"""

from __future__ import annotations

import os
from dataclasses import replace
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from controller.config import Spread
from host_agent.wire.headers import Ethernet, IPv4, Udp
from simulation.cases import Case
from simulation.fabric import FabricSimulation, UplinkCount
from simulation.jobs import JobRun, JobSettings
from simulation.network import fabric_config
from simulation.rack import Faults
from simulation.scenarios import Scenario, draw
from simulation.switch.tree_packets import TREE_PORT, Kind, TreePacket

INT32 = np.dtype(np.int32)
SEEDS = st.integers(0, 2**32)
MANY = int(os.environ.get("P4REDUCE_SEEDS", "40"))
GOOD_LINKS = Faults()
# A smaller seed is no simpler scenario.
BY_SEED = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
@settings(BY_SEED, max_examples=20)
@given(seed=SEEDS)
def test_anything_that_may_happen_leaves_every_sum_exact(seed: int) -> None:
    draw(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("start", range(0, MANY, 20))
def test_many_seeds(start: int) -> None:
    """The error names the seed. $P4REDUCE_SEEDS says how many, for a longer run."""
    for seed in range(start, start + 20):
        draw(seed, most_workers=8, elements=800).run()


@settings(BY_SEED, max_examples=12)
@given(seed=SEEDS)
def test_each_fragment_crosses_each_uplink_once_where_nothing_is_lost(seed: int) -> None:
    """And nothing else does, of messages that switches add up."""
    drawn = draw(seed, mishaps=False)
    jobs = [
        replace(job, cases=[replace(case, module="in_network", non_finite=False) for case in job.cases])
        for job in drawn.jobs
    ]
    quiet = replace(drawn, jobs=jobs, host_links=GOOD_LINKS, uplinks=GOOD_LINKS, late_ns=[()] * len(jobs))
    assert_crossed_once(quiet)


def assert_crossed_once(scenario: Scenario) -> None:
    config = fabric_config(scenario.spines, scenario.hosts, scenario.spread)
    simulation = FabricSimulation(config, slots=scenario.slots)
    count = UplinkCount(simulation.graph)
    simulation.tap = count
    runs = [JobRun(config, number, job) for number, job in enumerate(scenario.jobs, 1)]
    for run, start in zip(runs, scenario.starts_ns, strict=True):
        simulation.start(run, at_ns=start)
    simulation.run()
    fragments = {leaf: dict.fromkeys(("up", "down"), 0) for leaf in simulation.graph.leaves}
    assert count.times() <= {1}, f"seed {scenario.seed}"
    for direction, crossed in (("up", count.up), ("down", count.down)):
        for leaf, generation, _, _ in crossed:
            assert leaf in runs[generation - 1].tree.leaves
            fragments[leaf][direction] += 1
    assert all(counts["up"] == counts["down"] for counts in fragments.values()), f"seed {scenario.seed}"
    for run in runs:
        run.check()
        assert not any(worker.retransmitted for worker in run.workers), f"seed {scenario.seed}"
        if run.tree.two_level and all(case.name == "all_reduce" for case in run.settings.cases):
            assert not any("data" in what for _, what in count.other)


def hosts_of(config_hosts: list[int], spines: int = 2) -> FabricSimulation:
    return FabricSimulation(fabric_config(spines, config_hosts))


def run_job(simulation: FabricSimulation, names: list[str], *cases: Case) -> JobRun:
    """A job on hosts by name, on good links."""
    by_name = {host.name: host for host in simulation.config.hosts}
    settings = JobSettings(placement=[by_name[name] for name in names], cases=cases)
    job = JobRun(simulation.config, 1, settings)
    simulation.start(job)
    simulation.run()
    job.check()
    return job


ALL_REDUCE = Case("in_network", "all_reduce", INT32, 2000)


def test_a_job_in_one_rack_uses_no_spine() -> None:
    simulation = hosts_of([3, 3])
    count = UplinkCount(simulation.graph)
    simulation.tap = count
    job = run_job(simulation, ["h2-3", "h2-1", "h2-2"], ALL_REDUCE)
    assert job.switches == ("l2",)
    assert not count.up
    assert not count.down
    assert not count.other


def test_a_job_may_keep_to_one_spine() -> None:
    """What its messages would overtake each other by; others use others."""
    config = fabric_config(3, [1, 2], Spread.JOBS)
    simulation = FabricSimulation(config)
    for number in (1, 2, 3):
        settings = JobSettings(placement=config.hosts, cases=[ALL_REDUCE])
        simulation.start(JobRun(config, number, settings))
    simulation.run()
    made = [simulation.switches[name].counted()["completed"] for name in simulation.graph.spines]
    assert len(set(made)) == 1


@pytest.mark.parametrize("spines", [1, 2, 3, 4])
def test_messages_are_spread_over_the_spines(spines: int) -> None:
    simulation = hosts_of([1, 2, 1], spines)
    run_job(simulation, ["h1-1", "h2-1", "h2-2", "h3-1"], ALL_REDUCE)
    made = {name: simulation.switches[name].counted()["completed"] for name in simulation.graph.spines}
    assert max(made.values()) - min(made.values()) <= 8  # packets of two messages


def test_an_all_reduce_sends_no_gradient_from_rack_to_rack_but_through_spines() -> None:
    """What crosses uplinks besides: acknowledgements of the flow that leaves and of the one that enters."""
    simulation = hosts_of([3, 1, 2])
    count = UplinkCount(simulation.graph)
    simulation.tap = count
    job = run_job(simulation, ["h3-1", "h1-1", "h2-1", "h3-2", "h1-2", "h1-3"], ALL_REDUCE)
    assert job.tree.ring == (0, 3, 1, 4, 5, 2)
    assert {what for _, what in count.other} == {"ack up", "ack down"}
    assert count.times() == {1}
    messages = {message for _, _, message, _ in count.up}
    assert messages == set(range(len(messages)))


@pytest.mark.slow
def test_sixteen_jobs_at_once_share_leaves_and_spines() -> None:
    """With loss; there is room for half of them at a time."""
    config = fabric_config(2, [4, 4, 4])
    simulation = FabricSimulation(
        config, seed=3, host_links=Faults(loss=0.01), uplinks=Faults(loss=0.02), slots=128
    )
    count = len(config.hosts)
    jobs = []
    for number in range(1, 17):
        placement = [config.hosts[(5 * number + 7 * k) % count] for k in range(2 + number % 4)]
        case = Case("in_network", "all_reduce", INT32, 100 * number)
        jobs.append(JobRun(config, number, JobSettings(placement=placement, cases=[case], seed=number)))
        simulation.start(jobs[-1], at_ns=20_000 * number)
    simulation.run()
    for job in jobs:
        job.check()


@pytest.mark.slow
def test_every_rule_is_met() -> None:
    """Scenarios are worth something only if they meet them; the rare ones test_failures.py provokes."""
    seen: set[tuple[str, str]] = set()
    for seed in range(15):
        for name, switch in draw(seed).run().switches.items():
            counted = switch.counted()
            seen |= {(name[0], what) for what in counted if counted[what]}
    wanted = {("s", "asked"), ("s", "replayed"), ("l", "late"), ("l", "results"), ("l", "not_ready")}
    assert wanted <= seen


def test_an_echo_comes_back_over_any_link() -> None:
    """What the controller sends out of a leaf's uplink is turned around by the spine's program."""
    simulation = hosts_of([1, 1])
    for leaf in simulation.graph.leaves:
        for link in simulation.graph.uplinks(leaf):
            near = simulation.switches[leaf].links[link.leaf_port]
            probe = echo(near.src_mac, near.dst_mac, near.src_ip, near.dst_ip, nonce=link.leaf_port)
            simulation.leave(leaf, link.leaf_port, probe)
    simulation.run_until(1_000_000)
    assert [switch.echoes for switch in simulation.switches.values()][:2] == [[101, 102], [101, 102]]


def echo(src_mac: bytes, dst_mac: bytes, src_ip: IPv4Address, dst_ip: IPv4Address, *, nonce: int) -> bytes:
    return TreePacket(
        ethernet=Ethernet(dst=dst_mac, src=src_mac),
        ip=IPv4(src=src_ip, dst=dst_ip, total_length=0),
        udp=Udp(length=0, src_port=TREE_PORT, dst_port=TREE_PORT),
        kind=Kind.ECHO_REQUEST,
        message=nonce,
    ).build()
