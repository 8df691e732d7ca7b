"""The server as finsy sees it: the client our controller is built on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import finsy as fy
import pytest
from finsy.p4entity import P4ValueSetMember
from finsy.proto import stratum

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Switch

HERE = Path(__file__).parent
TIMEOUT_S = 20


@contextlib.asynccontextmanager
async def connected(
    address: str, name: str = "sw", *, program: str = "program", **options: Any
) -> AsyncIterator[fy.Switch]:
    """Yield a finsy switch that has pushed the test program."""
    settings = fy.SwitchOptions(
        p4info=HERE / f"{program}.p4info.txtpb", p4blob=HERE / f"{program}.json", device_id=1, **options
    )
    async with fy.Switch(name, address, settings) as switch:
        yield switch


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function to its end, in bounded time."""

    async def bounded() -> None:
        await asyncio.wait_for(scenario(), TIMEOUT_S)

    asyncio.run(bounded())


async def collect(switch: fy.Switch, *entities: Any) -> list[Any]:
    """Return everything that a read answers."""
    answers: Any = switch.read(list(entities))  # an async generator, which its overloads do not say
    return [entity async for entity in answers]


def test_tables(switch: Switch) -> None:
    async def scenario() -> None:
        async with connected(switch.server.address) as sw:
            assert sw.is_primary
            forward = fy.P4TableAction("forward", port=3, mac=0x020000000001)
            route = fy.P4TableEntry(
                "ipv4_lpm", match=fy.P4TableMatch({"dst": (0x0A000000, 8)}), action=forward
            )
            rule = fy.P4TableEntry(
                "acl",
                match=fy.P4TableMatch(
                    {
                        "ingress_port": 1,
                        "src": (0x0A000000, 0xFF000000),
                        "protocol": 17,
                        "dst_port": (4791, 4792),
                    }
                ),
                action=fy.P4TableAction("drop"),
                priority=7,
                metadata=b"cookie",
            )
            await sw.insert([route, rule])
            assert await collect(sw, fy.P4TableEntry("ipv4_lpm")) == [route]
            assert await collect(sw, fy.P4TableEntry("acl")) == [rule]
            assert len(await collect(sw, fy.P4TableEntry())) == 2 + 4
            with pytest.raises(fy.P4ClientError) as caught:
                await sw.insert([route])
            assert caught.value.details[0].canonical_code == fy.GRPCStatusCode.ALREADY_EXISTS
            default = fy.P4TableEntry("ipv4_lpm", is_default_action=True, action=fy.P4TableAction("drop"))
            await sw.modify([default])
            assert await collect(sw, fy.P4TableEntry("ipv4_lpm", is_default_action=True)) == [default]
            await sw.delete([route, rule])
            assert await collect(sw, fy.P4TableEntry("acl"), fy.P4TableEntry("ipv4_lpm")) == []
            await sw.delete([route], strict=False)

    run(scenario)


def test_arrays_and_groups(switch: Switch) -> None:
    async def scenario() -> None:
        async with connected(switch.server.address) as sw:
            counter = fy.P4CounterEntry(
                "per_port", index=2, data=fy.P4CounterData(packet_count=5, byte_count=6)
            )
            register = fy.P4RegisterEntry("seen", index=1, data=0xABC)
            group = fy.P4MulticastGroupEntry(3, replicas=((1, 5), (2, 6)))
            await sw.write([~counter, ~register, +group])
            assert counter in await collect(sw, fy.P4CounterEntry("per_port"))
            assert register in await collect(sw, fy.P4RegisterEntry("seen"))
            (answer,) = await collect(sw, fy.P4MulticastGroupEntry())
            assert [(replica.port, replica.instance) for replica in answer.replicas] == [(1, 5), (2, 6)]
            route = fy.P4TableEntry(
                "ipv4_lpm",
                match=fy.P4TableMatch({"dst": (0x0A000000, 8)}),
                action=fy.P4TableAction("drop"),
                counter_data=fy.P4CounterData(packet_count=1, byte_count=2),
            )
            await sw.insert([route])
            (direct,) = await collect(sw, fy.P4DirectCounterEntry("ipv4_counter"))
            assert (direct.packet_count, direct.byte_count) == (1, 2)

    run(scenario)


