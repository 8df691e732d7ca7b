"""Sessions of workers: their beginning, their messages, their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.api.errors import (
    InvalidRequestError,
    NotFoundError,
    QueuePairTakenError,
    UnreachableError,
)
from controller.api.messages import (
    Abort,
    Called,
    Ended,
    FromWorker,
    Gang,
    JobSpec,
    Join,
    Left,
    Ready,
    Renewing,
    Resume,
)
from controller.api.messages import Worker as Addresses
from controller.jobs.effects import Renumbered, Tell
from controller.jobs.job import Job
from controller.jobs.renewals import Cause
from controller.jobs.specs import Member, Timing
from controller.jobs.states import State
from controller.orchestration import planning
from controller.orchestration.adoption import Account, Adoption
from controller.orchestration.book import Book
from controller.orchestration.callers import in_one_line, require_token, token_hash
from controller.orchestration.demands import Demands
from controller.orchestration.gangs import Gangs
from controller.orchestration.record import Mailbox, Record
from controller.orchestration.renewer import Renewer
from controller.orchestration.switch_manager import SwitchManager
from controller.slots.admission import tenant_of

_ALL_GENERATIONS = 1 << 32
_MOST_OFFERS = 256  # in one renewal, of workers that cannot have the numbers of their new queue pairs


class Session(Mailbox):
    """One connection of one worker: call `hear` for each message, and one of the others at the end."""

    def __init__(self, sessions: Sessions, record: Record, rank: int, token: bytes = b"") -> None:
        super().__init__(rank, token)
        self.record = record
        self._sessions = sessions

    @property
    def is_current(self) -> bool:
        """True if no other session of the worker has replaced it, and it was not told the end."""
        return self.record.sessions.get(self.rank) is self

    def is_of(self, member: Member) -> bool:
        """Tell whether the worker is this one, with these QPs and PSN."""
        return self.record.job.workers[self.rank].member == member

    def hear(self, said: FromWorker) -> None:
        """Act on a worker's message. Raise ControllerError if it may not send it."""
        self._sessions.hear(self, said)

    def closed(self) -> None:
        """End the session, which the worker ended on purpose."""
        self._end(lambda job, now: job.closed(self.rank))

    def broken(self) -> None:
        """End the session, whose connection is gone."""
        self._end(lambda job, now: job.broken(self.rank))

    def took_end(self) -> None:
        """Note that the worker ended the session after it heard the job's end: it sends nothing more."""
        self._sessions.took_end(self)

    def _end(self, call: Callable[[Job, float], None]) -> None:
        """End the session; without effect if another one has replaced it, or it was told the end."""
        if self.is_current:
            del self.record.sessions[self.rank]
            self._sessions.act(self.record, call)
        self.events.put_nowait(None)


