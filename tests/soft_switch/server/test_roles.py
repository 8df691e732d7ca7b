"""Roles with a configuration: what they may write, read and hear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import p4r, rpc_code, stratum
from google.protobuf.any_pb2 import Any as AnyMessage

from tests.soft_switch.server.features import (
    LEARN_DIGEST,
    LEVEL_DIGEST,
    METER,
    MIRRORS,
    SOURCES,
    STATIONS,
    VALUE_SET,
    mirror,
    source,
    station,
    why,
)

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane, Switch


def role(name: str, **fields: Any) -> p4r.Role:
    """Return a role with Stratum's configuration."""
    message = p4r.Role(name=name)
    message.config.Pack(stratum.P4RoleConfig(**fields))
    return message


def join(switch: Switch, name: str, election_id: int = 1, **fields: Any) -> Controller:
    """Join as the primary of a role."""
    controller = switch.connect(role=name)
    controller.bid(election_id, role=role(name, **fields))
    assert controller.verdict() == ("OK", election_id)
    return controller


def tables(controller: Controller, *, role: str = "") -> list[int]:
    """Return the tables whose entries a role sees."""
    request = p4r.ReadRequest(device_id=1, role=role, entities=[p4r.Entity(table_entry=p4r.TableEntry())])
    (response,) = controller.stub.Read(request)
    return [entity.table_entry.table_id for entity in response.entities]


def test_writes(learner: Controller, switch: Switch) -> None:
    mirrors = join(switch, "mirrors", exclusive_p4_ids=[MIRRORS], shared_p4_ids=[METER])
    mirrors.insert(table_entry=mirror(1, 1))
    mirrors.modify(meter_entry=p4r.MeterEntry(meter_id=METER))
    group = p4r.MulticastGroupEntry(multicast_group_id=1)  # has no id of a P4 object
    mirrors.insert(packet_replication_engine_entry={"multicast_group_entry": group})
    refused = [
        {"table_entry": station(1)},
        {"direct_counter_entry": p4r.DirectCounterEntry(table_entry=station(1))},
        {"direct_meter_entry": p4r.DirectMeterEntry(table_entry=station(1))},
        {"value_set_entry": p4r.ValueSetEntry(value_set_id=VALUE_SET)},
        {"digest_entry": p4r.DigestEntry(digest_id=LEARN_DIGEST)},
        {"counter_entry": p4r.CounterEntry(counter_id=1)},
        {"register_entry": p4r.RegisterEntry(register_id=1)},
        {"action_profile_member": p4r.ActionProfileMember(action_profile_id=1)},
        {"action_profile_group": p4r.ActionProfileGroup(action_profile_id=1)},
        {"extern_entry": p4r.ExternEntry(extern_type_id=1)},
    ]
    for entity in refused:
        assert why(mirrors, "modify", **entity).startswith("PERMISSION_DENIED: 0x")
    learner.insert(table_entry=station(1))
    learner.insert(table_entry=mirror(2, 2))  # the default role has everything


def test_reads(learner: Controller, switch: Switch) -> None:
    mirrors = join(switch, "mirrors", exclusive_p4_ids=[MIRRORS], shared_p4_ids=[SOURCES])
    for entry in (station(1), source(1), mirror(1, 1)):
        learner.insert(table_entry=entry)
    assert tables(mirrors, role="mirrors") == [SOURCES, MIRRORS]
    assert tables(mirrors) == [STATIONS, SOURCES, MIRRORS]
    assert tables(mirrors, role="nobody") == [STATIONS, SOURCES, MIRRORS]


def test_pipelines(switch: Switch, features: p4r.ForwardingPipelineConfig) -> None:
    poor = join(switch, "poor")
    refusal = poor.refused(poor.set_config, config=features)
    assert str(refusal) == "PERMISSION_DENIED: role 'poor' may not push a pipeline"
    join(switch, "rich", can_push_pipeline=True).set_config(config=features)


