"""The queue of the jobs that run by ring until there are slots for them, and the moves in and out.

Who waits is not kept anywhere: it is the jobs that run by ring and need not. So a restart of the controller
forgets nothing but for how long they have waited. `controller/admission.py` decides, this module asks it
whenever something has changed, and moves.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller import planning
from controller.admission import (
    DEFAULT_TENANT,
    Decision,
    Demand,
    Holder,
    Quotas,
    Rooms,
    decide,
    parse_quotas,
    preempt,
    shrink,
    used_by_tenant,
    why_never,
    why_over,
)
from controller.api.errors import NoResourcesError, NotPossibleError
from controller.api.messages import Mode
from controller.events import Relocate
from controller.jobs import Job
from controller.renewals import PLANNED, Cause, Step
from controller.running import Running
from controller.specs import Plan
from controller.store import StoreError
from controller.trees import Tree

if TYPE_CHECKING:
    from controller.registry import Registry

logger = logging.getLogger(__name__)

_LOOK_S = 1.0  # how often to look without a reason
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0
_FORBEARANCE_S = 10.0  # from a pre-emption that failed to the next
_MOVES = 1 << 31


@dataclass
class _Waiting:
    """What is remembered of a job that waits. `why`: what its last move failed of."""

    since: float
    tries: int = 0
    not_before: float = 0.0
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Queued:
    """A job's position in the queue, from 1, and why and for how long it has waited."""

    position: int
    reason: str
    waiting_s: float