class Sessions:
    """The sessions of workers: begins them, and passes on what is said in them."""

    def __init__(
        self,
        manager: SwitchManager,
        book: Book,
        gangs: Gangs,
        demands: Demands,
        renewer: Renewer,
        adoption: Adoption,
        timing: Timing,
    ) -> None:
        self._manager = manager
        self._config = manager.config
        self._allocations = manager.allocations
        self._engine = manager.engine
        self.act = manager.engine.act
        self._book = book
        self._gangs = gangs
        self._demands = demands
        self._renewer = renewer
        self._adoption = adoption
        self._timing = timing
        # A switch may hold jobs of which nobody knew while it was away.
        manager.on_room.append(lambda: self._take_qps_back(*book))

    # How they begin

    def begin(self, first: FromWorker, require_host: Callable[[str], None] = lambda host: None) -> Session:
        """Begin the session that a worker's first message asks for. Raise ControllerError if not possible.

        `require_host` raises an error if the caller may not speak for a host.
        """
        match first:
            case Join():
                member = planning.member_from(self._config, first)
                require_host(member.host)
                self._require_no_rival([member])
                how = (first.job, first.world_size, member, first.tenant)
                return self.join(*how, elastic=first.elastic, token=first.join_token, gang=first.gang)
            case Resume():
                who = (first.job, first.generation, first.rank, first.token)
                record = self._known(first.job, first.generation, first.token)
                account = None
                if record is None or first.generation > (record.generation or 0):
                    account = Account.of(self._config, first)
                if record is not None:
                    rank = record.job.rank_of(first.rank, first.token, first.generation)
                    require_host(record.job.workers[rank].member.host)
                    self._require_no_rival(record.job.members)
                elif account is not None:
                    require_host(account.member.host)
                    self._require_no_rival([account.member])
                session = self.resume(*who, account, answered=first.answered)
                if first.joined is not None:
                    self._check_queue_pairs(session, first.generation, first.joined.worker)
                return session
        raise InvalidRequestError(
            f"a session begins with join or resume, not with {type(first).__name__.lower()}"
        )

    def _require_no_rival(self, members: Sequence[Member]) -> None:
        """Raise UnreachableError if another controller decides about these workers: they come again."""
        if switch := self._manager.rival_at(members):
            raise UnreachableError(
                f"this controller stands by, as another one with the same election id is primary of switch "
                f"{switch}: two run on one database or copies of it; stop one of them"
            )

    def _check_queue_pairs(self, session: Session, generation: int, has: Addresses) -> None:
        """Believe a worker that has other queue pairs than the database says, and renew its job."""
        record = session.record
        worker = record.job.workers.get(session.rank)
        if worker is None or generation != record.generation or not record.job.is_set_up:
            return
        member = worker.member
        if (has.qpn_out, has.qpn_in) == (member.qpn_out, member.qpn_in):
            return
        worker.member = replace(member, qpn_out=has.qpn_out, qpn_in=has.qpn_in)
        why = f"{member} has other queue pairs than the controller's database says: was that changed?"
        self._renewer.begin(record, Cause.INTERRUPTED, why)

    def stand_by(self, record: Record) -> None:
        """Let a job's workers go to the other controller that has its switch, and drop none of them."""
        job = record.job
        if job.state is not State.INSTALLING:  # it fails by itself, or is set up
            for session in list(record.sessions.values()):
                if isinstance(session, Session):
                    session.broken()
        job.expect_back(self._engine.clock())

    def join(
        self,
        name: str,
        world_size: int,
        member: Member,
        tenant: str = "",
        *,
        elastic: bool = False,
        token: str = "",
        gang: Gang | None = None,
    ) -> Session:
        """Take a worker in. Raise ControllerError if that is not possible; nobody else notices then."""
        record = self._book.by_name.get(name)
        if record is None or not record.job.live:
            record = Record(self._new_job(name, world_size, tenant, elastic=elastic, token=token, gang=gang))
        job, tenant = record.job, tenant_of(tenant)
        require_token(job.spec, token)
        before = record.sessions.get(member.rank)
        if isinstance(before, Session) and job.state is State.JOINING and before.is_of(member):
            before.broken()  # this worker's own, of which nobody has noticed that it is gone
        if job.has_not_heard(member):
            return self._told_again(record, member.rank)
        job.check(member, world_size, tenant, elastic=elastic, gang=gang)
        if not job.explicit:  # else an operator has said whose it is
            self._demands.require_tenant(job.spec.tenant, member.host)
        if not job.workers:
            self._gangs.check(replace(job.spec, gang=gang), token)
        if why := self._why_not_qps(member):
            raise QueuePairTakenError(f"{why}: use another QP number")
        self._book.by_name[name] = record
        if not job.workers:
            self._gangs.enlist(record, gang)
        session = record.sessions[member.rank] = Session(self, record, member.rank)
        self.act(
            record, lambda job, now: job.join(member, world_size, now, tenant, elastic=elastic, gang=gang)
        )
        return session

    def _told_again(self, record: Record, rank: int) -> Session:
        """Give a worker that was taken in a new session, as its own broke before it could hear so."""
        session, before = Session(self, record, rank), record.sessions.get(rank)
        record.sessions[rank] = session
        self.act(record, lambda job, now: job.join_again(rank, now))
        if before is not None:
            before.events.put_nowait(None)
        return session

    def _new_job(
        self, name: str, world_size: int, tenant: str, *, elastic: bool, token: str, gang: Gang | None
    ) -> Job:
        spec = self._book.specs.get(name)
        if spec is not None:
            return Job(spec, self._timing, explicit=True)
        if not self._config.auto_create:
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
            gang=gang,
        )
        planning.check_spec(self._config, spec)
        return Job(spec, self._timing)

    def resume(
        self,
        name: str,
        generation: int,
        rank: int,
        token: bytes,
        account: Account | None = None,
        *,
        answered: Sequence[int] = (),
    ) -> Session:
        """Take back a worker that knows of that generation.

        `account`: what it knows, if the job or that generation is not known here; used as in `Adoption.hear`.
        `answered`: as in `Job.resume`. Raise NotFoundError, InvalidRequestError, NotPossibleError or
        ConflictError.
        """
        if account is not None and self._known(name, generation, token) is None:
            self._adoption.hear(account)
        record = self._book.of_worker(name, generation, token)
        known = record.job.rank_of(rank, token, generation)
        self._adoption.count_behind(name, max((generation, *answered)))
        session, before = Session(self, record, known, token), record.sessions.get(known)

        def take_back(job: Job, now: float) -> None:
            record.sessions[known] = session
            job.resume(rank, token, now, generation, answered)

        self.act(record, take_back)
        if before is not None:
            before.events.put_nowait(None)
        if account is not None and generation > (record.generation or 0):
            record.later[token] = generation, frozenset((account.member.qpn_in, account.member.qpn_out))
        self._take_qps_back(record)
        return session

    def _take_qps_back(self, *records: Record) -> None:
        """Give up older unknown jobs that have QPs of workers that are here.

        Their guards would stop what such a worker is sent by ring.
        """
        if not any(self._allocations.orphans.values()):
            return
        for record in records:
            job = record.job
            if record.generation is None or not job.is_set_up or job.renewal is not None:
                continue  # a renewal gives it others
            members = [job.workers[rank].member for rank in record.sessions]
            qps = frozenset((int(m.ip), qpn) for m in members for qpn in (m.qpn_in, m.qpn_out))
            self._engine.spawn(self._allocations.take_qps_back(record.generation, qps))

    def _known(self, name: str, generation: int, token: bytes) -> Record | None:
        """Return the job of a worker that wants to resume; None if it is unknown. Raise NotPossibleError."""
        try:
            return self._book.of_worker(name, generation, token)
        except NotFoundError:
            return None

    # What is said

    def hear(self, session: Session, said: FromWorker) -> None:
        """Act on a worker's message, as `Session.hear`."""
        if not session.is_current:
            return
        if isinstance(said, Renewing) and not self._may_renew(session, said):
            return
        said = _in_one_line(said)
        self.act(session.record, lambda job, now: job.hear(session.rank, said, now))

    def _may_renew(self, session: Session, answer: Renewing) -> bool:
        """Take a worker's answer to a renewal; ask all again if it cannot have its new QPs' numbers.

        Tell whether the job shall hear the answer. Raise InvalidRequestError or QueuePairTakenError.
        """
        record, worker = session.record, session.record.job.workers[session.rank]
        member = worker.member
        planning.check_qps(str(member), qpn_out=answer.qpn_out, psn_out=answer.psn_out, qpn_in=answer.qpn_in)
        self._renewer.stopped(record, worker.token)
        self._book.retired.stopped(worker.token, answer.renewal, self._engine.clock())
        if not record.job.awaits(session.rank, answer.renewal):
            return True
        why = self._why_not_qps(replace(member, qpn_out=answer.qpn_out, qpn_in=answer.qpn_in))
        if not why:
            return True
        record.refused += 1
        if record.refused > _MOST_OFFERS:
            raise QueuePairTakenError(f"{why}: new ones were asked for {_MOST_OFFERS} times")
        self._renewer.begin(record, Cause.INTERRUPTED, f"{why}: {member} needs other queue pairs")
        return False

    def _why_not_qps(self, member: Member) -> str:
        """Say why a worker cannot have these numbers, also if it has them now; empty if it can."""
        wanted = {member.qpn_in, member.qpn_out}
        for name, orphans in self._allocations.orphans.items():
            for orphan in orphans:
                if taken := {qpn for qpn in wanted if (int(member.ip), qpn) in orphan.qps}:
                    return (
                        f"QP {min(taken):#x} of host {member.host} ({member.ip}) belongs to a job on switch "
                        f"{name} that the controller's database does not know"
                    )
        return self._book.who_has_qps(member, self._engine.clock())

    # What is told

    def tell(self, record: Record, effect: Tell) -> None:
        """Send a message to a worker, which may have no session just now."""
        session = record.sessions.get(effect.rank)
        if session is None:
            return
        session.events.put_nowait(effect.event)
        if isinstance(effect.event, Ready):
            session.token = effect.event.resume_token
        elif isinstance(effect.event, (Left, Ended)):
            session.told = effect.event
            session.events.put_nowait(None)
            del record.sessions[effect.rank]

    def renumbered(self, record: Record, effect: Renumbered) -> None:
        """Give workers' sessions their new ranks, and forget those of workers without one."""
        sessions, record.sessions = record.sessions, {}
        for before, session in sessions.items():
            if before in effect.ranks:
                session.rank = effect.ranks[before]
                record.sessions[session.rank] = session

    def took_end(self, session: Session) -> None:
        """Note a worker's end of its session, as `Session.took_end`."""
        record = session.record
        record.leases.pop(session.token, None)
        self._book.retired.stopped(session.token, _ALL_GENERATIONS, self._engine.clock())
        if session.told is record.job.outcome:  # else the job went on, and the rank may be another's
            self.act(record, lambda job, now: job.heard_end(session.rank))


def _in_one_line(said: FromWorker) -> FromWorker:
    """Make texts for people one line each, so that they cannot pass for something else."""
    match said:
        case Abort(reason, mismatch, plane):
            called = None if mismatch is None else replace(mismatch, what=in_one_line(mismatch.what))
            return Abort(in_one_line(reason), called, plane)
        case Called():
            return replace(said, what=in_one_line(said.what))
    return said
