"""Schedules made by hand, what came to each switch while one was played, and what a job's switches hold."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any, TypeAlias

from controller.config import Config
from controller.entries import Entry
from host_agent.transport import TransportConfig
from p4reduce.simulation.faults.playing import play, run
from p4reduce.simulation.faults.recording import Came, Recorder, Step, Wrote
from p4reduce.simulation.faults.schedule import JobPlan, Rates, Schedule, Work
from p4reduce.simulation.faults.world import World

End: TypeAlias = "tuple[str, int] | IPv4Address"  # a switch and its port, or a host


def a_sum(elements: int, dtype: str = "int32", **fields: Any) -> Work:
    """Return an all-reduce in the network."""
    return Work(module="in_network", name="all_reduce", dtype=dtype, elements=elements, **fields)


def a_gather(elements: int, **fields: Any) -> Work:
    """Return an all-gather, which goes around the ring between sums."""
    return Work(module="ring", name="all_gather", dtype="int32", elements=elements, **fields)


def a_job(hosts: Sequence[int], work: Sequence[Work], number: int = 1, **fields: Any) -> JobPlan:
    """Return a job on hosts by their numbers; its queue pairs are no other number's."""
    made: dict[str, Any] = {
        "qpns": [0x100 + 0x1000 * number + 2 * rank for rank in range(len(hosts))],
        "psns": [1000 * (rank + 1) for rank in range(len(hosts))],
        **fields,
    }
    return JobPlan(hosts=list(hosts), work=list(work), **made)


def a_schedule(
    spines: int, hosts: Sequence[int], *jobs: JobPlan, links: Rates | None = None, **fields: Any
) -> Schedule:
    """Return a schedule. `links`: what all do, unless `host_rates` or `uplink_rates` say otherwise."""
    rates = {"host_rates": links or Rates(), "uplink_rates": links or Rates(), "seed": 1}
    return Schedule(spines=spines, hosts=list(hosts), jobs=list(jobs), **{**rates, **fields})


def recorded(schedule: Schedule) -> dict[str, list[Step]]:
    """Return what was written to each switch and what came to it, in order; all results must be right."""
    recorders: dict[str, Recorder] = {}

    def shadow(world: World, node: Any) -> None:
        node.shadow = recorders[node.name] = Recorder(node.name, sorted(node.out))

    outcome = run(schedule, shadow=shadow)
    assert not outcome.error, f"seed {schedule.seed}: {outcome.error}"
    return {name: recorder.steps for name, recorder in recorders.items()}


def far_ends(config: Config) -> dict[tuple[str, int], End]:
    """Return what each port of each switch leads to."""
    ends: dict[tuple[str, int], End] = {}
    for host in config.hosts:
        ends[host.switch, host.port] = host.ip
    for link in config.links:
        ends[link.a, link.a_port] = (link.b, link.b_port)
        ends[link.b, link.b_port] = (link.a, link.a_port)
    return ends


def ends_of(world: World) -> list[int]:
    """Return a list; playing the world adds the time (ns) at which each worker of the first job ends."""
    ended: list[int] = []
    (job, *_), worker_over = world.jobs, world.jobs[0].worker_over

    def over() -> None:
        ended.append(world.clock.now_ns)
        worker_over()

    job.worker_over = over  # type: ignore[method-assign]
    return ended


def frames_of(steps: Sequence[Step]) -> list[tuple[int, bytes]]:
    """Return the frames that came, each with its port."""
    return [(step.port, step.frame) for step in steps if isinstance(step, Came)]


def written(steps: Sequence[Step]) -> list[Entry]:
    """Return every entry that was ever written."""
    return [entry for step in steps if isinstance(step, Wrote) for entry in step.insert]


def installed(schedule: Schedule) -> tuple[dict[str, list[Entry]], list[TransportConfig]]:
    """Return what each switch holds when the first job begins, and its workers' connections by rank."""
    world = World(schedule)
    entries: dict[str, list[Entry]] = {}
    configs: list[TransportConfig] = []

    def began(number: int) -> None:
        for name, node in world.nodes.items():
            entries.setdefault(name, list(node.plane.entries.values()))
        configs.extend(worker.endpoint.config for worker in world.workers[0] if worker.endpoint is not None)

    world.jobs[0].began = began
    assert not play(world).error
    return entries, configs
