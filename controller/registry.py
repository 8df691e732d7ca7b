"""All jobs, and what their state machines ask for: sessions, slots, switches, the database."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controller import planning
from controller.admission import Quotas, tenant_of
from controller.adoption import Account, Adoption
from controller.api.errors import (
    ConflictError,
    ControllerError,
    NotFoundError,
    NotPossibleError,
    QueuePairTakenError,
)
from controller.api.messages import EndCause, Ended, JobSpec, Left, Mode, RcParameters, Ready, Renewing
from controller.config import Config
from controller.events import (
    Detach,
    Install,
    Interrupted,
    Lost,
    Over,
    Rebuild,
    Relocate,
    Renumbered,
    Started,
    Stayed,
    Superseded,
    Tell,
    WentOn,
)
from controller.fabric import ManagedSwitch
from controller.guarding import require_token, token_hash
from controller.jobs import Job
from controller.keeper import Keeper
from controller.places import stored
from controller.renewals import Cause
from controller.renewer import Renewer
from controller.renumbering import Renumbering
from controller.retired import STRAGGLERS_S, RetiredQueuePairs
from controller.running import Running
from controller.sessions import Session
from controller.specs import Member, Phase, Plan, Timing
from controller.store import Store, StoredJob, StoreError
from controller.waitlist import Waitlist

logger = logging.getLogger(__name__)

_REMEMBERED = 100  # ended jobs
_TOKEN_BYTES = 16
_ALL_GENERATIONS = 1 << 32
_MOST_AHEAD = 1 << 20  # generations, of all workers that tell of one
_MOST_OFFERS = 256  # in one renewal, of workers that cannot have the numbers of their new queue pairs


class Registry(Keeper):
    """Call `load`, start the switches, `settle`, and keep `run` running. Not thread-safe: one event loop."""

    def __init__(
        self,
        config: Config,
        store: Store,
        switches: Sequence[ManagedSwitch],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config, store, switches, clock=clock)
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
        self._jobs: dict[str, Running] = {}  # the last one of each name
        self._specs: dict[str, JobSpec] = {}  # made by CreateJob
        self._by_generation: dict[int, Running] = {}
        self._unsaved: set[Running] = set()  # whose phase the database does not know
        self._ticked_at: float | None = None
        self._left_out = 0  # generations, because workers say that they were given out
        self.retired = RetiredQueuePairs()
        self.stopping = False
        self.waitlist = Waitlist(self)
        self.renewer = Renewer(self)
        self.adoption = Adoption(self)
        self.renumbering = Renumbering(self)

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
        spec = replace(spec, tenant=tenant_of(spec.tenant))
        known = self._jobs.get(spec.name)
        if known is not None and (known.job.live or spec.name in self._specs):
            raise ConflictError(f"there is a job {spec.name} already: delete it first, or use another name")
        self.store.save_spec(spec)
        self._specs[spec.name] = spec
        self._jobs[spec.name] = Running(Job(spec, self.timing, explicit=True))
        return self._jobs[spec.name]

    def delete_job(self, name: str) -> Running:
        """End a job if it runs, and forget it. NotFoundError.

        Where the database raises something, the job has ended, and can be deleted once more.
        """
        running = self.job(name)
        self.act(running, lambda job, now: job.end(f"job {name} was deleted", EndCause.DELETED))
        self.store.forget_spec(name)
        if running.generation is not None:
            self.store.save_phase(running.generation, Phase.ENDED, running.job.outcome, deleted=True)
        self.store.hide(name)
        self._specs.pop(name, None)
        del self._jobs[name]
        running.deleted = True
        return running

    # Sessions.

    def set_quotas(self, quotas: Quotas | None) -> None:
        """Other quotas of slots (None: the configuration's)."""
        self.waitlist.set_quotas(quotas)

    def join(
        self,
        name: str,
        world_size: int,
        member: Member,
        tenant: str = "",
        *,
        elastic: bool = False,
        token: str = "",
    ) -> Session:
        """Take a worker in. ControllerError says why not; nobody else notices then."""
        running = self._jobs.get(name)
        if running is None or not running.job.live:
            running = Running(self._new_job(name, world_size, tenant, elastic=elastic, token=token))
        require_token(running.job.spec, token)
        tenant = tenant_of(tenant)
        before = running.sessions.get(member.rank)
        joining = running.job.phase is Phase.JOINING
        if before is not None and joining and running.job.seats[member.rank].member == member:
            before.broken()  # this worker's own, of which nobody has noticed that it is gone
        if running.job.has_not_heard(member):
            return self._told_again(running, member.rank)
        running.job.check(member, world_size, tenant, elastic=elastic)
        if why := self._why_not_qps(member):
            raise QueuePairTakenError(f"{why}: use another QP number")
        self._jobs[name] = running
        session = running.sessions[member.rank] = Session(self, running, member.rank)
        self.act(running, lambda job, now: job.join(member, world_size, now, tenant, elastic=elastic))
        return session

    def _told_again(self, running: Running, rank: int) -> Session:
        """A worker was taken in, and its session broke before it could hear so."""
        session, before = Session(self, running, rank), running.sessions.get(rank)
        running.sessions[rank] = session
        self.act(running, lambda job, now: job.join_again(rank, now))
        if before is not None:
            before.events.put_nowait(None)
        return session

    def host_of(self, name: str, generation: int, rank: int, token: bytes) -> str:
        """The host that a worker joined from, which wants to resume. As `resume`."""
        job = self._of_worker(name, generation, token).job
        return job.seats[job.rank_of(rank, token, generation)].member.host

    def resume(
        self,
        name: str,
        generation: int,
        rank: int,
        token: bytes,
        account: Account | None = None,
        *,
        answered: int = 0,
    ) -> Session:
        """Take a worker back, which knows of that generation. NotFoundError, InvalidRequestError,
        NotPossibleError, ConflictError.

        `account`: what it knows, where the job or that generation is not known here. As `Adoption.hear`.
        `answered`: as `Job.resume`.
        """
        if account is not None and not self.knows(name, generation, token):
            self.adoption.hear(account)
        running = self._of_worker(name, generation, token)
        known = running.job.rank_of(rank, token, generation)
        self.count_behind(name, max(generation, answered))
        session = Session(self, running, known, token)
        before = running.sessions.get(known)

        def take_back(job: Job, now: float) -> None:
            running.sessions[known] = session
            job.resume(rank, token, now, generation, answered)

        self.act(running, take_back)
        if before is not None:
            before.events.put_nowait(None)
        if account is not None and generation > (running.generation or 0):
            running.later[token] = generation, frozenset((account.member.qpn_in, account.member.qpn_out))
        return session

    def count_behind(self, name: str, generation: int) -> None:
        """A worker of that job knows of a generation: of a later one than the database, where that is old.

        ConflictError, and the worker goes on as it is, where that would leave out too many of them, by itself
        or with what others have said: no worker can make the numbers run out.
        """
        newest = self.store.newest_generation
        ahead = max(0, generation - newest)
        if self._left_out + ahead > _MOST_AHEAD:
            raise ConflictError(
                f"job {name}: no controller can have given out generation {generation}, the newest is "
                f"{newest}; if one has, this machine's clock was wrong when the database was made: set it, "
                "and begin another database"
            )
        self.store.outlive(generation)
        self._left_out += ahead

    def knows(self, name: str, generation: int, token: bytes) -> bool:
        """Whether a worker that wants to resume is of a job that was ever heard of."""
        try:
            self._of_worker(name, generation, token)
        except NotFoundError:
            return False
        except NotPossibleError:
            return True
        return True

    def is_behind(self, name: str, generation: int, token: bytes) -> bool:
        """Whether a worker that wants to resume has a later generation than is known here, or nothing is."""
        if not self.knows(name, generation, token):
            return True
        return generation > (self._of_worker(name, generation, token).generation or 0)

    def known_job(self, name: str) -> Running | None:
        """The last job of that name, if there is one."""
        return self._jobs.get(name)

    def has_generation(self, generation: int) -> bool:
        """Whether a job that is known has or had that number."""
        return generation in self._by_generation

    def took_over(self, running: Running) -> None:
        """A job that was not known runs here from now on."""
        assert running.generation is not None
        self._jobs[running.job.spec.name] = self._by_generation[running.generation] = running
        self.upkeep.placed(running)

    def _of_worker(self, name: str, generation: int, token: bytes) -> Running:
        """The job of a worker; it may have gone on under another generation, here or before a restart."""
        running = self._jobs.get(name)
        if running is not None and running.job.live and running.job.knows(token):
            return running
        running = self._by_generation.get(generation)
        if running is None or running.job.spec.name != name:
            raise NotFoundError(f"there is no job {name!r} with generation {generation}: it ended long ago")
        if isinstance(running.job.outcome, Superseded):
            for later in reversed(self._by_generation.values()):
                job = later.job
                if job.spec.name == name and job.knows(token) and not isinstance(job.outcome, Superseded):
                    return later
            raise NotPossibleError(
                f"job {name} went on after generation {generation} without this worker, which had been away "
                "for too long"
            )
        return running

    def renewing(self, session: Session, standing: Renewing) -> None:
        """A worker answers a renewal; all are asked again where it cannot have its new QPs' numbers.

        InvalidRequestError, QueuePairTakenError.
        """
        running, rank = session.running, session.rank
        member = running.job.seats[rank].member
        planning.check_qps(
            str(member), qpn_out=standing.qpn_out, psn_out=standing.psn_out, qpn_in=standing.qpn_in
        )
        self.renewer.stands(running, rank)
        self.retired.stopped(running.job.seats[rank].token, standing.renewal, self.clock())
        if running.job.awaits(rank, standing.renewal):
            new = replace(member, qpn_out=standing.qpn_out, qpn_in=standing.qpn_in)
            if why := self._why_not_qps(new):
                running.refused += 1
                if running.refused > _MOST_OFFERS:
                    raise QueuePairTakenError(f"{why}: new ones were asked for {_MOST_OFFERS} times")
                self.renewer.begin(running, Cause.INTERRUPTED, f"{why}: {member} needs other queue pairs")
                return
        self.act(running, lambda job, now: job.renewing(rank, standing, now))

    def took_end(self, session: Session) -> None:
        """A worker ended its session after it was told that the job is over: it sends nothing more."""
        running = session.running
        self.retired.stopped(session.token, _ALL_GENERATIONS, self.clock())
        if session.told is running.job.outcome:  # else the job went on, and the rank may be another's
            self.act(running, lambda job, now: job.heard_end(session.rank))

    def renewed(self, running: Running, plan: Plan) -> None:
        """A job has its places in a new generation."""
        running.refused = 0
        self._by_generation[plan.generation] = running
        self._leave_later(running)
        logger.info(
            "job %s: generation %d, %d workers, %s%s%s",
            *(running.job.spec.name, plan.generation, running.job.world_size, plan.mode.name),
            " over the backup interfaces" if plan.backup else "",
            f" ({plan.mode_reason})" if plan.mode_reason else "",
        )
        self.act(running, lambda job, now: job.renewed(plan, now))

    def _leave_later(self, running: Running) -> None:
        """All workers of a job have answered a Renew: generations that only they knew of are over."""
        later, running.later = running.later, {}
        seats = {seat.token: seat for seat in running.job.seats.values()}
        qps = frozenset(
            (int(seats[token].member.ip), qpn)
            for token, (_, qpns) in later.items()
            for qpn in qpns
            if token in seats
        )
        generations = frozenset(generation for generation, _ in later.values())
        away = frozenset(int(seat.member.ip) for seat in running.job.departed.values())
        if qps:
            self.spawn(self.places.outgrown(generations, qps, away))

    def act(self, running: Running, call: Callable[[Job, float], None]) -> None:
        """Call a job's state machine, and do what it asks for."""
        self.waitlist.touched()
        call(running.job, self.clock())
        for effect in running.job.take_effects():
            if isinstance(effect, Tell):
                self._tell(running, effect)
            elif isinstance(effect, Install):
                running.installing = True
                self.spawn(self._install(running))
            elif isinstance(effect, Started):
                self._save_phase(running)
                self.waitlist.started(running)
            elif isinstance(effect, Relocate):
                self.spawn(self.waitlist.relocate(running, effect))
            elif isinstance(effect, Stayed):
                self.waitlist.stayed(running, effect.reason)
            elif isinstance(effect, Lost):
                self.spawn(self.renewer.bury(running, effect))
            elif isinstance(effect, Interrupted):
                self.renewer.begin(running, effect.cause, effect.reason)
            elif isinstance(effect, Detach):
                self.retired.retire(running.job)
                self.renewer.detach(running)
            elif isinstance(effect, Rebuild):
                self.spawn(self.renewer.rebuild(running, effect.renewal))
            elif isinstance(effect, Renumbered):
                _renumber(running, effect)
            elif isinstance(effect, WentOn):
                self.waitlist.went_on(running, effect.cause)
            elif isinstance(effect, Over):
                self.over(running)
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
        if isinstance(effect.event, Ready):
            session.token = effect.event.resume_token
        elif isinstance(effect.event, (Left, Ended)):
            session.told = effect.event
            session.events.put_nowait(None)
            del running.sessions[effect.rank]

    def _new_job(self, name: str, world_size: int, tenant: str, *, elastic: bool, token: str) -> Job:
        spec = self._specs.get(name)
        if spec is not None:
            return Job(spec, self.timing, explicit=True)
        if not self.config.auto_create:
            raise NotFoundError(
                f"there is no job {name!r}: create it first (p4reduce job create), this controller makes "
                "none by itself"
            )
        spec = JobSpec(
            name=name,
            world_size=world_size,
            tenant=tenant_of(tenant),
            elastic=elastic,
            token_hash=token_hash(token),
        )
        planning.check_spec(self.config, spec)
        return Job(spec, self.timing)

    def _why_not_qps(self, member: Member) -> str:
        """Why a worker cannot have these numbers, also where it has them now; empty if it can."""
        wanted = {member.qpn_in, member.qpn_out}
        for name, orphans in self.places.orphans.items():
            for orphan in orphans:
                if taken := {qpn for qpn in wanted if (int(member.ip), qpn) in orphan.qps}:
                    return (
                        f"QP {min(taken):#x} of host {member.host} ({member.ip}) belongs to a job on switch "
                        f"{name} that the controller's database does not know"
                    )
        return self.who_has_qps(member)

    def who_has_qps(self, member: Member) -> str:
        """Which job that is known has or had a worker's numbers on its host; empty if none."""
        wanted = {member.qpn_in, member.qpn_out}
        for running in self._jobs.values():
            if not running.job.live:
                continue
            for other in (*running.job.members, *running.job.offered):
                taken = wanted & {other.qpn_in, other.qpn_out}
                if other.ip == member.ip and taken:
                    return (
                        f"QP {min(taken):#x} of host {member.host} ({member.ip}) belongs to {other} of job "
                        f"{running.job.spec.name}"
                    )
        return self.retired.why_not(member.ip, wanted, self.clock())

    # Setting up.

    async def _install(self, running: Running) -> None:
        job = running.job
        tokens = {rank: secrets.token_bytes(_TOKEN_BYTES) for rank in job.seats}
        try:
            plan = await self.installer.set_up(running)
            job.plan = plan  # from here on there is something to take away
            self.store.save_job(stored(job, plan, running.places.values(), Phase.READY, tokens))
        except (ControllerError, StoreError, sqlite3.Error) as error:
            self._not_installed(running, self.trouble(error))
            return
        except Exception as error:
            logger.exception("job %s: a defect in the controller", job.spec.name)
            self._not_installed(running, f"a defect in the controller, its log says more: {error!r}")
            return
        running.installing = False
        if not job.live:  # a worker died meanwhile
            self.over(running)
            return
        self._by_generation[plan.generation] = running
        self.upkeep.placed(running)
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
            self.act(running, lambda job, now: job.end(reason, EndCause.NOT_SET_UP))
        else:
            self.over(running)

    def _save_phase(self, running: Running) -> None:
        """The workers are told in any case: a database that fails must not stop them."""
        if running.generation is None:
            return
        job = running.job
        try:
            if running.unsaved and not job.live:
                self.renewer.save_ended(running)
            if job.departed and not job.live:  # they may still send, and a restart must know that
                self.store.save_dropped(running.generation, job.departures)
            self.store.save_phase(running.generation, job.phase, job.outcome, deleted=running.deleted)
        except sqlite3.Error as error:
            if running not in self._unsaved:
                logger.error("%s: job %s is not saved: %s", self.store.path, job.spec.name, error)
            self._unsaved.add(running)
        else:
            self._unsaved.discard(running)

    def trouble(self, error: Exception) -> str:
        """What went wrong, and where it was the database, what to do about it."""
        return self.store.trouble(error) if isinstance(error, sqlite3.Error) else str(error)

    def forgot(self, running: Running, reason: str) -> None:
        """A leaf has lost sums of a live job that nobody else has."""
        self.renewer.forgot(running, reason)

    # Ending.

    def over(self, running: Running) -> None:
        """A job has ended, or one that has is not being written any more."""
        job = running.job
        if running.ended_at is None:
            running.ended_at = self.clock()
            self._put_last(running)
        if running.installing:
            return  # _install comes back here
        self._save_phase(running)
        if isinstance(job.outcome, Ended):
            logger.warning("job %s ended: %s", job.spec.name, job.outcome.reason)
        else:
            logger.info("job %s: all workers have left", job.spec.name)
        started = any(seat.token for seat in job.seats.values())
        if started:
            # Who has left has nothing of its own to send again, but may answer what finds it late.
            free_at = self.clock() + self.guarding_s if isinstance(job.outcome, Left) else None
            self.retired.retire(job, free_at)
        if running.places:
            never_sent = isinstance(job.outcome, Left) or not started
            running.free_at = self.awake() + (0.0 if never_sent else self.guarding_s)
            self.spawn(self.places.clean(running))
        self.waitlist.changed()  # it may have been on its way in
        self._forget_old()

    @property
    def guarding_s(self) -> float:
        """How long an ended job has guards where not all workers are known to know."""
        return self.timing.patience_s + STRAGGLERS_S

    def _put_last(self, running: Running) -> None:
        """What ended long ago is forgotten first, not what began then."""
        generation, name = running.generation, running.job.spec.name
        if generation is not None and self._by_generation.get(generation) is running:
            self._by_generation[generation] = self._by_generation.pop(generation)
        if self._jobs.get(name) is running:
            self._jobs[name] = self._jobs.pop(name)

    def _forget_old(self) -> None:
        for superseded in (False, True):
            ended = [
                generation
                for generation, running in self._by_generation.items()
                if not running.job.live and isinstance(running.job.outcome, Superseded) is superseded
            ]
            for generation in ended[:-_REMEMBERED]:
                del self._by_generation[generation]
        names = [name for name, r in self._jobs.items() if not r.job.live and name not in self._specs]
        for name in names[:-_REMEMBERED]:
            del self._jobs[name]

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
        self.notice_stop()
        now = self.clock()
        for running in list(self._jobs.values()):
            self.act(running, lambda job, now: job.tick(now))
        for running in list(self._unsaved):
            self._save_phase(running)
        self.retired.tick(now)
        self.tick_switches()
        self.renewer.tick()
        self.waitlist.tick()
        self.renumbering.tick()

    def notice_stop(self) -> None:
        """Where this process itself stood still, it is held against nobody."""
        now = self.clock()
        late = 0.0 if self._ticked_at is None else now - self._ticked_at - self.config.heartbeat_interval_s
        self._ticked_at = now
        if late > 0:
            self.adoption.forgive(late, now)
            for running in self.places.holding:  # workers that nobody could tell anything still send
                running.free_at += late
            for running in self._jobs.values():
                running.job.forgive(late, now)

    def listens(self) -> None:
        """From now on workers can come back: the time that they have for it begins."""
        now = self.clock()
        for running in self._jobs.values():
            running.job.expect_back(now)
        for running in self.places.remains:  # its workers could not be told yet, and still send
            running.free_at = max(running.free_at, now + self.guarding_s)
        self._ticked_at = now

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
        now = self._ticked_at = self.clock()  # a controller may be stopped before its first tick
        for spec in self.store.specs():
            self._specs[spec.name] = spec
            self._jobs[spec.name] = Running(Job(spec, self.timing, explicit=True))
        stored = _without_drafts(self.store.jobs())
        for known in stored:
            self._load(known, now)
        # Who is in a generation has answered that it left those before; the oldest are first.
        self.retired.all_stopped(
            {t: known.plan.generation for known in stored for _, t in known.workers}, now
        )
        for before in self.places.holding:
            after = self._jobs.get(before.job.spec.name)
            if isinstance(before.job.outcome, Superseded) and after is not None:
                after.before.append(before)
        for known in stored:
            if known.dropped and known.outcome is None:
                running = self._by_generation.get(known.plan.generation)
                if running is not None:
                    self._drop_again(running, known.dropped)
        for running in list(self._jobs.values()):
            job = running.job
            if (
                job.phase is Phase.RUNNING
                and job.renewal is None
                and job.plan
                and job.plan.mode is Mode.IN_NETWORK
                and not running.places
            ):
                self.renewer.begin(
                    running, Cause.INTERRUPTED, "the controller was restarted while the job was renewed"
                )

    def _drop_again(self, running: Running, dropped: Mapping[bytes, str]) -> None:
        self.act(running, lambda job, now: job.drop_again(dropped))

    def _load(self, known: StoredJob, now: float) -> None:
        job = Job.recovered(
            known.spec,
            self.timing,
            known.plan,
            known.workers,
            explicit=known.explicit,
            running=known.phase is Phase.RUNNING,
            now=now,
        )
        running = Running(job)
        generation = known.plan.generation
        self._by_generation[generation] = running
        running.deleted, running.unheard = known.deleted, known.is_draft
        of_now = known.outcome is None or known.explicit == (known.spec.name in self._specs)
        if of_now and not known.deleted and not isinstance(known.outcome, Superseded):
            self._jobs[known.spec.name] = running
        places = known.places
        if known.outcome is None and known.plan.mode is Mode.RING:
            # It was being moved. Its workers are told to go on by ring, and `settle` takes off what is there.
            for place in places:
                self.store.release(generation, place.switch)
            places = ()
        here = [place for place in places if place.switch in self.switches]
        for place in places:
            if place not in here:
                logger.warning("job %s was on switch %s, which is gone", known.spec.name, place.switch)
                self.store.release(generation, place.switch)
                if place.role == "leaf":
                    reason = f"switch {place.switch} is no longer in the controller's configuration"
                    job.end(reason, EndCause.NOT_CONFIGURED)
        for member in job.members:
            if member.ip not in self.config.by_ip:
                reason = f"the host of {member} is no longer in the controller's configuration"
                job.end(reason, EndCause.NOT_CONFIGURED)
        try:
            self.places.take_over(running, here)
        except ValueError as error:
            raise StoreError(f"{self.store.path}: generation {generation}: {error}") from error
        if known.outcome is not None:
            job.went_on_without(known.dropped)
            left = isinstance(known.outcome, Left)
            self.retired.retire(job, now + self.guarding_s if left else None)  # who has stopped is not known
            job.phase, job.outcome = Phase.ENDED, known.outcome
            running.free_at = now + self.guarding_s
            return
        if known.phase is Phase.INSTALLING:
            job.end("the controller was restarted while the job was set up", EndCause.NOT_SET_UP)
        self.act(running, lambda job, now: None)
        if not job.live:  # where the database is from a backup, its workers may have heard of it, and send
            running.free_at = now + self.guarding_s


def _renumber(running: Running, effect: Renumbered) -> None:
    sessions, running.sessions = running.sessions, {}
    for before, session in sessions.items():
        if before in effect.ranks:
            session.rank = effect.ranks[before]
            running.sessions[session.rank] = session


def _without_drafts(jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """The jobs of the database; of one name, only the last may live that its workers can have heard of.

    A controller that died in the middle of a renewal leaves the job before it, which may be over or deleted
    by now, and one that is half written.
    """
    live = {job.spec.name: job for job in jobs if job.outcome is None and not job.is_draft}
    return [
        job
        if job.outcome is not None or live.get(job.spec.name) is job
        else replace(job, outcome=Superseded())
        for job in jobs
    ]
