"""A world, which has all of a run: switches, links, the controller's lives, jobs and their workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4reduce.simulation.faults.deaths import Death
from p4reduce.simulation.faults.job import Generations, JobRun
from p4reduce.simulation.faults.lives import Lives
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.network import Network
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.scene import Observer, Scene
from p4reduce.simulation.faults.schedule import Schedule
from p4reduce.simulation.faults.worker import Worker


class World:
    """A world. `shadow`: makes the counterpart of each switch, which has to come to the same.

    `playing` makes things happen in it.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        tracing: bool = False,
        shadow: Callable[[World, SwitchNode], Any] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.schedule = schedule
        self.scene = Scene(schedule, tracing=tracing, observer=observer)
        self.clock = self.scene.clock
        generations = Generations()
        sums: dict[tuple[int, int, int], bytes] = {}  # of all switches
        request_s = self.scene.latency("p4runtime", 100_000, 2_000_000) / NS
        self.nodes = {
            switch.name: SwitchNode(
                switch.name, self.scene.new_switch(switch.name, generations, sums), request_s=request_s
            )
            for switch in self.scene.config.switches
        }
        self.network = Network(self.scene, self.nodes)
        self.controller = Lives(self.scene, self.nodes)
        self.began: Callable[[int], None] = lambda number: None  # a job runs
        self.jobs = [
            JobRun(self.scene, number, plan, generations, lambda number: self.began(number))
            for number, plan in enumerate(schedule.jobs, 1)
        ]
        self.workers = [
            [Worker(self.scene, self.network, self.controller, job, rank) for rank in range(job.plan_size)]
            for job in self.jobs
        ]
        for workers in self.workers:
            for worker in workers:
                worker.mates = [mate for mate in self.machine(worker) if mate is not worker]
                if worker.machine is not None:
                    places = [mate.machine for mate in worker.mates]
                    worker.machine.mates = {place.gang.local_rank: place for place in places if place}
        for job in self.jobs:
            job.outcomes = self.jobs[schedule.planes(job.number - 1)[0]].outcomes
        self.deaths: list[Death] = []
        if shadow is not None:
            for node in self.nodes.values():
                shadow(self, node)

    def job_of(self, number: int) -> int:
        """Return the place of the job that a mishap names: numbers count from 1, and round."""
        return (number - 1) % len(self.jobs)

    def machine(self, worker: Worker) -> list[Worker]:
        """Return the workers of all planes on its machine; without a gang, only itself."""
        planes = self.schedule.planes(worker.job.number - 1)
        return [self.workers[plane][worker.joined_as] for plane in planes]

    def kill(self, worker: Worker) -> None:
        """Kill a worker (SIGKILL), if it lives."""
        if not worker.over:
            self.deaths.append(Death.of(worker, self.nodes[worker.host.switch].plane))
            worker.kill()

    def close(self) -> None:
        """Let go of everything."""
        for workers in self.workers:
            for worker in workers:
                worker.free()
        self.controller.close()