class Waitlist:
    """Belongs to a registry, whose hooks it takes. `quotas` are in force."""

    def __init__(self, registry: Registry) -> None:
        self.quotas = parse_quotas(registry.config.quotas)
        self._registry = registry
        self._waiting: dict[Running, _Waiting] = {}
        self._placed_at: dict[Running, float] = {}
        self._moving_out: dict[Running, str] = {}  # and why
        self._made_room_for: Running | None = None
        self._due = self._scheduled = False
        self._looked_at = self._preempting_from = 0.0
        self._standing: tuple[dict[Running, Demand], Decision] | None = None  # until something changes
        registry.installer.shape = self.shape
        registry.installer.admit = self.admit
        registry.on_room.append(self.changed)

    def set_quotas(self, quotas: Quotas | None) -> None:
        """Other quotas (None: the configuration's). Jobs that have slots keep them."""
        self.quotas = parse_quotas(self._registry.config.quotas) if quotas is None else quotas
        self.changed()

    # Jobs that are set up

    def shape(self, job: Job, window: int, packets: int) -> tuple[int, int]:
        """Window and packets a message within the job's quota, where that is possible."""
        limit = self.quotas.job_limit(_tenant(job))
        fixed = (job.spec.window is not None, job.spec.message_packets is not None)
        return shrink(window, packets, limit, fixed=fixed)

    def admit(self, job: Job, plan: Plan) -> None:
        """NoResourcesError where a new job may not have slots now, or others come before it."""
        renewal = self._registry.job(job.spec.name).job.renewal
        if renewal is not None and renewal.cause in PLANNED:
            return  # that was decided when the move began
        demand = self._demand(job, plan, self._registry.clock())
        used = used_by_tenant(self._counted())
        if why := why_never(self.quotas, demand) or why_over(self.quotas, demand, used):
            raise NoResourcesError(why)
        if job.spec.mode is Mode.IN_NETWORK:
            return  # it runs there or not at all: there is no place in the queue for it
        waiting = [d for d in self._demands().values() if d.key != demand.key]
        decision = decide(self.quotas, self._rooms(), self._counted(), [*waiting, demand])
        if demand not in decision.admitted:
            raise NoResourcesError(decision.reasons[demand.key])

    def started(self, running: Running) -> None:
        """A job runs."""
        if running.places:
            self._placed_at[running] = self._registry.clock()
        self.changed()

    # Moving

    def changed(self) -> None:
        """Something may have become possible: look soon, once, however much has changed."""
        self._due, self._standing = True, None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the controller has not begun
            return
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._look_now)

    def touched(self) -> None:
        """Something has happened to a job; what `waitlisted` said may be old."""
        self._standing = None

    def tick(self) -> None:
        """Time has passed."""
        if self._due or self._registry.clock() - self._looked_at >= _LOOK_S:
            self.look()

    def _look_now(self) -> None:
        self._scheduled = False
        if self._due:
            self.look()

    def look(self) -> None:
        """Move in whoever can; with pre-emption, move out who has to give way."""
        self._due, self._looked_at = False, self._registry.clock()
        if self._registry.stopping:
            return
        self._forget()
        demands = self._demands()
        if not demands:
            return
        by_key = {demand.key: running for running, demand in demands.items()}
        counted, rooms = self._counted(), self._rooms()
        decision = decide(self.quotas, rooms, counted, demands.values())
        for demand in decision.admitted:
            running = by_key[demand.key]
            if not running.job.why_not_move():
                self._move(running, Mode.IN_NETWORK)
        if not decision.admitted and not self._moving_out and self._looked_at >= self._preempting_from:
            self._preempt(rooms, by_key, list(demands.values()))

    def move_out(self, running: Running, reason: str) -> None:
        """Let a job that runs in the network go on by ring. NotPossibleError."""
        if why := self._why_stays(running):
            raise NotPossibleError(f"job {running.job.spec.name} cannot be moved out: {why}")
        self._moving_out[running] = reason
        self._move(running, Mode.RING)

    async def relocate(self, running: Running, effect: Relocate) -> None:
        """All workers of a job hold: renew it, or take it off the switches."""
        if effect.mode is Mode.IN_NETWORK:
            self._renew(running)
            return
        registry, name = self._registry, running.job.spec.name
        try:
            why = self._moving_out.get(running, "moved out")
            mode, reason = await registry.take_off(running, why)
        except Exception as error:  # the workers hold until they hear how it went
            logger.exception("job %s: a defect in the controller", name)
            mode = running.job.plan.mode if running.job.plan is not None else Mode.RING
            reason = f"a defect in the controller, its log says more: {error!r}"
        self._moving_out.pop(running, None)
        if mode is not effect.mode:
            self._failed(running, effect.mode, reason)
        logger.info("job %s goes on %s%s", name, _WHERE[mode], f": {reason}" if reason else "")
        shown = reason if mode is Mode.RING else ""
        registry.act(running, lambda job, now: job.moved(mode, shown))
        self.changed()

    def _renew(self, running: Running) -> None:
        """Nothing of an earlier stay may be believed, so what moves in has a generation of its own."""
        job = running.job
        if not job.live or job.plan is None or job.renewal is not None:
            return
        cause, reason = Cause.MOVED_IN, "there are slots for it"
        if running.places:
            cause, reason = Cause.RENUMBERED, f"{job.numbered} messages are enough for one generation"
        try:
            self._registry.renewer.begin_planned(running, cause, reason)
        except (StoreError, sqlite3.Error) as error:
            mode, before, why = job.plan.mode, job.plan.mode_reason, self._registry.trouble(error)
            logger.warning("job %s stays where it is: %s", job.spec.name, why)
            self._failed(running, Mode.IN_NETWORK, why)
            self._registry.act(running, lambda job, now: job.moved(mode, before))

    def renumber(self, running: Running) -> None:
        """Let a job that runs in the network go on there under a new generation, if it can be moved now."""
        if not running.job.why_not_move():
            self._move(running, Mode.IN_NETWORK)

    def went_on(self, running: Running, cause: Cause) -> None:
        """A renewal is over."""
        plan = running.job.plan
        if cause is Cause.MOVED_IN and plan is not None and plan.mode is Mode.RING:
            self._failed(running, Mode.IN_NETWORK, plan.mode_reason)
        self.started(running)

    def stayed(self, running: Running, reason: str) -> None:
        """A move was called off."""
        logger.warning("job %s stays where it is: %s", running.job.spec.name, reason)
        mode = Mode.RING if self._moving_out.pop(running, None) is not None else Mode.IN_NETWORK
        self._failed(running, mode, reason)
        self.changed()

    def _move(self, running: Running, mode: Mode) -> None:
        number = 1 + secrets.randbelow(_MOVES - 1)  # a controller that was restarted must not repeat one
        self._registry.act(running, lambda job, now: job.move_to(mode, number, now))

    def _failed(self, running: Running, mode: Mode, why: str) -> None:
        """Try again later, and later still."""
        now = self._registry.clock()
        if mode is Mode.RING:
            self._preempting_from = now + _FORBEARANCE_S
            return
        waiting = self._waiting.setdefault(running, _Waiting(now))
        waiting.not_before = now + min(_FIRST_RETRY_S * 2**waiting.tries, _LONGEST_RETRY_S)
        waiting.tries, waiting.why = waiting.tries + 1, why

    def _forget(self) -> None:
        """Jobs that have ended, or whose move has."""
        self._placed_at = {running: at for running, at in self._placed_at.items() if running.places}
        self._moving_out = {
            running: why for running, why in self._moving_out.items() if running.job.move is not None
        }

    def _preempt(self, rooms: Rooms, by_key: Mapping[int, Running], waiting: Sequence[Demand]) -> None:
        holders = [
            Holder(
                demand=self._demand(running.job, running.job.plan, self._placed_at.get(running, 0.0)),
                regions={name: place.region for name, place in running.places.items()},
                movable=not self._why_stays(running),
            )
            for running in self._registry.jobs()
            if running.job.live and running.places and running.job.plan is not None
        ]
        found = preempt(self.quotas, rooms, holders, waiting)
        if found is None:
            return
        self._made_room_for = by_key[found.demand.key]
        reason = (
            f"moved out for job {found.demand.name} of tenant {found.demand.tenant}, which is below its share"
        )
        victims = {demand.key for demand in found.victims}
        for running in self._registry.jobs():
            if running.generation in victims:
                self.move_out(running, reason)

    def _why_stays(self, running: Running) -> str:
        job = running.job
        if job.plan is None or job.plan.mode is not Mode.IN_NETWORK:
            return "it has no slots"
        if job.spec.mode is Mode.IN_NETWORK:
            return "it was created to run in the network only"
        return job.why_not_move()

    # What there is

    def waitlisted(self, running: Running) -> Queued | None:
        """What a job waits for; None where it does not."""
        if self._standing is None:
            demands = self._demands(ready_only=False)
            still = [demand for running, demand in demands.items() if not _moves_in(running.job)]
            decision = decide(self.quotas, self._rooms(), self._counted(), still)
            self._standing = (demands, decision)
        demands, decision = self._standing
        demand = demands.get(running)
        if demand is None:
            return None
        now, waiting = self._registry.clock(), self._waiting[running]
        if demand.key in decision.never:
            return None  # it does not wait: `mode_reason` says why
        order = [d.key for moving, d in demands.items() if _moves_in(moving.job)]
        order += [*(d.key for d in decision.admitted), *decision.reasons]
        return Queued(
            position=1 + order.index(demand.key),
            reason=self._why_waits(running, demand, decision, now),
            waiting_s=max(0.0, now - waiting.since),
        )

    def _why_waits(self, running: Running, demand: Demand, decision: Decision, now: float) -> str:
        waiting = self._waiting[running]
        if _moves_in(running.job):
            return "is being moved in"
        if (away := self._why_away(running)) or demand.key in decision.reasons:
            return away or decision.reasons[demand.key]
        if now < waiting.not_before:
            return f"{waiting.why}; tried again in {waiting.not_before - now:.0f} s"
        return f"can be moved in, but {running.job.why_not_move() or 'has not been yet'}"

    def _demands(self, *, ready_only: bool = True) -> dict[Running, Demand]:
        """The jobs that wait; with `ready_only`, those that could be moved now or soon."""
        now, found = self._registry.clock(), {}
        waits = [running for running in self._registry.jobs() if self._could_move_in(running.job)]
        self._waiting = {running: self._waiting.get(running) or _Waiting(now) for running in waits}
        if self._made_room_for not in self._waiting:
            self._made_room_for = None
        for running, waiting in self._waiting.items():
            job = running.job
            moving = job.move is not None or job.renewal is not None or running.installing or running.unsaved
            if ready_only and (moving or now < waiting.not_before or self._why_away(running)):
                continue
            assert running.job.plan is not None
            first = running is self._made_room_for
            found[running] = self._demand(running.job, running.job.plan, waiting.since, first=first)
        return found

    def _could_move_in(self, job: Job) -> bool:
        return (
            job.is_set_up
            and job.plan is not None
            and job.plan.mode is Mode.RING
            and not job.plan.backup
            and job.spec.mode is None
            and not planning.why_ring(self._registry.config, job.spec, job.members)
        )

    def _demand(self, job: Job, plan: Plan | None, since: float, *, first: bool = False) -> Demand:
        assert plan is not None
        tree = Tree.of(self._registry.config, job.members)
        return Demand(
            key=plan.generation,
            name=job.spec.name,
            tenant=_tenant(job),
            slots=plan.slots,
            switches=(*tree.leaves, *tree.spines(self._registry.links.state)),
            since=since,
            first=first,
        )

    def _why_away(self, running: Running) -> str:
        """What a job needs that cannot be used."""
        registry = self._registry
        tree = Tree.of(registry.config, running.job.members)
        for leaf in tree.leaves:
            if not registry.switches[leaf].ready:
                return f"switch {leaf} is away: {registry.switches[leaf].switch.state}"
        if tree.two_level and not tree.spines(registry.links.state):
            return tree.graph.why_apart(tree.leaves, registry.links.state)
        return ""

    def _counted(self) -> list[Demand]:
        """What counts for tenants: what has a place, is getting one, or is on its way in."""
        counted = []
        for running in {*self._registry.jobs(), *self._registry.places.holding}:
            job = running.job
            if job.live and running.places:
                slots = max(place.region.slots for place in running.places.values())
                counted.append(
                    Demand(
                        key=running.generation or 0,
                        name=job.spec.name,
                        tenant=_tenant(job),
                        slots=slots,
                        switches=tuple(running.places),
                        since=0.0,
                    )
                )
            elif _moves_in(job):
                counted.append(self._demand(job, job.plan, 0.0))
        return counted

    def _rooms(self) -> Rooms:
        """What is free, but for what jobs on their way in will take."""
        registry = self._registry
        rooms = Rooms(
            {name: switch.allocator for name, switch in registry.switches.items()},
            {name: registry.config.role(name) for name in registry.switches} if registry.config.links else {},
        )
        for running in registry.jobs():
            if _moves_in(running.job) and not running.places:
                demand = self._demand(running.job, running.job.plan, 0.0)
                if not rooms.lacking(demand):
                    rooms.take(demand)
        return rooms


_WHERE = {Mode.IN_NETWORK: "in the network", Mode.RING: "by ring"}


def _tenant(job: Job) -> str:
    return job.spec.tenant or DEFAULT_TENANT


def _moves_in(job: Job) -> bool:
    renewal = job.renewal
    if renewal is not None:
        return renewal.cause is Cause.MOVED_IN and renewal.step is Step.ASKING
    return job.live and job.move is not None and job.move.mode is Mode.IN_NETWORK
