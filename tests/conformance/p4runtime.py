"""Control-plane commands of scripts, done over P4Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from finsy.proto import U128, p4d, p4i, p4r

from soft_switch.dataplane import Match
from tests.soft_switch.switches import TIMEOUT_S, Controller, field_match, shortest

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
MICROSECONDS = 1e6


class OverP4Runtime:
    """Writes and reads of a primary controller; what the switch refuses comes as grpc.RpcError."""

    def __init__(self, controller: Controller) -> None:
        self.controller, self.info = controller, controller.info
        self._entries: list[p4r.TableEntry] = []
        self._groups: set[int] = set()
        self._sessions: set[int] = set()

    def write(self, kind: p4r.Update.Type.ValueType, entity: p4r.Entity) -> None:
        """Write one update."""
        request = p4r.WriteRequest(
            device_id=0, election_id=U128.encode(1), updates=[p4r.Update(type=kind, entity=entity)]
        )
        self.controller.stub.Write(request, timeout=TIMEOUT_S)

    def read(self, entity: p4r.Entity) -> list[p4r.Entity]:
        """Return what the switch has of this kind."""
        responses = self.controller.stub.Read(
            p4r.ReadRequest(device_id=0, entities=[entity]), timeout=TIMEOUT_S
        )
        return [found for response in responses for found in response.entities]

    def insert(
        self, table: str, match: Sequence[Match], priority: int, action: str, params: Sequence[int]
    ) -> int:
        entry = self.entry(table, match, priority, action, params)
        self.write(INSERT, p4r.Entity(table_entry=entry))
        self._entries.append(entry)
        return len(self._entries) - 1

    def entry(
        self, table: str, match: Sequence[Match], priority: int, action: str, params: Sequence[int]
    ) -> p4r.TableEntry:
        """Return an entry with a priority from 0; P4Runtime counts from 1, and wants it where it matters."""
        info = _named(self.info.tables, table)
        kinds = {field.match_type for field in info.match_fields}
        ordered = kinds & {p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL}
        fields = [field_match(field, value) for field, value in zip(info.match_fields, match, strict=True)]
        return p4r.TableEntry(
            table_id=info.preamble.id,
            match=[field for field in fields if field is not None],
            priority=priority + 1 if ordered else 0,
            action=self.action(action, params),
        )

    def action(self, name: str, params: Sequence[int]) -> p4r.TableAction:
        """Return an action call."""
        info = _named(self.info.actions, name)
        arguments = [
            p4r.Action.Param(param_id=param.id, value=shortest(value))
            for param, value in zip(info.params, params, strict=True)
        ]
        return p4r.TableAction(action=p4r.Action(action_id=info.preamble.id, params=arguments))

    def set_default(self, table: str, action: str, params: Sequence[int]) -> None:
        entry = p4r.TableEntry(
            table_id=_named(self.info.tables, table).preamble.id,
            is_default_action=True,
            action=self.action(action, params),
        )
        self.write(MODIFY, p4r.Entity(table_entry=entry))

    def remove_all(self) -> None:
        for entry in self._entries:
            self.write(DELETE, p4r.Entity(table_entry=entry))
        self._entries = []

    def counter_read(self, name: str, index: int) -> tuple[int, int]:
        wanted = p4r.CounterEntry(
            counter_id=_named(self.info.counters, name).preamble.id, index=p4r.Index(index=index)
        )
        (found,) = self.read(p4r.Entity(counter_entry=wanted))
        return found.counter_entry.data.packet_count, found.counter_entry.data.byte_count

    def counter_write(self, name: str, index: int, packets: int, bytes_: int) -> None:
        entry = p4r.CounterEntry(
            counter_id=_named(self.info.counters, name).preamble.id,
            index=p4r.Index(index=index),
            data=p4r.CounterData(packet_count=packets, byte_count=bytes_),
        )
        self.write(MODIFY, p4r.Entity(counter_entry=entry))

    def direct_counter_read(self, table: str, handle: int) -> tuple[int, int]:
        wanted = p4r.DirectCounterEntry(table_entry=self._entries[handle])
        (found,) = self.read(p4r.Entity(direct_counter_entry=wanted))
        return found.direct_counter_entry.data.packet_count, found.direct_counter_entry.data.byte_count

    def register_read(self, name: str, index: int) -> int:
        wanted = p4r.RegisterEntry(
            register_id=_named(self.info.registers, name).preamble.id, index=p4r.Index(index=index)
        )
        (found,) = self.read(p4r.Entity(register_entry=wanted))
        return int.from_bytes(found.register_entry.data.bitstring, "big")

    def register_write(self, name: str, index: int, value: int) -> None:
        entry = p4r.RegisterEntry(
            register_id=_named(self.info.registers, name).preamble.id,
            index=p4r.Index(index=index),
            data=p4d.P4Data(bitstring=shortest(value)),
        )
        self.write(MODIFY, p4r.Entity(register_entry=entry))

    def meter_read(self, name: str, index: int) -> object:
        wanted = p4r.MeterEntry(
            meter_id=_named(self.info.meters, name).preamble.id, index=p4r.Index(index=index)
        )
        (found,) = self.read(p4r.Entity(meter_entry=wanted))
        return found.meter_entry.config

    def meter_write(self, name: str, index: int, rates: Sequence[tuple[float, int]]) -> None:
        (cir, cburst), (pir, pburst) = rates
        entry = p4r.MeterEntry(
            meter_id=_named(self.info.meters, name).preamble.id,
            index=p4r.Index(index=index),
            config=p4r.MeterConfig(
                cir=round(cir * MICROSECONDS), cburst=cburst, pir=round(pir * MICROSECONDS), pburst=pburst
            ),
        )
        self.write(MODIFY, p4r.Entity(meter_entry=entry))

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        entry = p4r.MulticastGroupEntry(multicast_group_id=group, replicas=_replicas(replicas))
        engine = p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
        self._set(group, self._groups, p4r.Entity(packet_replication_engine_entry=engine))

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], packet_length: int = 0) -> None:
        entry = p4r.CloneSessionEntry(
            session_id=session, replicas=_replicas(replicas), packet_length_bytes=packet_length
        )
        engine = p4r.PacketReplicationEngineEntry(clone_session_entry=entry)
        self._set(session, self._sessions, p4r.Entity(packet_replication_engine_entry=engine))

    def _set(self, number: int, known: set[int], entity: p4r.Entity) -> None:
        self.write(MODIFY if number in known else INSERT, entity)
        known.add(number)

    def clone_delete(self, session: int) -> None:
        entry = p4r.CloneSessionEntry(session_id=session)
        engine = p4r.PacketReplicationEngineEntry(clone_session_entry=entry)
        self.write(DELETE, p4r.Entity(packet_replication_engine_entry=engine))
        self._sessions.discard(session)


def refused(error: grpc.RpcError) -> str:
    """Return what the switch says of a write that it refused."""
    details = getattr(error, "details", lambda: "")()
    return f"{getattr(error, 'code', lambda: None)()}: {details}"


def _replicas(replicas: Sequence[tuple[int, int]]) -> list[p4r.Replica]:
    return [p4r.Replica(egress_port=port, instance=instance) for port, instance in replicas]


def _named(items, name: str):  # type: ignore[no-untyped-def]
    """Return the P4Info object of this name."""
    for item in items:
        if item.preamble.name == name:
            return item
    raise LookupError(f"P4Info has no {name}")
