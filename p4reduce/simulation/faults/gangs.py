"""Checks of the planes of a gang together, at any time and in the end."""

from __future__ import annotations

from controller.api.messages import Ended, Mode
from controller.jobs.states import State
from controller.orchestration.record import Record
from p4reduce.simulation.faults.job import JobRun
from p4reduce.simulation.faults.world import World
from p4reduce.simulation.invariant import InvariantError

_SETTLED = (State.READY, State.RUNNING, State.PAUSING, State.HOLDING)


class GangsOfRun:
    """The gangs of a run; false if there are none."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gangs: dict[int, list[JobRun]] = {}
        for job in world.jobs:
            if job.plan.gang:
                self.gangs.setdefault(job.plan.gang, []).append(job)

    def __bool__(self) -> bool:
        return bool(self.gangs)

    def check(self) -> None:
        """Require after each event that all planes have slots, or none has, and that they live together."""
        controller = self.world.controller.current
        if controller is None or not controller.listening:
            return
        book = controller.registry.book
        for jobs in self.gangs.values():
            records = [record for job in jobs if (record := book.by_name.get(job.name)) is not None]
            self._check(records)

    def _check(self, records: list[Record]) -> None:
        for record in records:
            alive = [mate.job.spec.name for mate in record.planes if mate.job.live]
            if alive and isinstance(record.job.outcome, Ended):
                raise InvariantError(f"{record.what}: {record.job.spec.name} has failed, and {alive} live")
        live = [record for record in records if record.job.live]
        if any(record.job.comparison is not None for record in live):
            return  # it ends, and with it the gang, as soon as all have said what they have called
        if not live or not all(record.job.state in _SETTLED and not record.installing for record in live):
            return
        modes = {record.job.plan.mode for record in live if record.job.plan is not None}
        if len(modes) > 1:
            raise InvariantError(f"{live[0].what} has planes in the network, and others by ring")
        have = {record.job.spec.name: bool(record.allocations) for record in live}
        if set(have.values()) != {modes == {Mode.IN_NETWORK} and any(map(_adds_up, live))}:
            raise InvariantError(f"{live[0].what} goes {modes}, and its planes have slots: {have}")
        plans = [record.job.plan for record in live if record.job.plan is not None]
        if not all(plan.is_like(plans[0]) for plan in plans):
            raise InvariantError(f"the planes of {live[0].what} cut and add up otherwise: {plans}")
        machines = {tuple(member.original_rank for member in record.job.members) for record in live}
        if len(machines) > 1:
            raise InvariantError(f"the planes of {live[0].what} are of different machines: {machines}")
        sizes = {allocation.region.slots for record in live for allocation in record.allocations.values()}
        if len(sizes) > 1:
            raise InvariantError(f"{live[0].what} has regions of {sorted(sizes)} slots")

    def check_ends(self) -> None:
        """Require that a failed plane has ended all others, but for those that everybody had left."""
        for jobs in self.gangs.values():
            states = {job.name: self._states(job) for job in jobs}
            if not any("ended" in found for found in states.values()):
                continue
            for name, found in states.items():
                if "left" in found and found & {"ended", "dead"}:
                    continue  # who had heard that all leave cannot be told otherwise
                if found - {"ended", "dead", "left"}:
                    raise InvariantError(f"a gang has ended, and {name} has not: {states}")

    def _states(self, job: JobRun) -> set[str]:
        return {worker.state for worker in self.world.workers[job.number - 1]}


def _adds_up(record: Record) -> bool:
    return len(record.job.workers) > 1
