"""Adoption: a controller on a new database takes running jobs over from their workers.

A worker that resumes tells how it joined and what the controller told it then. When all workers of a job have
done so, and the switches hold its generation (orchestration/orphans.py), the controller knows the job again
and the sessions go on. Until then it asks workers to come back later, while their sums go on. If one stays
away as long as a worker may after a restart, the controller tells the others which one it is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from controller.api.errors import ConflictError, InvalidRequestError, NotFoundError, UnreachableError
from controller.api.messages import JobSpec, Mode, Resume
from controller.config import Config
from controller.fabric.trees import Tree
from controller.jobs.job import Job
from controller.jobs.renewals import Cause
from controller.jobs.specs import Member, Phase, Plan, Timing
from controller.orchestration import planning
from controller.orchestration.book import Book
from controller.orchestration.callers import token_hash
from controller.orchestration.demands import Demands
from controller.orchestration.gangs import Gangs
from controller.orchestration.orphans import Orphan
from controller.orchestration.record import Record, stored
from controller.orchestration.renewer import Renewer
from controller.orchestration.switch_manager import SwitchManager
from controller.slots.admission import tenant_of

logger = logging.getLogger(__name__)

_MOST = 256  # jobs that are waited for at a time
_MOST_AHEAD = 1 << 20  # generations, of all workers that tell of one
_Told = tuple[JobSpec, Plan, str]


@dataclass(frozen=True, kw_only=True)
class Account:
    """A worker's account of its job: its own present place in it, its token, and the job's plan.

    `explicit`: the job was created, as `spec` has it. `join_token`: the token that it joined with.
    """

    spec: JobSpec
    plan: Plan
    member: Member
    token: bytes = field(repr=False)
    explicit: bool = False
    join_token: str = field(default="", repr=False)

    @classmethod
    def of(cls, config: Config, resume: Resume) -> Account | None:
        """Make an account from the message; None if it has none. Raise InvalidRequestError if not valid."""
        join, ready = resume.joined, resume.ready
        if join is None or ready is None:
            return None
        spec = JobSpec(
            name=resume.job,
            world_size=join.world_size,
            tenant=tenant_of(join.tenant),
            elastic=join.elastic or ready.lease_s > 0,  # it waits for that, whatever it has said
            gang=join.gang,
        )
        if ready.created is not None:
            spec = replace(ready.created, tenant=tenant_of(ready.created.tenant))
            if (spec.name, spec.world_size) != (resume.job, join.world_size):
                raise InvalidRequestError(f"job {resume.job}: its workers were told of {spec.name}")
        spec = replace(spec, token_hash=token_hash(join.join_token))
        planning.check_spec(config, replace(spec, window=ready.window, message_packets=ready.message_packets))
        size = ready.world_size or join.world_size
        ring = ready.ring or tuple(range(size))
        if sorted(ring) != list(range(size)):
            raise InvalidRequestError(f"job {resume.job}: this is no Ready of a controller")
        member = planning.member_from(config, join)
        if not 0 <= resume.rank < size:
            raise InvalidRequestError(
                f"rank {resume.rank} is no rank of job {resume.job} with {size} workers"
            )
        plan = Plan(
            job_id=ready.job_id,
            generation=resume.generation,
            window=ready.window,
            message_packets=ready.message_packets,
            path_mtu=ready.path_mtu,
            mode=ready.mode,
            mode_reason=ready.mode_reason,
            ring=ring,
            backup=ready.backup,
            selective=ready.selective,
        )
        return cls(
            spec=spec,
            plan=plan,
            member=replace(member, rank=resume.rank, joined_as=member.rank),
            token=resume.token,
            explicit=ready.created is not None,
            join_token=join.join_token,
        )


@dataclass
class _Waiting:
    """The accounts of a job so far. `over`: an answer that one worker has got, and all others get too."""

    since: float
    accounts: dict[int, Account] = field(default_factory=dict)
    over: str = ""


class Adoption:
    """Takeover of jobs from their workers. Workers whose accounts differ count as those of different jobs."""

    def __init__(
        self,
        manager: SwitchManager,
        book: Book,
        gangs: Gangs,
        demands: Demands,
        renewer: Renewer,
        timing: Timing,
    ) -> None:
        self._config = manager.config
        self._store = manager.store
        self._switches = manager.switches
        self._allocations = manager.allocations
        self._rerouting = manager.rerouting
        self._engine = manager.engine
        self._book = book
        self._gangs = gangs
        self._demands = demands
        self._renewer = renewer
        self._timing = timing
        self._waiting: dict[_Told, _Waiting] = {}

    def hear(self, account: Account) -> None:
        """Take a worker's account of an unknown job. Return once the job has been taken over.

        Raise UnreachableError or ConflictError if the worker should come again, NotFoundError if the job is
        over. Raise NotAllowedError if the name is that of a job created with another join token, or if these
        hosts do not belong to the job's tenant.
        """
        spec, plan, now = account.spec, account.plan, self._engine.awake()
        if self._store.is_ours(plan.generation, spec.name):
            raise NotFoundError(
                f"there is no job {spec.name!r} with generation {plan.generation}: it ended long ago"
            )
        self._gangs.check_told(spec, account.join_token)
        key = _told(account)
        while key not in self._waiting and len(self._waiting) >= _MOST:
            del self._waiting[next(iter(self._waiting))]
        waiting = self._waiting.setdefault(key, _Waiting(now))
        if waiting.over:
            raise NotFoundError(waiting.over)
        waiting.accounts[account.member.rank] = account
        members = [waiting.accounts[rank].member for rank in sorted(waiting.accounts)]
        who = f"job {spec.name} is not in the controller's database, which is new"
        if missing := [rank for rank in plan.ring if rank not in waiting.accounts]:
            ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, sorted(missing)))}"
            patience_s = self._config.resume_timeout_s
            if now - waiting.since <= patience_s:
                raise UnreachableError(f"{who}: it waits for {ranks} to tell of it")
            if any(other.name == spec.name for other, *_ in self._waiting.keys() - {key}):
                raise ConflictError(f"{who}, and its workers tell different things of it")
            waiting.over = f"{who}, and {ranks} did not come back within {patience_s:g} s to tell of it"
            logger.warning("%s: it is over", waiting.over)
            raise NotFoundError(waiting.over)
        known = self._book.by_name.get(spec.name)
        if known is not None and known.job.live and known.job.phase is not Phase.CREATED:
            raise ConflictError(f"{who}, and another job has that name now")
        if plan.generation in self._book.by_generation:
            raise ConflictError(f"{who}, and another job has its generation {plan.generation}")
        tenants = {known.spec.tenant for known in waiting.accounts.values()} - {""}
        if len(tenants) > 1:
            raise ConflictError(f"{who}, and its workers say that it is of tenants {' and '.join(tenants)}")
        tenant, created = next(iter(tenants), ""), self._book.specs.get(spec.name)
        if created is None or created.tenant != tenant:  # no operator has said whose it is
            for member in members:
                self._demands.require_tenant(tenant, member.host)
        late = now - waiting.since > self._config.resume_timeout_s
        self._take_over(waiting, members, tenant, late=late)
        del self._waiting[key]

    def forgive(self, seconds: float, now: float) -> None:
        """Extend times: the controller itself was stopped for so many seconds, and could hear nobody."""
        for waiting in self._waiting.values():
            waiting.since = min(now, waiting.since + seconds)

    def count_behind(self, name: str, generation: int) -> None:
        """Give out only higher numbers than a generation that a worker of that job knows of.

        Raise ConflictError if this, alone or with what others have said, would skip too many numbers; the
        worker then goes on as it is. So no worker can use up all numbers. Nor does a worker use up what
        others may skip: they are then that much less ahead.
        """
        newest = self._store.newest_generation
        ahead = max(0, generation - newest)
        if self._store.left_out + ahead > _MOST_AHEAD:
            raise ConflictError(
                f"job {name}: no controller can have given out generation {generation}, the newest is "
                f"{newest}; if one has, this machine's clock was wrong when the database was made: set it, "
                "and begin another database"
            )
        self._store.outlive(generation, workers_say_so=True)

    def _take_over(self, waiting: _Waiting, members: list[Member], tenant: str, *, late: bool) -> None:
        first = next(iter(waiting.accounts.values()))
        modes = {account.plan.mode for account in waiting.accounts.values()}
        spec, plan = replace(first.spec, tenant=tenant), replace(first.plan, mode=min(modes))
        now = self._engine.clock()
        orphans, lost = self._orphans_of(members, plan, late=late)
        lost = lost or next((why for member in members if (why := self._book.who_has_qps(member, now))), "")
        if not lost and (len(modes) > 1 or (orphans and plan.mode is Mode.RING)):
            lost = "the controller lost its database while the job was moved"
        workers = [(member, waiting.accounts[member.rank].token) for member in members]
        job = Job.recovered(
            *(spec, self._timing, plan, workers),
            explicit=first.explicit,
            phase=Phase.RUNNING,
            now=now,
        )
        self.count_behind(spec.name, plan.generation)
        self._store.save_job(stored(job, plan, [orphan.allocation for orphan in orphans], Phase.RUNNING))
        record = Record(job, allocations={orphan.allocation.switch: orphan.allocation for orphan in orphans})
        self._allocations.adopted(record, orphans)
        if (created := self._book.by_name.get(spec.name)) is not None:  # nobody has joined it
            self._gangs.leave_out(created)
        self._book.by_name[spec.name] = self._book.by_generation[plan.generation] = record
        self._gangs.enlist(record, spec.gang)
        self._rerouting.allocated(record)
        qps = frozenset((int(m.ip), qpn) for m in members for qpn in (m.qpn_in, m.qpn_out))
        self._engine.spawn(self._allocations.take_qps_back(plan.generation, qps))
        logger.warning("job %s: taken over from its workers, generation %d", spec.name, plan.generation)
        others = [plane.job for plane in record.live_planes if plane is not record]
        if any(other.renewal or (other.plan and not other.plan.is_like(plan)) for other in others):
            lost = lost or "another plane of its gang has gone on otherwise"
        if lost:
            self._renewer.begin(record, Cause.SWITCH_RESTARTED, lost)

    def _orphans_of(self, members: list[Member], plan: Plan, *, late: bool) -> tuple[list[Orphan], str]:
        """Return the job's entries on switches, and why its sums there are lost (empty: they are not).

        `late`: do not wait for spines any more. A spine has no guards, and no sums that leaves lack; anything
        that it still holds then belongs to a generation that is over.
        """
        in_network = plan.mode is Mode.IN_NETWORK
        tree, lost, orphans = Tree.of(self._config, members), "", []
        theirs = {(int(m.ip), qpn) for m in members for qpn in (m.qpn_in, m.qpn_out)}
        for name, switch in self._switches.items():
            spine = tree.two_level and name in tree.graph.spines
            if in_network and not switch.ready and (name in tree.leaves or spine):
                why = f"switch {name}, which may have sums of the job, is not ready"
                if not (spine and late):
                    raise UnreachableError(why)
                lost = why
            orphan = self._allocations.orphan(name, plan.generation)
            if orphan is not None:
                if not orphan.qps <= theirs:
                    raise ConflictError(
                        f"switch {name} has other workers' entries of generation {plan.generation} than "
                        "those who tell of it"
                    )
                orphans.append(orphan)
            if (
                in_network
                and name in tree.leaves
                and (orphan is None or orphan.lost or not _is_of(orphan, tree, name))
            ):
                lost = f"switch {name} was restarted, and has forgotten the job's sums"
        return orphans, lost


def _told(account: Account) -> _Told:
    """Return the part of an account that all workers of a job share.

    They need not all name the tenant or have heard of a move, and a token has another hash each time.
    """
    spec = replace(account.spec, tenant="", token_hash="")
    return spec, replace(account.plan, mode=Mode.RING, mode_reason=""), account.join_token


def _is_of(orphan: Orphan, tree: Tree, leaf: str) -> bool:
    """Tell whether the guards on a leaf are those of these workers."""
    mine = {(int(m.ip), qpn) for m in tree.rack(leaf).members for qpn in (m.qpn_in, m.qpn_out)}
    return mine <= orphan.qps
