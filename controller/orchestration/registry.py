"""The registry of all jobs: connects their state machines to the parts that do the work."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random, SystemRandom

from controller.api.errors import ConflictError, ControllerError
from controller.api.messages import EndCause, Ended, JobSpec, Left, RcParameters
from controller.config import Config
from controller.database.store import Store, StoreError
from controller.jobs import effects
from controller.jobs.job import Job
from controller.jobs.specs import Phase, Plan, Timing
from controller.jobs.states import State
from controller.orchestration import planning
from controller.orchestration.adoption import Adoption
from controller.orchestration.book import Book
from controller.orchestration.demands import Demands
from controller.orchestration.engine import Engine
from controller.orchestration.gangs import Gangs
from controller.orchestration.loading import load
from controller.orchestration.missing import Missing
from controller.orchestration.record import Record, stored
from controller.orchestration.renewer import Renewer
from controller.orchestration.sessions import Sessions
from controller.orchestration.setup import Installer
from controller.orchestration.switch_manager import SwitchManager
from controller.orchestration.waitlist import Waitlist
from controller.slots.admission import tenant_of
from controller.switches.managed_switch import ManagedSwitch

logger = logging.getLogger(__name__)

_TOKEN_BYTES = 16


class Registry:
    """All jobs and the parts that work for them. Call `load`, start the switches, and keep `run` running.

    A switch's `on_change` has to call `manager.on_switch_change`. The parts know those before them, and none
    knows the registry:

        engine ◄── manager (the switches), gangs ◄── demands (for slots) ◄── installer
            ◄── renewer ◄── waitlist, adoption ◄── sessions

    Not thread-safe: one event loop.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        switches: Sequence[ManagedSwitch],
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: Random | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.clock = clock
        self.timing = Timing(
            heartbeat_interval_s=config.heartbeat_interval_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            resume_timeout_s=config.resume_timeout_s,
            lost_timeout_s=config.lost_timeout_s,
            rc=RcParameters(
                timeout=config.rc_timeout,
                retry_count=config.rc_retry_count,
                rnr_retry=config.rc_rnr_retry,
                min_rnr_timer=config.rc_min_rnr_timer,
            ),
        )
        self.book = Book()
        self.engine = Engine(
            clock, SystemRandom() if rng is None else rng, interval_s=config.heartbeat_interval_s
        )
        self.manager = SwitchManager(config, store, switches, self.engine)
        self.gangs = Gangs(
            self.book,
            self.engine,
            patience_s=config.resume_timeout_s,
            lease_s=min(config.lost_timeout_s, config.heartbeat_timeout_s),
        )
        self.demands = Demands(self.manager, self.book)
        self.installer = Installer(self.manager, self.demands)
        self.renewer = Renewer(self.manager, self.book, self.installer, self.timing)
        self.waitlist = Waitlist(self.manager, self.book, self.demands, self.renewer)
        self.adoption = Adoption(self.manager, self.book, self.gangs, self.demands, self.renewer, self.timing)
        self.sessions = Sessions(
            self.manager, self.book, self.gangs, self.demands, self.renewer, self.adoption, self.timing
        )
        self.switches, self.links = self.manager.switches, self.manager.links
        self.allocations = self.manager.allocations
        self._phase_unsaved: set[Record] = set()
        self.engine.stood_still.append(self._forgive)
        spawn, renewer, waitlist, gangs = self.engine.spawn, self.renewer, self.waitlist, self.gangs
        self.engine.handlers = {
            effects.Tell: self.sessions.tell,
            effects.Gathered: lambda record, effect: gangs.gathered(record),
            effects.Vacated: self._vacated,
            effects.Install: self._install,
            effects.Started: self._started,
            effects.Relocate: lambda record, effect: waitlist.relocating(record),
            effects.Stayed: waitlist.stayed,
            effects.MachineLost: gangs.machine_lost,
            effects.Interrupted: renewer.interrupted,
            effects.Forgotten: renewer.forgotten,
            effects.Detach: self._detach,
            effects.Rebuild: lambda record, effect: spawn(renewer.rebuild(record)),
            effects.Renumbered: self.sessions.renumbered,
            effects.WentOn: waitlist.went_on,
            effects.Lost: lambda record, effect: spawn(renewer.go_on_without(record, effect)),
            effects.Over: self._over,
            effects.Stuck: Missing(self.manager, interval_s=config.heartbeat_interval_s).asked,
        }

    # Jobs.

    def jobs(self) -> list[Record]:
        """Return the last job of each name, by name."""
        return list(self.book)

    def job(self, name: str) -> Record:
        """Return the last job of that name. Raise NotFoundError."""
        return self.book.job(name)

    def planes(self, name: str) -> list[Record]:
        """Return the job of that name, or the gang's planes that have begun. Raise NotFoundError."""
        if name in self.book.by_name:
            return [self.book.job(name)]
        return self.gangs.last_of(name) or [self.book.job(name)]

    def create_job(self, spec: JobSpec) -> list[Record]:
        """Make a job that workers may join any number of times, one run after the other.

        A spec with the name of its gang stands for all planes, and its world size for that of all together.
        """
        spec = replace(spec, tenant=tenant_of(spec.tenant))
        specs = planning.planes_of(spec)
        for plane in specs:
            planning.check_spec(self.config, plane)
            known = self.book.by_name.get(plane.name)
            if known is not None and (known.job.live or plane.name in self.book.specs):
                raise ConflictError(
                    f"there is a job {plane.name} already: delete it first, or use another name"
                )
            self.gangs.check(plane)
        self.store.save_spec(*specs)
        records = []
        for plane in specs:
            self.book.specs[plane.name] = plane
            record = self.book.by_name[plane.name] = Record(Job(plane, self.timing, explicit=True))
            self.gangs.enlist(record, plane.gang)
            records.append(record)
        return records

    def delete_job(self, name: str) -> list[Record]:
        """End a job if it runs, and forget it; a gang, by its name, with all planes.

        Raise NotFoundError. Deleting a plane ends the others too, but does not forget them. If the database
        raises an error, the job has ended, and can be deleted once more.
        """
        planes = self.planes(name)
        reason = f"{planes[0].what if len(planes) > 1 else f'job {name}'} was deleted"
        for record in planes:
            self._delete(record, reason)
        return planes

    def _delete(self, record: Record, reason: str) -> None:
        name = record.job.spec.name
        self.engine.act(record, lambda job, now: job.end(reason, EndCause.DELETED))
        self.store.forget_spec(name)
        if record.generation is not None:
            self.store.save_phase(record.generation, Phase.ENDED, record.job.outcome, deleted=True)
        self.store.hide(name)
        self.book.specs.pop(name, None)
        del self.book.by_name[name]
        record.deleted = True

    # What their state machines ask for.

    def _vacated(self, record: Record, effect: effects.Vacated) -> None:
        name = record.job.spec.name
        if not record.job.explicit and not record.job.workers and self.book.by_name.get(name) is record:
            del self.book.by_name[name]
            self.gangs.vacated(record)

    def _install(self, record: Record, effect: effects.Install) -> None:
        """Set up a job whose workers have all joined; a gang when all of its planes have."""
        planes = record.live_planes
        if all(p.job.state is State.INSTALLING and not p.installing for p in planes):
            for plane in planes:
                plane.installing = True
            self.engine.spawn(self._installed(planes))

    async def _installed(self, planes: Sequence[Record]) -> None:
        first, why, rng = planes[0], "", self.engine.rng
        tokens = [{rank: rng.randbytes(_TOKEN_BYTES) for rank in plane.job.workers} for plane in planes]
        try:
            plans = await self.installer.set_up(planes)
            for plane, plan in zip(planes, plans, strict=True):
                plane.job.plan = plan
            # From here on there is something to take away.
            self.store.save_job(
                *(
                    stored(plane.job, plan, plane.allocations.values(), Phase.READY, of)
                    for plane, plan, of in zip(planes, plans, tokens, strict=True)
                )
            )
        except (ControllerError, StoreError, sqlite3.Error) as error:
            why = self.store.explain(error)
        except Exception as error:
            logger.exception("%s: a defect in the controller", first.what)
            why = f"a defect in the controller, its log says more: {error!r}"
        for plane in planes:
            plane.installing = False
        if not all(plane.job.live for plane in planes):  # a worker died meanwhile
            for plane in planes:
                self.engine.post(plane, effects.Over())
        elif why:
            reason = f"{first.what} could not be set up: {why}"
            self.engine.act(first, lambda job, now: job.end(reason, EndCause.NOT_SET_UP))
        else:
            for plane, plan, of in zip(planes, plans, tokens, strict=True):
                self._planned(plane, plan, of)

    def _planned(self, record: Record, plan: Plan, tokens: Mapping[int, bytes]) -> None:
        job = record.job
        self.book.by_generation[plan.generation] = record
        self.manager.rerouting.allocated(record)
        logger.info(
            "job %s: generation %d, %d workers, %s%s",
            *(job.spec.name, plan.generation, job.spec.world_size, plan.mode.name),
            f" ({plan.mode_reason})" if plan.mode_reason else "",
        )
        self.engine.act(record, lambda job, now: job.planned(plan, tokens, now))

    def _started(self, record: Record, effect: effects.Started) -> None:
        self._save_phase(record)
        self.waitlist.started(record)

    def _detach(self, record: Record, effect: effects.Detach) -> None:
        self.book.retired.retire(record.job)
        self.renewer.detach(record)

    def _over(self, record: Record, effect: effects.Over) -> None:
        """Finish up a job that has ended, once its switches are not being written any more."""
        job = record.job
        if record.ended_at is None:
            record.ended_at = self.clock()
            self.book.ended(record)
            self.gangs.ended(record)
        self._others_go_on(record)
        if record.installing:
            return  # who is writing comes back here
        self._save_phase(record)
        if isinstance(job.outcome, Ended):
            logger.warning("job %s ended: %s", job.spec.name, job.outcome.reason)
        else:
            logger.info("job %s: all workers have left", job.spec.name)
        started = any(worker.token for worker in job.workers.values())
        if started:
            # Who has left has nothing of its own to send again, but may answer what finds it late.
            left = isinstance(job.outcome, Left)
            self.book.retired.retire(job, self.clock() + self.renewer.guarding_s if left else None)
        if record.allocations:
            never_sent = isinstance(job.outcome, Left) or not started
            record.free_at = self.engine.awake() + (0.0 if never_sent else self.renewer.guarding_s)
            self.engine.spawn(self.allocations.clean(record))
        self.waitlist.changed()  # it may have been on its way in
        self.book.forget_old()

    def _others_go_on(self, record: Record) -> None:
        """Let the other planes of a gang go on, which may have waited for one that is over."""
        for other in record.live_planes:
            if other.job.state is State.RELOCATING:
                self.waitlist.relocating(other)
            elif other.job.state is State.REBUILDING:
                self.engine.spawn(self.renewer.rebuild(other))

    def _save_phase(self, record: Record) -> None:
        """Save a job's phase. If the database fails, try again later: workers are told in any case."""
        if record.generation is None:
            return
        job = record.job
        try:
            if record.unsaved and not job.live:
                self.renewer.save_generation(record)
            if job.workers.departed and not job.live:  # they may still send, and a restart must know that
                self.store.save_dropped(record.generation, job.workers.departures)
            self.store.save_phase(record.generation, job.phase, job.outcome, deleted=record.deleted)
        except sqlite3.Error as error:
            if record not in self._phase_unsaved:
                logger.error("%s: job %s is not saved: %s", self.store.path, job.spec.name, error)
            self._phase_unsaved.add(record)
        else:
            self._phase_unsaved.discard(record)

    # Time.

    async def run(self) -> None:
        """Keep heartbeats, timeouts, probes and leftovers going until cancelled."""
        steps = (self.config.heartbeat_interval_s / 4, self.config.probe_interval_s / 2)
        while True:
            await asyncio.sleep(min(step for step in steps if step > 0))
            try:
                self.tick()
            except Exception:  # one job's defect must not silence the heartbeats of all
                logger.exception("a defect in the controller")

    def tick(self) -> None:
        """Do what is due by time, for all jobs and parts."""
        now = self.engine.awake()
        for record in list(self.book.by_name.values()):
            if self.manager.rival_at(record.job.members):
                self.sessions.stand_by(record)
                continue
            if self.manager.is_outranked_at(record.job.members):
                record.job.wait_on(now)
            self.engine.act(record, lambda job, now: job.tick(now))
        for record in self.allocations.remains:  # a rival may have that job still, and its workers send
            unsure = not all(worker.knows_end for worker in record.job.workers.values())
            if unsure and any(self.switches[name].switch.is_outranked for name in record.allocations):
                record.free_at = max(record.free_at, now + self.renewer.guarding_s)
        for record in list(self._phase_unsaved):
            self._save_phase(record)
        self.book.retired.tick(now)
        self.manager.tick()
        self.gangs.tick()
        self.renewer.tick()
        self.waitlist.tick()

    def _forgive(self, seconds: float, now: float) -> None:
        """Extend times after the process itself stood still: workers that heard nothing still send."""
        self.adoption.forgive(seconds, now)
        self.gangs.forgive(seconds, now)
        for record in self.allocations.holding:
            record.free_at += seconds
        for record in self.book.by_name.values():
            record.job.forgive(seconds, now)

    def listens(self) -> None:
        """Begin the time that workers have to come back in: from now on they can."""
        now = self.engine.begin_anew()
        for record in self.book.by_name.values():
            record.job.expect_back(now)
        for record in self.allocations.remains:  # its workers could not be told yet, and still send
            record.free_at = max(record.free_at, now + self.renewer.guarding_s)

    def load(self) -> None:
        """Take over what the database knows. Raise StoreError if it does not fit the configuration."""
        load(self.manager, self.book, self.gangs, self.renewer, self.timing)

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        await self.engine.drain()

    def stop(self) -> None:
        """End all sessions but no job: workers resume when the controller is back."""
        self.engine.stopping = True
        for record in {*self.book.by_name.values(), *self.book.by_generation.values()}:
            for session in record.sessions.values():
                session.events.put_nowait(None)
            record.sessions.clear()
