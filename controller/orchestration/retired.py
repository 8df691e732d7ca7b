"""Retired queue pair numbers: their job or generation is over, but somebody may still send to them. No I/O.

A packet in the middle of a message carries neither job nor generation. With the same two hosts, the same
queue pair number and a fitting PSN it would pass for a packet of a later job. So no worker gets such a number
on that host before its one sender, the neighbour in the ring, has stopped and its packets are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from controller.jobs.job import Job
from controller.jobs.specs import Member

STRAGGLERS_S = 2.0  # how long packets of workers that have stopped may still be under way


@dataclass
class _Retired:
    """A retired number of `member`. The worker with the token `sender` sent to it.

    `free_at`: None while that worker may still send.
    """

    member: Member
    number: int
    job: str
    generation: int
    sender: bytes
    free_at: float | None = None


class RetiredQueuePairs:
    """Retired numbers by host. A worker that never says that it has stopped keeps two retired for ever."""

    def __init__(self) -> None:
        # After a restart several generations that are over may have had the same one: all must be done with.
        self._known: dict[tuple[IPv4Address, int, int], _Retired] = {}

    def retire(self, job: Job, free_at: float | None = None) -> None:
        """Retire a job's queue pairs of its generation, which is over.

        `free_at`: when they are free, if all its workers have finished, except those that it has dropped.
        """
        if job.plan is None:
            return
        workers = job.workers.everybody
        ring = job.plan.ring or tuple(sorted(workers))
        for position, rank in enumerate(ring):
            worker, after = workers.get(rank), workers.get(ring[(position + 1) % len(ring)])
            if worker is None or after is None or worker is after:
                continue
            for owner, number, sender in (
                (after.member, after.member.qpn_in, worker.token),  # data
                (worker.member, worker.member.qpn_out, after.token),  # and what acknowledges it
            ):
                if not sender:  # it has never heard of the other
                    continue
                key = (owner.ip, number, job.plan.generation)
                fresh = _Retired(owner, number, job.spec.name, job.plan.generation, sender)
                known = self._known.setdefault(key, fresh)
                if known.free_at is None and sender not in job.workers.dropped:
                    known.free_at = free_at

    def stopped(self, token: bytes, before: int, now: float) -> None:
        """Note that a worker sends nothing more of generations before that one."""
        self.all_stopped({token: before}, now)

    def all_stopped(self, before: Mapping[bytes, int], now: float) -> None:
        """Note that several workers, by token, send nothing more before those generations."""
        for known in self._known.values():
            if known.free_at is None and known.generation < before.get(known.sender, 0):
                known.free_at = now + STRAGGLERS_S

    def tick(self, now: float) -> None:
        """Forget numbers that are free."""
        free = [
            key for key, known in self._known.items() if known.free_at is not None and now >= known.free_at
        ]
        for key in free:
            del self._known[key]

    def why_not(self, ip: IPv4Address, numbers: set[int], now: float) -> str:
        """Say why a worker on that host cannot have these numbers; return "" if it can."""
        self.tick(now)
        return next(self._reasons(ip, numbers), "")

    def _reasons(self, ip: IPv4Address, numbers: set[int]) -> Iterator[str]:
        for known in self._known.values():
            if known.member.ip == ip and known.number in numbers:
                yield (
                    f"QP {known.number:#x} of host {known.member.host} ({ip}) was that of {known.member} of "
                    f"job {known.job}, and may still be sent to"
                )
