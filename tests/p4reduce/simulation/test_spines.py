"""Jobs over leaves and spines: what crosses uplinks, and spines and uplinks that fail while jobs run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from controller.fabric.graph import Graph
from controller.fabric.trees import uplink_entries
from host_agent.wire.headers import RocePacket
from p4reduce.oracle.tree_packets import Kind, TreePacket
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.playing import Outcome, play
from p4reduce.simulation.faults.recording import Came, Step
from p4reduce.simulation.faults.schedule import JobPlan, Mishap, Rates, Schedule, directions
from p4reduce.simulation.faults.world import World
from tests.p4reduce.simulation.worlds import a_gather, a_job, a_schedule, a_sum, ends_of, recorded

MS = 1_000_000
WORK = [a_sum(2000), a_gather(100), a_sum(1000, "float32")]


@dataclass
class Crossed:
    """Packets that went over uplinks: those of sums by leaf, direction and fragment, and others by kind."""

    sums: Counter[tuple[str, bool, int, int, int]] = field(default_factory=Counter)
    other: set[str] = field(default_factory=set)
    echoes: set[tuple[str, int]] = field(default_factory=set)  # uplinks over which probes came back

    @classmethod
    def of(cls, scripts: dict[str, list[Step]], graph: Graph) -> Crossed:
        found = cls()
        for link in graph.links:
            for name, port, up in ((link.spine, link.spine_port, True), (link.leaf, link.leaf_port, False)):
                for step in scripts[name]:
                    if isinstance(step, Came) and step.port == port:
                        found._note(link.leaf, up, step)
        return found

    def _note(self, leaf: str, up: bool, step: Came) -> None:
        packet = TreePacket.parse(step.frame)
        if packet is None:
            self.other.add("data" if RocePacket.parse(step.frame).aeth is None else "ack")
        elif packet.kind == Kind.ECHO_REPLY:
            self.echoes.add((leaf, step.port))
        elif packet.kind != Kind.ECHO_REQUEST:
            self.sums[leaf, up, packet.generation, packet.message, packet.index] += 1


def crossed(schedule: Schedule) -> Crossed:
    """Play a schedule, and return what crossed uplinks meanwhile."""
    return Crossed.of(recorded(schedule), Graph.of(schedule.config()))


@pytest.mark.slow
@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # a smaller seed is no simpler schedule
    suppress_health_check=[HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_each_fragment_crosses_each_uplink_once_where_nothing_is_lost(seed: int) -> None:
    """Check that each fragment of switches' sums crosses once up and once down, and nothing else does."""
    drawn = next(schedule for schedule in map(draw, range(seed, seed + 100)) if schedule.spines)
    jobs = [
        replace(
            job,
            mode="IN_NETWORK",
            late_ns=[],
            elastic=False,
            work=[replace(w, module="in_network", elements=4 * w.elements, think_ns=0) for w in job.work],
        )
        for job in drawn.jobs
    ]
    # By links that are all as long: else messages of a job that uses several spines overtake each other.
    links = directions(drawn.config())
    alike = {f"delay/{link}": 10_000 for link in links} | {f"gap/{link}": 0 for link in links}
    quiet = replace(drawn, host_rates=Rates(), uplink_rates=Rates(), mishaps=[], slots=0, renumber=0)
    found = crossed(replace(quiet, jobs=jobs, latencies=alike))
    assert set(found.sums.values()) <= {1}
    up, down = (Counter(leaf for leaf, goes_up, *_ in found.sums if goes_up is way) for way in (True, False))
    assert up == down


def test_a_job_in_one_rack_uses_no_spine() -> None:
    """Probes alone go over uplinks, and come back."""
    found = crossed(a_schedule(2, [3, 3], a_job([5, 3, 4], [a_sum(2000)])))
    assert not found.sums
    assert not found.other
    assert found.echoes == {(leaf, port) for leaf in ("l1", "l2") for port in (101, 102)}


