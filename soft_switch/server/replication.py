"""The packet replication engine: multicast groups and clone sessions.

Source: P4Runtime specification, section "PacketReplicationEngineEntry". A replica whose port is down is
replaced by the first of its backups whose port is up, as long as that is so; where none is up, it stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.server.bytestrings import decode
from soft_switch.server.errors import already_exists, invalid, not_found, out_of_range, unimplemented
from soft_switch.server.operation import Operation
from soft_switch.server.schema import Schema
from soft_switch.server.sdn_types import decode_port

GROUP_BITS = 16  # standard_metadata.mcast_grp of v1model.p4
INSTANCE_BITS = 16  # standard_metadata.egress_rid of v1model.p4
MAX_SESSION = (1 << 15) - 1  # of BMv2, which keeps a session in 15 bits
PORT_CHECK_NS = 100_000_000  # how often ports are looked at where a replica has backups

Copy = tuple[int, int]  # egress port and instance
Name = tuple[str, int]  # which of the two forms, and the number
GROUP = "multicast_group_entry"
WORDS = {GROUP: "multicast group", "clone_session_entry": "clone session"}


@dataclass
class Entry:
    """A group or session: as written, each copy with those that may replace it, and the copies in use."""

    message: p4r.PacketReplicationEngineEntry
    candidates: list[list[Copy]]
    chosen: list[Copy]


class Replication:
    """Handler of `PacketReplicationEngineEntry`."""

    def __init__(self, schema: Schema, plane: DataPlane) -> None:
        self._port_width = schema.port_width
        self._port_type = schema.port_type
        self._plane = plane
        self._entries: dict[Name, Entry] = {}
        self._watched: set[Name] = set()  # those some of whose replicas have backups
        self._looked = 0  # at the ports, last

    def write(self, operation: Operation, message: p4r.PacketReplicationEngineEntry) -> None:
        """Apply one update to a multicast group or a clone session."""
        name = _name(message)
        what = _check_number(name)
        _check_existence(operation, name in self._entries, what)
        if operation == Operation.DELETE:
            self._delete(name)
            return
        session = message.clone_session_entry
        if session.class_of_service:
            raise unimplemented(f"{what}: this switch has no classes of service, leave it 0")
        if session.packet_length_bytes < 0:
            raise invalid(f"{what}: packet length {session.packet_length_bytes} is negative")
        candidates = self._replicas(getattr(message, name[0]).replicas, what)
        kept = p4r.PacketReplicationEngineEntry()
        kept.CopyFrom(message)
        entry = Entry(kept, candidates, self._choose(candidates))
        self._apply(name, entry)
        self._entries[name] = entry
        self._watched.discard(name)
        if any(len(row) > 1 for row in candidates):
            self._watched.add(name)

    def read(self, request: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.Entity]:
        """Read one multicast group or clone session, or all for id 0."""
        wanted = _name(request)
        form, number = wanted
        if number and wanted not in self._entries:
            raise not_found(f"there is no {WORDS[form]} {number}")
        for name, entry in self._entries.items():
            if name == wanted or (name[0] == form and not number):
                yield p4r.Entity(packet_replication_engine_entry=entry.message)

    def clear(self) -> None:
        """Take all groups and sessions out of the data plane."""
        for name in list(self._entries):
            self._delete(name)

    def deadline(self) -> int | None:
        """Return when to look at the ports again, None: no replica has a backup."""
        return self._looked + PORT_CHECK_NS if self._watched else None

    def check_ports(self, now: int) -> None:
        """Replace replicas whose port is down by their backups, and put them back, if it is time to look."""
        if not self._watched or now < self._looked + PORT_CHECK_NS:
            return
        self._looked = now
        for name in self._watched:
            entry = self._entries[name]
            chosen = self._choose(entry.candidates)
            if chosen != entry.chosen:
                entry.chosen = chosen
                self._apply(name, entry)

    def _apply(self, name: Name, entry: Entry) -> None:
        form, number = name
        if form == GROUP:
            self._plane.multicast_set(number, entry.chosen)
        else:
            length = entry.message.clone_session_entry.packet_length_bytes
            self._plane.clone_set(number, entry.chosen, length)

    def _delete(self, name: Name) -> None:
        form, number = name
        (self._plane.multicast_delete if form == GROUP else self._plane.clone_delete)(number)
        del self._entries[name]
        self._watched.discard(name)

    def _choose(self, candidates: Sequence[Sequence[Copy]]) -> list[Copy]:
        """Return the first candidate of each row whose port is up, or the first of all."""
        is_up = self._plane.port_is_up
        return [
            row[0] if len(row) == 1 else next((copy for copy in row if is_up(copy[0])), row[0])
            for row in candidates
        ]

    def _replicas(self, replicas: Sequence[p4r.Replica], what: str) -> list[list[Copy]]:
        """Return the copies of a group or session, each followed by its backups."""
        seen: set[Copy] = set()
        rows = []
        for replica in replicas:
            kind = replica.WhichOneof("port_kind")
            if kind is None:
                raise invalid(f"{what}: a replica has no port")
            port = replica.egress_port
            if kind == "port":
                port = self._port(replica.port, f"{what}, port")
            elif port >> self._port_width:
                raise out_of_range(f"{what}: port {port} does not fit within {self._port_width} bits")
            row = [_copy(port, replica.instance, seen, what)]
            for backup in replica.backup_replicas:
                spare = self._port(backup.port, f"{what}, backup port")
                if spare == port:
                    raise invalid(f"{what}: port {port} is its own backup")
                row.append(_copy(spare, backup.instance, seen, what))
            rows.append(row)
        return rows

    def _port(self, data: bytes, what: str) -> int:
        if self._port_type is None:
            return decode(data, self._port_width, what)
        return decode_port(self._port_type, data, self._port_width, what)


def _copy(port: int, instance: int, seen: set[Copy], what: str) -> Copy:
    if instance >> INSTANCE_BITS:
        raise invalid(f"{what}: instance {instance} does not fit within {INSTANCE_BITS} bits")
    if (port, instance) in seen:
        raise invalid(f"{what} has port {port} with instance {instance} twice")
    seen.add((port, instance))
    return port, instance


def _name(message: p4r.PacketReplicationEngineEntry) -> Name:
    form = message.WhichOneof("type")
    if form is None:
        raise invalid("the packet replication engine entry is neither a multicast group nor a clone session")
    if form == GROUP:
        return form, message.multicast_group_entry.multicast_group_id
    return form, message.clone_session_entry.session_id


def _check_number(name: Name) -> str:
    """Refuse numbers that no group or session can have; return it in words."""
    form, number = name
    what = f"{WORDS[form]} {number}"
    if form == GROUP:
        if number == 0:
            raise invalid("multicast group 0 means no replication: groups count from 1")
        if number >> GROUP_BITS:
            raise out_of_range(f"{what} does not fit within {GROUP_BITS} bits")
    elif not 0 < number <= MAX_SESSION:
        raise invalid(f"{what} is not within 1 to {MAX_SESSION}")
    return what


def _check_existence(operation: Operation, exists: bool, what: str) -> None:
    if operation == Operation.INSERT and exists:
        raise already_exists(f"{what} is there already: use MODIFY to change it")
    if operation != Operation.INSERT and not exists:
        raise not_found(f"there is no {what}")
