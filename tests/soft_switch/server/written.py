"""Updates of everything that `features.p4` may hold, and how to read all of it."""

from __future__ import annotations

from typing import Any

from finsy.proto import p4r

from tests.soft_switch.server.features import (
    LEARN_DIGEST,
    METER,
    STATIONS,
    VALUE_SET,
    call,
    exact,
    station,
)

METER_CONFIG = p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4)


def update(kind: str, **entity: Any) -> p4r.Update:
    return p4r.Update(type=p4r.Update.Type.Value(kind), entity=p4r.Entity(**entity))


def group(number: int, *ports: int) -> p4r.PacketReplicationEngineEntry:
    replicas = [p4r.Replica(port=bytes([port])) for port in ports]
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=replicas)
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)


def session(number: int, *ports: int) -> p4r.PacketReplicationEngineEntry:
    replicas = [p4r.Replica(port=bytes([port])) for port in ports]
    entry = p4r.CloneSessionEntry(session_id=number, replicas=replicas)
    return p4r.PacketReplicationEngineEntry(clone_session_entry=entry)


WILDCARDS = [
    p4r.Entity(table_entry=p4r.TableEntry(counter_data=p4r.CounterData(), meter_config=p4r.MeterConfig())),
    p4r.Entity(table_entry=p4r.TableEntry(table_id=STATIONS, is_default_action=True)),
    p4r.Entity(meter_entry=p4r.MeterEntry()),
    p4r.Entity(digest_entry=p4r.DigestEntry()),
    p4r.Entity(value_set_entry=p4r.ValueSetEntry()),
    p4r.Entity(packet_replication_engine_entry=group(0)),
    p4r.Entity(packet_replication_engine_entry=session(0)),
    p4r.Entity(register_entry=p4r.RegisterEntry()),
    p4r.Entity(counter_entry=p4r.CounterEntry()),
]
DEFAULT = p4r.TableEntry(table_id=0x02000002, is_default_action=True, action=call(0x01000002))
VALUES = p4r.ValueSetEntry(value_set_id=VALUE_SET, members=[{"match": [exact(1, 0x8100)]}])
BEFORE = [
    update("INSERT", table_entry=station(1, meter_config=METER_CONFIG, idle_timeout_ns=10**18)),
    update("INSERT", table_entry=station(2, counter_data=p4r.CounterData(packet_count=1))),
    update("INSERT", packet_replication_engine_entry=group(1, 1, 2)),
    update("INSERT", packet_replication_engine_entry=session(1, 1, 2)),
    update("INSERT", digest_entry=p4r.DigestEntry(digest_id=LEARN_DIGEST, config={"max_list_size": 4})),
    update("MODIFY", value_set_entry=VALUES),
    update("MODIFY", meter_entry=p4r.MeterEntry(meter_id=METER, index={"index": 1}, config=METER_CONFIG)),
]
