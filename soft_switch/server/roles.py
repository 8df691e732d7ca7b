"""Rights of a role: Stratum's `P4RoleConfig`, the scheme that finsy knows.

P4Runtime leaves the scheme open (specification, section "Role Config"). In this one a role lists the ids of
the P4Info objects it may write and read; a role without a configuration, and the default role, may do
everything. Multicast groups and clone sessions have no id, so every role has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from finsy.proto import p4r, stratum

from soft_switch.server.errors import invalid


@dataclass(frozen=True)
class Access:
    """The rights of one role."""

    exclusive: frozenset[int]
    shared: frozenset[int]
    packet_ins: bool
    packet_in_filter: tuple[int, bytes] | None  # id and value of the metadata field a packet-in must have
    pipeline: bool

    def allows(self, entity: p4r.Entity) -> bool:
        """Tell whether an entity is one of the role's."""
        number = entity_id(entity)
        return number is None or number in self.exclusive or number in self.shared

    def receives(self, packet: p4r.PacketIn) -> bool:
        """Tell whether the role gets a packet-in."""
        if not self.packet_ins or self.packet_in_filter is None:
            return self.packet_ins
        number, value = self.packet_in_filter
        return any(item.metadata_id == number and item.value == value for item in packet.metadata)


def parse_role(role: p4r.Role, others: Mapping[str, Access]) -> Access | None:
    """Return the access a controller asks for, None for all; `others`: of live roles that have one."""
    if not role.HasField("config"):
        return None
    if not role.name:
        raise invalid("the default role has access to everything, it takes no configuration: name a role")
    config = stratum.P4RoleConfig()
    if not role.config.Unpack(config):
        raise invalid(
            f"role {role.name!r}: the configuration is a {role.config.type_url!r}, this switch takes "
            "stratum.P4RoleConfig"
        )
    access = Access(
        exclusive=frozenset(config.exclusive_p4_ids),
        shared=frozenset(config.shared_p4_ids),
        packet_ins=config.receives_packet_ins,
        packet_in_filter=(config.packet_in_filter.metadata_id, config.packet_in_filter.value)
        if config.HasField("packet_in_filter")
        else None,
        pipeline=config.can_push_pipeline,
    )
    for name, other in others.items():
        taken = access.exclusive & (other.exclusive | other.shared) | access.shared & other.exclusive
        if taken and name != role.name:
            raise invalid(f"role {role.name!r}: {min(taken):#010x} is exclusive to it or to role {name!r}")
    return access


def filter_entities(access: Access | None, entities: Iterable[p4r.Entity]) -> list[p4r.Entity]:
    """Return the entities that a role may see."""
    return [entity for entity in entities if access is None or access.allows(entity)]


def entity_id(entity: p4r.Entity) -> int | None:
    """Return the id of the P4Info object that decides who may write an entity, None if there is none.

    As in Stratum, it is the first field of each message, or of the table entry that is its first field.
    """
    kind = entity.WhichOneof("entity")
    if kind is None or kind == "packet_replication_engine_entry":
        return None
    message = getattr(entity, kind)
    if kind.startswith("direct_"):
        message = message.table_entry
    number: int = getattr(message, message.DESCRIPTOR.fields_by_number[1].name)
    return number