def test_an_all_reduce_sends_no_gradient_from_rack_to_rack_but_through_spines() -> None:
    """Check that only acknowledgements cross besides: of the flow that leaves and of the one that enters."""
    found = crossed(a_schedule(2, [3, 1, 2], a_job([4, 0, 3, 5, 1, 2], [a_sum(2000)])))
    assert found.other == {"ack"}
    assert set(found.sums.values()) == {1}
    messages = {message for *_, message, _ in found.sums}
    assert messages == set(range(len(messages)))


def played(schedule: Schedule) -> tuple[World, Outcome]:
    world = World(schedule)
    return world, play(world)


def counted(world: World, what: str, *switches: str) -> list[int]:
    """Return the counter `what` of each spine, or of each of these switches."""
    names = switches or [name for name in world.nodes if name.startswith("s")]
    return [world.nodes[name].plane.counted()[what] for name in names]


def test_a_job_may_keep_to_one_spine() -> None:
    """Check that it does, so that its messages do not overtake each other, and that others use others."""
    jobs = [a_job(range(3), [a_sum(2000)], number) for number in (1, 2, 3)]
    world, outcome = played(a_schedule(3, [1, 2], *jobs, spread="jobs"))
    assert not outcome.error
    assert len(set(counted(world, "completed"))) == 1


@pytest.mark.parametrize("spines", [1, 2, 3, 4])
def test_messages_are_spread_over_the_spines(spines: int) -> None:
    world, outcome = played(a_schedule(spines, [1, 2, 1], a_job(range(4), [a_sum(2000)]), spread="messages"))
    assert not outcome.error
    made = counted(world, "completed")
    assert len(made) == spines
    assert max(made) - min(made) <= 8  # packets of two messages


@pytest.mark.slow
def test_sixteen_jobs_at_once_share_leaves_and_spines() -> None:
    """Check it with loss, and with room for half of them at a time."""
    jobs = [
        a_job(
            [(5 * n + 7 * k) % 12 for k in range(2 + n % 4)],
            [a_sum(100 * n)],
            n,
            starts_ns=20_000 * n,
            seed=n,
        )
        for n in range(1, 17)
    ]
    rates = {"host_rates": Rates(loss=0.01), "uplink_rates": Rates(loss=0.02)}
    _, outcome = played(a_schedule(2, [4, 4, 4], *jobs, slots=128, **rates))
    assert not outcome.error
    assert outcome.jobs == {"left": sum(len(job.hosts) for job in jobs)}


def on_all(hosts: list[int], kind: str = "agents", **fields: int) -> JobPlan:
    """Return a job on every host; its workers are "agents", "selective", "adapters" or "mixed"."""
    ranks = list(range(sum(hosts)))
    adapters = {"agents": [], "selective": [], "adapters": ranks, "mixed": ranks[::2]}[kind]
    return a_job(ranks, WORK, adapters=adapters, selective=kind == "selective", **fields)


def holds(schedule: Schedule) -> World:
    """Play a schedule whose faults come before its end; check that all get all results, none begun anew."""
    world = World(schedule)
    ended = ends_of(world)
    outcome = play(world)
    assert not outcome.error
    assert all(at_ns < min(ended) for at_ns, _ in world.scene.happened)
    assert set(outcome.jobs) == {"left"}
    assert outcome.renewals == 0
    assert len(world.scene.happened) == len(schedule.mishaps)
    return world


KINDS = pytest.mark.parametrize(
    "kind",
    ["agents", "mixed", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("selective", "adapters"))],
)


@KINDS
@pytest.mark.parametrize("moment_ns", [200_000, 300_000])
def test_a_spine_dies(kind: str, moment_ns: int) -> None:
    hosts = [2, 1, 2]
    dies = Mishap(moment_ns, "switch-restart", "s1", lasts_ns=3000 * MS, since=1)
    world = holds(a_schedule(2, hosts, on_all(hosts, kind), mishaps=[dies], spread="messages"))
    assert min(counted(world, "aggregated")) > 0  # the one that died, too


