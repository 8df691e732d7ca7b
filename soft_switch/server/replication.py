"""The packet replication engine: multicast groups and clone sessions.

Source: P4Runtime specification, section "PacketReplicationEngineEntry". A replica whose port is down is
replaced by the first of its backups whose port is up, as long as that is so; where none is up, it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.server.bytestrings import decode
from soft_switch.server.errors import already_exists, invalid, not_found, out_of_range, unimplemented
from soft_switch.server.operation import Operation

GROUP_BITS = 16  # standard_metadata.mcast_grp of v1model.p4
INSTANCE_BITS = 16  # standard_metadata.egress_rid of v1model.p4
MAX_SESSION = (1 << 15) - 1  # of BMv2, which keeps a session in 15 bits
PORT_CHECK_NS = 100_000_000  # how often ports are looked at where a replica has backups

Copy = tuple[int, int]  # egress port and instance


@dataclass
class Fallback:
    """A group or session some of whose replicas have backups: each copy with those that may replace it."""

    candidates: list[list[Copy]]
    chosen: list[Copy]
    apply: Callable[[list[Copy]], None]


class Replication:
    """Writes and reads `PacketReplicationEngineEntry`."""

    def __init__(self, port_width: int, plane: DataPlane) -> None:
        self._port_width = port_width
        self._plane = plane
        self._groups: dict[int, p4r.MulticastGroupEntry] = {}
        self._sessions: dict[int, p4r.CloneSessionEntry] = {}
        self._fallbacks: dict[tuple[str, int], Fallback] = {}
        self._looked = 0  # at the ports, last

    def write(self, operation: Operation, message: p4r.PacketReplicationEngineEntry) -> None:
        """Apply one update to a multicast group or a clone session."""
        if _form(message) == "multicast_group_entry":
            self._write_group(operation, message.multicast_group_entry)
        else:
            self._write_session(operation, message.clone_session_entry)

    def read(self, request: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.Entity]:
        """One multicast group or clone session, or all for id 0."""
        if _form(request) == "multicast_group_entry":
            group = request.multicast_group_entry.multicast_group_id
            for entry in _select(self._groups, group, "multicast group"):
                engine_entry = p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
                yield p4r.Entity(packet_replication_engine_entry=engine_entry)
        else:
            session = request.clone_session_entry.session_id
            for entry in _select(self._sessions, session, "clone session"):
                engine_entry = p4r.PacketReplicationEngineEntry(clone_session_entry=entry)
                yield p4r.Entity(packet_replication_engine_entry=engine_entry)

    def clear(self) -> None:
        """Take all groups and sessions out of the data plane."""
        for group in list(self._groups):
            self._plane.multicast_delete(group)
            del self._groups[group]
        for session in list(self._sessions):
            self._plane.clone_delete(session)
            del self._sessions[session]
        self._fallbacks.clear()

    def deadline(self) -> int | None:
        """When to look at the ports again, None: no replica has a backup."""
        return self._looked + PORT_CHECK_NS if self._fallbacks else None

    def check_ports(self, now: int) -> None:
        """Replace replicas whose port is down by their backups, and put them back, if it is time to look."""
        if not self._fallbacks or now < self._looked + PORT_CHECK_NS:
            return
        self._looked = now
        for fallback in self._fallbacks.values():
            chosen = self._choose(fallback.candidates)
            if chosen != fallback.chosen:
                fallback.apply(chosen)
                fallback.chosen = chosen

    def _write_group(self, operation: Operation, entry: p4r.MulticastGroupEntry) -> None:
        group = entry.multicast_group_id
        if group == 0:
            raise invalid("multicast group 0 means no replication: groups count from 1")
        if group >> GROUP_BITS:
            raise out_of_range(f"multicast group {group} does not fit within {GROUP_BITS} bits")
        what = f"multicast group {group}"
        _check_existence(operation, group in self._groups, what)
        if operation == Operation.DELETE:
            self._plane.multicast_delete(group)
            del self._groups[group]
            self._fallbacks.pop(("group", group), None)
            return
        candidates = self._replicas(entry.replicas, what)
        self._install("group", group, candidates, lambda copies: self._plane.multicast_set(group, copies))
        stored = p4r.MulticastGroupEntry()
        stored.CopyFrom(entry)
        self._groups[group] = stored

    def _write_session(self, operation: Operation, entry: p4r.CloneSessionEntry) -> None:
        session = entry.session_id
        what = f"clone session {session}"
        if not 0 < session <= MAX_SESSION:
            raise invalid(f"{what} is not within 1 to {MAX_SESSION}")
        _check_existence(operation, session in self._sessions, what)
        if operation == Operation.DELETE:
            self._plane.clone_delete(session)
            del self._sessions[session]
            self._fallbacks.pop(("session", session), None)
            return
        if entry.class_of_service:
            raise unimplemented(f"{what}: this switch has no classes of service, leave it 0")
        if entry.packet_length_bytes < 0:
            raise invalid(f"{what}: packet length {entry.packet_length_bytes} is negative")
        candidates, length = self._replicas(entry.replicas, what), entry.packet_length_bytes
        self._install(
            "session", session, candidates, lambda copies: self._plane.clone_set(session, copies, length)
        )
        stored = p4r.CloneSessionEntry()
        stored.CopyFrom(entry)
        self._sessions[session] = stored

    def _install(
        self, kind: str, number: int, candidates: list[list[Copy]], apply: Callable[[list[Copy]], None]
    ) -> None:
        chosen = self._choose(candidates)
        apply(chosen)
        if any(len(row) > 1 for row in candidates):
            self._fallbacks[kind, number] = Fallback(candidates, chosen, apply)
        else:
            self._fallbacks.pop((kind, number), None)

    def _choose(self, candidates: Sequence[Sequence[Copy]]) -> list[Copy]:
        """The first candidate of each row whose port is up, or the first of all."""
        is_up = self._plane.port_is_up
        return [
            row[0] if len(row) == 1 else next((copy for copy in row if is_up(copy[0])), row[0])
            for row in candidates
        ]

    def _replicas(self, replicas: Sequence[p4r.Replica], what: str) -> list[list[Copy]]:
        """The copies of a group or session, each followed by its backups."""
        seen: set[Copy] = set()
        rows = []
        for replica in replicas:
            kind = replica.WhichOneof("port_kind")
            if kind is None:
                raise invalid(f"{what}: a replica has no port")
            port = replica.egress_port
            if kind == "port":
                port = decode(replica.port, self._port_width, f"{what}, port")
            elif port >> self._port_width:
                raise out_of_range(f"{what}: port {port} does not fit within {self._port_width} bits")
            row = [_copy(port, replica.instance, seen, what)]
            for backup in replica.backup_replicas:
                spare = decode(backup.port, self._port_width, f"{what}, backup port")
                if spare == port:
                    raise invalid(f"{what}: port {port} is its own backup")
                row.append(_copy(spare, backup.instance, seen, what))
            rows.append(row)
        return rows


def _copy(port: int, instance: int, seen: set[Copy], what: str) -> Copy:
    if instance >> INSTANCE_BITS:
        raise invalid(f"{what}: instance {instance} does not fit within {INSTANCE_BITS} bits")
    if (port, instance) in seen:
        raise invalid(f"{what} has port {port} with instance {instance} twice")
    seen.add((port, instance))
    return port, instance


def _form(message: p4r.PacketReplicationEngineEntry) -> str:
    form = message.WhichOneof("type")
    if form is None:
        raise invalid("the packet replication engine entry is neither a multicast group nor a clone session")
    return form


def _check_existence(operation: Operation, exists: bool, what: str) -> None:
    if operation == Operation.INSERT and exists:
        raise already_exists(f"{what} is there already: use MODIFY to change it")
    if operation != Operation.INSERT and not exists:
        raise not_found(f"there is no {what}")


def _select(entries: dict[int, Any], number: int, what: str) -> list[Any]:
    """One entry, or all for 0."""
    if number == 0:
        return list(entries.values())
    if number not in entries:
        raise not_found(f"there is no {what} {number}")
    return [entries[number]]
