"""What the registry and the switches hold, as the service's messages."""

from __future__ import annotations

from collections.abc import Iterable

from controller.api import controller_pb2 as pb
from controller.config import Config
from controller.entries import Entry
from controller.fabric import ManagedSwitch
from controller.flows import FLOW
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
    Resumed,
    Start,
    Timing,
    Waiting,
)
from controller.queries import SlotContent
from controller.registry import Registry, Running
from controller.store import Place
from controller.switch import CounterCell
from p4src import MAX_RANKS

_MODES = {None: pb.MODE_UNSPECIFIED, Mode.IN_NETWORK: pb.IN_NETWORK, Mode.RING: pb.RING}
_PHASES = {
    Phase.CREATED: pb.CREATED,
    Phase.JOINING: pb.JOINING,
    Phase.INSTALLING: pb.INSTALLING,
    Phase.READY: pb.READY,
    Phase.RUNNING: pb.RUNNING,
    Phase.ENDED: pb.ENDED,
}


def spec_from(message: pb.JobSpec) -> JobSpec:
    """What CreateJob asks for."""
    return JobSpec(
        name=message.name,
        world_size=message.world_size,
        mode=Mode(message.mode) if message.mode else None,
        path_mtu=message.path_mtu if message.HasField("path_mtu") else None,
        window=message.window if message.HasField("window") else None,
        message_packets=message.message_packets if message.HasField("message_packets") else None,
    )


def event_message(event: Event, timing: Timing, rc: pb.RcParameters) -> pb.ControllerMessage:
    """What a worker is told."""
    if isinstance(event, Waiting):
        return pb.ControllerMessage(waiting=pb.Waiting(missing_ranks=event.missing))
    if isinstance(event, Ready):
        return pb.ControllerMessage(ready=_ready(event, timing, rc))
    if isinstance(event, Start):
        return pb.ControllerMessage(start=pb.Start())
    if isinstance(event, Heartbeat):
        return pb.ControllerMessage(heartbeat=pb.Heartbeat())
    if isinstance(event, Resumed):
        return pb.ControllerMessage(resumed=pb.Resumed())
    if isinstance(event, Left):
        return pb.ControllerMessage(left=pb.Left())
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
    if job.plan is not None:
        info.job_id = job.plan.job_id
        info.generation = job.plan.generation
        info.mode = _mode(job.plan.mode)
        info.mode_reason = job.plan.mode_reason
        info.window = job.plan.window
        info.message_packets = job.plan.message_packets
        info.path_mtu = job.plan.path_mtu
    if running.place is not None and job.live:
        info.switch = running.place.switch
        info.first_slot = running.place.region.base
        info.slots = running.place.region.slots
    return info


def worker_message(member: Member) -> pb.Worker:
    """A worker as it joined."""
    return pb.Worker(
        rank=member.rank,
        mac=member.mac,
        ip=str(member.ip),
        qpn_out=member.qpn_out,
        psn_out=member.psn_out,
        qpn_in=member.qpn_in,
        hostname=member.hostname,
    )


def flow_messages(registry: Registry, running: Running, place: Place, found: set[Entry]) -> list[pb.Flow]:
    """A job's flows; `found` is what was read from the switch."""
    members = running.job.members
    flows = []
    for member in members:
        successor = members[(member.rank + 1) % len(members)]
        index = place.region.flow(member.rank)
        entries = [entry for entry in place.entries if _is_of_flow(entry, index, member.rank)]
        flows.append(
            pb.Flow(
                job=running.job.spec.name,
                generation=running.generation or 0,
                rank=member.rank,
                switch=place.switch,
                index=index,
                ingress_port=registry.config.by_ip[member.ip].port,
                egress_port=registry.config.by_ip[successor.ip].port,
                src_ip=str(member.ip),
                dst_ip=str(successor.ip),
                dest_qp=successor.qpn_in,
                ack_qp=member.qpn_out,
                first_psn=member.psn_out,
                on_switch=found.issuperset(entries),
            )
        )
    return flows


def slot_messages(
    running: Running, place: Place, slots: Iterable[SlotContent], *, unused: bool
) -> list[pb.Slot]:
    """A job's slots; `unused` ones hold nothing of its generation."""
    return [
        pb.Slot(
            job=running.job.spec.name,
            switch=place.switch,
            index=slot.index,
            generation=slot.generation,
            message=slot.message,
            ranks=[rank for rank in range(MAX_RANKS) if slot.bitmap >> rank & 1],
            chunks=slot.chunks,
            flags=slot.flags,
        )
        for slot in slots
        if unused or slot.generation == running.generation
    ]


def counter_messages(
    running: Running, place: Place, counters: dict[str, list[CounterCell]]
) -> list[pb.FlowCounters]:
    """A job's counters, one message a rank."""
    return [
        pb.FlowCounters(
            job=running.job.spec.name,
            generation=running.generation or 0,
            rank=member.rank,
            switch=place.switch,
            counters={name: counter_value(cells[i]) for name, cells in counters.items()},
        )
        for i, member in enumerate(running.job.members)
    ]


def port_messages(
    registry: Registry, switch: ManagedSwitch, counters: dict[str, dict[int, CounterCell]]
) -> list[pb.Port]:
    """The ports that hosts are behind."""
    nothing = CounterCell(0, 0)
    return [
        pb.Port(
            switch=switch.name,
            port=host.port,
            host=host.name,
            ip=str(host.ip),
            mac=host.mac,
            received=counter_value(counters["port_rx"].get(host.port, nothing)),
            sent=counter_value(counters["port_tx"].get(host.port, nothing)),
            no_route=counter_value(counters["no_route"].get(host.port, nothing)),
        )
        for host in sorted(registry.config.hosts_of(switch.name), key=lambda host: host.port)
    ]


def counter_value(cell: CounterCell) -> pb.CounterValue:
    """One cell of a counter."""
    return pb.CounterValue(packets=cell.packets, bytes=cell.bytes)


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


def _is_of_flow(entry: Entry, index: int, rank: int) -> bool:
    """Whether an entry of a job belongs to one of its flows; the group belongs to all."""
    params = dict(getattr(entry, "params", ()))
    if not params:
        return True
    if getattr(entry, "table", "") == FLOW or "of_flow" in params:
        return index in (params.get("flow"), params.get("of_flow"))
    return params.get("rank") == rank


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
        successor=worker_message(event.successor),
        predecessor=worker_message(event.predecessor),
        heartbeat_interval_s=timing.heartbeat_interval_s,
        heartbeat_timeout_s=timing.heartbeat_timeout_s,
        resume_timeout_s=timing.resume_timeout_s,
        resume_token=event.token,
        rc=rc,
    )


def _ended(ended: Ended) -> pb.Ended:
    return pb.Ended(reason=ended.reason, rank=ended.rank)


def _spec(spec: JobSpec) -> pb.JobSpec:
    return pb.JobSpec(
        name=spec.name,
        world_size=spec.world_size,
        mode=_mode(spec.mode),
        path_mtu=spec.path_mtu,
        window=spec.window,
        message_packets=spec.message_packets,
    )


def _mode(mode: Mode | None) -> pb.Mode:
    return _MODES[mode]


def _phase(phase: Phase) -> pb.Phase:
    return _PHASES[phase]
