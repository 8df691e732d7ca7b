"""Gangs: the planes of machines with several GPUs, which begin, move, are renewed and end together.

An elastic gang goes on without lost machines: a worker lost in one plane takes the workers of its machine out
of all others, before any plane is renewed.

Local rank g of all machines is a job of its own, plane g. The controller knows a gang as the records that
share a list, `Record.planes`; a job of its own is a gang of one plane. This module brings planes together,
says who has not joined, and ends all of them where one has ended for a failure.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from controller.api.errors import ConflictError, InvalidRequestError
from controller.api.messages import EndCause, Ended, Gang, JobSpec, Left, Mode
from controller.jobs.effects import Interrupted, MachineLost
from controller.jobs.job import Job
from controller.jobs.renewals import Cause
from controller.jobs.specs import Member, Phase
from controller.orchestration.book import Book
from controller.orchestration.callers import require_token
from controller.orchestration.engine import Engine
from controller.orchestration.record import Record

_MOST_LINES = 16  # of who has not joined
# Settings of a job that all planes have alike: what one plane may do, all do.
_ALIKE = ("elastic", "min_workers", "mode", "path_mtu", "window", "message_packets", "selective")


class Gangs:
    """The planes of all gangs. `patience_s`: how long planes that run wait for others to come back.

    `lease_s`: the time after its last answered message when a worker of an elastic gang is sure to have
    stopped by itself.
    """

    def __init__(self, book: Book, engine: Engine, *, patience_s: float, lease_s: float) -> None:
        self._book = book
        self._engine = engine
        self._patience_s = patience_s
        self._lease_s = lease_s
        self._apart_since: dict[Record, float] = {}  # planes that run without others

    # Joining

    def check(self, spec: JobSpec, token: str | None = None) -> None:
        """Raise ConflictError or InvalidRequestError if a job does not fit beside those that there are.

        With a worker's `token`, raise NotAllowedError if another plane has another token.
        """
        self._require_free(spec)
        for other in self._other_planes(spec):
            _require_alike(spec, other)
            if token is not None:
                require_token(other, token)

    def check_told(self, spec: JobSpec, token: str) -> None:
        """Raise ConflictError or NotAllowedError if a running job that its workers tell of does not fit.

        A created job that nobody has joined may differ from it, but its token is needed.
        """
        self._require_free(spec)
        created = self._book.specs.get(spec.name)
        if created is not None and created.token_hash:
            require_token(created, token)
        for other in self._other_planes(spec):
            record = self._book.by_name.get(other.name)
            if record is not None and record.job.live and record.job.workers:
                try:
                    _require_alike(spec, other)
                except InvalidRequestError as error:  # they go on as they are
                    raise ConflictError(str(error)) from error
                require_token(other, token)
            elif other.token_hash:
                require_token(other, token)

    def _require_free(self, spec: JobSpec) -> None:
        """Raise ConflictError if a gang has the job's name, or a job the gang's."""
        if spec.gang is None:
            for other in self._planes():
                assert other.gang is not None
                if spec.name == other.gang.name:
                    raise ConflictError(f"there is a gang {spec.name} already: use another name for the job")
            return
        name = spec.gang.name
        job = self._book.by_name.get(name)
        if name in self._book.specs or (job is not None and job.job.live):
            raise ConflictError(f"there is a job {name} already: use another name for the gang")

    def _planes(self) -> list[JobSpec]:
        """Return all planes that are not over, and those that were created."""
        live = {record.job.spec.name: record.job.spec for record in self._book if record.job.live}
        return [spec for spec in {**self._book.specs, **live}.values() if spec.gang is not None]

    def _other_planes(self, spec: JobSpec) -> list[JobSpec]:
        """Return the other planes of the same gang, in order."""
        gang = spec.gang
        others = [
            (other.gang.plane, other)
            for other in self._planes()
            if gang is not None and other.gang is not None and other.gang.name == gang.name
        ]
        return [other for _, other in sorted(others, key=lambda found: found[0]) if other.name != spec.name]

    def of(self, name: str) -> list[Record]:
        """Return the planes of a gang that are not over, in order."""
        return [record for record in self.last_of(name) if record.job.live]

    def last_of(self, name: str) -> list[Record]:
        """Return the planes of a gang, also those that are over, in order."""
        found = [
            record
            for record in self._book.by_name.values()
            if (gang := record.job.spec.gang) is not None and gang.name == name
        ]
        return sorted(found, key=_plane)

    def enlist(self, record: Record, gang: Gang | None) -> None:
        """Make a job a plane of that gang, beside those of the same run."""
        if gang is None:
            return
        for other in self.of(gang.name):
            mates = other.planes
            is_of_this_run = all(mate.job.live for mate in mates)
            if other is not record and is_of_this_run and record not in mates:
                for mate in record.planes:
                    mate.planes = mates
                    mates.append(mate)
        record.planes.sort(key=lambda mate: gang.plane if mate is record else _plane(mate))

    def gathered(self, record: Record) -> None:
        """Tell all planes who is missing, or have them set up, after a worker has joined or withdrawn."""
        missing = self.missing(record)
        for plane in record.live_planes:
            self._engine.act(plane, lambda job, now: job.gathered(missing))

    def missing(self, record: Record) -> tuple[str, ...]:
        """List, in words, machine by machine, who has not joined any of the planes."""
        gang = record.job.spec.gang
        if gang is None:
            return ()
        there = {_plane(mate): mate.job.workers for mate in record.live_planes}
        lines = []
        for machine in range(record.job.spec.world_size):
            here = {plane: of[machine].member for plane, of in there.items() if machine in of}
            absent = [plane for plane in range(gang.planes) if plane not in here]
            if absent:
                lines.append(_gpus_of(machine, absent, here))
        more = len(lines) - _MOST_LINES
        return tuple(lines) if more <= 0 else (*lines[:_MOST_LINES], f"others of {more} more machines")

    def vacated(self, record: Record) -> None:
        """Take a plane that nobody created out of its gang, as all who had joined have withdrawn."""
        rest = [mate for mate in record.planes if mate is not record]
        self.leave_out(record)
        if rest:
            self.gathered(rest[0])

    def leave_out(self, record: Record) -> None:
        """Take a job out of its gang's planes."""
        record.planes.remove(record)
        record.planes = [record]

    # Machines that are lost

    def machine_lost(self, record: Record, lost: MachineLost) -> None:
        """Let all other planes go on without a machine that one plane goes on without.

        Its workers may not have heard so, and return results while their leases run.
        """
        own, now = _plane(record), self._engine.clock()
        for plane in record.planes:
            if plane is not record:
                self._engine.act(plane, functools.partial(_drop_machine, lost, own))
            for worker in plane.job.workers.departed.values():
                gone = plane is record and lost.has_stopped
                if worker.member.original_rank == lost.machine and not gone:
                    plane.leases.setdefault(worker.token, now + self._lease_s)
        rest = record.live_planes
        if not record.job.live and rest:  # all of its other workers had left
            self._engine.post(rest[0], Interrupted(Cause.WORKER_LOST, lost.reason))

    # Ends

    def ended(self, record: Record) -> None:
        """End all planes if one has ended for a failure."""
        outcome = record.job.outcome
        if not isinstance(outcome, Ended) or outcome.cause is EndCause.ALL_LEFT:
            return
        plane = _plane(record) if outcome.plane is None else outcome.plane
        for mate in record.live_planes:
            self._engine.act(mate, lambda job, now: job.end_with(outcome, plane))

    def tick(self) -> None:
        """End planes that others do not come back to."""
        now, before, self._apart_since = self._engine.clock(), self._apart_since, {}
        for record in self._book:
            gang = record.job.spec.gang
            if gang is None or not record.job.is_set_up or not (away := self._away(record, gang)):
                continue
            since = self._apart_since[record] = before.get(record, now)
            if now - since > self._patience_s:
                reason = (
                    f"gang {gang.name} cannot go on: of plane {away} nobody came back within "
                    f"{self._patience_s:g} s after the controller was back"
                )
                why = Ended(reason=reason, cause=EndCause.CANNOT_GO_ON)
                self._engine.act(record, functools.partial(_end_with, why, gang.plane))

    def _away(self, record: Record, gang: Gang) -> str:
        """Name the planes that are neither here nor over, as everybody had left them.

        A plane that is not set up is not here: an older database may only know that it was created, and a
        worker that joins it is none of those that are waited for.
        """
        there = {_plane(mate) for mate in record.planes if mate.job.is_set_up or not mate.job.live}
        away = [plane for plane in range(gang.planes) if plane not in there]
        mates = {plane: self._book.by_name.get(gang.job_of(plane)) for plane in away}
        return ", ".join(
            str(plane)
            for plane, mate in mates.items()
            if mate is None or not isinstance(mate.job.outcome, Left)
        )

    def forgive(self, seconds: float, now: float) -> None:
        """Extend times: the controller itself was stopped for so many seconds, until now."""
        self._apart_since = {r: min(now, since + seconds) for r, since in self._apart_since.items()}

    # After a restart

    def loaded(self) -> None:
        """Bring the planes of the database's jobs together, and end gangs in which one had failed."""
        records = [record for record in self._book if record.job.spec.gang is not None]
        for record in records:
            if record.job.live:
                self.enlist(record, record.job.spec.gang)
        for record in records:
            gang = record.job.spec.gang
            if gang is None or not record.job.live or record.job.phase is Phase.CREATED:
                continue
            for plane in range(gang.planes):
                why = self._why_over(gang, plane)
                if why is not None:
                    self._engine.act(record, functools.partial(_end_with, why, plane))
                    break

    def _why_over(self, gang: Gang, plane: int) -> Ended | None:
        """Return the end of a loaded gang that cannot go on because of a plane; None if it can."""
        mate = self._book.by_name.get(gang.job_of(plane))
        if mate is not None and isinstance(mate.job.outcome, Ended):
            return mate.job.outcome
        if mate is None or mate.job.phase is Phase.CREATED:
            reason = f"gang {gang.name} cannot go on: the controller's database has no plane {plane} of it"
            return Ended(reason=reason, cause=EndCause.CANNOT_GO_ON)
        return None


