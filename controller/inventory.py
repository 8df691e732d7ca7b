"""What the switches hold and count, as the service's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.api import controller_pb2 as pb
from controller.entries import Entry
from controller.fabric import ManagedSwitch
from controller.flows import FLOW, TREE_JOB
from controller.queries import RESULT, SlotContent
from controller.record import Record
from controller.registry import Registry
from controller.store import Place
from controller.switch import UNNAMED, CounterCell
from controller.trees import Tree

_CHUNK_BYTES = 256
_NOTHING = CounterCell(0, 0)
PORT_DROPS = ("no_route", UNNAMED, "spoofed", "no_job", "bad_echo")

PortCounters = Mapping[str, Mapping[int, CounterCell]]


def flow_messages(registry: Registry, record: Record, place: Place, found: set[Entry]) -> list[pb.Flow]:
    """A job's flows that begin on a leaf; `found` is what was read from it.

    `egress_port` is 0 where the receiver is in another rack, as any uplink may be.
    """
    tree = Tree.of(registry.config, record.job.members)
    by_rank = {member.rank: member for member in record.job.members}
    ring, flows = tree.ring, []
    for number, member in enumerate(tree.rack(place.switch).members):
        successor = by_rank[ring[(ring.index(member.rank) + 1) % len(ring)]]
        receiver = registry.config.by_ip[successor.ip]
        index = place.region.flow(number)
        entries = [entry for entry in place.entries if _is_of_flow(entry, index, member.rank)]
        flows.append(
            pb.Flow(
                job=record.job.spec.name,
                generation=record.generation or 0,
                rank=member.rank,
                switch=place.switch,
                index=index,
                ingress_port=registry.config.by_ip[member.ip].port,
                egress_port=receiver.port if receiver.switch == place.switch else 0,
                src_ip=str(member.ip),
                dst_ip=str(successor.ip),
                dest_qp=successor.qpn_in,
                ack_qp=member.qpn_out,
                first_psn=_first_psn(entries, member.psn_out),
                on_switch=found.issuperset(entries),
            )
        )
    return flows


def slot_messages(
    registry: Registry, record: Record, place: Place, slots: Iterable[SlotContent], *, unused: bool
) -> list[pb.Slot]:
    """A job's slots, those first that wait for somebody; with `unused` all of them, by index."""
    tree = Tree.of(registry.config, record.job.members)
    messages = [
        _slot(record, tree, place, slot) for slot in slots if unused or slot.generation == record.generation
    ]
    if not unused:
        messages.sort(key=lambda message: (message.state == "complete", message.index))
    return messages


def _slot(record: Record, tree: Tree, place: Place, slot: SlotContent) -> pb.Slot:
    message = pb.Slot(
        job=record.job.spec.name,
        switch=place.switch,
        index=slot.index,
        generation=slot.generation,
        message=slot.message,
        tenant=record.job.spec.tenant,
        role=place.role,
        state="unused",
    )
    if slot.generation != record.generation:
        return message
    for bit, ranks in enumerate(tree.ranks_by_bit(place.switch)):
        (message.ranks if slot.bitmap >> bit & 1 else message.missing).extend(ranks)
    message.chunks = slot.chunks
    message.flags = slot.flags
    message.bytes = slot.chunks * _CHUNK_BYTES
    message.age_s = slot.age_us / 1e6
    message.state = "adding"
    if slot.flags & RESULT or not message.missing:
        sent_up = tree.two_level and place.role == "leaf" and not slot.flags & RESULT
        message.state = "sent up" if sent_up else "complete"
    return message


def counter_messages(
    registry: Registry, record: Record, place: Place, counters: dict[str, list[CounterCell]]
) -> list[pb.FlowCounters]:
    """A job's counters on a switch, one message a rank; on a spine one a rack, with its first rank."""
    tree = Tree.of(registry.config, record.job.members)
    return [
        pb.FlowCounters(
            job=record.job.spec.name,
            generation=record.generation or 0,
            rank=ranks[0],
            switch=place.switch,
            counters={name: counter_value(cells[i]) for name, cells in counters.items()},
        )
        for i, ranks in enumerate(tree.ranks_by_bit(place.switch))
    ]


def flow_count(registry: Registry, record: Record, place: Place) -> int:
    """How many flow indexes a job uses on a switch."""
    return len(Tree.of(registry.config, record.job.members).ranks_by_bit(place.switch))


def ports_in_use(registry: Registry, switch: ManagedSwitch) -> list[int]:
    """The ports that hosts or other switches are behind."""
    return [port.port for port in _ports(registry, switch)]


def port_messages(registry: Registry, switch: ManagedSwitch, counters: PortCounters) -> list[pb.Port]:
    """The ports that hosts or other switches are behind, with what was counted there; then those that the
    configuration does not name, where something came in by them."""
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
        pb.Port(port=host.port, host=host.name, ip=str(host.ip), mac=host.mac)
        for host in registry.config.hosts_of(switch.name)
    ]
    for link in registry.links.graph.links:
        if link.leaf == switch.name:
            ports.append(pb.Port(port=link.leaf_port, peer=f"{link.spine} port {link.spine_port}"))
        elif link.spine == switch.name:
            ports.append(pb.Port(port=link.spine_port, peer=f"{link.leaf} port {link.leaf_port}"))
    for port in ports:
        port.switch = switch.name
    return sorted(ports, key=lambda port: port.port)


def link_messages(registry: Registry, counters: Mapping[str, PortCounters]) -> list[pb.Link]:
    """The links between switches; `counters` by switch, without those that are away."""
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


def counter_value(cell: CounterCell) -> pb.CounterValue:
    """One cell of a counter."""
    return pb.CounterValue(packets=cell.packets, bytes=cell.bytes)


def _count(counters: PortCounters, name: str, port: int) -> pb.CounterValue:
    return counter_value(counters.get(name, {}).get(port, _NOTHING))


def _first_psn(entries: Iterable[Entry], joined_with: int) -> int:
    """The flow's on the switch: a job that was moved has another than its worker joined with."""
    for entry in entries:
        params = dict(getattr(entry, "params", ()))
        if "ack_qp" in params:
            return int(params["first_psn"])
    return joined_with


def _is_of_flow(entry: Entry, index: int, rank: int) -> bool:
    """Whether an entry of a job belongs to one of its flows; the group belongs to all."""
    params = dict(getattr(entry, "params", ()))
    if not params:
        return True
    if getattr(entry, "table", "") in (FLOW, TREE_JOB) or "of_flow" in params:
        return index in (params.get("flow"), params.get("of_flow"))
    return params.get("rank") == rank
