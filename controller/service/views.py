"""Jobs, switches, their entries and counters, and plans, as the service's messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from controller.api import controller_pb2 as pb
from controller.api.codec import to_proto
from controller.api.messages import EndCause, Ended, Left
from controller.configuration.configuration import Report, Setting, SwitchReport
from controller.configuration.vocabulary import Vocabulary
from controller.database.revisions import Revision
from controller.entries import Entry, TableEntry
from controller.fabric.tables.membership import FLOW
from controller.fabric.tables.tree import TREE_JOB
from controller.fabric.trees import Tree
from controller.orchestration.record import Record
from controller.orchestration.registry import Registry
from controller.slots.allocation import Allocation
from controller.switches.difference import Change
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.pipeline import shipped_program
from controller.switches.queries import RESULT, SlotContent
from controller.switches.switch import UNNAMED, CounterCell
from controller.switches.updates import UpdateKind

PORT_DROPS = ("no_route", UNNAMED, "spoofed", "no_job", "bad_echo")
_CHUNK_BYTES = 256
_NOTHING = CounterCell(0, 0)
_PLANNED = ("mode", "mode_reason", "window", "message_packets", "path_mtu", "selective")
_CHANGES = {
    UpdateKind.INSERT: pb.Change.ADD,
    UpdateKind.MODIFY: pb.Change.CHANGE,
    UpdateKind.DELETE: pb.Change.DELETE,
}

PortCounters = Mapping[str, Mapping[int, CounterCell]]


def job_info(registry: Registry, record: Record) -> pb.JobInfo:
    """Return a job as ListJobs shows it."""
    job, now = record.job, registry.clock()
    info = pb.JobInfo(
        spec=to_proto(job.spec), phase=job.phase.name, explicit=job.explicit, awaited=job.awaited
    )
    for rank, worker in sorted(job.workers.items()):
        host = registry.config.by_ip.get(worker.member.ip)
        info.workers.add(
            worker=to_proto(worker.member.worker()),
            host=worker.member.host,
            port=host.port if host is not None else 0,
            heard_s_ago=max(0.0, now - worker.heard_at),
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
        info.MergeFrom(
            pb.JobInfo(
                **_named(job.plan, "job_id", "generation", *_PLANNED),
                ring=job.plan.ring or range(job.world_size),
                renewals=job.plan.renewals,
                renewal_reason=record.waits_for or job.plan.renewal_reason,
            )
        )
    if job.renewal is not None:
        info.renewing = True
        info.renewal_reason = record.waits_for or job.renewal.reason
    if record.allocations and job.live:
        tree = Tree.of(registry.config, job.members)
        for allocation in record.leaves_first:
            info.places.add(
                **_named(allocation, "switch", "role"),
                first_slot=allocation.region.base,
                slots=allocation.region.slots,
                ranks=[rank for ranks in tree.ranks_by_bit(allocation.switch) for rank in ranks],
            )
    queued = registry.waitlist.waitlisted(record)
    if queued is not None:
        info.waitlisted.CopyFrom(pb.Waitlisted(**_named(queued, "position", "reason", "waiting_s")))
    return info


def jobs_info(registry: Registry, planes: Sequence[Record]) -> pb.JobInfo:
    """Return the job, or the gang with its planes, of one name."""
    gang = planes[0].job.spec.gang
    if gang is None or len(planes) == gang.planes == 1:
        return job_info(registry, planes[0])
    infos = [job_info(registry, record) for record in planes]
    first = infos[0]
    phases = [info.phase for info in infos]
    whole = len(infos) == gang.planes
    info = pb.JobInfo(
        explicit=first.explicit,
        phase=min(phases) if whole or min(phases) == pb.ENDED else min(pb.JOINING, *phases),
        planes=infos,
        places=[place for one in infos for place in one.places],
        renewals=max(one.renewals for one in infos),
        renewing=any(one.renewing for one in infos),
        **_named(first, *_PLANNED, "renewal_reason"),
    )
    info.spec.CopyFrom(first.spec)
    info.spec.name, info.spec.world_size = gang.name, first.spec.world_size * gang.planes
    info.spec.min_workers = first.spec.min_workers * gang.planes
    info.spec.gang.plane = 0
    for one in infos:
        if one.HasField("waitlisted"):
            info.waitlisted.CopyFrom(one.waitlisted)
    over = [one for one in infos if one.HasField("ended")]
    if over and info.phase == pb.ENDED:
        failed = [one for one in over if one.ended.cause != pb.ALL_LEFT]
        info.ended.CopyFrom((failed or over)[0].ended)
        if over[0].HasField("ended_s_ago"):
            info.ended_s_ago = over[0].ended_s_ago
    return info


def switch_info(switch: ManagedSwitch) -> pb.SwitchInfo:
    """Return a switch as GetStatus shows it."""
    return pb.SwitchInfo(
        **_named(switch.switch.config, "name", "address", "device_id"),
        **_named(switch.switch, "connected", "state", "program_sha256"),
        target=switch.switch.config.target.value,
        slots_used=switch.allocator.used,
        slots=switch.allocator.slots,
        jobs=len(switch.allocator.regions),
    )


# What jobs have on a switch.


def flow_messages(
    registry: Registry, record: Record, allocation: Allocation, found: Collection[Entry]
) -> list[pb.Flow]:
    """Return a job's flows that begin on a leaf; `found`: the entries read from it.

    `egress_port` is 0 if the receiver is in another rack, as any uplink may be used.
    """
    tree = Tree.of(registry.config, record.job.members)
    by_rank = {member.rank: member for member in record.job.members}
    ring, flows = tree.ring, []
    for number, member in enumerate(tree.rack(allocation.switch).members):
        successor = by_rank[ring[(ring.index(member.rank) + 1) % len(ring)]]
        receiver = registry.config.by_ip[successor.ip]
        index = allocation.region.flow(number)
        entries = [entry for entry in allocation.entries if _is_of_flow(entry, index, member.rank)]
        # A job that was moved has another on the switch than its worker joined with.
        psns = [params["first_psn"] for params in map(_params, entries) if "ack_qp" in params]
        flows.append(
            pb.Flow(
                job=record.job.spec.name,
                generation=record.generation or 0,
                rank=member.rank,
                switch=allocation.switch,
                index=index,
                ingress_port=registry.config.by_ip[member.ip].port,
                egress_port=receiver.port if receiver.switch == allocation.switch else 0,
                src_ip=str(member.ip),
                dst_ip=str(successor.ip),
                dest_qp=successor.qpn_in,
                ack_qp=member.qpn_out,
                first_psn=psns[0] if psns else member.psn_out,
                on_switch=all(entry in found for entry in entries),
            )
        )
    return flows


def slot_messages(
    registry: Registry, record: Record, allocation: Allocation, slots: Iterable[SlotContent], *, unused: bool
) -> list[pb.Slot]:
    """Return a job's slots, those first that wait for somebody; with `unused` all slots, by index."""
    tree = Tree.of(registry.config, record.job.members)
    messages = [
        _slot(record, tree, allocation, slot)
        for slot in slots
        if unused or slot.generation == record.generation
    ]
    if not unused:
        messages.sort(key=lambda message: (message.state == "complete", message.index))
    return messages