def _require_alike(spec: JobSpec, other: JobSpec) -> None:
    """Raise InvalidRequestError if two planes differ in their settings: their GPUs share each tensor."""
    gang, its = spec.gang, other.gang
    assert gang is not None
    assert its is not None
    for what, mine, theirs in (
        ("planes, one for each GPU of a machine", gang.planes, its.planes),
        ("machines", spec.world_size, other.world_size),
    ):
        if mine != theirs:
            raise InvalidRequestError(
                f"gang {gang.name} has {theirs} {what}, but plane {gang.plane} says {mine}: start all "
                "workers alike"
            )
    if spec.tenant != other.tenant:
        raise InvalidRequestError(
            f"gang {gang.name} is of tenant {other.tenant or 'default'}, but plane {gang.plane} says "
            f"{spec.tenant or 'default'}: start all workers with the same"
        )
    for name in _ALIKE:
        values = [_in_words(getattr(of, name)) for of in (other, spec)]
        if values[0] != values[1]:
            raise InvalidRequestError(
                f"gang {gang.name} has {name} {values[0]} in plane {its.plane}, but {values[1]} in plane "
                f"{gang.plane}: start all workers alike, and create all planes by the gang's name"
            )


def _in_words(value: bool | Mode | int | None) -> str:
    """Return a setting of a job as people write it."""
    return "open" if value is None else str(value).lower()


def _drop_machine(lost: MachineLost, plane: int, job: Job, now: float) -> None:
    job.drop_machine(lost.machine, lost.reason, lost.cause, plane)


def _end_with(why: Ended, plane: int, job: Job, now: float) -> None:
    job.end_with(why, plane)


def _plane(record: Record) -> int:
    gang = record.job.spec.gang
    return 0 if gang is None else gang.plane


def _gpus_of(machine: int, absent: Iterable[int], here: Mapping[int, Member]) -> str:
    """Name some GPUs of a machine, and its address if another of its workers has given it."""
    numbers = list(map(str, absent))
    which = f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} of machine {machine}"
    member = next(iter(here.values()), None)
    return which if member is None else f"{which} ({member.host or member.hostname}, {member.ip})"
