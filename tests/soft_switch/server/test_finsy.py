"""The server as finsy sees it: the client our controller is built on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import finsy as fy
import pytest

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Switch

HERE = Path(__file__).parent
TIMEOUT_S = 20


@contextlib.asynccontextmanager
async def connected(address: str, name: str = "sw", **options: Any) -> AsyncIterator[fy.Switch]:
    """A finsy switch that has pushed the test program."""
    settings = fy.SwitchOptions(
        p4info=HERE / "program.p4info.txtpb", p4blob=HERE / "program.json", device_id=1, **options
    )
    async with fy.Switch(name, address, settings) as switch:
        yield switch


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function to its end, in bounded time."""

    async def bounded() -> None:
        await asyncio.wait_for(scenario(), TIMEOUT_S)

    asyncio.run(bounded())


async def collect(switch: fy.Switch, *entities: Any) -> list[Any]:
    """Everything a read answers."""
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
    """It reads every kind of entity with wildcards, also those the switch does not have."""

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
