"""Jobs, sessions and switches as the service's messages."""

from __future__ import annotations

from controller.api import controller_pb2 as pb
from controller.comparing import Called, Compare
from controller.config import Config
from controller.fabric import ManagedSwitch
from controller.guarding import in_one_line
from controller.jobs import (
    Ended,
    Event,
    Heartbeat,
    JobSpec,
    Left,
    Member,
    Mode,
    Phase,
    Ready,
    Renewed,
    Resumed,
    Start,
    Timing,
    Waiting,
)
from controller.moves import HoldAt, Moved, Pause
from controller.registry import Registry
from controller.renewals import Renew, Standing
from controller.running import Running
from controller.trees import Tree

_MODES = {None: pb.MODE_UNSPECIFIED, Mode.IN_NETWORK: pb.IN_NETWORK, Mode.RING: pb.RING}
_PHASES = {
    Phase.CREATED: pb.CREATED,
    Phase.JOINING: pb.JOINING,
    Phase.INSTALLING: pb.INSTALLING,
    Phase.READY: pb.READY,
    Phase.RUNNING: pb.RUNNING,
    Phase.ENDED: pb.ENDED,
}


def standing_from(message: pb.Renewing) -> Standing:
    """Where a worker stands."""
    return Standing(
        qpn_out=message.qpn_out,
        psn_out=message.psn_out,
        qpn_in=message.qpn_in,
        collective=message.collective,
    )


def called_from(message: pb.Called) -> Called:
    """What a worker has called."""
    return Called(message.collective, in_one_line(message.what))


def event_message(event: Event, timing: Timing, rc: pb.RcParameters) -> pb.ControllerMessage:
    """What a worker is told."""
    if isinstance(event, Waiting):
        return pb.ControllerMessage(waiting=pb.Waiting(missing_ranks=event.missing))
    if isinstance(event, Ready):
        return pb.ControllerMessage(ready=_ready(event, timing, rc))
    if isinstance(event, Start):
        return pb.ControllerMessage(start=pb.Start())
    if isinstance(event, Heartbeat):
        return pb.ControllerMessage(heartbeat=pb.Heartbeat(number=event.number))
    if isinstance(event, Resumed):
        return pb.ControllerMessage(resumed=pb.Resumed())
    if isinstance(event, Left):
        return pb.ControllerMessage(left=pb.Left())
    if isinstance(event, Pause):
        return pb.ControllerMessage(pause=pb.Pause(move=event.move))
    if isinstance(event, HoldAt):
        return pb.ControllerMessage(hold_at=pb.HoldAt(move=event.move, collective=event.collective))
    if isinstance(event, Moved):
        return pb.ControllerMessage(
            moved=pb.Moved(move=event.move, mode=_mode(event.mode), mode_reason=event.reason)
        )
    if isinstance(event, Renew):
        return pb.ControllerMessage(renew=pb.Renew(renewal=event.renewal, reason=event.reason))
    if isinstance(event, Renewed):
        renewed = pb.Renewed(
            renewal=event.renewal,
            ready=_ready(event.ready, timing, rc),
            collective=event.collective,
            holder=event.holder,
            members=event.members,
        )
        return pb.ControllerMessage(renewed=renewed)
    if isinstance(event, Compare):
        return pb.ControllerMessage(compare=pb.Compare(collective=event.collective))
    return pb.ControllerMessage(ended=_ended(event))


def rc_parameters(config: Config) -> pb.RcParameters:
    """What all workers' RDMA devices are told."""
    return pb.RcParameters(
        timeout=config.rc_timeout,
        retry_count=config.rc_retry_count,
        rnr_retry=config.rc_rnr_retry,
        min_rnr_timer=config.rc_min_rnr_timer,
    )


