"""A job's sums stay exact, and it loses no time, while its switches get frames that are forged or broken.

The real endpoints, and in place of the model switches the compiled program (which is held against the model
frame by frame) on the embedded data plane. After each frame that comes to a leaf there may come others: of a
host on which nobody works, anything it can make of all that was ever on a wire; at a worker's own port what a
bad cable or card makes of its frames, and its old ones once more. What leaves for a host gets there.

`P4REDUCE_SEEDS=500 pytest tests/security/test_sums_under_attack.py` plays more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from simulation.cases import DTYPES, Case
from simulation.fabric import FabricSimulation
from simulation.jobs import JobSettings
from simulation.network import fabric_config
from simulation.rack import Faults
from simulation.scenarios import Scenario
from simulation.switch.from_entries import EntrySwitch
from tests.p4src.entry_pair import EntryPair
from tests.security.attacks import Attacker
from tests.security.fuzz.__main__ import mutated
from tests.security.fuzz.targets import with_icrc

SEEDS = int(os.environ.get("P4REDUCE_SEEDS", "2"))
RTO_NS = 50_000_000  # the agents' retransmission timeout
LOSSY = Faults(loss=0.03, duplicate=0.05, reorder=0.05, corrupt=0.01)


class Compiled:
    """A switch of a simulation whose frames go through the compiled program."""

    def __init__(self, pair: EntryPair, switch: EntrySwitch) -> None:
        pair.reset()
        pair.model = switch
        entries = list(switch.entries.values())
        switch.write(delete=entries)
        pair.write(entries)
        self.pair = pair

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pair.model, name)

    def write(self, insert: Any = (), *, delete: Any = ()) -> None:
        self.pair.write(insert, delete=delete)

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return self.pair.process(port, frame)


@dataclass(frozen=True)
class Played:
    """How a run went."""

    ended_ns: int
    sent_again: list[int]
    strange: int  # frames that came between
    reached: int  # of these, how many went on to a host


class Disturbance:
    """What comes between a job's frames. With `broken`, at the workers' own ports as well."""

    def __init__(self, fabric: FabricSimulation, seed: int, *, broken: bool) -> None:
        self.fabric, self.broken = fabric, broken
        self.chance = Random(f"strange {seed}")
        self.strange = self.reached = 0
        working = {worker.endpoint.config.ip for job in fabric.jobs for worker in job.workers}
        self.attackers: dict[str, tuple[int, Attacker]] = {}
        for host in fabric.config.hosts:
            if host.ip not in working:
                self.attackers[host.switch] = (host.port, Attacker(host.ip, self.chance))
        self.sent: dict[tuple[str, int], list[bytes]] = {}  # by workers, by port
        self._inside = False

    def after(self, name: str, port: int, frame: bytes) -> None:
        """A frame of the job's has come to a switch."""
        if self._inside:
            return
        self._inside = True
        try:
            for _, attacker in self.attackers.values():
                attacker.see(frame)
            if name in self.attackers and isinstance(self.fabric.ends[name, port], IPv4Address):
                self.sent.setdefault((name, port), []).append(frame)
                self._disturb(name)
        finally:
            self._inside = False

    def _disturb(self, name: str) -> None:
        port, attacker = self.attackers[name]
        for _ in range(self.chance.randrange(4) if attacker.seen else 0):
            forged = attacker.draw()
            if self.chance.random() < 0.3:
                forged = mutated(forged, self.chance)
                if self.chance.random() < 0.7:
                    forged = with_icrc(forged)
            self.give(name, port, forged)
        if self.broken and self.chance.random() < 0.5:
            at = self.chance.choice([key for key in self.sent if key[0] == name])
            self.give(*at, self.of_a_worker(at))

    def of_a_worker(self, at: tuple[str, int]) -> bytes:
        """What no right card sends, or has sent long ago."""
        kind, frame = self.chance.randrange(4), self.chance.choice(self.sent[at])
        if kind == 0:
            return frame
        if kind == 1:  # cut
            return frame[: self.chance.randrange(14, len(frame))]
        if kind == 2:  # bits, of all that the ICRC covers
            damaged = bytearray(frame)
            damaged[self.chance.randrange(47, len(frame))] ^= 1 << self.chance.randrange(8)
            return bytes(damaged)
        other = self.chance.choice([key for key in self.sent if key != at] or [at])  # as another worker
        return frame if other == at else self.chance.choice(self.sent[other])

    def give(self, name: str, port: int, frame: bytes) -> None:
        """It comes to a switch, and what leaves goes on at once: the job's frames meet the same links."""
        self.strange += 1
        self._pass(name, port, frame)

    def _pass(self, name: str, port: int, frame: bytes) -> None:
        for out_port, out in self.fabric.switches[name].process(port, frame):
            end = self.fabric.ends[name, out_port]
            if isinstance(end, IPv4Address):
                self.reached += 1
                self.fabric.at_host(end, out)
            else:
                self._pass(*end, out)


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, EntryPair]]:
    made: dict[str, EntryPair] = {}
    yield made
    for pair in made.values():
        pair.plane.close()


