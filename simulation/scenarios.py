"""Anything that may happen to jobs in a fabric, drawn from one seed: `Scenario.draw(seed)` is what failed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from controller.config import Config, Spread
from simulation.cases import DTYPES, REDUCTIONS, Case
from simulation.fabric import FabricSimulation
from simulation.invariant import InvariantError
from simulation.jobs import JobRun, JobSettings
from simulation.network import fabric_config
from simulation.rack import Faults

KINDS = ("all_reduce", "all_reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
REACTION_NS = 100_000_000  # a leaf's controller has moved everything by then


@dataclass(frozen=True)
class Mishap:
    """At `at_ns`, "spine" or "link" fails and is back `lasts_ns` later (None: never), a spine with nothing
    in it.

    "restart": a spine forgets everything, and has no entries for `lasts_ns`; "blackout": all do. "assign": a
    leaf's sums go to other spines, whatever those of others do, until all are told again after `lasts_ns`.
    """

    at_ns: int
    kind: str
    spine: str
    leaf: str
    lasts_ns: int | None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A fabric, its jobs and what goes wrong."""

    seed: int
    spines: int
    hosts: Sequence[int]
    jobs: Sequence[JobSettings]
    starts_ns: Sequence[int]
    late_ns: Sequence[Sequence[int]]
    host_links: Faults
    uplinks: Faults
    mishaps: Sequence[Mishap] = ()
    slots: int = 512
    spread: Spread = Spread.MESSAGES

    def build(self) -> FabricSimulation:
        """All as it is before the start."""
        config = fabric_config(self.spines, self.hosts, self.spread)
        simulation = FabricSimulation(
            config, seed=self.seed, host_links=self.host_links, uplinks=self.uplinks, slots=self.slots
        )
        runs = [JobRun(config, number, job) for number, job in enumerate(self.jobs, 1)]
        for run, start, late in zip(runs, self.starts_ns, self.late_ns, strict=True):
            simulation.start(run, at_ns=start, late_ns=late)
        for mishap in self.mishaps:
            simulation.at(mishap.at_ns, partial(happen, simulation, mishap))
        return simulation

    def run(self) -> FabricSimulation:
        """Every result exact on every rank, every job over, every slot given back; an error has all this."""
        simulation = self.build()
        try:
            simulation.run()
            for job in simulation.jobs:
                job.check()
        except Exception as error:
            raise InvariantError(f"{error}\n\nseed {self.seed}: {self}") from error
        return simulation


def happen(simulation: FabricSimulation, mishap: Mishap) -> None:
    """A mishap, and when it is to be over."""
    over = None if mishap.lasts_ns is None else simulation.now_ns + mishap.lasts_ns
    if mishap.kind == "spine":
        simulation.fail_spine(mishap.spine)
        if over is not None:
            simulation.at(over, partial(back_again, simulation, mishap.spine))
    elif mishap.kind == "link":
        link = f"{mishap.leaf}:{mishap.spine}"
        simulation.down_links.add(link)
        if over is not None:
            simulation.at(over, partial(repaired, simulation, link))
    elif mishap.kind in ("restart", "blackout"):
        for spine in simulation.graph.spines if mishap.kind == "blackout" else [mishap.spine]:
            if spine not in simulation.down_switches:
                simulation.restart_spine(spine, blank_ns=mishap.lasts_ns or 0)
        return
    else:
        spines = [s for s in simulation.graph.spines if simulation.random.random() < 0.5] or [mishap.spine]
        for job in simulation.jobs:
            if mishap.leaf in job.tree.leaves:
                simulation.assign(mishap.leaf, job, spines)
        simulation.at(simulation.now_ns + (mishap.lasts_ns or 0), partial(everybody_reacts, simulation))
        return
    everybody_reacts(simulation)


def back_again(simulation: FabricSimulation, spine: str) -> None:
    """A spine that was away."""
    simulation.restart_spine(spine)
    everybody_reacts(simulation)


def repaired(simulation: FabricSimulation, link: str) -> None:
    """A link that had failed."""
    simulation.down_links.discard(link)
    everybody_reacts(simulation)


def everybody_reacts(simulation: FabricSimulation) -> None:
    """Each leaf is told at a time of its own."""
    for leaf in simulation.graph.leaves:
        after = log_time(simulation.random, simulation.random.choice([1_000_000, REACTION_NS]))
        simulation.at(simulation.now_ns + after, partial(react_now, simulation, leaf))


def react_now(simulation: FabricSimulation, leaf: str) -> None:
    """By what is known then."""
    simulation.react(leaf, simulation.link_state())


def log_time(chance: random.Random, most_ns: int) -> int:
    """From 1 us on, every order of magnitude as likely as another."""
    return round(1000 * math.pow(most_ns / 1000, chance.random()))


