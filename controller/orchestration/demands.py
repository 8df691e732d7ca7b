"""Demands of jobs for slots, their present slots, and the quotas: input of `slots/admission.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.api.errors import NoResourcesError, NotAllowedError
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
    plane_slots,
    shrink,
    smaller_shapes,
    used_by_tenant,
    why_never,
    why_over,
)


class Demands:
    """Demands of all jobs. `quotas` are in force; `made_room_for`: the job that others were moved out for."""

    def __init__(self, manager: SwitchManager, book: Book) -> None:
        self.quotas = parse_quotas(manager.config.quotas)
        self.made_room_for: Record | None = None
        self._manager = manager
        self._engine = manager.engine
        self._book = book

    def set_quotas(self, quotas: Quotas | None) -> None:
        """Set other quotas (None: the configuration's)."""
        self.quotas = parse_quotas(self._manager.config.quotas) if quotas is None else quotas

    def require_tenant(self, tenant: str, host: str) -> None:
        """Raise NotAllowedError if a worker on that host may not name that tenant for a job."""
        if why := self.quotas.why_not_from(host, tenant):
            raise NotAllowedError(why)

    def shapes(self, jobs: Sequence[Job], window: int, packets: int) -> list[tuple[int, int]]:
        """Return windows and packets a message that a job, or a gang of these, may have, largest first.

        All are within its quota, if that is possible.
        """
        limit, planes = self.quotas.job_limit(_tenant(jobs[0])), len(jobs)
        limits = [] if limit is None else [limit // planes]
        if planes > 1:
            limits.append(plane_slots(window, packets, planes))
        largest = shrink(window, packets, min(limits, default=None), fixed=_fixed(jobs))
        return [largest, *smaller_shapes(*largest, fixed=_fixed(jobs), planes=planes)]

    def admit(self, planes: Sequence[Record], plans: Sequence[Plan]) -> None:
        """Raise NoResourcesError if a new job or gang may not have slots now, or others come before it."""
        jobs = [record.job for record in planes]
        renewal = self._book.job(jobs[0].spec.name).job.renewal
        if renewal is not None and renewal.cause in PLANNED:
            return  # that was decided when the move began
        demand = replace(self.of(jobs, plans, self._engine.clock()), smaller=())
        used = used_by_tenant(self.counted())
        if why := why_never(self.quotas, demand) or why_over(self.quotas, demand, used):
            raise NoResourcesError(why)
        if jobs[0].spec.mode is Mode.IN_NETWORK:
            return  # it runs there or not at all: there is no place in the queue for it
        waiting = [d for d in self.waiting().values() if d.key != demand.key]
        decision = decide(self.quotas, self.rooms(), self.counted(), [*waiting, demand])
        if demand not in decision.admitted:
            raise NoResourcesError(decision.reasons[demand.key])

    def waiting(self, *, ready_only: bool = True) -> dict[Record, Demand]:
        """Return the jobs that wait, of gangs the leaders; with `ready_only`, those that can move soon."""
        now, found = self._engine.clock(), {}
        for record in self._book:
            waits = record.leader is record and self._could_move_in(record)
            record.queueing = (record.queueing or Queueing(now)) if waits else None
        if self.made_room_for is not None and self.made_room_for.queueing is None:
            self.made_room_for = None
        for record in self._book:
            waiting = record.queueing
            if waiting is None:
                continue
            if ready_only and (
                any(_is_moving(plane) for plane in record.planes)
                or now < waiting.not_before
                or self.why_away(record)
            ):
                continue
            jobs = [plane.job for plane in record.planes]
            first = record is self.made_room_for
            found[record] = self.of(jobs, [job.plan for job in jobs], waiting.since, first=first)
        return found

    def _could_move_in(self, record: Record) -> bool:
        """Tell whether all planes run by ring, and could run in the network."""
        return record.is_whole and all(
            job.is_set_up
            and job.plan is not None
            and job.plan.mode is Mode.RING
            and not job.plan.backup
            and job.spec.mode is None
            and not planning.why_ring(self._manager.config, job.spec, job.members)
            for job in (plane.job for plane in record.planes)
        )

    def of(
        self, jobs: Sequence[Job], plans: Sequence[Plan | None], since: float, *, first: bool = False
    ) -> Demand:
        """Return the demand of a job, or of the planes of a gang, for these plans."""
        plan, spec = plans[0], jobs[0].spec
        assert plan is not None
        trees = [Tree.of(self._manager.config, job.members) for job in jobs]
        smaller = smaller_shapes(plan.window, plan.message_packets, fixed=_fixed(jobs), planes=len(jobs))
        return Demand(
            key=plan.generation,
            name=spec.name if spec.gang is None else spec.gang.name,
            tenant=_tenant(jobs[0]),
            slots=plan.slots,
            switches=tuple(
                name for tree in trees for name in (*tree.leaves, *tree.spines(self._manager.links.state))
            ),
            since=since,
            first=first,
            planes=len(jobs),
            smaller=tuple(2 * window * packets for window, packets in smaller),
        )

    def why_away(self, record: Record) -> str:
        """Say which switch could not give slots to a job, or to a plane of its gang, now; empty if none."""
        whys = (self._manager.why_away(plane.job.members, usable=True) for plane in record.live_planes)
        return next(filter(None, whys), "")

    def _on_its_way_in(self, record: Record) -> Demand:
        """Return what a plane will take, as decided when its move began."""
        demand = self.of([record.job], [record.job.plan], 0.0)
        granted = record.leader.granted
        return demand if granted is None else replace(demand, slots=granted)

    def counted(self) -> list[Demand]:
        """Return all demands that count for tenants, plane by plane.

        These are planes that have an allocation, are getting one, or are on their way in.
        """
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
            elif moves_in(record):
                counted.append(self._on_its_way_in(record))
        return counted

    def rooms(self) -> Rooms:
        """Return the free room, less what jobs on their way in will take."""
        manager = self._manager
        rooms = Rooms(
            {name: switch.allocator for name, switch in manager.switches.items()},
            {name: manager.config.role(name) for name in manager.switches} if manager.config.links else {},
        )
        for record in self._book:
            if moves_in(record) and not record.allocations:
                demand = self._on_its_way_in(record)
                if not rooms.lacking(demand):
                    rooms.take(demand)
        return rooms


def _is_moving(record: Record) -> bool:
    job = record.job
    return job.move is not None or job.renewal is not None or record.installing or record.unsaved


def _fixed(jobs: Sequence[Job]) -> tuple[bool, bool]:
    """Tell whether window and packets a message were asked for."""
    return (
        any(job.spec.window is not None for job in jobs),
        any(job.spec.message_packets is not None for job in jobs),
    )


def _tenant(job: Job) -> str:
    return job.spec.tenant or DEFAULT_TENANT


def moves_in(record: Record) -> bool:
    """Tell whether a job is on its way into the switches, and has not got there."""
    job, renewal = record.job, record.job.renewal
    if renewal is not None:
        waits = job.state is State.REBUILDING and record.rebuilding is None  # for other planes
        return renewal.cause is Cause.MOVED_IN and (job.state is State.ASKING or waits)
    return job.live and job.move is not None and job.move.mode is Mode.IN_NETWORK
