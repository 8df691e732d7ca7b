"""The answers of simple_switch_grpc to the same requests, where it implements a thing.

Where it does not follow the specification, this server does; these cases are left out here:

    what                                          simple_switch_grpc        here, and in the specification
    --------------------------------------------  ------------------------  ------------------------------
    a read that fails                             its own code              UNKNOWN with one error for each
    MODIFY without meter_config                   keeps the configuration   back to the default
    a direct resource of an entry not there       INVALID_ARGUMENT          NOT_FOUND
    an index beyond a meter, pir below cir        UNKNOWN                   OUT_OF_RANGE, INVALID_ARGUMENT
    an entity that is not set                     UNKNOWN                   INVALID_ARGUMENT
    ports and instances that do not fit           accepted                  OUT_OF_RANGE, INVALID_ARGUMENT
    all cells of a meter at once, registers,      UNIMPLEMENTED             done
    value sets, direct resources of all tables
    values of translated types                    bytes as they are         translated
    reads of entries with a bit<0> argument       end it                    answered
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from finsy.proto import p4r

from tests.soft_switch.server import translated
from tests.soft_switch.server.features import (
    DIRECT_METER,
    DROP,
    FORWARD,
    METER,
    MIRROR,
    NO_ACTION,
    SOURCES,
    STATIONS,
    call,
    exact,
    mirror,
    source,
    station,
)

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, Switch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("simple_switch_grpc") is None, reason="no simple_switch_grpc on the PATH"
    ),
]

Request = p4r.Update | list[p4r.Entity]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def bmv2_address() -> Iterator[str]:
    """Yield the address where a simple_switch_grpc without ports listens."""
    address = f"127.0.0.1:{free_port()}"
    command = ["simple_switch_grpc", "--no-p4", "--device-id", "1", "--thrift-port", str(free_port())]
    process = subprocess.Popen(
        [*command, "--", "--grpc-server-addr", address, "--cpu-port", "255"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=20)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def pair(
    switch: Switch,
    bmv2_address: str,
    connect: Callable[[str], Controller],
    features: p4r.ForwardingPipelineConfig,
) -> Iterator[tuple[Controller, Controller]]:
    """Yield the primaries of a simple_switch_grpc and of this server, both with `features`.

    Its digests and value sets are left out, as simple_switch_grpc refuses their P4Info.
    """
    features.p4info.ClearField("digests")
    features.p4info.ClearField("value_sets")
    features.p4info.ClearField("type_info")
    controllers = (connect(bmv2_address), switch.connect())
    for controller in controllers:
        controller.become_primary(int(time.time()))
        controller.set_config(config=features)
    yield controllers
    controllers[0].close()


def update(kind: str, **entity: Any) -> p4r.Update:
    return p4r.Update(type=p4r.Update.Type.Value(kind), entity=p4r.Entity(**entity))


def table(kind: str, entry: p4r.TableEntry) -> p4r.Update:
    return update(kind, table_entry=entry)


def read(**entity: Any) -> list[p4r.Entity]:
    return [p4r.Entity(**entity)]


def default(table_id: int, **fields: Any) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=table_id, is_default_action=True, **fields)


def cell(index: int | None = None, **fields: Any) -> p4r.MeterEntry:
    entry = p4r.MeterEntry(meter_id=METER, **fields)
    if index is not None:
        entry.index.index = index
    return entry


CONFIG = p4r.MeterConfig(cir=100, cburst=10, pir=200, pburst=20)
GREEN = p4r.MeterConfig(cir=-1, cburst=-1, pir=-1, pburst=-1)
COUNT = p4r.CounterData(packet_count=7, byte_count=8)
QUESTION = {"meter_config": p4r.MeterConfig(), "counter_data": p4r.CounterData()}

TABLES: list[Request] = [
    table("INSERT", station(1, meter_config=CONFIG, counter_data=COUNT)),
    table("INSERT", station(1)),
    table("MODIFY", station(2)),
    table("DELETE", station(2)),
    read(table_entry=p4r.TableEntry(table_id=STATIONS)),
    read(table_entry=p4r.TableEntry(table_id=STATIONS, **QUESTION)),
    read(table_entry=p4r.TableEntry(**QUESTION)),
    read(table_entry=station(1, action=None)),
    read(table_entry=station(3, action=None)),
    read(table_entry=default(STATIONS)),
    read(table_entry=default(0)),
    table("MODIFY", default(SOURCES, action=call(NO_ACTION))),
    read(table_entry=default(SOURCES)),
    table("MODIFY", default(SOURCES)),
    read(table_entry=default(SOURCES)),
    table("INSERT", default(SOURCES, action=call(NO_ACTION))),
    table("DELETE", default(SOURCES)),
    table("INSERT", station(5, action=call(DROP))),
    table("INSERT", station(5, action=call(MIRROR, 1))),
    table("INSERT", station(5, action=call(FORWARD))),
    table("INSERT", station(5, action=call(FORWARD, 1, 2))),
    table("INSERT", station(5, action=None)),
    table("INSERT", station(5, action=call(0x01FFFFFF))),
    table("INSERT", station(5, match=[])),
    table("INSERT", station(5, match=[exact(2, 5)])),
    table("INSERT", station(5, match=[exact(1, 5), exact(1, 5)])),
    table("INSERT", station(5, match=[exact(1, 1 << 48)])),
    table("INSERT", station(5, priority=3)),
    table("INSERT", station(5, match=[{"field_id": 1, "lpm": {"value": b"\1", "prefix_len": 48}}])),
    table("INSERT", station(5, table_id=0)),
    table("INSERT", station(5, table_id=0x02FFFFFF)),
    table("INSERT", station(5, table_id=METER)),
    table("UNSPECIFIED", station(5)),
    table("INSERT", source(5, meter_config=CONFIG)),
    table("INSERT", source(6, counter_data=COUNT)),
    table("INSERT", mirror(5, 1, idle_timeout_ns=5)),
    table("INSERT", source(7, idle_timeout_ns=-5)),
    table("INSERT", source(7, idle_timeout_ns=5_000_000_000, controller_metadata=9)),
    read(table_entry=source(7, action=None)),
    table("INSERT", source(8, time_since_last_hit={})),
    table("DELETE", source(7)),
    read(table_entry=p4r.TableEntry()),
]

METERS: list[Request] = [
    update("MODIFY", meter_entry=cell(1, config=CONFIG)),
    read(meter_entry=cell(1)),
    read(meter_entry=cell()),
    read(meter_entry=p4r.MeterEntry()),
    update("MODIFY", meter_entry=cell(1)),
    read(meter_entry=cell(1)),
    update("MODIFY", meter_entry=cell(-1)),
    update("INSERT", meter_entry=cell(1)),
    update("DELETE", meter_entry=cell(1)),
    update("MODIFY", meter_entry=p4r.MeterEntry(meter_id=1)),
    update("MODIFY", meter_entry=p4r.MeterEntry(meter_id=DIRECT_METER)),
    update("MODIFY", meter_entry=cell(1, config=p4r.MeterConfig(cir=-2))),
    update("MODIFY", meter_entry=cell(1, config=p4r.MeterConfig())),
    read(meter_entry=cell(1)),
    update("MODIFY", meter_entry=cell(1, config=GREEN)),
    read(meter_entry=cell(1)),
    table("INSERT", station(1)),
    update("MODIFY", direct_meter_entry={"table_entry": station(1, action=None), "config": CONFIG}),
    read(direct_meter_entry={"table_entry": station(1, action=None)}),
    read(direct_meter_entry={"table_entry": p4r.TableEntry(table_id=STATIONS)}),
    read(table_entry=p4r.TableEntry(table_id=STATIONS, **QUESTION)),
    update("MODIFY", direct_meter_entry={"table_entry": station(1, action=None)}),
    read(direct_meter_entry={"table_entry": station(1, action=None)}),
    update("INSERT", direct_meter_entry={"table_entry": station(1)}),
    update("DELETE", direct_meter_entry={"table_entry": station(1)}),
    update("MODIFY", direct_meter_entry=p4r.DirectMeterEntry()),
    update("MODIFY", direct_meter_entry={"table_entry": mirror(1, 1)}),
    update("MODIFY", direct_counter_entry={"table_entry": station(1), "data": COUNT}),
    read(direct_counter_entry={"table_entry": station(1, action=None)}),
    read(direct_counter_entry={"table_entry": p4r.TableEntry(table_id=STATIONS)}),
    update("INSERT", direct_counter_entry={"table_entry": station(1)}),
    update("MODIFY", direct_counter_entry={"table_entry": mirror(1, 1)}),
    update("MODIFY", direct_counter_entry=p4r.DirectCounterEntry()),
    read(counter_entry=p4r.CounterEntry()),
    read(action_profile_member=p4r.ActionProfileMember()),
    read(action_profile_group=p4r.ActionProfileGroup()),
    update("INSERT", action_profile_member=p4r.ActionProfileMember(action_profile_id=1)),
    table("DELETE", station(1)),
]


def replication(form: str, number: int, *replicas: p4r.Replica) -> p4r.PacketReplicationEngineEntry:
    if form == "group":
        group = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=replicas)
        return p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
    session = p4r.CloneSessionEntry(session_id=number, replicas=replicas)
    return p4r.PacketReplicationEngineEntry(clone_session_entry=session)


def engine(form: str) -> list[Request]:
    def change(kind: str, number: int, *replicas: p4r.Replica) -> p4r.Update:
        return update(kind, packet_replication_engine_entry=replication(form, number, *replicas))

    def question(number: int) -> list[p4r.Entity]:
        return read(packet_replication_engine_entry=replication(form, number))

    return [
        change("INSERT", 1, p4r.Replica(port=b"\1", instance=1)),
        question(1),
        change("INSERT", 1),
        change("MODIFY", 1, p4r.Replica(egress_port=3, instance=1)),
        question(0),
        change("MODIFY", 2),
        change("DELETE", 2),
        change("INSERT", 0),
        change("INSERT", 2, p4r.Replica()),
        change("INSERT", 2, p4r.Replica(port=b"\1"), p4r.Replica(port=b"\1")),
        change("INSERT", 2, p4r.Replica(port=b"\1"), p4r.Replica(egress_port=1, instance=1)),
        change("DELETE", 2),
        change("INSERT", 32767),
        question(0),
        change("DELETE", 1),
        change("DELETE", 2),
        change("DELETE", 32767),
        question(0),
    ]


def answer(controller: Controller, request: Request) -> Any:
    """Return the code of a write, the sorted entities of a read, or that the read failed."""
    from tests.soft_switch.server.conftest import Refusal

    with contextlib.suppress(Refusal):
        if isinstance(request, list):
            return sorted(str(entity) for entity in controller.read(*request))
        controller.write(request)
        return "OK"
    if isinstance(request, list):
        return "refused"
    return controller.refused(controller.write, request).codes


@pytest.mark.parametrize(
    "requests",
    [TABLES, METERS, engine("group"), engine("session")],
    ids=["tables", "meters", "groups", "clones"],
)
def test_the_answers_are_the_same(pair: tuple[Controller, Controller], requests: list[Request]) -> None:
    bmv2, ours = pair
    for number, request in enumerate(requests):
        expected = answer(bmv2, request)
        assert answer(ours, request) == expected, f"request {number}: {request}"


def translated_table(kind: str, table_id: int, *match: p4r.FieldMatch, **fields: Any) -> p4r.Update:
    return table(
        kind, translated.entry(table_id, *match, **{"action": translated.does(translated.NOP), **fields})
    )


def paint(kind: str, nothing: bytes) -> p4r.Update:
    action = translated.does(translated.PAINT, nothing, b"\7")
    return translated_table(kind, translated.PORTS, translated.exact(1, b"\1"), action=action)


def default_route(action: p4r.TableAction | None = None) -> p4r.TableEntry:
    return default(translated.ROUTES, action=action)


TRANSLATED: list[Request] = [
    translated_table("INSERT", translated.PORTS, translated.exact(1, b"\1\x2c")),
    translated_table("INSERT", translated.PORTS, translated.exact(1, b"\0\1\x2c")),
    translated_table("INSERT", translated.PORTS, translated.exact(1, b"\1\0\0")),
    read(table_entry=translated.entry(translated.PORTS, translated.exact(1, b"\1\x2c"))),
    translated_table("INSERT", translated.MASKS, translated.ternary(1, b"\1", b"\xff\xff"), priority=1),
    translated_table("INSERT", translated.MASKS, translated.ternary(1, b"\1", b"\x0f"), priority=1),
    translated_table("INSERT", translated.MASKS, translated.between(2, b"\1", b"\1\xfe"), priority=1),
    read(table_entry=p4r.TableEntry(table_id=translated.MASKS)),
    paint("INSERT", b"\1"),
    paint("INSERT", b""),
    paint("INSERT", b"\0"),
    paint("MODIFY", b"\0"),
    paint("DELETE", b"\0"),
    read(table_entry=p4r.TableEntry(table_id=translated.PORTS)),
    table("MODIFY", default_route(translated.does(translated.SEND, b"\0\7"))),
    table("MODIFY", default_route(translated.does(translated.SEND, b"\1\0\0"))),
    read(table_entry=default_route()),
]


def test_the_answers_about_translated_types_are_the_same(
    switch: Switch, bmv2_address: str, connect: Callable[[str], Controller]
) -> None:
    """Check entries that simple_switch_grpc can have: numbers that fill as many bytes on both sides."""
    bmv2, ours = connect(bmv2_address), switch.connect()
    for controller in (bmv2, ours):
        controller.become_primary(int(time.time()))
        controller.set_config(config=translated.in_sixteen_bits())
    for number, request in enumerate(TRANSLATED):
        expected = answer(bmv2, request)
        assert answer(ours, request) == expected, f"request {number}: {request}"
    bmv2.close()


@pytest.mark.parametrize("controller_leaves", ["by half-closing", "by vanishing"])
def test_arbitration_is_the_same(
    switch: Switch, bmv2_address: str, connect: Callable[[str], Controller], controller_leaves: str
) -> None:
    """Compare what two controllers hear while they bid, raise, and leave."""
    heard = []
    base = int(time.time()) << 8
    for address in (bmv2_address, switch.server.address):
        one, two = connect(address), connect(address)
        log: list[Any] = []

        def verdict(controller: Controller, log: list[Any] = log) -> None:
            code, election_id = controller.verdict()
            log.append((code, (election_id or base) - base))

        one.bid(base + 5)
        verdict(one)
        two.bid(base + 3)
        verdict(two)
        two.bid(base + 9)
        verdict(two)
        verdict(one)
        one.half_close()
        with pytest.raises(EOFError):  # the switch knows that it has left
            one.receive()
        three = connect(address)
        three.bid(base + 1)
        verdict(three)
        if controller_leaves == "by vanishing":
            two.close()
        else:
            two.half_close()
        verdict(three)
        for controller in (one, two, three):
            controller.close()
        heard.append(log)
    assert heard[0] == heard[1]
