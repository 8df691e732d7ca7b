"""The packet replication engine: multicast groups (and, refused for now, clone sessions).

Source: P4Runtime specification, section "PacketReplicationEngineEntry".
"""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from soft_switch.server.backend import ForwardingBackend
from soft_switch.server.bytestrings import decode
from soft_switch.server.errors import already_exists, invalid, not_found, out_of_range, unimplemented
from soft_switch.server.operation import Operation

GROUP_BITS = 16  # standard_metadata.mcast_grp of v1model.p4
INSTANCE_BITS = 16  # standard_metadata.egress_rid of v1model.p4


class Replication:
    """Writes and reads `PacketReplicationEngineEntry`."""

    def __init__(self, port_width: int, backend: ForwardingBackend) -> None:
        self._port_width = port_width
        self._backend = backend
        self._groups: dict[int, p4r.MulticastGroupEntry] = {}

    def write(self, operation: Operation, message: p4r.PacketReplicationEngineEntry) -> None:
        """Apply one update to a multicast group."""
        form = message.WhichOneof("type")
        if form == "clone_session_entry":
            raise unimplemented("clone sessions are not supported by this switch yet")
        if form is None:
            raise invalid(
                "the packet replication engine entry is neither a multicast group nor a clone session"
            )
        entry = message.multicast_group_entry
        group = entry.multicast_group_id
        if group == 0:
            raise invalid("multicast group 0 means no replication: groups count from 1")
        if group >> GROUP_BITS:
            raise out_of_range(f"multicast group {group} does not fit within {GROUP_BITS} bits")
        exists = group in self._groups
        if operation == Operation.INSERT and exists:
            raise already_exists(f"multicast group {group} is there already: use MODIFY to change it")
        if operation != Operation.INSERT and not exists:
            raise not_found(f"there is no multicast group {group}")
        if operation == Operation.DELETE:
            self._backend.multicast_delete(group)
            del self._groups[group]
            return
        self._backend.multicast_set(group, self._replicas(entry))
        stored = p4r.MulticastGroupEntry()
        stored.CopyFrom(entry)
        self._groups[group] = stored

    def read(self, request: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.Entity]:
        """One multicast group, or all for id 0."""
        form = request.WhichOneof("type")
        if form is None:
            raise invalid(
                "the packet replication engine entry is neither a multicast group nor a clone session"
            )
        if form == "clone_session_entry":
            if request.clone_session_entry.session_id == 0:
                return  # none can be written, so there are none
            raise unimplemented("clone sessions are not supported by this switch yet")
        group = request.multicast_group_entry.multicast_group_id
        if group and group not in self._groups:
            raise not_found(f"there is no multicast group {group}")
        for entry in [self._groups[group]] if group else self._groups.values():
            yield p4r.Entity(
                packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
            )

    def clear(self) -> None:
        """Take all groups out of the data plane."""
        for group in list(self._groups):
            self._backend.multicast_delete(group)
            del self._groups[group]

    def _replicas(self, entry: p4r.MulticastGroupEntry) -> list[tuple[int, int]]:
        """The (egress port, instance) pairs of a group."""
        what = f"multicast group {entry.multicast_group_id}"
        pairs: list[tuple[int, int]] = []
        for replica in entry.replicas:
            if replica.backup_replicas:
                raise unimplemented(f"{what}: backup replicas are not supported by this switch")
            kind = replica.WhichOneof("port_kind")
            if kind is None:
                raise invalid(f"{what}: a replica has no port")
            if kind == "port":
                port = decode(replica.port, self._port_width, f"{what}, port")
            else:
                port = replica.egress_port
                if port >> self._port_width:
                    raise out_of_range(f"{what}: port {port} does not fit within {self._port_width} bits")
            if replica.instance >> INSTANCE_BITS:
                raise invalid(f"{what}: instance {replica.instance} does not fit within {INSTANCE_BITS} bits")
            if (port, replica.instance) in pairs:
                raise invalid(f"{what} has port {port} with instance {replica.instance} twice")
            pairs.append((port, replica.instance))
        return pairs