def job_info(registry: Registry, running: Running) -> pb.JobInfo:
    """A job as ListJobs tells of it."""
    job, now = running.job, registry.clock()
    info = pb.JobInfo(spec=_spec(job.spec), phase=_phase(job.phase), explicit=job.explicit)
    for rank, seat in sorted(job.seats.items()):
        host = registry.config.by_ip.get(seat.member.ip)
        info.workers.add(
            worker=worker_message(seat.member),
            host=seat.member.host,
            port=host.port if host is not None else 0,
            heard_s_ago=max(0.0, now - seat.heard_at),
            connected=rank in running.sessions,
        )
    if isinstance(job.outcome, Ended):
        info.ended.CopyFrom(_ended(job.outcome))
    elif isinstance(job.outcome, Left):
        info.ended.CopyFrom(pb.Ended(reason="all workers have left"))
    if running.ended_at is not None:
        info.ended_s_ago = max(0.0, now - running.ended_at)
    if job.plan is not None:
        info.job_id = job.plan.job_id
        info.generation = job.plan.generation
        info.mode = _mode(job.plan.mode)
        info.mode_reason = job.plan.mode_reason
        info.window = job.plan.window
        info.message_packets = job.plan.message_packets
        info.path_mtu = job.plan.path_mtu
        info.ring.extend(job.plan.ring or range(job.world_size))
        info.selective = job.plan.selective
        info.renewals = job.plan.renewals
        info.renewal_reason = running.waits_for or job.plan.renewal_reason
    if job.renewal is not None:
        info.renewing = True
        info.renewal_reason = running.waits_for or job.renewal.reason
    info.awaited.extend(job.awaited)
    if running.places and job.live:
        tree = Tree.of(registry.config, job.members)
        for place in running.leaves_first:
            info.places.add(
                switch=place.switch,
                role=place.role,
                first_slot=place.region.base,
                slots=place.region.slots,
                ranks=[rank for ranks in tree.ranks_by_bit(place.switch) for rank in ranks],
            )
    queued = registry.waitlist.waitlisted(running)
    if queued is not None:
        info.waitlisted.CopyFrom(
            pb.Waitlisted(position=queued.position, reason=queued.reason, waiting_s=queued.waiting_s)
        )
    return info


def worker_message(member: Member, *, backup: bool = False) -> pb.Worker:
    """A worker as it joined; with `backup`, where it is reached without the switches."""
    at = member.backup if backup and member.backup is not None else member
    return pb.Worker(
        rank=member.rank,
        mac=at.mac,
        ip=str(at.ip),
        qpn_out=member.qpn_out,
        psn_out=member.psn_out,
        qpn_in=member.qpn_in,
        hostname=member.hostname,
    )


def switch_info(switch: ManagedSwitch) -> pb.SwitchInfo:
    """A switch as GetStatus tells of it."""
    config = switch.switch.config
    return pb.SwitchInfo(
        name=config.name,
        address=config.address,
        device_id=config.device_id,
        target=config.target.value,
        connected=switch.switch.connected,
        state=switch.switch.state,
        slots_used=switch.allocator.used,
        slots=switch.allocator.slots,
        jobs=len(switch.allocator.regions),
        program_sha256=switch.switch.program_sha256,
    )


def _ready(event: Ready, timing: Timing, rc: pb.RcParameters) -> pb.Ready:
    plan = event.plan
    return pb.Ready(
        job_id=plan.job_id,
        generation=plan.generation,
        window=plan.window,
        message_packets=plan.message_packets,
        path_mtu=plan.path_mtu,
        mode=_mode(plan.mode),
        mode_reason=plan.mode_reason,
        successor=worker_message(event.successor, backup=plan.backup),
        predecessor=worker_message(event.predecessor, backup=plan.backup),
        heartbeat_interval_s=timing.heartbeat_interval_s,
        heartbeat_timeout_s=timing.heartbeat_timeout_s,
        resume_token=event.token,
        rc=rc,
        ring=plan.ring,
        rank=event.rank,
        world_size=event.world_size,
        selective=plan.selective,
        backup=plan.backup,
        lease_s=event.lease_s,
        created=_spec(event.created) if event.created is not None else None,
    )


def _ended(ended: Ended) -> pb.Ended:
    return pb.Ended(
        reason=ended.reason,
        rank=ended.rank,
        host=ended.host,
        first_message=ended.first_message,
        mismatch=ended.mismatch,
    )


def _spec(spec: JobSpec) -> pb.JobSpec:
    return pb.JobSpec(
        name=spec.name,
        world_size=spec.world_size,
        mode=_mode(spec.mode),
        path_mtu=spec.path_mtu,
        window=spec.window,
        message_packets=spec.message_packets,
        tenant=spec.tenant,
        elastic=spec.elastic,
        min_workers=spec.min_workers,
        selective=spec.selective,
    )


def _mode(mode: Mode | None) -> pb.Mode:
    return _MODES[mode]


def _phase(phase: Phase) -> pb.Phase:
    return _PHASES[phase]