@KINDS
def test_an_uplink_dies_and_nobody_uses_its_spine_any_more(kind: str) -> None:
    """A sum needs all of a job's leaves at one spine."""
    hosts = [2, 1, 2]
    dies = Mishap(100_000, "link-down", "l2:s2", lasts_ns=3000 * MS, since=1)
    world = holds(a_schedule(2, hosts, on_all(hosts, kind), mishaps=[dies], spread="messages"))
    first, second = counted(world, "completed")
    assert second < first


@KINDS
def test_a_spine_forgets_everything_in_the_middle(kind: str) -> None:
    hosts = [1, 2, 1]
    restarts = [Mishap(at, "switch-restart", "s1", lasts_ns=1, since=1) for at in (80_000, 150_000, 230_000)]
    holds(a_schedule(1, hosts, on_all(hosts, kind), mishaps=restarts))


def test_the_only_spine_is_away_for_a_while() -> None:
    away = Mishap(100_000, "switch-restart", "s1", lasts_ns=3000 * MS, since=1)
    holds(a_schedule(1, [1, 2], on_all([1, 2]), mishaps=[away]))


@pytest.mark.parametrize("links", [None, Rates(loss=0.03, duplicate=0.03, reorder=0.1, corrupt=0.01)])
def test_leaves_that_never_agree_on_a_spine_go_on_because_spines_ask(links: Rates | None) -> None:
    """Let each leaf send all to a spine of its own, for as long as the job lives."""
    world = World(a_schedule(3, [1, 2, 1], on_all([1, 2, 1]), links=links))
    began, graph = world.jobs[0].began, Graph.of(world.scene.config)

    def part(number: int) -> None:
        began(number)
        controller = world.controller.listening
        assert controller is not None
        for leaf, spine in (("l1", "s1"), ("l2", "s2"), ("l3", "s3")):
            (region,) = controller.registry.switches[leaf].allocator.regions
            world.nodes[leaf].write(uplink_entries(graph, leaf, region, [spine]), [])

    world.jobs[0].began = part
    outcome = play(world)
    assert not outcome.error
    assert sum(counted(world, "asked")) > 0
    assert sum(counted(world, "results")) > 0  # from leaves that had the sum from another spine


@pytest.mark.parametrize("window", [1, 2])
def test_what_comes_late_to_a_spine_leaves_the_newer_message_alone(window: int) -> None:
    """Half of what crosses uplinks comes twice, and the second time often far too late."""
    late = Rates(duplicate=0.5, reorder=0.05, late_ns=MS)
    world = holds(a_schedule(2, [1, 2, 1], on_all([1, 2, 1], window=window), uplink_rates=late))
    assert sum(counted(world, "stale")) > 0


def test_a_link_that_comes_and_goes() -> None:
    flaps = [Mishap(50_000 + 30_000 * k, "link-down", "l1:s1", lasts_ns=15_000, since=1) for k in range(20)]
    holds(a_schedule(2, [2, 2], on_all([2, 2]), links=Rates(loss=0.01), mishaps=flaps, spread="messages"))


def test_a_job_that_starts_while_a_spine_is_away_uses_the_others() -> None:
    away = Mishap(0, "switch-restart", "s2", lasts_ns=30_000 * MS)
    schedule = a_schedule(2, [2, 2], on_all([2, 2], starts_ns=5000 * MS), mishaps=[away], spread="messages")
    assert counted(holds(schedule), "aggregated", "s2") == [0]
    assert set(crossed(schedule).sums.values()) == {1}  # nothing had to be repeated


@pytest.mark.slow
def test_seeds_meet_every_rule() -> None:
    """Check that they do, as they are worth something only then; rare ones are provoked above."""
    seen: set[tuple[str, str]] = set()
    for schedule in map(draw, range(60)):
        world = World(schedule)
        play(world)
        for name, node in world.nodes.items():
            seen |= {(name[0], what) for what, count in node.plane.counted().items() if count}
    wanted = {("s", "asked"), ("s", "replayed"), ("l", "late"), ("l", "results"), ("l", "not_ready")}
    assert wanted <= seen
