"""The queue of the jobs that run by ring until there are slots for them, and the moves in and out.

A gang has one place in it, its leader's, and moves with all of its planes: each pauses and holds by itself,
and the switches are written when all of them hold. If the move of one plane is called off, so is that of all.

The queue is not stored: it consists of the jobs that run by ring and could run in the network. So a restart
of the controller forgets only how long they have waited. This module asks `slots/admission.py` for a decision
whenever something has changed, and moves the jobs.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.api.errors import ControllerError, NotPossibleError
from controller.api.messages import Mode
from controller.database.store import StoreError
from controller.jobs.effects import Forgotten, Over, Stayed, WentOn
from controller.jobs.renewals import Cause
from controller.jobs.states import State
from controller.orchestration.allocations import HalfOffError
from controller.orchestration.book import Book
from controller.orchestration.demands import Demands, moves_in
from controller.orchestration.record import Queueing, Record
from controller.orchestration.renewer import Renewer
from controller.orchestration.switch_manager import SwitchManager
from controller.slots.admission import (
    Decision,
    Demand,
    Holder,
    Quotas,
    Rooms,
    decide,
    preempt,
)
from controller.slots.allocator import Region

logger = logging.getLogger(__name__)

_ADMIT_INTERVAL_S = 1.0  # without a reason
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0
_FORBEARANCE_S = 10.0  # from a pre-emption that failed to the next
_RENUMBER_AGAIN_S = 5.0  # from a try that came to nothing to the next
_MOVES = 1 << 31


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A job's position in the queue, from 1, and why and for how long it has waited."""

    position: int
    reason: str
    waiting_s: float


