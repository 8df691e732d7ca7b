"""Jobs as their tests need them: members, plans, jobs that run."""

from __future__ import annotations

from ipaddress import IPv4Address

from controller.api.messages import (
    FromController,
    Heartbeat,
    JobSpec,
    Mode,
    Up,
)
from controller.jobs.effects import Tell
from controller.jobs.job import Job
from controller.jobs.specs import Member, Plan, Timing

TIMING = Timing(heartbeat_interval_s=1.0, heartbeat_timeout_s=5.0, resume_timeout_s=30.0)


PLAN = Plan(job_id=5, generation=77, window=8, message_packets=16, path_mtu=1024, mode=Mode.IN_NETWORK)


def member(rank: int, *, path_mtu_max: int = 4096) -> Member:
    return Member(
        rank=rank,
        mac=f"02:00:00:00:00:{rank + 1:02x}",
        ip=IPv4Address(f"10.0.0.{rank + 1}"),
        qpn_out=0x100 + rank,
        psn_out=rank,
        qpn_in=0x200 + rank,
        host=f"h{rank + 1}",
        path_mtu_max=path_mtu_max,
    )


def token(rank: int) -> bytes:
    return b"token of %d" % rank


def told(job: Job, *, quiet: bool = True) -> list[tuple[int, FromController]]:
    """Return what workers were told since the last call, with heartbeats unless `quiet`."""
    tells = [effect for effect in job.take_effects() if isinstance(effect, Tell)]
    return [(t.rank, t.event) for t in tells if not (quiet and isinstance(t.event, Heartbeat))]


def joined(size: int) -> Job:
    job = Job(JobSpec(name="train", world_size=size), TIMING)
    for rank in range(size):
        job.join(member(rank), size, now=0.0)
    return job


def ready(size: int, now: float = 0.0) -> Job:
    job = joined(size)
    job.planned(PLAN, {rank: token(rank) for rank in range(size)}, now)
    job.take_effects()
    return job


def running(size: int, now: float = 0.0) -> Job:
    job = ready(size, now)
    for rank in range(size):
        job.hear(rank, Up(), now)
    job.take_effects()
    return job