def _slot(record: Record, tree: Tree, allocation: Allocation, slot: SlotContent) -> pb.Slot:
    message = pb.Slot(
        **_named(record.job.spec, "tenant"),
        **_named(allocation, "switch", "role"),
        **_named(slot, "index", "generation", "message"),
        job=record.job.spec.name,
        state="unused",
    )
    if slot.generation != record.generation:
        return message
    for bit, ranks in enumerate(tree.ranks_by_bit(allocation.switch)):
        (message.ranks if slot.bitmap >> bit & 1 else message.missing).extend(ranks)
    message.chunks = slot.chunks
    message.flags = slot.flags
    message.bytes = slot.chunks * _CHUNK_BYTES
    message.age_s = slot.age_us / 1e6
    message.state = "adding"
    if slot.flags & RESULT or not message.missing:
        sent_up = tree.two_level and allocation.role == "leaf" and not slot.flags & RESULT
        message.state = "sent up" if sent_up else "complete"
    return message


def counter_messages(
    registry: Registry, record: Record, allocation: Allocation, counters: dict[str, list[CounterCell]]
) -> list[pb.FlowCounters]:
    """Return a job's counters on a switch, one message a rank; on a spine one a rack, with its first rank."""
    tree = Tree.of(registry.config, record.job.members)
    return [
        pb.FlowCounters(
            job=record.job.spec.name,
            generation=record.generation or 0,
            rank=ranks[0],
            switch=allocation.switch,
            counters={name: _counted(cells[i]) for name, cells in counters.items()},
        )
        for i, ranks in enumerate(tree.ranks_by_bit(allocation.switch))
    ]


def _params(entry: Entry) -> dict[str, int]:
    return dict(entry.params) if isinstance(entry, TableEntry) else {}


def _is_of_flow(entry: Entry, index: int, rank: int) -> bool:
    """Tell whether an entry of a job belongs to one of its flows; the group belongs to all."""
    params = _params(entry)
    if not params:
        return True
    if entry.table in (FLOW, TREE_JOB) or "of_flow" in params:
        return index in (params.get("flow"), params.get("of_flow"))
    return params.get("rank") == rank


# Ports and links.


def ports_in_use(registry: Registry, switch: ManagedSwitch) -> list[int]:
    """Return the ports that hosts or other switches are behind."""
    return [port.port for port in _ports(registry, switch)]


