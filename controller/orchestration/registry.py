"""All jobs: connects their state machines to the parts that do the work, and tells them the time."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.api.errors import ConflictError, ControllerError
from controller.api.messages import EndCause, Ended, JobSpec, Left, RcParameters
from controller.config import Config
from controller.database.store import Store, StoreError
from controller.jobs import effects
from controller.jobs.job import Job
from controller.jobs.specs import Phase, Timing
from controller.orchestration import planning
from controller.orchestration.adoption import Adoption
from controller.orchestration.book import Book
from controller.orchestration.demands import Demands
from controller.orchestration.engine import Engine
from controller.orchestration.loading import load
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
    """Call `load`, start the switches, `manager.settle` each, and keep `run` running.

    Its parts know those before them, and none knows the registry:

        engine ◄── manager (the switches) ◄── demands (for slots) ◄── installer
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
        self.engine = Engine(clock, interval_s=config.heartbeat_interval_s)
        self.manager = SwitchManager(config, store, switches, self.engine)
        self.demands = Demands(self.manager, self.book)
        self.installer = Installer(self.manager, self.demands)
        self.renewer = Renewer(self.manager, self.book, self.installer, self.timing)
        self.waitlist = Waitlist(self.manager, self.book, self.demands, self.renewer)
        self.adoption = Adoption(self.manager, self.book, self.renewer, self.timing)
        self.sessions = Sessions(self.manager, self.book, self.renewer, self.adoption, self.timing)
        self.switches, self.links = self.manager.switches, self.manager.links
        self.allocations = self.manager.allocations
        self._phase_unsaved: set[Record] = set()
        self.engine.stood_still.append(self._forgive)
        spawn, renewer, waitlist = self.engine.spawn, self.renewer, self.waitlist
        self.engine.handlers = {
            effects.Tell: self.sessions.tell,
            effects.Vacated: self._vacated,
            effects.Install: self._install,
            effects.Started: self._started,
            effects.Relocate: lambda record, effect: spawn(waitlist.relocate(record, effect)),
            effects.Stayed: waitlist.stayed,
            effects.Interrupted: renewer.interrupted,
            effects.Forgotten: renewer.forgotten,
            effects.Detach: self._detach,
            effects.Rebuild: lambda record, effect: spawn(renewer.rebuild(record, effect.renewal)),
            effects.Renumbered: self.sessions.renumbered,
            effects.WentOn: waitlist.went_on,
            effects.Lost: lambda record, effect: spawn(renewer.go_on_without(record, effect)),
            effects.Over: self._over,
        }

    # Jobs.

    def jobs(self) -> list[Record]:
        """The last job of each name, by name."""
        return list(self.book)

    def job(self, name: str) -> Record:
        """The last job of that name; NotFoundError."""
        return self.book.job(name)

    def create_job(self, spec: JobSpec) -> Record:
        """Make a job that workers may join any number of times, one run after the other."""
        planning.check_spec(self.config, spec)
        spec = replace(spec, tenant=tenant_of(spec.tenant))
        known = self.book.by_name.get(spec.name)
        if known is not None and (known.job.live or spec.name in self.book.specs):
            raise ConflictError(f"there is a job {spec.name} already: delete it first, or use another name")
        self.store.save_spec(spec)
        self.book.specs[spec.name] = spec
        record = self.book.by_name[spec.name] = Record(Job(spec, self.timing, explicit=True))
        return record

    def delete_job(self, name: str) -> Record:
        """End a job if it runs, and forget it. NotFoundError.

        Where the database raises something, the job has ended, and can be deleted once more.
        """
        record = self.job(name)
        self.engine.act(record, lambda job, now: job.end(f"job {name} was deleted", EndCause.DELETED))
        self.store.forget_spec(name)
        if record.generation is not None:
            self.store.save_phase(record.generation, Phase.ENDED, record.job.outcome, deleted=True)
        self.store.hide(name)
        self.book.specs.pop(name, None)
        del self.book.by_name[name]
        record.deleted = True
        return record

    # What their state machines ask for.

    def _vacated(self, record: Record, effect: effects.Vacated) -> None:
        name = record.job.spec.name
        if not record.job.explicit and not record.job.workers and self.book.by_name.get(name) is record:
            del self.book.by_name[name]

    def _install(self, record: Record, effect: effects.Install) -> None:
        record.installing = True
        self.engine.spawn(self._installed(record))

    async def _installed(self, record: Record) -> None:
        job, why = record.job, ""
        tokens = {rank: secrets.token_bytes(_TOKEN_BYTES) for rank in job.workers}
        try:
            job.plan = plan = await self.installer.set_up(record)
            # From here on there is something to take away.
            self.store.save_job(stored(job, plan, record.allocations.values(), Phase.READY, tokens))
        except (ControllerError, StoreError, sqlite3.Error) as error:
            why = self.store.explain(error)
        except Exception as error:
            logger.exception("job %s: a defect in the controller", job.spec.name)
            why = f"a defect in the controller, its log says more: {error!r}"
        record.installing = False
        if not job.live:  # a worker died meanwhile
            self.engine.post(record, effects.Over())
        elif why:
            reason = f"job {job.spec.name} could not be set up: {why}"
            self.engine.act(record, lambda job, now: job.end(reason, EndCause.NOT_SET_UP))
        else:
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
        """A job has ended, or one that has is not being written any more."""
        job = record.job
        if record.ended_at is None:
            record.ended_at = self.clock()
            self.book.ended(record)
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

    def _save_phase(self, record: Record) -> None:
        """The workers are told in any case: a database that fails must not stop them."""
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
        """Until cancelled: keep heartbeats, timeouts, probes and leftovers going."""
        steps = (self.config.heartbeat_interval_s / 4, self.config.probe_interval_s / 2)
        while True:
            await asyncio.sleep(min(step for step in steps if step > 0))
            try:
                self.tick()
            except Exception:  # one job's defect must not silence the heartbeats of all
                logger.exception("a defect in the controller")

    def tick(self) -> None:
        """Time has passed."""
        now = self.engine.awake()
        for record in list(self.book.by_name.values()):
            self.engine.act(record, lambda job, now: job.tick(now))
        for record in list(self._phase_unsaved):
            self._save_phase(record)
        self.book.retired.tick(now)
        self.manager.tick()
        self.renewer.tick()
        self.waitlist.tick()

    def _forgive(self, seconds: float, now: float) -> None:
        """The process itself stood still: workers that nobody could tell anything still send."""
        self.adoption.forgive(seconds, now)
        for record in self.allocations.holding:
            record.free_at += seconds
        for record in self.book.by_name.values():
            record.job.forgive(seconds, now)

    def listens(self) -> None:
        """From now on workers can come back: the time that they have for it begins."""
        now = self.engine.begin_anew()
        for record in self.book.by_name.values():
            record.job.expect_back(now)
        for record in self.allocations.remains:  # its workers could not be told yet, and still send
            record.free_at = max(record.free_at, now + self.renewer.guarding_s)

    def load(self) -> None:
        """Take over what the database knows; StoreError where it does not fit the configuration."""
        load(self.manager, self.book, self.renewer, self.timing)

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
