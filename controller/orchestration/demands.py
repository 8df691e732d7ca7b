"""Which slots jobs want and have, and the quotas: the input of `slots/admission.py`, which decides."""

from __future__ import annotations

from controller.api.errors import NoResourcesError
from controller.api.messages import Mode
from controller.fabric.trees import Tree
from controller.jobs.job import Job
from controller.jobs.renewals import PLANNED, Cause
from controller.jobs.specs import Plan
from controller.jobs.states import State
from controller.orchestration import planning
from controller.orchestration.book import Book
from controller.orchestration.record import Queueing, Record
from controller.orchestration.switch_manager import SwitchManager
from controller.slots.admission import (
    DEFAULT_TENANT,
    Demand,
    Quotas,
    Rooms,
    decide,
    parse_quotas,
    shrink,
    used_by_tenant,
    why_never,
    why_over,
)


class Demands:
    """`quotas` are in force; `made_room_for`: the job for which others were moved out."""

    def __init__(self, manager: SwitchManager, book: Book) -> None:
        self.quotas = parse_quotas(manager.config.quotas)
        self.made_room_for: Record | None = None
        self._manager = manager
        self._engine = manager.engine
        self._book = book

    def set_quotas(self, quotas: Quotas | None) -> None:
        """Other ones; None: the configuration's."""
        self.quotas = parse_quotas(self._manager.config.quotas) if quotas is None else quotas

    def shape(self, job: Job, window: int, packets: int) -> tuple[int, int]:
        """Window and packets a message within the job's quota, where that is possible."""
        limit = self.quotas.job_limit(_tenant(job))
        fixed = (job.spec.window is not None, job.spec.message_packets is not None)
        return shrink(window, packets, limit, fixed=fixed)

    def admit(self, job: Job, plan: Plan) -> None:
        """NoResourcesError if a new job may not have slots now, or others come before it."""
        renewal = self._book.job(job.spec.name).job.renewal
        if renewal is not None and renewal.cause in PLANNED:
            return  # that was decided when the move began
        demand = self.of(job, plan, self._engine.clock())
        used = used_by_tenant(self.counted())
        if why := why_never(self.quotas, demand) or why_over(self.quotas, demand, used):
            raise NoResourcesError(why)
        if job.spec.mode is Mode.IN_NETWORK:
            return  # it runs there or not at all: there is no place in the queue for it
        waiting = [d for d in self.waiting().values() if d.key != demand.key]
        decision = decide(self.quotas, self.rooms(), self.counted(), [*waiting, demand])
        if demand not in decision.admitted:
            raise NoResourcesError(decision.reasons[demand.key])

    def waiting(self, *, ready_only: bool = True) -> dict[Record, Demand]:
        """The jobs that wait; with `ready_only`, those that could be moved now or soon."""
        now, found = self._engine.clock(), {}
        for record in self._book:
            record.queueing = (record.queueing or Queueing(now)) if self._could_move_in(record.job) else None
        if self.made_room_for is not None and self.made_room_for.queueing is None:
            self.made_room_for = None
        for record in self._book:
            job, waiting = record.job, record.queueing
            if waiting is None:
                continue
            moving = job.move is not None or job.renewal is not None or record.installing or record.unsaved
            if ready_only and (moving or now < waiting.not_before or self.why_away(record)):
                continue
            assert record.job.plan is not None
            first = record is self.made_room_for
            found[record] = self.of(record.job, record.job.plan, waiting.since, first=first)
        return found

    def _could_move_in(self, job: Job) -> bool:
        return (
            job.is_set_up
            and job.plan is not None
            and job.plan.mode is Mode.RING
            and not job.plan.backup
            and job.spec.mode is None
            and not planning.why_ring(self._manager.config, job.spec, job.members)
        )

    def of(self, job: Job, plan: Plan | None, since: float, *, first: bool = False) -> Demand:
        assert plan is not None
        tree = Tree.of(self._manager.config, job.members)
        return Demand(
            key=plan.generation,
            name=job.spec.name,
            tenant=_tenant(job),
            slots=plan.slots,
            switches=(*tree.leaves, *tree.spines(self._manager.links.state)),
            since=since,
            first=first,
        )

    def why_away(self, record: Record) -> str:
        return self._manager.why_away(record.job.members, usable=True)

    def counted(self) -> list[Demand]:
        """The jobs that count for tenants: with an allocation, getting one, or on their way in."""
        counted = []
        for record in {*self._book, *self._manager.allocations.holding}:
            job = record.job
            if job.live and record.allocations:
                slots = max(allocation.region.slots for allocation in record.allocations.values())
                counted.append(
                    Demand(
                        key=record.generation or 0,
                        name=job.spec.name,
                        tenant=_tenant(job),
                        slots=slots,
                        switches=tuple(record.allocations),
                        since=0.0,
                    )
                )
            elif moves_in(job):
                counted.append(self.of(job, job.plan, 0.0))
        return counted

    def rooms(self) -> Rooms:
        """What is free, less what jobs on their way in will take."""
        manager = self._manager
        rooms = Rooms(
            {name: switch.allocator for name, switch in manager.switches.items()},
            {name: manager.config.role(name) for name in manager.switches} if manager.config.links else {},
        )
        for record in self._book:
            if moves_in(record.job) and not record.allocations:
                demand = self.of(record.job, record.job.plan, 0.0)
                if not rooms.lacking(demand):
                    rooms.take(demand)
        return rooms


def _tenant(job: Job) -> str:
    return job.spec.tenant or DEFAULT_TENANT


def moves_in(job: Job) -> bool:
    renewal = job.renewal
    if renewal is not None:
        return renewal.cause is Cause.MOVED_IN and job.state is State.ASKING
    return job.live and job.move is not None and job.move.mode is Mode.IN_NETWORK
