"""One run of a schedule: its events, and the checks after every event and in the end."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from p4reduce.simulation.faults.control import Defects
from p4reduce.simulation.faults.ends import check_end
from p4reduce.simulation.faults.gangs import GangsOfRun
from p4reduce.simulation.faults.job import JobRun
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.mishaps import happen
from p4reduce.simulation.faults.schedule import Schedule, Strike
from p4reduce.simulation.faults.worker import Worker
from p4reduce.simulation.faults.world import World
from p4reduce.simulation.invariant import InvariantError

AFTER_THE_LAST_FAULT_S = 60.0
CLEAN_UP_S = 60.0
MOST_EVENTS = 3_000_000


@dataclass
class Outcome:
    """The outcome of a run. `error`: the invariant that broke; `strikes`: the packet faults that struck."""

    schedule: Schedule
    error: str = ""
    events: int = 0
    packets: int = 0
    simulated_s: float = 0.0
    collectives: int = 0
    renewals: int = 0
    trace: int = 0
    strikes: list[Strike] = field(default_factory=list)
    jobs: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


def run(schedule: Schedule, **options: Any) -> Outcome:
    """Play a schedule once; the options are a `World`'s."""
    return play(World(schedule, **options))


def play(world: World) -> Outcome:
    """Play a world to the end; what breaks is in the outcome."""
    outcome = Outcome(world.schedule)
    defects = Defects(logging.INFO if world.scene.is_heard else logging.WARNING, world.scene.note)
    with defects.heard():
        try:
            _Play(world, defects).to_the_end()
        except InvariantError as error:
            outcome.error = str(error)
        except Exception as error:  # noqa: BLE001  whatever breaks is what a run is to find out
            frame = traceback.extract_tb(error.__traceback__)[-1]
            outcome.error = f"{frame.name}, line {frame.lineno}: {frame.line}: {error!r}"
        finally:
            world.close()
    clock, network = world.clock, world.network
    outcome.events, outcome.trace, outcome.simulated_s = clock.events, clock.trace, clock.now_s
    outcome.packets = sum(wire.sent for wire in network.wires.values())
    outcome.collectives = sum(job.collectives for job in world.jobs)
    outcome.renewals = sum(job.renewals for job in world.jobs)
    outcome.strikes, outcome.lines = network.strikes, world.scene.lines
    outcome.jobs.update(worker.state for workers in world.workers for worker in workers)
    return outcome


class _Play:
    def __init__(self, world: World, defects: Defects) -> None:
        self.world = world
        self.defects = defects
        self.clock = world.clock
        self.last_fault_ns = 0
        self.gangs = GangsOfRun(world)

    def to_the_end(self) -> None:
        """Play until all jobs are over, well or for a reason, and nothing is left of them."""
        world, schedule, clock = self.world, self.world.schedule, self.clock
        world.controller.start()
        for job, workers in zip(world.jobs, world.workers, strict=True):
            plan = job.plan
            clock.at(plan.starts_ns, self._create, job)
            for worker, late_ns in zip(workers, plan.late_ns or [0] * job.plan_size, strict=True):
                clock.at(plan.starts_ns + late_ns, self._join, worker)
        clock.at(schedule.calm_ns, world.network.calm)
        world.began = self._begin_mishaps
        self._begin_mishaps(0)
        self.last_fault_ns = max(
            self.last_fault_ns,
            *(plan.starts_ns + max(plan.late_ns, default=0) for plan in schedule.jobs),
            0 if world.network.is_calm() else schedule.calm_ns,
        )
        self._until_all_are_over()
        for job in world.jobs:
            check_end(world, job)
        self.gangs.check_ends()
        self._until_nothing_is_left()

    def _begin_mishaps(self, number: int) -> None:
        """Begin the mishaps that count from the time when a job begins to run (0: when everything begins)."""
        now_ns = self.clock.now_ns
        for mishap in self.world.schedule.mishaps:
            if mishap.since == number:
                self.clock.after(mishap.at_ns, happen, self.world, mishap)
                self.last_fault_ns = max(self.last_fault_ns, now_ns + mishap.at_ns + mishap.lasts_ns)

    def _create(self, job: JobRun) -> None:
        """Do what `p4reduce job create` does, until it is done."""
        controller = self.world.controller.listening
        waits = job.plan.after and not self.world.jobs[job.plan.after - 1].over
        if waits or controller is None:
            self.clock.after(NS // 20, self._create, job)
            return
        with controller.running():
            try:
                controller.registry.create_job(job.plan.spec(job.name, job.gang))
            except Exception as error:  # noqa: BLE001
                self.world.scene.note(f"{job.name} cannot be created: {error}")
                self.clock.after(NS // 5, self._create, job)
                return
        job.created = True

    def _join(self, worker: Worker) -> None:
        if not worker.job.created:
            self.clock.after(NS // 20, self._join, worker)
            return
        worker.start()

    def _step(self) -> None:
        self.clock.step()
        if self.gangs:
            self.gangs.check()
        if self.defects.found:
            raise self.defects.found[-1]

    def _until_all_are_over(self) -> None:
        clock, jobs = self.clock, self.world.jobs
        patience_ns = round(AFTER_THE_LAST_FAULT_S * NS)
        while any(job.unfinished for job in jobs):
            self._step()
            if clock.now_ns > self.last_fault_ns + patience_ns or clock.events > MOST_EVENTS:
                raise InvariantError(
                    f"not over {AFTER_THE_LAST_FAULT_S:g} s after the last fault: {self._stuck()}"
                )

    def _until_nothing_is_left(self) -> None:
        limit_ns = max(self.last_fault_ns, self.clock.now_ns) + round(CLEAN_UP_S * NS)
        while held := self._held():
            self._step()
            if self.clock.now_ns > limit_ns:
                raise InvariantError(
                    f"{CLEAN_UP_S:g} s after the end of all jobs, switches hold something: {held}"
                )

    def _stuck(self) -> str:
        """Say who waits where."""
        lines = []
        for workers in self.world.workers:
            for worker in workers:
                if not worker.over:
                    where = "" if worker.endpoint is None else f": {worker.endpoint.progress()}"
                    lines.append(f"{worker} is {worker.state} at collective {worker.collective}{where}")
        return "; ".join(lines)

    def _held(self) -> str:
        """Say what there still is of jobs, though all are over; empty: nothing."""
        controller = self.world.controller.listening
        if controller is None:
            return "there is no controller"
        if any(controller.registry.allocations.orphans.values()) and not controller.pushed:
            controller.push()
        for name, managed in controller.registry.switches.items():
            if managed.allocator.used:
                return f"{name}: {managed.allocator.regions}"
            plane = self.world.nodes[name].plane
            if not managed.ready:
                return f"{name} is not ready"
            plane.settle()
            if plane.members or plane.jobs:
                return f"{name}: {len(plane.members)} flows and guards"
        alive = self.world.controller.store.running()
        return f"the database, where generations run: {' '.join(map(str, alive))}" if alive else ""
