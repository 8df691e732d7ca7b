"""A job's sums stay exact, and it loses no time, while its switches get frames that are forged or broken.

The world of simulate-faults, whose switches the compiled program is held against, frame by frame. After each
frame that comes to a leaf there may come others: of a host on which nobody works, anything it can make of all
that was ever on a wire; at a worker's own port what a bad cable or card makes of its frames, and its old ones
once more. What leaves for a host gets there.

`P4REDUCE_SEEDS=500 pytest tests/security/test_sums_under_attack.py` plays more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from random import Random

import pytest

from p4reduce.simulation.faults.lockstep import shadows
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.playing import play
from p4reduce.simulation.faults.schedule import DTYPES, Rates, Schedule
from p4reduce.simulation.faults.world import World
from tests.p4reduce.simulation.worlds import a_gather, a_job, a_schedule, a_sum, ends_of, far_ends
from tests.security.attacks import Attacker
from tests.security.fuzz.__main__ import mutated
from tests.security.fuzz.targets import with_icrc

SEEDS = int(os.environ.get("P4REDUCE_SEEDS", "2"))
RTO_NS = 50_000_000  # the agents' retransmission timeout
LOSSY = Rates(loss=0.03, duplicate=0.05, reorder=0.05, corrupt=0.01)


@dataclass(frozen=True)
class Played:
    """Outcome of a run."""

    ended_ns: int
    sent: dict[str, int]  # frames, by link and direction
    strange: int  # frames that came between
    reached: int  # of these, how many went on to a host


class Disturbance:
    """Frames that come between a job's frames. With `broken`, at the workers' own ports as well."""

    def __init__(self, world: World, *, broken: bool) -> None:
        self.world, self.broken = world, broken
        self.chance = Random(f"strange {world.schedule.seed}")
        self.strange = self.reached = 0
        config = world.scene.config
        self.ends = far_ends(config)
        self.names = {host.ip: host.name for host in config.hosts}
        (job,) = world.jobs
        self.attackers: dict[str, tuple[int, Attacker]] = {}
        for number, host in enumerate(config.hosts):
            if number not in job.plan.hosts:
                self.attackers[host.switch] = (host.port, Attacker(host.ip, self.chance))
        self.sent: dict[tuple[str, int], list[bytes]] = {}  # by workers, by port

    def begin(self) -> None:
        """Let something come, from now on, after each frame that a wire brings to a switch."""
        for (name, port), end in self.ends.items():
            near = self.names[end] if isinstance(end, IPv4Address) else end[0]
            wire = self.world.network.wires[f"{near}>{name}"]
            wire.arrive = partial(self._after, wire.arrive, name, port)

    def _after(self, arrive: Callable[[bytes], None], name: str, port: int, frame: bytes) -> None:
        arrive(frame)
        for _, attacker in self.attackers.values():
            attacker.see(frame)
        if name in self.attackers and isinstance(self.ends[name, port], IPv4Address):
            self.sent.setdefault((name, port), []).append(frame)
            self._disturb(name)

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
        """Return a frame that no right card sends, or has sent long ago."""
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
        """Give a frame to a switch; what leaves goes on at once, so that the job's frames meet the same
        links.
        """
        self.strange += 1
        self._pass(name, port, frame)

    def _pass(self, name: str, port: int, frame: bytes) -> None:
        for out_port, out in self.world.nodes[name].process(port, frame):
            end = self.ends[name, out_port]
            if isinstance(end, IPv4Address):
                self.reached += 1
                self.world.network.wires[f"{name}>{self.names[end]}"].arrive(out)
            else:
                self._pass(*end, out)


Shadow = Callable[[World, SwitchNode], None]


@pytest.fixture(scope="module")
def compiled() -> Iterator[Shadow]:
    with shadows() as shadow:
        yield shadow


def drawn(seed: int, *, racks: bool, links: Rates) -> Schedule:
    """Draw a schedule in which nobody works on the last host of each leaf."""
    chance = Random(seed)
    dtype, elements = chance.choice(list(DTYPES)), chance.choice([1, 500, 900])
    job = a_job(
        (0, 4, 1, 5) if racks else (0, 1, 2, 3),
        [a_sum(elements, dtype), a_gather(60), a_sum(300)],
        path_mtu=chance.choice([256, 512]),
        window=chance.choice([2, 4]),
        psns=[chance.choice([1000, 2**24 - 5]) + rank for rank in range(4)],
        selective=seed % 2 == 1,
        late_ns=[0, 0, 2_000_000, 0],
        seed=seed,
    )
    return a_schedule(2 if racks else 0, [4, 3] if racks else [5], job, links=links, seed=seed)


def attacked(
    compiled: Shadow,
    schedule: Schedule,
    *,
    disturbed: bool = True,
    broken: bool = False,
    outsiders: dict[str, int] | None = None,
) -> Played:
    """Check that every sum is exact on each rank, and that the program does what the model does.

    `outsiders`: other ports, by leaf.
    """
    world = World(schedule, shadow=compiled)
    disturbance = Disturbance(world, broken=broken)
    for name, port in (outsiders or {}).items():
        disturbance.attackers[name] = (port, disturbance.attackers[name][1])
    if disturbed:
        disturbance.begin()
    ended = ends_of(world)
    outcome = play(world)
    assert not outcome.error, outcome.error
    sent = {name: wire.sent for name, wire in world.network.wires.items()}
    return Played(max(ended), sent, disturbance.strange, disturbance.reached)


@pytest.mark.slow
@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_outsider_costs_nothing(compiled: Shadow, seed: int, racks: bool) -> None:
    """Use links that lose, repeat, reorder and damage: all happens as without it, to the nanosecond."""
    schedule = drawn(seed, racks=racks, links=LOSSY)
    alone = attacked(compiled, schedule, disturbed=False)
    strange = attacked(compiled, schedule)
    assert strange.strange > 50
    assert (strange.ended_ns, strange.sent) == (alone.ended_ns, alone.sent)


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_outsider_at_a_port_that_is_not_named_reaches_nobody(
    compiled: Shadow, seed: int, racks: bool
) -> None:
    """Check also hosts that are no members: it has no address that anybody could know it by."""
    schedule = drawn(seed, racks=racks, links=LOSSY)
    alone = attacked(compiled, schedule, disturbed=False)
    strange = attacked(compiled, schedule, outsiders={"l1": 77, "l2": 77} if racks else {"l1": 77})
    assert strange.strange > 50
    assert strange.reached == 0
    assert (strange.ended_ns, strange.sent) == (alone.ended_ns, alone.sent)


@pytest.mark.slow
@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_broken_frames_cost_no_more_than_a_retransmission(compiled: Shadow, seed: int, racks: bool) -> None:
    """Send them at the workers' own ports, beside the outsider's."""
    schedule = drawn(seed, racks=racks, links=Rates())
    alone = attacked(compiled, schedule, disturbed=False)
    broken = attacked(compiled, schedule, broken=True)
    assert broken.strange > 50
    assert broken.reached > 0  # old frames are answered from the slots, or acknowledged again
    assert broken.ended_ns <= alone.ended_ns + RTO_NS


@pytest.mark.parametrize("seed", range(SEEDS))
def test_sums_are_exact_on_bad_links_too(compiled: Shadow, seed: int) -> None:
    attacked(compiled, drawn(seed, racks=seed % 2 == 0, links=LOSSY), broken=True)


def test_what_gets_through_is_seen(compiled: Shadow) -> None:
    """Send the same frames at a worker's port, where its address and queue pair are right: they do harm."""
    with pytest.raises(AssertionError, match="a connection failed"):
        attacked(compiled, drawn(0, racks=False, links=Rates()), outsiders={"l1": 1})
