"""The known jobs: by name, by generation, and the specs that they were created with."""

from __future__ import annotations

from collections.abc import Iterator

from controller.api.errors import NotFoundError, NotPossibleError
from controller.api.messages import JobSpec
from controller.jobs.effects import Superseded
from controller.jobs.specs import Member
from controller.orchestration.record import Record
from controller.orchestration.retired import RetiredQueuePairs

_REMEMBERED = 100  # ended jobs


class Book:
    """All known jobs. `specs`: those made by CreateJob. `by_name`: the last job of each name.

    `retired`: queue pair numbers of jobs that are over.
    """

    def __init__(self) -> None:
        self.specs: dict[str, JobSpec] = {}
        self.by_name: dict[str, Record] = {}
        self.by_generation: dict[int, Record] = {}
        self.retired = RetiredQueuePairs()

    def __iter__(self) -> Iterator[Record]:
        """Yield the last job of each name, by name."""
        return iter([self.by_name[name] for name in sorted(self.by_name)])

    def job(self, name: str) -> Record:
        """Return the last job of that name. Raise NotFoundError."""
        record = self.by_name.get(name)
        if record is None:
            raise NotFoundError(f"there is no job {name!r}")
        return record

    def of_worker(self, name: str, generation: int, token: bytes) -> Record:
        """Return a worker's job; it may have gone on under another generation, here or before a restart.

        Raise NotFoundError, or NotPossibleError if the job went on without the worker.
        """
        record = self.by_name.get(name)
        if record is not None and record.job.live and record.job.workers.knows(token):
            return record
        record = self.by_generation.get(generation)
        if record is None or record.job.spec.name != name:
            raise NotFoundError(f"there is no job {name!r} with generation {generation}: it ended long ago")
        if isinstance(record.job.outcome, Superseded):
            for later in reversed(self.by_generation.values()):
                job = later.job
                is_it = job.spec.name == name and job.workers.knows(token)
                if is_it and not isinstance(job.outcome, Superseded):
                    return later
            raise NotPossibleError(
                f"job {name} went on after generation {generation} without this worker, which had been away "
                "for too long"
            )
        return record

    def ended(self, record: Record) -> None:
        """Note that a job has ended, so that jobs are forgotten in the order of their ends."""
        generation, name = record.generation, record.job.spec.name
        if generation is not None and self.by_generation.get(generation) is record:
            self.by_generation[generation] = self.by_generation.pop(generation)
        if self.by_name.get(name) is record:
            self.by_name[name] = self.by_name.pop(name)

    def forget_old(self) -> None:
        """Forget all ended jobs but the last ones."""
        for superseded in (False, True):
            ended = [
                generation
                for generation, record in self.by_generation.items()
                if not record.job.live and isinstance(record.job.outcome, Superseded) is superseded
            ]
            for generation in ended[:-_REMEMBERED]:
                del self.by_generation[generation]
        names = [name for name, r in self.by_name.items() if not r.job.live and name not in self.specs]
        for name in names[:-_REMEMBERED]:
            del self.by_name[name]

    def who_has_qps(self, member: Member, now: float) -> str:
        """Name the job that has or had a worker's queue pair numbers on its host; empty if none."""
        wanted = {member.qpn_in, member.qpn_out}
        for record in self.by_name.values():
            if not record.job.live:
                continue
            for other in (*record.job.members, *record.job.offered):
                taken = wanted & {other.qpn_in, other.qpn_out}
                if other.ip == member.ip and taken:
                    return (
                        f"QP {min(taken):#x} of host {member.host} ({member.ip}) belongs to {other} of job "
                        f"{record.job.spec.name}"
                    )
        return self.retired.why_not(member.ip, wanted, now)