def scenario(seed: int, *, racks: bool, links: Faults) -> Scenario:
    """On each leaf, nobody works on the last host."""
    chance = Random(seed)
    hosts = [4, 3] if racks else [5]
    config = fabric_config(2 if racks else 1, hosts)
    places = (0, 4, 1, 5) if racks else (0, 1, 2, 3)
    cases = [
        Case("in_network", "all_reduce", chance.choice(DTYPES), chance.choice([1, 500, 900])),
        Case("ring", "all_gather", np.dtype(np.int32), 60),
        Case("in_network", "all_reduce", np.dtype(np.int32), 300),
    ]
    job = JobSettings(
        placement=[config.hosts[k] for k in places],
        cases=cases,
        path_mtu=chance.choice([256, 512]),
        window=chance.choice([2, 4]),
        first_psns=[chance.choice([1000, 2**24 - 5]) + rank for rank in range(4)],
        selective=seed % 2 == 1,
        seed=seed,
    )
    return Scenario(
        seed=seed,
        spines=2 if racks else 1,
        hosts=hosts,
        jobs=[job],
        starts_ns=[0],
        late_ns=[(0, 0, 2_000_000, 0)],
        host_links=links,
        uplinks=links,
    )


def play(
    pairs: dict[str, EntryPair],
    drawn: Scenario,
    *,
    disturbed: bool,
    broken: bool = False,
    outsiders: dict[str, int] | None = None,
) -> Played:
    """Every sum exact: `check` looks at each result on each rank. `outsiders`: other ports, by leaf."""
    fabric = drawn.build()
    disturbance = Disturbance(fabric, drawn.seed, broken=broken)
    for name, port in (outsiders or {}).items():
        disturbance.attackers[name] = (port, disturbance.attackers[name][1])
    for name, switch in fabric.switches.items():
        if name not in pairs:
            pairs[name] = EntryPair()
        fabric.switches[name] = cast("Any", Compiled(pairs[name], switch))
    at_switch = fabric.at_switch

    def and_then(name: str, port: int, frame: bytes) -> None:
        at_switch(name, port, frame)
        disturbance.after(name, port, frame)

    if disturbed:
        fabric.at_switch = and_then  # type: ignore[method-assign]
    fabric.run()
    (job,) = fabric.jobs
    job.check()
    return Played(
        fabric.now_ns,
        [worker.retransmitted for worker in job.workers],
        disturbance.strange,
        disturbance.reached,
    )


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_outsider_costs_nothing(pairs: dict[str, EntryPair], seed: int, racks: bool) -> None:
    """On links that lose, repeat, reorder and damage: all happens as without it, to the nanosecond."""
    drawn = scenario(seed, racks=racks, links=LOSSY)
    alone = play(pairs, drawn, disturbed=False)
    attacked = play(pairs, drawn, disturbed=True)
    assert attacked.strange > 50
    assert (attacked.ended_ns, attacked.sent_again) == (alone.ended_ns, alone.sent_again)


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_outsider_at_a_port_that_is_not_named_reaches_nobody(
    pairs: dict[str, EntryPair], seed: int, racks: bool
) -> None:
    """Not even those who are no members: it has no address that anybody could know it by."""
    drawn = scenario(seed, racks=racks, links=LOSSY)
    alone = play(pairs, drawn, disturbed=False)
    attacked = play(pairs, drawn, disturbed=True, outsiders={"l1": 77, "l2": 77} if racks else {"l1": 77})
    assert attacked.strange > 50
    assert attacked.reached == 0
    assert (attacked.ended_ns, attacked.sent_again) == (alone.ended_ns, alone.sent_again)


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_broken_frames_cost_no_more_than_a_retransmission(
    pairs: dict[str, EntryPair], seed: int, racks: bool
) -> None:
    """At the workers' own ports, beside the outsider's."""
    drawn = scenario(seed, racks=racks, links=Faults())
    alone = play(pairs, drawn, disturbed=False)
    broken = play(pairs, drawn, disturbed=True, broken=True)
    assert broken.strange > 50
    assert broken.reached > 0  # old frames are answered from the slots, or acknowledged again
    assert broken.ended_ns <= alone.ended_ns + RTO_NS


@pytest.mark.parametrize("seed", range(SEEDS))
def test_sums_are_exact_on_bad_links_too(pairs: dict[str, EntryPair], seed: int) -> None:
    play(pairs, scenario(seed, racks=seed % 2 == 0, links=LOSSY), disturbed=True, broken=True)


def test_what_gets_through_is_seen(pairs: dict[str, EntryPair]) -> None:
    """At a worker's port, where its own address and queue pair are right, the same frames do harm."""
    with pytest.raises(AssertionError):
        play(pairs, scenario(0, racks=False, links=Faults()), disturbed=True, outsiders={"l1": 1})