def test_delete_all(switch: Switch) -> None:
    """Check it though it reads every kind of entity with wildcards, also those the switch does not have."""

    async def scenario() -> None:
        async with connected(switch.server.address) as sw:
            await sw.insert(
                [
                    fy.P4TableEntry(
                        "ipv4_lpm",
                        match=fy.P4TableMatch({"dst": (0x0A000000, 8)}),
                        action=fy.P4TableAction("drop"),
                    ),
                ]
            )
            await sw.delete_all()
            left = await collect(sw, fy.P4TableEntry())
            assert left == await collect(sw, fy.P4TableEntry("classes"))

    run(scenario)


def test_packets(switch: Switch) -> None:
    async def scenario() -> None:
        async with connected(switch.server.address) as sw:
            await sw.write([fy.P4PacketOut(b"payload", egress_port=5, _pad=0, queue=1)])
            data = await asyncio.to_thread(switch.plane.packets.get, timeout=10)
            assert data == bytes([0x02, 0x80, 0x01]) + b"payload"

            async def first_packet() -> fy.P4PacketIn:
                async for packet in sw.read_packets():
                    return packet
                raise EOFError

            waiting = asyncio.create_task(first_packet())
            await asyncio.sleep(0)  # lets the task subscribe
            switch.plane.send_up(bytes([0x81, 0x00, 0x00, 0x07]) + b"up")
            packet = await waiting
            assert (packet.payload, packet["ingress_port"], packet["reason"]) == (b"up", 0x102, 7)

    run(scenario)


def test_reconnecting_keeps_the_pipeline_and_its_entries(switch: Switch) -> None:
    """The cookie says that the program runs already, so a restarted controller finds its entries."""

    async def scenario() -> None:
        async with connected(switch.server.address) as sw:
            entry = fy.P4TableEntry(
                "ipv4_lpm",
                match=fy.P4TableMatch({"dst": (0x0A000000, 8)}),
                action=fy.P4TableAction("drop"),
            )
            await sw.insert([entry])
        async with connected(switch.server.address) as sw:
            assert sw.is_primary
            assert await collect(sw, fy.P4TableEntry("ipv4_lpm")) == [entry]

    run(scenario)
    assert switch.plane.loads == 1


@pytest.mark.parametrize("promote", [True, False])
def test_a_backup_takes_over(switch: Switch, strict_switch: Switch, promote: bool) -> None:
    """Two controllers with one configuration: the second is backup, and primary when the first has gone."""
    address = (switch if promote else strict_switch).server.address

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(connected(address, "one"))
            assert first.is_primary
            async with connected(address, "two") as second:
                assert not second.is_primary
                promoted = second.ee.event_future(fy.SwitchEvent.BECOME_PRIMARY)
                await stack.aclose()
                await promoted
                assert second.is_primary
                await second.delete_all()

    run(scenario)


def test_meters(switch: Switch) -> None:
    async def scenario() -> None:
        async with connected(switch.server.address, program="features") as sw:
            config = fy.P4MeterConfig(cir=1, cburst=2, pir=3, pburst=4)
            meter = fy.P4MeterEntry("per_port", index=1, config=config)
            station = fy.P4TableEntry(
                "stations",
                match=fy.P4TableMatch({"dst": 1}),
                action=fy.P4TableAction("forward", port=2),
                meter_config=config,
            )
            await sw.write([~meter, +station])
            answers = await collect(sw, fy.P4MeterEntry("per_port"))
            assert [answer.config for answer in answers] == [None, config, None, None]
            (direct,) = await collect(sw, fy.P4DirectMeterEntry(table_entry=fy.P4TableEntry("stations")))
            assert direct.config == config
            question = fy.P4TableEntry("stations", meter_config=config)
            assert await collect(sw, question) == [station]
            await sw.modify([fy.P4DirectMeterEntry(table_entry=station)])
            (direct,) = await collect(sw, fy.P4DirectMeterEntry(table_entry=fy.P4TableEntry("stations")))
            assert direct.config is None

    run(scenario)