def port_messages(registry: Registry, switch: ManagedSwitch, counters: PortCounters) -> list[pb.Port]:
    """Return the ports that hosts or other switches are behind, with their counters.

    Ports that the configuration does not name follow, if something came in by them.
    """
    ports = _ports(registry, switch)
    named = {port.port for port in ports}
    strangers = sorted(
        number for number, cell in counters.get(UNNAMED, {}).items() if cell.packets and number not in named
    )
    ports += [pb.Port(switch=switch.name, port=number) for number in strangers]
    for port in ports:
        port.received.CopyFrom(_count(counters, "port_rx", port.port))
        port.sent.CopyFrom(_count(counters, "port_tx", port.port))
        port.no_route.CopyFrom(_count(counters, "no_route", port.port))
        for reason in PORT_DROPS:
            port.drops[reason].CopyFrom(_count(counters, reason, port.port))
    return ports


def _ports(registry: Registry, switch: ManagedSwitch) -> list[pb.Port]:
    ports = [
        pb.Port(switch=switch.name, port=host.port, host=host.name, ip=str(host.ip), mac=host.mac)
        for host in registry.config.hosts_of(switch.name)
    ]
    for link in registry.links.graph.links:
        leaf, spine = (link.leaf, link.leaf_port), (link.spine, link.spine_port)
        for (name, port), (peer, peer_port) in ((leaf, spine), (spine, leaf)):
            if name == switch.name:
                ports.append(pb.Port(switch=name, port=port, peer=f"{peer} port {peer_port}"))
    return sorted(ports, key=lambda port: port.port)


def link_messages(registry: Registry, counters: Mapping[str, PortCounters]) -> list[pb.Link]:
    """Return the links between switches; `counters` by switch, without those that are away."""
    state = registry.links.state
    return [
        pb.Link(
            a=link.leaf,
            a_port=link.leaf_port,
            b=link.spine,
            b_port=link.spine_port,
            up=link.name not in state.down and link.spine not in state.lost,
            state=registry.links.words(link),
            a_to_b=_count(counters.get(link.leaf, {}), "port_tx", link.leaf_port),
            b_to_a=_count(counters.get(link.spine, {}), "port_tx", link.spine_port),
        )
        for link in registry.links.graph.links
    ]


def _counted(cell: CounterCell) -> pb.CounterValue:
    return pb.CounterValue(packets=cell.packets, bytes=cell.bytes)


def _count(counters: PortCounters, name: str, port: int) -> pb.CounterValue:
    return _counted(counters.get(name, {}).get(port, _NOTHING))


# Plans and revisions.


def report_message(report: Report, vocabulary: Vocabulary) -> pb.PlanReport:
    """Return a plan, or its result, as a message."""
    return pb.PlanReport(
        revision=report.revision,
        switches=[_switch_plan(switch, vocabulary) for switch in report.switches],
        applied=report.applied,
        settings=[_setting(setting, applied=report.applied) for setting in report.settings],
    )


def revision_messages(revisions: Sequence[Revision]) -> pb.RevisionList:
    """Return all revisions as a message; the last is current."""
    return pb.RevisionList(
        revisions=[
            pb.Revision(**_named(one, "number", "applied_at", "document"), current=one is revisions[-1])
            for one in revisions
        ]
    )


def _switch_plan(report: SwitchReport, vocabulary: Vocabulary) -> pb.SwitchPlan:
    message = pb.SwitchPlan(
        **_named(report, "name", "connected", "state", "error"), unchanged=report.found.unchanged
    )
    if report.replaced:
        message.changes.add(
            kind=pb.Change.CHANGE,
            what="pipeline",
            key="forwarding pipeline config",
            before="another program",
            after=f"the controller's, SHA-256 {shipped_program().sha256[:12]}",
            drift=True,
            applied=report.pushed,
        )
    message.changes.extend(
        _change(change, vocabulary, applied=change in report.done, error=report.refused.get(change, ""))
        for change in report.found.changes
    )
    return message


def _change(change: Change, vocabulary: Vocabulary, *, applied: bool, error: str) -> pb.Change:
    return pb.Change(
        kind=_CHANGES[change.kind],
        what="entry" if isinstance(change.entry, TableEntry) else "group",
        key=vocabulary.key_words(change.entry),
        before=vocabulary.value_words(change.before) if change.before is not None else "",
        after=vocabulary.value_words(change.after) if change.after is not None else "",
        drift=change.drift,
        applied=applied,
        error=error,
    )


def _setting(setting: Setting, *, applied: bool) -> pb.Change:
    kind = pb.Change.CHANGE if setting.before and setting.after else pb.Change.ADD
    if setting.before and not setting.after:
        kind = pb.Change.DELETE
    return pb.Change(kind=kind, **_named(setting, "what", "key", "before", "after"), applied=applied)


def _named(source: object, *names: str) -> dict[str, Any]:
    """Return these attributes by name, for fields of the same names in a message."""
    return {name: getattr(source, name) for name in names}
