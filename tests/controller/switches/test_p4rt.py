from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from controller.entries import Entry, Group, table_entry
from controller.fabric.tables.forward import MAC, ROUTE
from controller.switches.difference import writing_stages
from controller.switches.p4rt import MAX_BATCH, P4RuntimeClient
from controller.switches.pipeline import load, shipped_program
from controller.switches.updates import (
    ElectionIdTakenError,
    NotPrimaryError,
    SwitchError,
    SwitchUnreachableError,
    Update,
    UpdateKind,
    WriteError,
)
from tests.controller.running_switch import DEVICE_ID, RunningSwitch, free_port, job, run_async

pytestmark = pytest.mark.slow

TX = "SwitchEgress.port_tx"


def client(process: RunningSwitch, *, device_id: int = DEVICE_ID) -> P4RuntimeClient:
    return P4RuntimeClient(process.address, device_id=device_id, schema=shipped_program().schema)


@asynccontextmanager
async def primary(process: RunningSwitch, election_id: int = 5) -> AsyncIterator[P4RuntimeClient]:
    """Yield the primary of a switch that holds our program and no entries."""
    async with client(process) as opened:
        assert (await opened.open(election_id)).primary
        await load(opened, shipped_program())
        yield opened


def inserts(entries: list[Entry]) -> list[Update]:
    return [Update(UpdateKind.INSERT, entry) for entry in entries]


def route(number: int, port: int = 1) -> Entry:
    return table_entry(
        ROUTE,
        {"dst_ip": (0x0A000000 + number, 32)},
        "SwitchIngress.forward.next_hop",
        port=port,
        src_mac=2,
        dst_mac=3,
    )


async def test_what_is_written_is_read_back_equal(switch_process: RunningSwitch) -> None:
    wide = table_entry(
        ROUTE,
        {"dst_ip": (0x0A000000, 8)},
        "SwitchIngress.forward.next_hop",
        port=0,
        src_mac=0,
        dst_mac=(1 << 48) - 1,
    )
    drop = table_entry(MAC, {"dst_mac": 0}, "SwitchIngress.forward.drop")
    entries = [*switch_process.base, *job(), wide, drop]
    async with primary(switch_process) as switch:
        for stage in writing_stages(entries):
            await switch.write(inserts(list(stage)))
        assert await switch.read_entries() == set(entries)


async def test_each_update_that_is_refused_is_named_and_the_others_are_done(
    switch_process: RunningSwitch,
) -> None:
    async with primary(switch_process) as switch:
        await switch.write(inserts([route(1)]))
        batch = [*inserts([route(1)]), *inserts([route(2)]), Update(UpdateKind.DELETE, Group(9, ()))]
        with pytest.raises(WriteError) as refused:
            await switch.write(batch)
        assert [(f.update, f.code) for f in refused.value.failures] == [
            (batch[0], grpc.StatusCode.ALREADY_EXISTS),
            (batch[2], grpc.StatusCode.NOT_FOUND),
        ]
        first = f"{switch.label} refused 2 of 3 updates, the first: INSERT {route(1)}"
        assert str(refused.value).startswith(first)
        assert await switch.read_entries() == {route(1), route(2)}


async def test_a_failure_does_not_keep_later_batches_away(switch_process: RunningSwitch) -> None:
    routes = [route(number) for number in range(2 * MAX_BATCH + 1)]
    async with primary(switch_process) as switch:
        await switch.write(inserts([routes[0], routes[-1]]))
        with pytest.raises(WriteError) as refused:
            await switch.write(inserts(routes))
        assert [failure.update.entry for failure in refused.value.failures] == [routes[0], routes[-1]]
        assert await switch.read_entries() == set(routes)


async def test_a_batch_that_fails_throughout_keeps_every_code(switch_process: RunningSwitch) -> None:
    routes = [route(number) for number in range(MAX_BATCH)]
    async with primary(switch_process) as switch:
        await switch.write(inserts(routes))
        with pytest.raises(WriteError) as refused:
            await switch.write(inserts(routes))
        assert [f.code for f in refused.value.failures] == [grpc.StatusCode.ALREADY_EXISTS] * MAX_BATCH


