"""Jobs and switches as the service's messages."""

from __future__ import annotations

from controller.api import controller_pb2 as pb
from controller.api.codec import to_proto
from controller.api.messages import EndCause, Ended, Left
from controller.fabric import ManagedSwitch
from controller.record import Record
from controller.registry import Registry
from controller.trees import Tree


def job_info(registry: Registry, record: Record) -> pb.JobInfo:
    """A job as ListJobs tells of it."""
    job, now = record.job, registry.clock()
    info = pb.JobInfo(spec=to_proto(job.spec), phase=job.phase.name, explicit=job.explicit)
    for rank, seat in sorted(job.seats.items()):
        host = registry.config.by_ip.get(seat.member.ip)
        info.workers.add(
            worker=to_proto(seat.member.worker()),
            host=seat.member.host,
            port=host.port if host is not None else 0,
            heard_s_ago=max(0.0, now - seat.heard_at),
            connected=rank in record.sessions,
        )
    outcome = job.outcome
    if isinstance(outcome, Left):
        outcome = Ended(reason="all workers have left", cause=EndCause.ALL_LEFT)
    if isinstance(outcome, Ended):
        info.ended.CopyFrom(to_proto(outcome))
    if record.ended_at is not None:
        info.ended_s_ago = max(0.0, now - record.ended_at)
    if job.plan is not None:
        plan = pb.JobInfo(
            job_id=job.plan.job_id,
            generation=job.plan.generation,
            mode=job.plan.mode.name,
            mode_reason=job.plan.mode_reason,
            window=job.plan.window,
            message_packets=job.plan.message_packets,
            path_mtu=job.plan.path_mtu,
            ring=job.plan.ring or range(job.world_size),
            selective=job.plan.selective,
            renewals=job.plan.renewals,
            renewal_reason=record.waits_for or job.plan.renewal_reason,
        )
        info.MergeFrom(plan)
    if job.renewal is not None:
        info.renewing = True
        info.renewal_reason = record.waits_for or job.renewal.reason
    info.awaited.extend(job.awaited)
    if record.places and job.live:
        tree = Tree.of(registry.config, job.members)
        for place in record.leaves_first:
            info.places.add(
                switch=place.switch,
                role=place.role,
                first_slot=place.region.base,
                slots=place.region.slots,
                ranks=[rank for ranks in tree.ranks_by_bit(place.switch) for rank in ranks],
            )
    queued = registry.waitlist.waitlisted(record)
    if queued is not None:
        info.waitlisted.CopyFrom(
            pb.Waitlisted(position=queued.position, reason=queued.reason, waiting_s=queued.waiting_s)
        )
    return info


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
