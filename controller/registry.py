"""All jobs, and what their state machines ask for: sessions, slots, switches, the database."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller import planning
from controller.api.errors import (
    ConflictError,
    ControllerError,
    NotFoundError,
    NotPossibleError,
)
from controller.config import Config
from controller.entries import Entry
from controller.fabric import ManagedSwitch, collide, guards_of
from controller.jobs import (
    Ended,
    Install,
    Job,
    JobSpec,
    Left,
    Member,
    Over,
    Phase,
    Started,
    Tell,
    Timing,
)
from controller.sessions import Session
from controller.setup import Installer, stored
from controller.store import Place, Store, StoredJob, StoreError

logger = logging.getLogger(__name__)

_REMEMBERED = 100  # ended jobs
_STRAGGLERS_S = 2.0  # how long packets of workers that know of their job's end may still be under way
_TOKEN_BYTES = 16


@dataclass(eq=False)
class Running:
    """A job, its workers' sessions by rank, and its place on a switch (None: it has none there).

    `free_at`: when the guards of an ended job may go; `installing`: the switch is being written.
    """

    job: Job
    place: Place | None = None
    sessions: dict[int, Session] = field(default_factory=dict)
    installing: bool = False
    cleaning: bool = False
    flows_removed: bool = False
    free_at: float = 0.0
    deleted: bool = False

    @property
    def generation(self) -> int | None:
        """None before there is a plan."""
        return self.job.plan.generation if self.job.plan is not None else None


class Registry:
    """Call `load`, start the switches, `settle`, and keep `run` running. Not thread-safe: one event loop."""

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
        self.switches = {switch.name: switch for switch in switches}
        self.clock = clock
        self._timing = Timing(
            heartbeat_interval_s=config.heartbeat_interval_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            resume_timeout_s=config.resume_timeout_s,
        )
        self._installer = Installer(config, store, self.switches, make_room=self._make_room)
        self._jobs: dict[str, Running] = {}  # the last one of each name
        self._specs: dict[str, JobSpec] = {}  # made by CreateJob
        self._by_generation: dict[int, Running] = {}
        self._remains: list[Running] = []  # ended, and not off the switch
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticked_at: float | None = None
        self.stopping = False
        for switch in switches:
            switch.switch.guards = functools.partial(self._guards, switch)

    # Jobs.

    def jobs(self) -> list[Running]:
        """The last job of each name, by name."""
        return [self._jobs[name] for name in sorted(self._jobs)]

    def job(self, name: str) -> Running:
        """The last job of that name; NotFoundError."""
        running = self._jobs.get(name)
        if running is None:
            raise NotFoundError(f"there is no job {name!r}")
        return running

    def create_job(self, spec: JobSpec) -> Running:
        """Make a job that workers may join any number of times, one run after the other."""
        planning.check_spec(self.config, spec)
        known = self._jobs.get(spec.name)
        if known is not None and (known.job.live or spec.name in self._specs):
            raise ConflictError(f"there is a job {spec.name} already: delete it first, or use another name")
        self.store.save_spec(spec)
        self._specs[spec.name] = spec
        self._jobs[spec.name] = Running(Job(spec, self._timing, explicit=True))
        return self._jobs[spec.name]

    def delete_job(self, name: str) -> Running:
        """End a job if it runs, and forget it. NotFoundError."""
        running = self.job(name)
        self.act(running, lambda job, now: job.end(f"job {name} was deleted"))
        self._specs.pop(name, None)
        self.store.forget_spec(name)
        del self._jobs[name]
        running.deleted = True
        if running.place is None and running.generation is not None:
            self.store.forget_job(running.generation)
        return running

    # Sessions.

    def join(self, name: str, world_size: int, member: Member) -> Session:
        """Take a worker in. ControllerError says why not; nobody else notices then."""
        running = self._jobs.get(name)
        if running is None or not running.job.live:
            running = Running(self._new_job(name, world_size))
        running.job.check(member, world_size)
        self._check_qps(member)
        self._jobs[name] = running
        session = running.sessions[member.rank] = Session(self, running, member.rank)
        self.act(running, lambda job, now: job.join(member, world_size, now))
        return session

    def resume(self, name: str, generation: int, rank: int, token: bytes) -> Session:
        """Take a worker back. NotFoundError, InvalidRequestError."""
        running = self._by_generation.get(generation)
        if running is None or running.job.spec.name != name:
            raise NotFoundError(f"there is no job {name!r} with generation {generation}: it ended long ago")
        session = Session(self, running, rank)
        before = running.sessions.get(rank)

        def take_back(job: Job, now: float) -> None:
            job.resume(rank, token, now)
            running.sessions[rank] = session

        self.act(running, take_back)
        if before is not None:
            before.events.put_nowait(None)
        return session

    def act(self, running: Running, call: Callable[[Job, float], None]) -> None:
        """Call a job's state machine, and do what it asks for."""
        call(running.job, self.clock())
        for effect in running.job.take_effects():
            if isinstance(effect, Tell):
                self._tell(running, effect)
            elif isinstance(effect, Install):
                running.installing = True
                self._spawn(self._install(running))
            elif isinstance(effect, Started):
                self._save_phase(running)
            elif isinstance(effect, Over):
                self._over(running)
        name = running.job.spec.name
        if (
            running.job.phase is Phase.CREATED
            and not running.job.explicit
            and self._jobs.get(name) is running
        ):
            del self._jobs[name]  # everybody withdrew

    def _tell(self, running: Running, effect: Tell) -> None:
        session = running.sessions.get(effect.rank)
        if session is None:
            return
        session.events.put_nowait(effect.event)
        if isinstance(effect.event, (Left, Ended)):
            session.told = effect.event
            session.events.put_nowait(None)
            del running.sessions[effect.rank]

    def _new_job(self, name: str, world_size: int) -> Job:
        spec = self._specs.get(name)
        if spec is not None:
            return Job(spec, self._timing, explicit=True)
        if not self.config.auto_create:
            raise NotFoundError(
                f"there is no job {name!r}: create it first (p4reduce job create), this controller makes "
                "none by itself"
            )
        spec = JobSpec(name=name, world_size=world_size)
        planning.check_spec(self.config, spec)
        return Job(spec, self._timing)

    def _check_qps(self, member: Member) -> None:
        wanted = {member.qpn_in, member.qpn_out}
        for running in self._jobs.values():
            if not running.job.live:
                continue
            for other in running.job.members:
                taken = wanted & {other.qpn_in, other.qpn_out}
                if other.ip == member.ip and taken:
                    raise ConflictError(
                        f"QP {min(taken):#x} of host {member.host} ({member.ip}) belongs to {other} of job "
                        f"{running.job.spec.name}: use another QP number"
                    )

    # Setting up.

    async def _install(self, running: Running) -> None:
        job = running.job
        tokens = {rank: secrets.token_bytes(_TOKEN_BYTES) for rank in job.seats}
        try:
            plan, running.place = await self._installer.set_up(job)
            job.plan = plan  # from here on there is something to take away
            self.store.save_job(stored(job, plan, running.place, tokens, Phase.READY))
        except (ControllerError, StoreError, sqlite3.Error) as error:
            self._not_installed(running, str(error))
            return
        except Exception as error:
            logger.exception("job %s: a defect in the controller", job.spec.name)
            self._not_installed(running, f"a defect in the controller, its log says more: {error!r}")
            return
        running.installing = False
        if not job.live:  # a worker died meanwhile
            self._over(running)
            return
        self._by_generation[plan.generation] = running
        logger.info(
            "job %s: generation %d, %d workers, %s%s",
            *(job.spec.name, plan.generation, job.spec.world_size, plan.mode.name),
            f" ({plan.mode_reason})" if plan.mode_reason else "",
        )
        self.act(running, lambda job, now: job.planned(plan, tokens, now))

    def _not_installed(self, running: Running, why: str) -> None:
        running.installing = False
        if running.job.live:
            reason = f"job {running.job.spec.name} could not be set up: {why}"
            self.act(running, lambda job, now: job.end(reason))
        else:
            self._over(running)

    async def _make_room(self, switch: ManagedSwitch, entries: Sequence[Entry]) -> None:
        """Take ended jobs away whose guards are in the way; the switch is locked."""
        for running in [r for r in self._remains if r.place and collide(r.place, entries)]:
            await self._remove(running, switch)

    def _save_phase(self, running: Running) -> None:
        """The workers are told in any case: a database that fails must not stop them."""
        if running.generation is None:
            return
        try:
            self.store.save_phase(running.generation, running.job.phase, running.job.outcome)
        except sqlite3.Error as error:
            logger.error("%s: job %s is not saved: %s", self.store.path, running.job.spec.name, error)

    # Ending.

    def _over(self, running: Running) -> None:
        job = running.job
        if running.installing:
            return  # _install comes back here
        self._save_phase(running)
        if isinstance(job.outcome, Ended):
            logger.warning("job %s ended: %s", job.spec.name, job.outcome.reason)
        else:
            logger.info("job %s: all workers have left", job.spec.name)
        if running.place is not None:
            never_sent = isinstance(job.outcome, Left) or not any(seat.token for seat in job.seats.values())
            running.free_at = self.clock() + (0.0 if never_sent else self._guarding_s)
            self._remains.append(running)
            self._spawn(self._clean(running))
        self._forget_old()

    @property
    def _guarding_s(self) -> float:
        """How long an ended job has guards where not all workers are known to know."""
        return self._timing.patience_s + _STRAGGLERS_S

    async def _clean(self, running: Running) -> None:
        """Take an ended job off its switch as far as its workers allow; `tick` comes back to the rest."""
        if running.cleaning or running.place is None:
            return
        switch = self.switches[running.place.switch]
        running.cleaning = True
        try:
            async with switch.lock:
                if not switch.ready or running.place is None:
                    return
                if self.clock() >= running.free_at:
                    await self._remove(running, switch)
                elif not running.flows_removed:
                    await switch.remove_flows(running.place)
                    running.flows_removed = True
        except (ControllerError, sqlite3.Error) as error:
            logger.warning("job %s is not off switch %s yet: %s", running.job.spec.name, switch.name, error)
        finally:
            running.cleaning = False

    async def _remove(self, running: Running, switch: ManagedSwitch) -> None:
        """Take all of an ended job off its switch, which is locked."""
        if running.place is None or running.generation is None:
            return
        await switch.remove(running.place)
        self._freed(running, switch)

    def _freed(self, running: Running, switch: ManagedSwitch) -> None:
        """The switch holds nothing of the job any more."""
        assert running.place is not None
        assert running.generation is not None
        # First the database: what it still has must not be given to another job.
        self.store.release(running.generation)
        if running.deleted:
            self.store.forget_job(running.generation)
        switch.allocator.release(running.place.region)
        running.place = None
        self._remains.remove(running)

    def _forget_old(self) -> None:
        ended = [g for g, running in self._by_generation.items() if not running.job.live]
        for generation in ended[:-_REMEMBERED]:
            del self._by_generation[generation]
        names = [name for name, r in self._jobs.items() if not r.job.live and name not in self._specs]
        for name in names[:-_REMEMBERED]:
            del self._jobs[name]

    # Switches.

    def on_switch_change(self, name: str) -> None:
        """A switch came or went."""
        switch = self.switches[name]
        switch.changed(self.clock())
        if switch.switch.connected:
            self._spawn(self.settle(switch))

    async def settle(self, switch: ManagedSwitch) -> None:
        """Hold a switch that is connected against what it should have; jobs that it has forgotten end."""
        if switch.ready or switch.settling:
            return
        switch.settling = True
        try:
            async with switch.lock:
                found = await switch.switch.read_entries()
                for running in self._on(switch):
                    assert running.place is not None
                    if (
                        running.job.live
                        and not running.installing
                        and not found.issuperset(running.place.entries)
                    ):
                        reason = f"switch {switch.name} was restarted, and has forgotten the job's sums"
                        self.act(running, lambda job, now, reason=reason: job.end(reason))  # type: ignore[misc]
                await switch.adopt(self._places(switch))
        except ControllerError as error:
            logger.warning("switch %s: %s", switch.name, error)
        finally:
            switch.settling = False

    async def push(self, name: str, *, force: bool) -> list[ManagedSwitch]:
        """The program anew, into one switch or (empty name) all. NotFoundError, NotPossibleError."""
        if name and name not in self.switches:
            raise NotFoundError(f"there is no switch {name!r}, known are {', '.join(self.switches)}")
        chosen = [switch for switch in self.switches.values() if name in ("", switch.name)]
        for switch in chosen:
            jobs = sorted(r.job.spec.name for r in self._on(switch) if r.job.live)
            if jobs and not force:
                raise NotPossibleError(
                    f"switch {switch.name} serves {', '.join(jobs)}: a new program would end that; wait, or "
                    "force it"
                )
        for switch in chosen:
            reason = f"switch {switch.name} was loaded with its program anew"
            async with switch.lock:
                for running in self._on(switch):
                    self.act(running, lambda job, now, reason=reason: job.end(reason))  # type: ignore[misc]
                await switch.switch.push()
                await switch.adopt(self._places(switch))  # guards stay until no worker can send any more
                for running in self._remains:
                    if running.place is not None and running.place.switch == switch.name:
                        running.flows_removed = True
        return chosen

    def _places(self, switch: ManagedSwitch) -> list[tuple[Place, bool]]:
        """What jobs have on a switch, and which are live."""
        return [(r.place, r.job.live) for r in self._on(switch) if r.place is not None]

    def _guards(self, switch: ManagedSwitch) -> list[Entry]:
        """What a switch must hold before it has routes, so that no sum's parts reach a worker."""
        return guards_of(self._places(switch))

    def _on(self, switch: ManagedSwitch) -> list[Running]:
        """All jobs with a place on a switch."""
        live = [running for running in self._jobs.values() if running not in self._remains]
        return [r for r in [*live, *self._remains] if r.place is not None and r.place.switch == switch.name]

    # Time.

    async def run(self) -> None:
        """Until cancelled: keep heartbeats, timeouts and leftovers going."""
        while True:
            await asyncio.sleep(self.config.heartbeat_interval_s / 4)
            try:
                self.tick()
            except Exception:  # one job's defect must not silence the heartbeats of all
                logger.exception("a defect in the controller")

    def tick(self) -> None:
        """Time has passed."""
        now = self.clock()
        period = self.config.heartbeat_interval_s
        late = 0.0 if self._ticked_at is None else now - self._ticked_at - period
        self._ticked_at = now
        for running in list(self._jobs.values()):
            if late > 0:
                running.job.forgive(late)
            self.act(running, lambda job, now: job.tick(now))
        for switch in self.switches.values():
            if switch.switch.connected and not switch.ready:
                self._spawn(self.settle(switch))
            elif switch.lost_for(now) > self.config.switch_timeout_s:
                self._give_up(switch)
        for running in self._remains:
            if all(seat.knows_end for seat in running.job.seats.values()):
                running.free_at = min(running.free_at, now + _STRAGGLERS_S)
            if self._on_ready_switch(running) and (now >= running.free_at or not running.flows_removed):
                self._spawn(self._clean(running))

    def _on_ready_switch(self, running: Running) -> bool:
        return running.place is not None and self.switches[running.place.switch].ready

    def _give_up(self, switch: ManagedSwitch) -> None:
        for running in self._on(switch):
            reason = (
                f"switch {switch.name} has been away for more than {self.config.switch_timeout_s:g} s: "
                f"{switch.switch.state}"
            )
            self.act(running, lambda job, now, reason=reason: job.end(reason))  # type: ignore[misc]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a defect in the controller", exc_info=error)

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        """End all sessions but no job: workers resume when the controller is back."""
        self.stopping = True
        for running in {*self._jobs.values(), *self._by_generation.values()}:
            for session in running.sessions.values():
                session.events.put_nowait(None)
            running.sessions.clear()

    # From before a restart.

    def load(self) -> None:
        """Take over what the database knows; StoreError where it does not fit the configuration."""
        now = self.clock()
        for switch in self.switches.values():
            switch.changed(now)
        for spec in self.store.specs():
            self._specs[spec.name] = spec
            self._jobs[spec.name] = Running(Job(spec, self._timing, explicit=True))
        for known in self.store.jobs():
            self._load(known, now)

    def _load(self, known: StoredJob, now: float) -> None:
        job = Job.recovered(
            known.spec,
            self._timing,
            known.plan,
            known.workers,
            explicit=known.explicit,
            running=known.phase is Phase.RUNNING,
            now=now,
        )
        running = Running(job, known.place)
        generation = known.plan.generation
        self._by_generation[generation] = running
        if known.explicit == (known.spec.name in self._specs):
            self._jobs[known.spec.name] = running
        place = known.place
        if place is not None:
            switch = self.switches.get(place.switch)
            if switch is None:
                logger.warning("job %s was on switch %s, which is gone", known.spec.name, place.switch)
                self.store.release(generation)
                running.place = None
                job.end(f"switch {place.switch} is no longer in the controller's configuration")
            else:
                try:
                    switch.allocator.take(place.region)
                except ValueError as error:
                    raise StoreError(f"{self.store.path}: generation {generation}: {error}") from error
        if known.outcome is not None:
            job.phase, job.outcome = Phase.ENDED, known.outcome
            if running.place is not None:
                running.free_at = now + self._guarding_s
                self._remains.append(running)
            return
        if known.phase is Phase.INSTALLING:
            job.end("the controller was restarted while the job was set up")
        self.act(running, lambda job, now: None)