class Waitlist:
    """The queue for slots. `admit` moves jobs in; `waitlisted` says what a job waits for."""

    def __init__(self, manager: SwitchManager, book: Book, demands: Demands, renewer: Renewer) -> None:
        self._manager = manager
        self._engine = manager.engine
        self._book = book
        self._demands = demands
        self._renewer = renewer
        self._due = self._scheduled = False
        self._admitted_at = self._preempting_from = 0.0
        self._decided: tuple[dict[Record, Demand], Decision] | None = None  # until something changes
        manager.on_room.append(self.changed)
        manager.engine.on_act.append(self._forget_decision)

    def set_quotas(self, quotas: Quotas | None) -> None:
        """Set other quotas (None: the configuration's). Jobs that have slots keep them."""
        self._demands.set_quotas(quotas)
        self.changed()

    def started(self, record: Record) -> None:
        """Note when a running job got its slots, and look for jobs to admit."""
        if record.allocations:
            record.allocated_at = self._engine.clock()
        self.changed()

    # Moving

    def changed(self) -> None:
        """Call `admit` soon, once for all changes: something may have become possible."""
        self._due, self._decided = True, None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the controller has not begun
            return
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._admit_now)

    def _forget_decision(self) -> None:
        """Forget the decision behind `waitlisted`: something has happened to a job."""
        self._decided = None

    def tick(self) -> None:
        """Admit and renumber jobs, if it is time."""
        now = self._engine.clock()
        if self._due or now - self._admitted_at >= _ADMIT_INTERVAL_S:
            self.admit()
        self._renumber(now)

    def _admit_now(self) -> None:
        self._scheduled = False
        if self._due:
            self.admit()

    def admit(self) -> None:
        """Move in the jobs that can be; with pre-emption, move out those that have to give way."""
        self._due, self._admitted_at = False, self._engine.clock()
        if self._engine.stopping:
            return
        for record in self._book:
            if record.job.move is None:
                record.moving_out = None
        demands = self._demands.waiting()
        if not demands:
            return
        by_key = {demand.key: record for record, demand in demands.items()}
        counted, rooms = self._demands.counted(), self._demands.rooms()
        decision = decide(self._demands.quotas, rooms, counted, demands.values())
        for demand in decision.admitted:
            record = by_key[demand.key]
            if not self._why_not_move(record):
                record.granted = demand.slots if demand.planes > 1 else None
                self._move(record, Mode.IN_NETWORK)
        moving_out = any(record.moving_out is not None for record in self._book)
        if not decision.admitted and not moving_out and self._admitted_at >= self._preempting_from:
            self._preempt(rooms, by_key, list(demands.values()))

    def move_out(self, record: Record, reason: str) -> None:
        """Let a job, or its gang, that runs in the network go on by ring. Raise NotPossibleError."""
        if why := self._why_stays(record):
            raise NotPossibleError(f"{record.what} cannot be moved out: {why}")
        for plane in record.live_planes:
            plane.moving_out = reason
        self._move(record, Mode.RING)

    def relocating(self, record: Record) -> None:
        """Write the switches for a move once all workers of all planes hold."""
        planes = record.live_planes
        if planes and all(plane.job.state is State.RELOCATING and not plane.installing for plane in planes):
            move = planes[0].job.move
            assert move is not None
            self._engine.spawn(self._relocate(planes, move.mode))

    async def _relocate(self, planes: Sequence[Record], wanted: Mode) -> None:
        """Renew a job or gang whose workers hold, or take it off the switches."""
        record = planes[0]
        if wanted is Mode.IN_NETWORK:
            self._renew(record)
            return
        try:
            mode, reason = await self.take_off(record, record.moving_out or "moved out")
        except Exception as error:  # the workers hold until they hear how it went
            logger.exception("%s: a defect in the controller", record.what)
            mode = record.job.plan.mode if record.job.plan is not None else Mode.RING
            reason = f"a defect in the controller, its log says more: {error!r}"
        for plane in planes:
            plane.moving_out = None
        if mode is not wanted:
            self._failed(record, wanted, reason)
        logger.info("%s goes on %s%s", record.what, _WHERE[mode], f": {reason}" if reason else "")
        shown = reason if mode is Mode.RING else ""
        for plane in planes:
            self._engine.act(plane, lambda job, now: job.moved(mode, shown))
        self.changed()

    async def take_off(self, record: Record, reason: str) -> tuple[Mode, str]:
        """Remove all entries of a job or gang while all its workers hold, and free its slots.

        Return the mode that it has then, and why it is no other. Raise nothing but defects.
        """
        planes, why = record.live_planes, ""
        moving = [
            (plane, replace(plane.job.plan, mode=Mode.RING, mode_reason=reason))
            for plane in planes
            if plane.job.plan is not None
            and plane.job.live
            and not (plane.installing or plane.job.renewal)
            and plane.allocations
        ]
        if moving and len(moving) == len(planes):
            for plane in planes:
                plane.installing = True
            try:
                await self._manager.allocations.take_off(moving)
            except HalfOffError as error:
                why = str(error)
                for plane in planes:
                    self._engine.post(plane, Forgotten(why))
            except (ControllerError, StoreError, sqlite3.Error) as error:
                why = str(error)
            finally:
                for plane in planes:
                    self._written(plane)
        if why:
            return Mode.IN_NETWORK, why
        plan = record.job.plan
        return (Mode.RING, "") if plan is None else (plan.mode, plan.mode_reason)

    def _written(self, record: Record) -> None:
        """Go on after the switches have been written for a job, which may have ended meanwhile."""
        record.installing = False
        self._manager.rerouting.allocated(record)
        waiting, record.when_written = record.when_written, []
        if not record.job.live:
            self._engine.post(record, Over())
            return
        for call in waiting:
            call()

    def _renew(self, record: Record) -> None:
        """Begin a new generation for a job that moves in: data of an earlier stay must not be believed."""
        job, planes = record.job, record.live_planes
        if not job.live or job.plan is None or any(plane.job.renewal for plane in planes):
            return
        cause, reason = Cause.MOVED_IN, "there are slots for it"
        if any(plane.allocations for plane in planes):
            numbered = max(plane.job.numbered for plane in planes)
            cause, reason = Cause.RENUMBERED, f"{numbered} messages are enough for one generation"
        try:
            self._renewer.begin_planned(record, cause, reason)
        except (StoreError, sqlite3.Error) as error:
            mode, before, why = job.plan.mode, job.plan.mode_reason, self._manager.store.explain(error)
            logger.warning("%s stays where it is: %s", record.what, why)
            self._failed(record, Mode.IN_NETWORK, why)
            for plane in planes:
                self._engine.act(plane, lambda job, now: job.moved(mode, before))

    def _renumber(self, now: float) -> None:
        """Renew jobs that have numbered many messages in their generation, long before they must.

        A switch tells a slot's messages apart by 32-bit serial numbers, and sums the first 2^31 of a
        generation (docs/protocol.md, "How many messages"). Workers say with heartbeats how far they are.
        """
        for record in self._book:
            due = record.allocations and record.job.numbered >= self._manager.config.renumber_messages
            leader = record.leader
            tried = leader.renumbered_at is not None and now < leader.renumbered_at + _RENUMBER_AGAIN_S
            if due and not tried and not self._why_not_move(record):
                leader.renumbered_at = now
                self.renumber(record)

    def renumber(self, record: Record) -> None:
        """Let a job that runs in the network go on there under a new generation, as it can be moved now."""
        plan = record.job.plan
        record.leader.granted = plan.slots if plan is not None and len(record.planes) > 1 else None
        self._move(record, Mode.IN_NETWORK)

    def went_on(self, record: Record, effect: WentOn) -> None:
        """Reset what a renewal needed, now that it is over; on a failed move in, try again later."""
        plan, record.renumbered_at = record.job.plan, None
        if not any(plane.job.renewal for plane in record.planes):
            record.leader.granted = None
        if effect.cause is Cause.MOVED_IN and plan is not None and plan.mode is Mode.RING:
            self._failed(record, Mode.IN_NETWORK, plan.mode_reason)
        self.started(record)

    def stayed(self, record: Record, effect: Stayed) -> None:
        """Call off the move of all planes, as that of one was called off."""
        reason = effect.reason
        logger.warning("job %s stays where it is: %s", record.job.spec.name, reason)
        mode = Mode.IN_NETWORK if record.moving_out is None else Mode.RING
        record.moving_out = None
        self._failed(record, mode, reason)
        for plane in record.live_planes:
            if not plane.installing and plane.job.move is not None:
                self._engine.act(plane, lambda job, now: job.call_off(reason, at_switches=True))
        self.changed()

    def _move(self, record: Record, mode: Mode) -> None:
        number = self._engine.rng.randrange(1, _MOVES)  # a controller that was restarted must not repeat one
        for plane in record.live_planes:
            self._engine.act(plane, lambda job, now: job.move_to(mode, number, now))

    def _why_not_move(self, record: Record) -> str:
        """Say why a job, or a plane of its gang, cannot be moved now; return "" if all can."""
        if not record.is_whole:
            return "not all of its planes are there"
        return next(filter(None, (plane.job.why_not_move() for plane in record.planes)), "")

    def _failed(self, record: Record, mode: Mode, why: str) -> None:
        """Let a job wait before the next try, longer each time."""
        now, record = self._engine.clock(), record.leader
        record.granted = None
        if mode is Mode.RING:
            self._preempting_from = now + _FORBEARANCE_S
            return
        waiting = record.queueing = record.queueing or Queueing(now)
        if now < waiting.not_before:
            return  # another plane has said so
        waiting.not_before = now + min(_FIRST_RETRY_S * 2**waiting.tries, _LONGEST_RETRY_S)
        waiting.tries, waiting.why = waiting.tries + 1, why

    def _preempt(self, rooms: Rooms, by_key: Mapping[int, Record], waiting: Sequence[Demand]) -> None:
        holders = {
            record: self._holder(record)
            for record in self._book
            if record.leader is record and any(plane.allocations for plane in record.live_planes)
        }
        found = preempt(self._demands.quotas, rooms, list(filter(None, holders.values())), waiting)
        if found is None:
            return
        self._demands.made_room_for = by_key[found.demand.key]
        wanted = found.demand
        reason = (
            f"moved out for {wanted.what} {wanted.name} of tenant {wanted.tenant}, which is below its share"
        )
        victims = {demand.key for demand in found.victims}
        for record, holder in holders.items():
            if holder is not None and holder.demand.key in victims:
                self.move_out(record, reason)

    def _holder(self, record: Record) -> Holder | None:
        """Return the slots that a job or gang has; None if it is being set up."""
        planes = [plane for plane in record.live_planes if plane.allocations and plane.job.plan is not None]
        if not planes:
            return None
        regions: dict[str, list[Region]] = {}
        for plane in planes:
            for name, allocation in plane.allocations.items():
                regions.setdefault(name, []).append(allocation.region)
        jobs = [plane.job for plane in planes]
        held = self._demands.of(jobs, [job.plan for job in jobs], record.allocated_at)
        switches = tuple(name for name, mine in regions.items() for _ in mine)
        return Holder(
            demand=replace(held, switches=switches, smaller=()),
            regions=regions,
            movable=not self._why_stays(record),
        )

    def _why_stays(self, record: Record) -> str:
        for job in (plane.job for plane in record.live_planes):
            if job.plan is None or job.plan.mode is not Mode.IN_NETWORK:
                return "it has no slots"
            if job.spec.mode is Mode.IN_NETWORK:
                return "it was created to run in the network only"
        return self._why_not_move(record)

    # What there is

    def waitlisted(self, record: Record) -> Queued | None:
        """Return what a job, or its gang, waits for; None if it does not wait."""
        record = record.leader
        if self._decided is None:
            demands = self._demands.waiting(ready_only=False)
            still = [demand for record, demand in demands.items() if not moves_in(record)]
            decision = decide(self._demands.quotas, self._demands.rooms(), self._demands.counted(), still)
            self._decided = (demands, decision)
        demands, decision = self._decided
        demand = demands.get(record)
        if demand is None or record.queueing is None:
            return None
        now, waiting = self._engine.clock(), record.queueing
        if demand.key in decision.never:
            return None  # it does not wait: `mode_reason` says why
        order = [d.key for moving, d in demands.items() if moves_in(moving)]
        order += [*(d.key for d in decision.admitted), *decision.reasons]
        return Queued(
            position=1 + order.index(demand.key),
            reason=self._why_waits(record, waiting, demand, decision, now),
            waiting_s=max(0.0, now - waiting.since),
        )

    def _why_waits(
        self, record: Record, waiting: Queueing, demand: Demand, decision: Decision, now: float
    ) -> str:
        if moves_in(record):
            return "is being moved in"
        if (away := self._demands.why_away(record)) or demand.key in decision.reasons:
            return away or decision.reasons[demand.key]
        if now < waiting.not_before:
            return f"{waiting.why}; tried again in {waiting.not_before - now:.0f} s"
        return f"can be moved in, but {self._why_not_move(record) or 'has not been yet'}"


_WHERE = {Mode.IN_NETWORK: "in the network", Mode.RING: "by ring"}