def test_value_sets_and_clone_sessions(switch: Switch) -> None:
    async def scenario() -> None:
        async with connected(switch.server.address, program="features") as sw:
            members = [P4ValueSetMember({1: 0x8100}), P4ValueSetMember({1: 0x88A8})]
            values = fy.P4ValueSetEntry("tagged", members=members)
            session = fy.P4CloneSessionEntry(5, replicas=((1, 5), (2, 6)), packet_length_bytes=64)
            await sw.write([~values, +session])
            (answer,) = await collect(sw, fy.P4ValueSetEntry("tagged", members=[]))
            assert [member.value for member in answer.members] == [0x8100, 0x88A8]
            (answer,) = await collect(sw, fy.P4CloneSessionEntry())
            assert (answer.session_id, answer.packet_length_bytes) == (5, 64)
            assert [(replica.port, replica.instance) for replica in answer.replicas] == [(1, 5), (2, 6)]
            await sw.delete_all()
            assert await collect(sw, fy.P4CloneSessionEntry()) == []

    run(scenario)


async def first(messages: AsyncGenerator[Any, None]) -> Any:
    async with contextlib.aclosing(messages):
        return await anext(messages)


def test_digests(switch: Switch) -> None:
    async def scenario() -> None:
        async with connected(switch.server.address, program="features") as sw:
            entry = fy.P4DigestEntry("learn_t", max_list_size=1, max_timeout_ns=0, ack_timeout_ns=10**15)
            await sw.insert([entry])
            assert await collect(sw, fy.P4DigestEntry("learn_t")) == [entry]
            for number in (1, 2):
                waiting = asyncio.create_task(first(sw.read_digests("learn_t")))
                await asyncio.sleep(0)  # lets the task subscribe
                switch.plane.learn("learn_t", (0x020000000000 + number, 3))
                digest = await waiting
                assert (digest.list_id, list(digest)) == (
                    number,
                    [{"src": 0x020000000000 + number, "port": 3}],
                )
                await sw.write([digest.ack()])
            await sw.delete_all()
            with pytest.raises(fy.P4ClientError) as caught:
                await collect(sw, fy.P4DigestEntry("learn_t"))
            assert caught.value.details[0].canonical_code == fy.GRPCStatusCode.NOT_FOUND

    run(scenario)


def test_idle_timeouts(switch: Switch) -> None:
    async def scenario() -> None:
        async with connected(switch.server.address, program="features") as sw:
            waiting = asyncio.create_task(first(sw.read_idle_timeouts()))
            await asyncio.sleep(0)
            switch.plane.idle_ns = lambda table, handle: 10**10  # type: ignore[method-assign]
            entry = fy.P4TableEntry(
                "sources",
                match=fy.P4TableMatch({"src": 1}),
                action=fy.P4TableAction("learn"),
                idle_timeout_ns=10**9,
            )
            await sw.insert([entry])
            (idle,) = await waiting
            assert (idle.match, idle.idle_timeout_ns) == (entry.match, 10**9)
            question = fy.P4TableEntry("sources", time_since_last_hit=0)
            (answer,) = await collect(sw, question)
            assert answer.time_since_last_hit == 10**10

    run(scenario)


def test_roles(switch: Switch) -> None:
    """Two controllers share a switch: one has the pipeline and the stations, one the mirrors."""

    async def scenario() -> None:
        stations = stratum.P4RoleConfig(exclusive_p4_ids=[0x02000001], can_push_pipeline=True)
        mirrors = stratum.P4RoleConfig(exclusive_p4_ids=[0x02000003])
        address = switch.server.address
        async with contextlib.AsyncExitStack() as stack:
            one = await stack.enter_async_context(
                connected(address, "one", program="features", role_name="stations", role_config=stations)
            )
            two = await stack.enter_async_context(
                connected(address, "two", program="features", role_name="mirrors", role_config=mirrors)
            )
            assert one.is_primary
            assert two.is_primary
            mirror = fy.P4TableEntry(
                "mirrors",
                match=fy.P4TableMatch({"type": 1}),
                action=fy.P4TableAction("mirror", session=1),
            )
            await two.insert([mirror])
            with pytest.raises(fy.P4ClientError) as caught:
                await one.insert([mirror])
            assert caught.value.details[0].canonical_code == fy.GRPCStatusCode.PERMISSION_DENIED
            assert await collect(one, fy.P4TableEntry()) == []
            assert await collect(two, fy.P4TableEntry()) == [mirror]

    run(scenario)