async def test_counters_are_read_and_set_to_zero(switch_process: RunningSwitch) -> None:
    async with primary(switch_process) as switch:
        await switch.reset_counters([(TX, 3), (TX, 4)])
        for _ in range(5):
            await switch.send_packet(bytes(60), op=0, port=3, index=0)
        sent = (0, 0)
        while sent[0] < 5:  # packets are counted when they leave, which is soon
            sent = (await switch.read_counters([(TX, 3)]))[TX, 3]
        assert sent == (5, 5 * (7 + 60))  # as they came in, with the packet-out header
        await switch.reset_counters([(TX, 3)])
        assert await switch.read_counters([(TX, 3), (TX, 4)]) == {(TX, 3): (0, 0), (TX, 4): (0, 0)}


async def test_many_may_send_at_once(switch_process: RunningSwitch) -> None:
    """Send probes and slot queries of several users at once: writes that met broke the stream."""
    async with primary(switch_process) as switch:
        await asyncio.gather(
            *(switch.send_packet(b"", op=1, port=0, index=index) for index in range(300)),
            *(switch.cookie() for _ in range(10)),
        )
        assert await switch.cookie() == shipped_program().cookie
        await switch.send_packet(b"", op=1, port=0, index=0)


async def test_who_gives_up_in_the_middle_of_a_message_does_not_end_the_stream(
    switch_process: RunningSwitch,
) -> None:
    async with primary(switch_process) as switch:
        for _ in range(50):
            sends = [asyncio.ensure_future(switch.send_packet(b"", op=1, port=0, index=i)) for i in range(8)]
            await asyncio.sleep(0)
            for send in sends:
                send.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
        await switch.write(inserts([route(1)]))  # only the primary may


async def test_the_higher_election_id_is_primary_and_the_lower_is_told(switch_process: RunningSwitch) -> None:
    async with primary(switch_process, 5) as low, client(switch_process) as high:
        role = await high.open(9)
        assert (role.primary, role.election_id) == (True, 9)
        role = await low.next_role()
        assert (role.primary, role.vacant, role.election_id) == (False, False, 9)
        with pytest.raises(NotPrimaryError):
            await low.write(inserts([route(1)]))
        await high.close()
        role = await low.next_role()
        assert (role.primary, role.election_id) == (True, 5)
        await low.write(inserts([route(1)]))


async def test_one_election_id_is_for_one_controller(switch_process: RunningSwitch) -> None:
    async with primary(switch_process, 5), client(switch_process) as other:
        with pytest.raises(ElectionIdTakenError, match=switch_process.address):
            await other.open(5)


def test_a_wrong_device_id_is_an_error_at_the_latest_when_the_program_is_pushed(
    switch_process: RunningSwitch,
) -> None:
    async def run() -> None:
        async with client(switch_process, device_id=77) as other:
            await other.open(5)  # simple_switch_grpc lets any device id become primary
            await load(other, shipped_program())

    with pytest.raises(SwitchError, match="has no device id 77"):
        run_async(run())


async def test_nobody_there(switch_process: RunningSwitch) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with P4RuntimeClient(address, device_id=1, schema=shipped_program().schema) as nobody:
        with pytest.raises(
            SwitchUnreachableError, match=rf"^switch at {address} cannot be reached \(\D+\): check"
        ):
            await nobody.open(5)


async def test_the_end_of_the_switch_ends_the_stream_and_requests(switch_process: RunningSwitch) -> None:
    async with primary(switch_process) as switch:
        switch_process.restart()
        for _ in range(2):  # whoever asks hears it
            with pytest.raises(SwitchUnreachableError):
                await switch.next_role()
        with pytest.raises(SwitchError):
            await switch.write(inserts([route(1)]))
        with pytest.raises(SwitchError):
            await switch.send_packet(b"", op=1, port=0, index=0)