def test_packet_ins(switch: Switch, plane: FakePlane, config: p4r.ForwardingPipelineConfig) -> None:
    pusher = join(switch, "pusher", can_push_pipeline=True)
    pusher.set_config(config=config)
    everything = join(switch, "all", receives_packet_ins=True)
    port_3 = join(
        switch,
        "port 3",
        receives_packet_ins=True,
        packet_in_filter=stratum.P4RoleConfig.PacketFilter(metadata_id=1, value=b"\3"),
    )
    for port in (2, 3):
        plane.send_up(bytes([port >> 1, port << 7 & 0xFF, 0, 0]) + b"payload")
    assert [everything.receive().packet.metadata[0].value for _ in range(2)] == [b"\2", b"\3"]
    assert port_3.receive().packet.metadata[0].value == b"\3"
    assert port_3.quiet()
    assert pusher.quiet()


def test_digests_and_idle_entries(learner: Controller, switch: Switch, plane: FakePlane) -> None:
    sources = join(switch, "sources", exclusive_p4_ids=[SOURCES, LEARN_DIGEST])
    learner.insert(digest_entry=p4r.DigestEntry(digest_id=LEARN_DIGEST))
    learner.insert(digest_entry=p4r.DigestEntry(digest_id=LEVEL_DIGEST))
    plane.learn("level_t", (1, 1))
    plane.learn("learn_t", (1, 1))
    assert [learner.receive().digest.digest_id for _ in range(2)] == [LEVEL_DIGEST, LEARN_DIGEST]
    assert sources.receive().digest.digest_id == LEARN_DIGEST
    learner.insert(table_entry=station(1, idle_timeout_ns=20_000_000))
    (handle,) = plane.entries["ingress.stations"]
    plane.idle["ingress.stations", handle] = 10**18
    assert learner.receive().idle_timeout_notification.table_entry[0].table_id == STATIONS
    assert sources.quiet()


def test_a_configuration_is_told_to_everybody_and_stays(switch: Switch) -> None:
    first = join(switch, "r", 2, shared_p4_ids=[MIRRORS])
    backup = switch.connect(role="r")
    backup.bid(1, role=role("r", shared_p4_ids=[SOURCES]))
    notice = backup.receive().arbitration
    assert notice.role == role("r", shared_p4_ids=[MIRRORS])
    first.bid(2, role=role("r", shared_p4_ids=[STATIONS]))
    for controller in (first, backup):
        assert controller.receive().arbitration.role == role("r", shared_p4_ids=[STATIONS])
    first.close()
    notice = backup.receive().arbitration  # promoted, as in simple_switch_grpc, with what it asked for
    assert (notice.status.code, notice.role) == (rpc_code.OK, role("r", shared_p4_ids=[SOURCES]))


def test_strictly_a_configuration_stays_when_the_primary_leaves(strict_switch: Switch) -> None:
    first = join(strict_switch, "r", 2, shared_p4_ids=[MIRRORS])
    backup = strict_switch.connect(role="r")
    backup.bid(1, role=role("r", shared_p4_ids=[SOURCES]))
    backup.receive()
    first.close()
    notice = backup.receive().arbitration
    assert (notice.status.code, notice.role) == (rpc_code.NOT_FOUND, role("r", shared_p4_ids=[MIRRORS]))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (p4r.Role(name="r", config=AnyMessage(type_url="type.googleapis.com/x.Y")),
         "role 'r': the configuration is a 'type.googleapis.com/x.Y', this switch takes stratum.P4RoleCon"),
        (role(""), "the default role has access to everything, it takes no configuration"),
        (role("r", exclusive_p4_ids=[SOURCES]), "role 'r': 0x02000002 is exclusive to it or to role 'other'"),
        (role("r", shared_p4_ids=[MIRRORS]), "role 'r': 0x02000003 is exclusive to it or to role 'other'"),
    ],
)  # fmt: skip
def test_a_bad_configuration_ends_the_stream(switch: Switch, message: p4r.Role, text: str) -> None:
    join(switch, "other", exclusive_p4_ids=[MIRRORS], shared_p4_ids=[SOURCES])
    controller = switch.connect()
    controller.bid(1, role=message)
    refusal = controller.ended()
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.message.startswith(text)


def test_what_a_role_had_exclusively_is_free_when_it_has_left(switch: Switch) -> None:
    first = join(switch, "first", exclusive_p4_ids=[MIRRORS])
    first.half_close()
    with pytest.raises(EOFError):
        first.receive()
    join(switch, "second", exclusive_p4_ids=[MIRRORS])
