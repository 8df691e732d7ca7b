"""The workers of a job: those in it, those that have left, and each one's token. No I/O."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controller.api.errors import ConflictError, InvalidRequestError, NotPossibleError
from controller.api.messages import Gang, JobSpec, Ready
from controller.jobs.specs import Member, Plan, Timing


@dataclass
class WorkerState:
    """The controller's view of a worker: last heard of at `heard_at`, lost after `patience_s` of silence.

    `recovered`: it has to come back, as the controller was away. `lost`: it is lost, and never comes back.
    `generation`: the newest that it is known to belong to; None: it has not come back since the controller
    was started. `answered`: the renewals that it had answered when it came back, without knowing their end.
    `knows_end`: it has acted on the job's end, and sends nothing more. `in_collective`: the collective of
    this generation that it is in, as it said. `left_after`: the number of its calls, after which it calls no
    more.
    """

    member: Member
    heard_at: float
    patience_s: float
    token: bytes = b""
    generation: int | None = None
    answered: Collection[int] = ()
    connected: bool = True
    up: bool = False
    leaving: bool = False
    recovered: bool = False
    lost: bool = False
    knows_end: bool = False
    in_collective: int | None = None
    left_after: int | None = None

    def heard(self, now: float, patience_s: float) -> None:
        """Note that something came from the worker, so it lives."""
        self.heard_at, self.patience_s, self.recovered = now, patience_s, False

    def is_behind(self, newest: int) -> bool:
        """Tell whether another worker knows a newer generation that this one is not in.

        All workers of that generation have answered its Renew. An answer to a later one proves nothing: a
        controller restarted on an older database asks dropped workers, too.
        """
        return self.generation is not None and self.generation < newest and newest not in self.answered

    @property
    def silence(self) -> str:
        """The sentence that says that nothing came from it."""
        if self.recovered:
            return (
                f"{self.member} has not come back within {self.patience_s:g} s after the controller was back"
                ": it has died, or cannot reach the controller"
            )
        how = "sent no heartbeat" if self.connected else "has been without a connection to the controller"
        return f"{self.member} {how} for {self.patience_s:g} s: it has died or hangs"


class Workers(dict[int, WorkerState]):
    """A job's workers by rank. `departed`, by rank: those of this generation that were dropped.

    `dropped`: the reasons, by token, why workers of this generation or before are not in the job any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dropped: dict[bytes, str] = {}
        self.departed: dict[int, WorkerState] = {}

    @property
    def members(self) -> list[Member]:
        """The members that have joined, by rank."""
        return [self[rank].member for rank in sorted(self)]

    @property
    def everybody(self) -> dict[int, WorkerState]:
        """All workers of this generation, also those that have no part in it any more."""
        return {**self, **self.departed}

    @property
    def departures(self) -> dict[bytes, str]:
        """The reasons, by token, why workers of this generation have no part in the job any more."""
        return {worker.token: self.dropped[worker.token] for worker in self.departed.values()}

    def drop(self, rank: int, reason: str) -> None:
        """Take a worker out of the job, which goes on without it, or had done so when it ended."""
        worker = self.departed[rank] = self.pop(rank)
        self.dropped[worker.token] = reason

    def knows(self, token: bytes) -> bool:
        """Tell whether a worker with that token has or had a part in the job."""
        tokens = [*(worker.token for worker in self.values() if worker.token), *self.dropped]
        return any(hmac.compare_digest(known, token) for known in tokens)

    def rank_of(self, job: str, rank: int, token: bytes, *, has_been_renumbered: bool) -> int:
        """Return the present rank of the worker with that token.

        `rank`: its present rank or, with `has_been_renumbered`, a former one. Raise InvalidRequestError if
        the token is another's, NotPossibleError if its worker was dropped.
        """
        for known, worker in self.items():
            right = has_been_renumbered or known == rank
            if worker.token and hmac.compare_digest(worker.token, token) and right:
                return known
        for dropped, why in self.dropped.items():
            if hmac.compare_digest(dropped, token):
                raise NotPossibleError(f"job {job} goes on without this worker: {why}")
        raise InvalidRequestError(
            f"job {job}: rank {rank} cannot be resumed, the token is not the one it was given"
        )

    def renumber(self, members: list[Member], generation: int) -> dict[int, int]:
        """Begin a new generation with these members, in the order of their ranks so far.

        Return their new ranks by those before.
        """
        old = sorted(self)
        workers = [self[rank] for rank in old]
        self.clear()
        for member, worker in zip(members, workers, strict=True):
            worker.member, worker.generation, worker.up = member, generation, False
            worker.in_collective = None
            self[member.rank] = worker
        self.departed = {}
        return {rank: member.rank for rank, member in zip(old, members, strict=True)}

    def ready(
        self, rank: int, plan: Plan, timing: Timing, *, lease_s: float, created: JobSpec | None
    ) -> Ready:
        """Return the Ready for a worker in the generation of the plan."""
        ring = plan.ring or tuple(sorted(self))
        position = ring.index(rank)
        successor, predecessor = self[ring[(position + 1) % len(ring)]], self[ring[position - 1]]
        return Ready(
            job_id=plan.job_id,
            generation=plan.generation,
            window=plan.window,
            message_packets=plan.message_packets,
            path_mtu=plan.path_mtu,
            mode=plan.mode,
            mode_reason=plan.mode_reason,
            successor=successor.member.worker(backup=plan.backup),
            predecessor=predecessor.member.worker(backup=plan.backup),
            heartbeat_interval_s=timing.heartbeat_interval_s,
            heartbeat_timeout_s=timing.heartbeat_timeout_s,
            resume_token=self[rank].token,
            rc=timing.rc,
            ring=plan.ring,
            rank=rank,
            world_size=len(ring),
            selective=plan.selective,
            backup=plan.backup,
            lease_s=lease_s,
            created=created,
        )


