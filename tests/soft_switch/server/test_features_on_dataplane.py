"""Meters, clones, digests, value sets and idle timeouts, from P4Runtime to packets. No interfaces needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.server import P4RuntimeServer
from tests.soft_switch.server.features import (
    LEARN_DIGEST,
    LEVEL_DIGEST,
    METER,
    NO_ACTION,
    STATIONS,
    VALUE_SET,
    call,
    exact,
    mirror,
    source,
    station,
)

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller

    Connect = Callable[[str], Controller]

MS = 1_000_000


@pytest.fixture(scope="module")
def plane() -> Iterator[DataPlane]:
    """Yield a data plane without ports."""
    plane = DataPlane()
    yield plane
    plane.close()


@pytest.fixture
def controller(
    plane: DataPlane, connect: Connect, features: p4r.ForwardingPipelineConfig
) -> Iterator[Controller]:
    """Yield the primary of a switch that runs `features`."""
    server = P4RuntimeServer(plane, device_id=1, address="127.0.0.1:0")
    plane.start()
    server.start()
    controller = connect(server.address)
    controller.become_primary()
    controller.set_config(config=features)
    yield controller
    controller.close()
    server.stop(grace_s=0)


def frame(dst: int, src: int = 0x22, ether_type: int = 0x0800, rest: bytes = bytes(46)) -> bytes:
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + ether_type.to_bytes(2, "big") + rest


def test_a_direct_meter_and_counter(controller: Controller, plane: DataPlane) -> None:
    """Check that with a burst of 150 bytes and next to no rate, two frames of 60 pass."""
    config = p4r.MeterConfig(cir=1, cburst=150, pir=1, pburst=150)
    controller.insert(table_entry=station(0x11, port=3, meter_config=config))
    sent = [plane.process(1, frame(0x11)) for _ in range(4)]
    assert sent == [[(3, frame(0x11))], [(3, frame(0x11))], [], []]
    question = p4r.TableEntry(
        table_id=STATIONS, counter_data=p4r.CounterData(), meter_config=p4r.MeterConfig()
    )
    (answer,) = controller.read(p4r.Entity(table_entry=question))
    assert answer.table_entry == station(
        0x11, port=3, meter_config=config, counter_data=p4r.CounterData(packet_count=4, byte_count=240)
    )
    controller.modify(direct_meter_entry=p4r.DirectMeterEntry(table_entry=station(0x11)))
    assert [len(plane.process(1, frame(0x11))) for _ in range(4)] == [1, 1, 1, 1]


def test_an_indexed_meter(controller: Controller, plane: DataPlane) -> None:
    controller.insert(table_entry=station(0x11))
    entry = p4r.MeterEntry(meter_id=METER, config=p4r.MeterConfig(cir=1, cburst=2, pir=1, pburst=2))
    entry.index.index = 2
    controller.modify(meter_entry=entry)
    assert [len(plane.process(2, frame(0x11))) for _ in range(4)] == [1, 1, 0, 0]
    assert [len(plane.process(3, frame(0x11))) for _ in range(4)] == [1, 1, 1, 1]
    answers = controller.read(p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=METER)))
    assert [answer.meter_entry.HasField("config") for answer in answers] == [False, False, True, False]
    assert answers[2].meter_entry == entry


def test_a_clone_session(controller: Controller, plane: DataPlane) -> None:
    controller.insert(table_entry=station(0x11, port=3))
    controller.insert(table_entry=mirror(0x0800, 9))
    session = p4r.CloneSessionEntry(
        session_id=9, replicas=[p4r.Replica(port=b"\5", instance=1), p4r.Replica(port=b"\6")]
    )
    entry = p4r.PacketReplicationEngineEntry(clone_session_entry=session)
    assert plane.process(1, frame(0x11)) == [(3, frame(0x11))]
    controller.insert(packet_replication_engine_entry=entry)
    assert sorted(plane.process(1, frame(0x11))) == [(port, frame(0x11)) for port in (3, 5, 6)]
    entry.clone_session_entry.packet_length_bytes = 20
    del entry.clone_session_entry.replicas[1]
    controller.modify(packet_replication_engine_entry=entry)
    assert sorted(plane.process(1, frame(0x11))) == [(3, frame(0x11)), (5, frame(0x11)[:20])]
    controller.delete(packet_replication_engine_entry=entry)
    assert plane.process(1, frame(0x11)) == [(3, frame(0x11))]


def test_digests(controller: Controller, plane: DataPlane) -> None:
    controller.insert(
        digest_entry=p4r.DigestEntry(
            digest_id=LEARN_DIGEST, config={"max_list_size": 2, "max_timeout_ns": 10**18}
        )
    )
    for src in (1, 1, 2):
        plane.process(300, frame(0x11, src=src))
    message = controller.receive().digest
    assert message.digest_id == LEARN_DIGEST
    samples = [[member.bitstring for member in data.struct.members] for data in message.data]
    assert samples == [[b"\1", b"\1\x2c"], [b"\2", b"\1\x2c"]]


def test_a_value_set(controller: Controller, plane: DataPlane) -> None:
    """The digest of the tag comes only where the value set leads the parser to it.

    A packet has one digest, the last it is given, so the source's must not be learned.
    """
    controller.insert(table_entry=source(0x22, action=call(NO_ACTION)))
    controller.insert(digest_entry=p4r.DigestEntry(digest_id=LEVEL_DIGEST))
    plane.process(1, frame(0x11, ether_type=0x8100, rest=b"\x80\x01" + bytes(44)))
    controller.modify(
        value_set_entry=p4r.ValueSetEntry(value_set_id=VALUE_SET, members=[{"match": [exact(1, 0x8100)]}])
    )
    plane.process(1, frame(0x11, ether_type=0x8100, rest=b"\x80\x02" + bytes(44)))
    (data,) = controller.receive().digest.data
    assert [member.bitstring for member in data.struct.members] == [b"\2", b"\x80"]
    controller.modify(value_set_entry=p4r.ValueSetEntry(value_set_id=VALUE_SET))
    plane.process(1, frame(0x11, ether_type=0x8100, rest=b"\x80\x03" + bytes(44)))
    assert controller.quiet()


def test_idle_entries(controller: Controller, plane: DataPlane) -> None:
    controller.insert(table_entry=source(1, idle_timeout_ns=50 * MS))
    controller.insert(table_entry=source(2))
    (entry,) = controller.receive().idle_timeout_notification.table_entry
    assert list(entry.match) == [exact(1, 1)]
    assert entry.idle_timeout_ns == 50 * MS
    question = p4r.TableEntry(table_id=entry.table_id, time_since_last_hit=p4r.TableEntry.IdleTimeout())
    before = {
        answer.table_entry.match[0].exact.value: answer.table_entry.time_since_last_hit.elapsed_ns
        for answer in controller.read(p4r.Entity(table_entry=question))
    }
    assert before[b"\1"] >= 50 * MS
    plane.process(1, frame(0x11, src=2))
    after = {
        answer.table_entry.match[0].exact.value: answer.table_entry.time_since_last_hit.elapsed_ns
        for answer in controller.read(p4r.Entity(table_entry=question))
    }
    assert after[b"\1"] > before[b"\1"]
    assert after[b"\2"] < after[b"\1"]