def draw(
    seed: int, *, most_jobs: int = 3, most_workers: int = 6, elements: int = 400, mishaps: bool = True
) -> Scenario:
    """A scenario of a seed; without `mishaps`, links lose packets but do not fail."""
    chance = random.Random(seed)
    spines = chance.randint(1, 4)
    hosts = [chance.randint(1, 4) for _ in range(chance.randint(1, 5))]
    if sum(hosts) < 2:
        hosts.append(1)
    config = fabric_config(spines, hosts)
    count = chance.randint(1, most_jobs)
    jobs = [draw_job(chance, config, most_workers, elements) for _ in range(count)]
    loss = [0.0, 0.0, 0.01, 0.05, 0.2]
    host_links, uplinks = (
        Faults(
            loss=chance.choice(loss),
            duplicate=chance.choice([0.0, 0.0, 0.02, 0.2]),
            reorder=chance.choice([0.0, 0.0, 0.02, 0.3]),
            corrupt=chance.choice([0.0, 0.0, 0.02]),
            late_ns=chance.choice([50_000, 200_000, 1_000_000]),
        )
        for _ in range(2)
    )
    starts = chance.choice([0, 300_000_000])
    late = [
        [log_time(chance, starts) if starts and chance.random() < 0.2 else 0 for _ in job.placement]
        for job in jobs
    ]
    return Scenario(
        seed=seed,
        spines=spines,
        hosts=hosts,
        jobs=jobs,
        starts_ns=[chance.choice([0, log_time(chance, 50_000_000)]) for _ in jobs],
        late_ns=late,
        host_links=host_links,
        uplinks=uplinks,
        mishaps=draw_mishaps(chance, config) if mishaps else (),
        spread=chance.choice(list(Spread)),
    )


def draw_job(chance: random.Random, config: Config, most_workers: int, elements: int) -> JobSettings:
    """Anywhere: spread over the fabric, in one rack, one worker a rank, several on one host."""
    hosts = list(config.hosts)
    style = chance.choice(["any", "any", "any", "one rack", "one a rack"])
    if style == "one rack":
        leaf = chance.choice(config.leaves)
        hosts = [host for host in hosts if host.switch == leaf]
    elif style == "one a rack":
        hosts = [chance.choice(config.hosts_of(leaf)) for leaf in config.leaves]
    placement = chance.sample(hosts, min(len(hosts), chance.randint(2, most_workers)))
    if len(placement) < 2:
        placement.append(chance.choice(config.hosts))
    ranks = range(len(placement))
    kind = chance.choice(["agents", "selective", "adapters", "mixed"])
    adapters = frozenset(
        r for r in ranks if kind == "adapters" or (kind == "mixed" and chance.random() < 0.5)
    )
    wrap = chance.random() < 0.5
    window, packets, path_mtu = chance.choice(
        [(1, 2, 256), (2, 4, 256), (4, 2, 512), (8, 2, 256), (4, 4, 1024), (1, 4, 256), (2, 8, 256)]
    )
    return JobSettings(
        placement=placement,
        cases=[draw_case(chance, elements) for _ in range(chance.randint(1, 4))],
        window=window,
        packets=packets,
        path_mtu=path_mtu,
        first_psns=[
            (2**24 - chance.randint(1, 60)) % 2**24 if wrap else chance.randrange(2**24) for _ in ranks
        ],
        adapters=adapters,
        rnr_ranks=frozenset(r for r in ranks if chance.random() < 0.1),
        selective=kind == "selective",
        seed=chance.randrange(2**32),
    )


def draw_case(chance: random.Random, elements: int) -> Case:
    """A collective of either kind; MAX and MIN and AVG, and sizes of nothing, too."""
    name = chance.choice(KINDS)
    return Case(
        module="in_network" if chance.random() < 0.75 else "ring",
        name=name,
        dtype=chance.choice([np.dtype(np.int32), *DTYPES]),
        elements=chance.choice([0, 1, chance.randint(0, elements), elements]),
        reduction=chance.choice(REDUCTIONS),
        root=chance.randrange(32),
        non_finite=chance.random() < 0.05,
        half=chance.random() < 0.25,
        scaled=chance.random() < 0.5,
    )


def draw_mishaps(chance: random.Random, config: Config) -> list[Mishap]:
    """One spine and its links are all right in the end; others may stay away."""
    kept = chance.choice(config.spines)
    found = []
    soon_ns = chance.choice([1_000_000, 3_000_000, 100_000_000])
    for _ in range(chance.choice([0, 1, 3, 10])):
        kind = chance.choice(["spine", "link", "restart", "blackout", "assign", "assign"])
        spine, leaf = chance.choice(config.spines), chance.choice(config.leaves)
        lasts: int | None = log_time(chance, chance.choice([1_000_000, 300_000_000]))
        if kind in ("spine", "link") and spine != kept and chance.random() < 0.4:
            lasts = None
        found.append(Mishap(log_time(chance, soon_ns), kind, spine, leaf, lasts))
    return found
