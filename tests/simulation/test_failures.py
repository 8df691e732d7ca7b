"""Spines and uplinks that fail while jobs run: everything goes on through what is left, and is exact.

Each leaf is told at a time of its own; test_properties.py has the same by chance.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from controller.graph import LinkState
from simulation.cases import Case
from simulation.fabric import FabricSimulation
from simulation.jobs import JobRun, JobSettings
from simulation.network import fabric_config
from simulation.rack import Faults
from simulation.scenarios import react_now

pytestmark = pytest.mark.slow

MS = 1_000_000
CASES = [
    Case("in_network", "all_reduce", np.dtype(np.int32), 2000),
    Case("ring", "all_gather", np.dtype(np.int32), 100),
    Case("in_network", "all_reduce", np.dtype(np.float32), 1000),
]


def running(
    hosts: list[int],
    spines: int,
    *,
    kind: str = "agents",
    window: int = 2,
    faults: Faults | None = None,
    uplinks: Faults | None = None,
) -> FabricSimulation:
    """A job on every host of a fabric; `kind` of its workers: "agents", "selective", "adapters" or "mixed".

    `uplinks`: their own faults, in place of those of all links.
    """
    config = fabric_config(spines, hosts)
    simulation = FabricSimulation(config, seed=1, host_links=faults, uplinks=uplinks or faults)
    ranks = range(len(config.hosts))
    chosen = {"agents": [], "selective": [], "adapters": ranks, "mixed": ranks[::2]}[kind]
    settings = JobSettings(
        placement=config.hosts,
        cases=CASES,
        adapters=frozenset(chosen),
        window=window,
        selective=kind == "selective",
    )
    simulation.start(JobRun(config, 1, settings))
    return simulation


def finish(simulation: FabricSimulation) -> None:
    simulation.run(limit_s=20)
    for job in simulation.jobs:
        job.check()


def counted_on_spines(simulation: FabricSimulation, what: str) -> int:
    return sum(simulation.switches[name].counted()[what] for name in simulation.graph.spines)


def tell(simulation: FabricSimulation, times_ns: dict[str, int]) -> None:
    """Each leaf reacts at its time to what is known then."""
    for leaf, time_ns in times_ns.items():
        simulation.at(time_ns, partial(react_now, simulation, leaf))


KINDS = pytest.mark.parametrize("kind", ["agents", "selective", "adapters", "mixed"])


@KINDS
@pytest.mark.parametrize("moment_ns", [80_000, 200_000])
def test_a_spine_dies(kind: str, moment_ns: int) -> None:
    simulation = running([2, 1, 2], 2, kind=kind)
    simulation.at(moment_ns, partial(simulation.fail_spine, "s1"))
    tell(simulation, {"l1": moment_ns + 2 * MS, "l2": moment_ns + 90 * MS, "l3": moment_ns + 30 * MS})
    finish(simulation)
    assert simulation.now_ns > 90 * MS  # it was in the middle


@KINDS
def test_an_uplink_dies_and_nobody_uses_its_spine_any_more(kind: str) -> None:
    """A sum needs all of a job's leaves at one spine."""
    simulation = running([2, 1, 2], 2, kind=kind)
    simulation.at(100_000, partial(simulation.down_links.add, "l2:s2"))
    tell(simulation, {"l1": 80 * MS, "l2": 5 * MS, "l3": 20 * MS})
    finish(simulation)
    before = simulation.switches["s2"].counted()["completed"]
    assert before < simulation.switches["s1"].counted()["completed"]


@KINDS
def test_a_spine_forgets_everything_in_the_middle(kind: str) -> None:
    simulation = running([1, 2, 1], 1, kind=kind)
    for moment in (80_000, 150_000, 230_000):
        simulation.at(moment, partial(simulation.restart_spine, "s1"))
    finish(simulation)


def test_the_only_spine_is_away_for_a_while() -> None:
    simulation = running([1, 2], 1)
    simulation.at(100_000, partial(simulation.fail_spine, "s1"))
    simulation.at(3_000 * MS, partial(simulation.restart_spine, "s1", blank_ns=200 * MS))
    finish(simulation)


@pytest.mark.parametrize("faults", [None, Faults(loss=0.03, duplicate=0.03, reorder=0.1, corrupt=0.01)])
def test_leaves_that_never_agree_on_a_spine_go_on_because_spines_ask(faults: Faults | None) -> None:
    """Each leaf sends all to a spine of its own, for as long as the job lives."""
    simulation = running([1, 2, 1], 3, faults=faults)
    (job,) = simulation.jobs
    for number in (1, 2, 3):
        simulation.at(1, partial(simulation.assign, f"l{number}", job, [f"s{number}"]))
    finish(simulation)
    assert counted_on_spines(simulation, "asked") > 0
    assert counted_on_spines(simulation, "results") > 0  # from leaves that had the sum from another spine


@pytest.mark.parametrize("window", [1, 2])
def test_what_comes_late_to_a_spine_leaves_the_newer_message_alone(window: int) -> None:
    """Half of what crosses uplinks comes twice, and the second time often far too late."""
    late = Faults(duplicate=0.5, reorder=0.05, late_ns=MS)
    simulation = running([1, 2, 1], 2, window=window, uplinks=late)
    finish(simulation)
    assert counted_on_spines(simulation, "stale") > 0


def test_a_link_that_comes_and_goes() -> None:
    simulation = running([2, 2], 2, faults=Faults(loss=0.01))
    for k in range(20):
        simulation.at(50_000 + 30_000 * k, partial(simulation.down_links.add, "l1:s1"))
        simulation.at(65_000 + 30_000 * k, partial(simulation.down_links.discard, "l1:s1"))
        state = LinkState(down=frozenset({"l1:s1"} if k % 2 else ()))
        simulation.at(70_000 + 30_000 * k, partial(simulation.react, "l1", state))
        simulation.at(75_000 + 40_000 * k, partial(simulation.react, "l2", state))
    finish(simulation)


def test_a_job_that_starts_while_a_spine_is_away_uses_the_others() -> None:
    simulation = FabricSimulation(fabric_config(2, [2, 2]))
    simulation.fail_spine("s2")
    for leaf in ("l1", "l2"):
        simulation.react(leaf, simulation.link_state())
    settings = JobSettings(placement=simulation.config.hosts, cases=CASES)
    simulation.start(JobRun(simulation.config, 1, settings))
    finish(simulation)
    assert simulation.switches["s2"].counted()["aggregated"] == 0
    assert simulation.now_ns < 50 * MS  # nothing had to be repeated