def require_alike(
    spec: JobSpec,
    workers: Mapping[int, WorkerState],
    member: Member,
    world_size: int,
    tenant: str = "",
    *,
    elastic: bool = False,
    gang: Gang | None = None,
    free: bool = False,
) -> None:
    """Raise InvalidRequestError or ConflictError if the worker cannot be taken into the job.

    `free`: workers need not repeat settings given when the job was created.
    """
    name = spec.name
    if world_size != spec.world_size:
        raise InvalidRequestError(
            f"job {name} has a world size of {spec.world_size}, but {member} says {world_size}: "
            "start all workers with the same"
        )
    if gang != spec.gang:
        raise InvalidRequestError(
            f"job {name} is {_which(spec.gang)}, but {member} says that it is {_which(gang)}: start all "
            "workers alike"
        )
    if tenant != spec.tenant and (tenant or not free):
        raise InvalidRequestError(
            f"job {name} is of tenant {spec.tenant or 'default'}, but {member} says "
            f"{tenant or 'default'}: start all workers with the same"
        )
    if elastic != spec.elastic and (elastic or not free):
        ways = ("goes on without workers that die", "ends when a worker dies")
        raise InvalidRequestError(
            f"job {name} {ways[not spec.elastic]}, but {member} wants one that {ways[not elastic]}: "
            "start all workers alike"
        )
    if not 0 <= member.rank < spec.world_size:
        raise InvalidRequestError(
            f"rank {member.rank} is no rank of job {name} with {spec.world_size} workers "
            f"(0..{spec.world_size - 1})"
        )
    if spec.path_mtu is not None and member.path_mtu_max < spec.path_mtu:
        raise InvalidRequestError(
            f"job {name} was created with path MTU {spec.path_mtu}, but the link of {member} carries at "
            f"most {member.path_mtu_max}: raise the link's MTU, or create the job with a smaller path MTU"
        )
    if taken := workers.get(member.rank):
        raise ConflictError(
            f"job {name}: rank {member.rank} is taken by {taken.member.host or taken.member.hostname} "
            f"({taken.member.ip}), and {member.host or member.hostname} ({member.ip}) asks for it too: "
            "each worker needs a rank of its own"
        )


def _which(gang: Gang | None) -> str:
    return (
        "no plane of a gang" if gang is None else f"plane {gang.plane} of {gang.planes} of gang {gang.name}"
    )
