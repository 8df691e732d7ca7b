from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest
from finsy.proto import U128, p4r

from controller.api.errors import InvalidRequestError, UnreachableError
from controller.config import SwitchConfig, Target
from controller.entries import Entry, Group, TableEntry, table_entry
from controller.fabric.flows import COUNTERS
from controller.fabric.marks import mark_in
from controller.fabric.tables.forward import MAC, ROUTE
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.p4rt import P4RuntimeClient, Pipeline
from controller.switches.pipeline import Program, load, push_to, shipped_program
from controller.switches.queries import SlotContent
from controller.switches.switch import CounterCell, Switch
from controller.switches.updates import SwitchError, SwitchUnreachableError, Update, UpdateKind, WriteError
from p4src import MAX_PORTS, MAX_RANKS, MAX_SLOTS
from tests.controller.running_switch import DEVICE_ID, RunningSwitch, free_port, job

pytestmark = pytest.mark.slow  # switch processes come and go

PATIENCE_S = 60.0
DROP = "SwitchIngress.forward.drop"


class Observed(Switch):
    """A switch whose changes can be waited for."""

    def __init__(self, config: SwitchConfig, base: list[Entry], program: Program | None = None) -> None:
        self.changes: list[bool] = []
        self._changed = asyncio.Event()
        super().__init__(config, base, on_change=self._note, program=program, poll_interval_s=0.1)

    def _note(self, switch: Switch) -> None:
        self.changes.append(switch.connected)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                await self._changed.wait()
                self._changed.clear()

        await asyncio.wait_for(wait(), PATIENCE_S)

    async def until_state(self, text: str) -> None:
        async def wait() -> None:
            while text not in self.state:
                await asyncio.sleep(0.01)

        await asyncio.wait_for(wait(), PATIENCE_S)


@asynccontextmanager
async def started(process: RunningSwitch, config: SwitchConfig | None = None) -> AsyncIterator[Observed]:
    switch = Observed(config or process.config, process.base)
    await switch.start()
    try:
        yield switch
    finally:
        await switch.close()


@asynccontextmanager
async def connected(process: RunningSwitch) -> AsyncIterator[Observed]:
    """Yield a connected switch that holds its base entries and nothing else."""
    async with started(process) as switch:
        await switch.until(lambda: switch.connected)
        await switch.adopt([])
        yield switch


@asynccontextmanager
async def guest(process: RunningSwitch, election_id: int) -> AsyncIterator[P4RuntimeClient]:
    async with P4RuntimeClient(
        process.address, device_id=DEVICE_ID, schema=shipped_program().schema
    ) as client:
        assert (await client.open(election_id)).primary
        yield client


async def set_cell(process: RunningSwitch, entity: p4r.Entity) -> None:
    """Write a counter or register cell, which only tests do."""
    election_id = 1 << 20
    async with guest(process, election_id) as client:
        request = p4r.WriteRequest(device_id=DEVICE_ID, election_id=U128.encode(election_id))
        request.updates.add(type=p4r.Update.MODIFY, entity=entity)
        await client._stub.Write(request)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """The updates written to switches since the beginning of the test."""
    updates: list[Update] = []

    class Noting(P4RuntimeClient):
        async def write(self, wanted: Sequence[Update]) -> None:
            updates.extend(wanted)
            await super().write(wanted)

    monkeypatch.setattr("controller.switches.switch.P4RuntimeClient", Noting)
    return updates


@pytest.fixture
def switch(switch_process: RunningSwitch) -> AbstractAsyncContextManager[Observed]:
    """The switch, connected when the test begins."""
    return connected(switch_process)


# Connecting


async def test_an_empty_switch_gets_program_and_base_entries(switch_process: RunningSwitch) -> None:
    switch_process.restart()
    async with started(switch_process) as switch:
        assert not switch.connected
        await switch.until(lambda: switch.connected)
        assert switch.state == "connected"
        assert switch.program_sha256 == shipped_program().sha256
        assert await switch.read_entries() == set(switch_process.base)
        assert switch.changes == [True]
    assert not switch.connected
    assert switch.changes == [True], "closing is no change of the switch"


async def test_a_switch_keeps_the_newest_generation_for_as_long_as_its_registers(
    switch_process: RunningSwitch,
) -> None:
    """Note numbers whose halves are zero, equal or all ones; a controller that knows none reads them."""
    found: list[int] = []
    async with connected(switch_process) as switch:
        managed = ManagedSwitch(switch)
        for generation in (5, 0x10000, 0x10001, 0xFFFFFFFF):
            await managed.note(generation)
            assert mark_in(await switch.read_entries()) == generation
            await managed.note(generation - 1)
            assert mark_in(await switch.read_entries()) == generation
    other = Observed(switch_process.config, switch_process.base)
    other.on_found = lambda entries: found.append(mark_in(entries))
    await other.start()
    try:
        await other.until(lambda: other.connected)
        assert found == [0xFFFFFFFF]
        await other.push()
        assert mark_in(await other.read_entries()) == 0
    finally:
        await other.close()


async def test_another_program_is_replaced(switch_process: RunningSwitch) -> None:
    shipped = shipped_program()
    other = Program(shipped.device_config + b"\n", shipped.schema, "0" * 64, 0x1234)

    await push_to(switch_process.address, program=other)
    async with connected(switch_process) as switch:
        assert await switch.read_entries() == set(switch_process.base)


async def test_a_program_that_was_read_back_garbled_is_read_again(
    switch_process: RunningSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the program is not loaded again, which would lose the entries."""
    read, answers = P4RuntimeClient.pipeline, []

    async def pipeline(client: P4RuntimeClient) -> Pipeline | None:
        answers.append(await read(client))
        if answers[-1] is None or len(answers) > 2:
            return answers[-1]
        return replace(answers[-1], device_config=answers[-1].device_config[::-1])

    async def load_again(client: P4RuntimeClient, device_config: bytes, *, cookie: int) -> None:
        raise AssertionError("it has that program")

    async with connected(switch_process):
        pass  # it has loaded the program, where this is the first test
    monkeypatch.setattr(P4RuntimeClient, "pipeline", pipeline)
    monkeypatch.setattr(P4RuntimeClient, "set_pipeline", load_again)
    async with connected(switch_process) as switch:
        assert len(answers) == 3
        assert await switch.read_entries() == set(switch_process.base)


async def test_an_unreachable_switch_is_tried_until_it_is_there(switch_process: RunningSwitch) -> None:
    switch_process.stop()
    async with started(switch_process) as switch:
        await switch.until_state("unreachable (Connection refused): check the address")
        for call in (
            switch.install(job()),
            switch.remove(job()),
            switch.adopt([]),
            switch.read_entries(),
            switch.flow_counters(0, 1),
            switch.port_counters(),
            switch.reset_flow_counters(0, 1),
            switch.slots(0, 1),
            switch.push(),
        ):
            with pytest.raises(
                SwitchUnreachableError,
                match=f"^switch s1 at {switch_process.address} is not connected: unreachable",
            ) as refused:
                await call
            assert isinstance(refused.value, UnreachableError)
        switch_process.start()
        await switch.until(lambda: switch.connected)


async def test_a_wrong_device_id_is_said(switch_process: RunningSwitch) -> None:
    wrong = SwitchConfig(name="s1", device_id=77, address=switch_process.address)
    async with started(switch_process, wrong) as switch:
        await switch.until_state("has no device id 77")
        assert not switch.connected


async def test_close_while_nobody_answers() -> None:
    config = SwitchConfig(name="s1", device_id=1, address=f"127.0.0.1:{free_port()}")
    switch = Observed(config, [])
    await switch.start()
    await switch.close()
    assert switch.state == "closed"


# Others at the switch


async def test_another_primary_is_waited_for(switch: Observed, switch_process: RunningSwitch) -> None:
    await switch.install(job())
    async with guest(switch_process, 1 << 20):
        await switch.until(lambda: not switch.connected)
        assert switch.state == f"another controller is primary (election id {1 << 20})"
        assert (switch.has_rival, switch.is_outranked) == (False, True)
        with pytest.raises(SwitchUnreachableError, match="another controller is primary"):
            await switch.install(job(1))
        assert await switch.read_entries() == {*switch_process.base, *job()}
        assert await switch.runs_our_program()
    await switch.until(lambda: switch.connected)
    assert switch.changes == [True, False, True]


async def test_what_another_primary_changed_stays_but_for_what_sums_depend_on(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    """Check that `written` still is what we wrote, so that changes by hand can be told apart."""
    guards = [e for e in job() if isinstance(e, TableEntry) and e.table == MEMBER_QP]
    gone, mine = switch_process.base[-1], table_entry(ROUTE, {"dst_ip": (0x0B000000, 8)}, DROP)
    before, own = switch_process.base[1], job(1)[0]
    assert isinstance(before, TableEntry)
    changed = replace(before, action=DROP, params=())
    await switch.install(job())
    written = switch.written
    async with guest(switch_process, 1 << 20) as other:
        await switch.until(lambda: not switch.connected)
        await other.write([Update(UpdateKind.DELETE, entry) for entry in (gone, *guards)])
        await other.write([Update(UpdateKind.INSERT, entry) for entry in (mine, own)])
        await other.write([Update(UpdateKind.MODIFY, changed)])
    await switch.until(lambda: switch.connected)
    await switch.adopt(job())
    by_hand = ({*switch_process.base, *job()} - {gone, before}) | {mine, changed}
    assert await switch.read_entries() == by_hand
    assert switch.written == written
    failures = await switch.write_batch(
        [Update(UpdateKind.DELETE, mine), Update(UpdateKind.MODIFY, before), Update(UpdateKind.INSERT, gone)]
    )
    assert not failures
    assert await switch.read_entries() == {*switch_process.base, *job()}


async def test_what_another_controller_loaded_in_part_is_filled(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    """Let it die before it came to the routes: what is missing was not deleted by hand."""
    await switch.install(job())
    async with guest(switch_process, 1 << 20) as other:
        await switch.until(lambda: not switch.connected)
        await load(other, shipped_program())
        first = [entry for entry in switch_process.base if isinstance(entry, Group)]
        await other.write([Update(UpdateKind.INSERT, entry) for entry in first])
    await switch.until(lambda: switch.connected)
    assert await switch.read_entries() == set(switch_process.base)


async def test_a_visitor_that_changes_nothing_loses_nothing(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    await switch.install(job())
    async with guest(switch_process, 1 << 20):
        await switch.until(lambda: not switch.connected)
    await switch.until(lambda: switch.connected)
    assert await switch.read_entries() == {*switch_process.base, *job()}


async def test_a_forced_push_from_elsewhere_is_noticed(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    await switch.install(job())
    await push_to(switch_process.address, force=True)
    await switch.until(lambda: switch.changes == [True, False, True])
    assert await switch.read_entries() == set(switch_process.base)


async def test_our_election_id_in_use(switch: Observed, switch_process: RunningSwitch) -> None:
    async with started(switch_process) as second:
        await second.until_state("another controller is primary")
        assert switch.connected
        assert [(one.has_rival, one.is_outranked) for one in (switch, second)] == [(False,) * 2, (True,) * 2]
        await switch.close()
        await second.until(lambda: second.connected)
        assert (second.has_rival, second.is_outranked) == (False, False)


# Restarts


async def test_a_restarted_switch_is_filled_again_and_its_jobs_are_lost(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    await switch.install(job())
    switch_process.restart()
    await switch.until(lambda: switch.changes == [True, False, True])
    assert await switch.read_entries() == set(switch_process.base)
    await switch.install(job())
    assert await switch.read_entries() == {*switch_process.base, *job()}


async def test_a_restarted_switch_has_the_guards_of_known_jobs_before_routes(
    switch: Observed, switch_process: RunningSwitch, noted: list[Update]
) -> None:
    guards = [e for e in job() if isinstance(e, TableEntry) and e.table == MEMBER_QP]
    await switch.install(job())
    switch.guards = lambda: guards
    noted.clear()
    switch_process.restart()
    await switch.until(lambda: switch.changes == [True, False, True])
    assert await switch.read_entries() == {*switch_process.base, *guards}
    written = [update.entry for update in noted]
    first_route = next(i for i, e in enumerate(written) if isinstance(e, TableEntry) and e.table == ROUTE)
    assert set(guards) <= set(written[:first_route])


async def test_a_switch_that_dies_during_an_installation(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    switch_process.stop()
    with pytest.raises(SwitchError):
        await switch.install(job())
    switch_process.start()
    await switch.until(lambda: switch.changes == [True, False, True])
    assert await switch.read_entries() == set(switch_process.base)


async def test_a_restarted_controller_adopts_what_it_wants_and_deletes_the_rest(
    switch_process: RunningSwitch, noted: list[Update]
) -> None:
    kept, lost, stale = job(0), job(1), job(2)
    changed = job(0, generation=2)

    def what_was_written() -> dict[UpdateKind, set[Entry]]:
        found = {kind: {update.entry for update in noted if update.kind is kind} for kind in UpdateKind}
        noted.clear()
        return found

    async with connected(switch_process) as before:
        await before.install(kept)
        await before.install(stale)
    async with started(switch_process) as after:
        await after.until(lambda: after.connected)
        assert await after.read_entries() == {*switch_process.base, *kept, *stale}
        noted.clear()
        await after.adopt([*kept, *lost])
        assert what_was_written() == {
            UpdateKind.INSERT: set(lost),
            UpdateKind.MODIFY: set(),
            UpdateKind.DELETE: set(stale),
        }
        assert await after.read_entries() == {*switch_process.base, *kept, *lost}
        await after.adopt(changed)
        assert what_was_written() == {
            UpdateKind.INSERT: set(),
            UpdateKind.MODIFY: set(changed) - set(kept),
            UpdateKind.DELETE: set(lost),
        }
        assert set(changed) - set(kept)
        assert await after.read_entries() == {*switch_process.base, *changed}


# Entries


async def test_install_and_remove(switch: Observed, switch_process: RunningSwitch) -> None:
    await switch.install(job(0))
    await switch.install(job(1))
    assert await switch.read_entries() == {*switch_process.base, *job(0), *job(1)}
    await switch.remove(job(0))
    assert await switch.read_entries() == {*switch_process.base, *job(1)}
    await switch.remove([*job(0), *job(1)])
    await switch.remove(job(1))
    assert await switch.read_entries() == set(switch_process.base)


async def test_what_was_to_be_modified_is_removed_all_the_same(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    """Move a tree, and end its job before that is written."""
    decided = [
        replace(entry, params=(*entry.params[:-1], (entry.params[-1][0], 7)))
        if isinstance(entry, TableEntry) and entry.params
        else entry
        for entry in job()
    ]
    before = switch.written
    await switch.install(job())
    await switch.remove(decided)
    assert await switch.read_entries() == set(switch_process.base)
    assert switch.written == before


async def test_a_guard_that_is_there_is_not_written_over_before_all_is_looked_at(
    switch_process: RunningSwitch,
) -> None:
    """Find a guard that may belong to an unknown job, on the same queue pair as one in an old database."""
    guards = [e for e in job() if isinstance(e, TableEntry) and e.table == MEMBER_QP]
    others = [replace(guard, params=(("of_flow", 31 * MAX_RANKS),)) for guard in guards]
    async with connected(switch_process) as switch:
        await switch.install(guards[1:])
    async with started(switch_process) as switch:
        switch.guards = lambda: others
        await switch.until(lambda: switch.connected)
        assert await switch.read_entries() == {*switch_process.base, others[0], *guards[1:]}
        await switch.adopt(others)
        assert await switch.read_entries() == {*switch_process.base, *others}


async def test_guards_may_stay_behind_the_flows(switch: Observed, switch_process: RunningSwitch) -> None:
    guards = [e for e in job() if isinstance(e, TableEntry) and e.table == MEMBER_QP]
    await switch.install(job())
    await switch.remove([entry for entry in job() if entry not in guards])
    assert await switch.read_entries() == {*switch_process.base, *guards}
    await switch.remove(job())
    assert await switch.read_entries() == set(switch_process.base)


async def test_base_entries_are_not_removed(switch: Observed, switch_process: RunningSwitch) -> None:
    await switch.remove(switch_process.base)
    assert await switch.read_entries() == set(switch_process.base)


async def test_an_installation_is_all_or_nothing_and_names_what_was_refused(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    there = next(e for e in job(0) if isinstance(e, TableEntry) and e.table == FLOW)
    await switch.install([there])
    with pytest.raises(WriteError, match="ALREADY_EXISTS") as refused:
        await switch.install(job(0))
    assert str(refused.value).startswith(f"switch s1 at {switch_process.address} refused 1 of 6 updates")
    assert str(there) in str(refused.value)
    assert await switch.read_entries() == {*switch_process.base, there}
    await switch.remove([there])
    await switch.install(job(0))


async def test_entries_with_one_key_are_a_defect_of_the_caller(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    with pytest.raises(ValueError, match="same key"):
        await switch.install([Group(9, ((1, 1),)), Group(9, ((2, 1),))])
    assert await switch.read_entries() == set(switch_process.base)


@pytest.mark.slow
async def test_a_full_table_leaves_no_half_job(switch: Observed, switch_process: RunningSwitch) -> None:
    macs: list[Entry] = [
        table_entry(MAC, {"dst_mac": number}, "SwitchIngress.forward.drop") for number in range(1, 5000)
    ]
    with pytest.raises(WriteError, match=r"refused \d+ of 4999 updates"):
        await switch.install(macs)
    assert await switch.read_entries() == set(switch_process.base)


async def test_a_cancelled_installation_is_cleaned_up(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    task = asyncio.create_task(switch.install(job()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def until_clean() -> None:
        while await switch.read_entries() != set(switch_process.base) or switch._leftover:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(until_clean(), PATIENCE_S)
    await switch.install(job())


async def test_push_forgets_the_jobs(switch: Observed, switch_process: RunningSwitch) -> None:
    await switch.install(job())
    await switch.push()
    assert await switch.read_entries() == set(switch_process.base)
    assert switch.changes == [True]
    await switch.install(job())


# Counters and slots


async def test_flow_counters_by_name_and_flow(switch: Observed, switch_process: RunningSwitch) -> None:
    cell = p4r.CounterEntry(counter_id=shipped_program().schema.counters[COUNTERS["duplicate"]])
    cell.index.index = 33
    cell.data.packet_count, cell.data.byte_count = 7, 7000
    await set_cell(switch_process, p4r.Entity(counter_entry=cell))
    await switch.until(lambda: switch.changes == [True, False, True])
    found = await switch.flow_counters(32, 3)
    assert set(found) == set(COUNTERS)
    zero = CounterCell(0, 0)
    assert found["duplicate"] == [zero, CounterCell(7, 7000), zero]
    assert found["completed"] == [zero] * 3
    await switch.reset_flow_counters(32, 32)
    assert (await switch.flow_counters(33, 1))["duplicate"] == [zero]


async def test_what_came_by_an_unnamed_port_is_told_without_asking_for_it(
    switch: Observed, switch_process: RunningSwitch
) -> None:
    counter = switch._program.schema.counters["SwitchIngress.edges.unnamed"]
    cell = p4r.CounterEntry(
        counter_id=counter, index=p4r.Index(index=500), data=p4r.CounterData(packet_count=4, byte_count=400)
    )
    await set_cell(switch_process, p4r.Entity(counter_entry=cell))
    await switch.until(lambda: switch.changes == [True, False, True])
    found = await switch.port_counters([1, 2])
    zero = CounterCell(0, 0)
    assert found["unnamed"] == {1: zero, 2: zero, 500: CounterCell(4, 400)}
    assert set(found["spoofed"]) == {1, 2}


async def test_port_counters(switch: Observed) -> None:
    before = await switch.port_counters()
    drops = {"no_route", "unnamed", "spoofed", "no_job", "bad_echo"}
    assert set(before) == {"port_rx", "port_tx", *drops}
    assert all(set(cells) == set(range(MAX_PORTS)) for cells in before.values())
    await switch.slots(0, 10)
    after = await switch.port_counters()
    assert after["port_tx"][255].packets == before["port_tx"][255].packets + 10
    assert set((await switch.port_counters([3, 1]))["spoofed"]) == {1, 3}
    assert {1, 3} <= set((await switch.port_counters([3, 1]))["unnamed"]) <= {1, 3, 500}


async def test_slots_are_read_in_order(switch: Observed) -> None:
    found = await switch.slots(MAX_SLOTS - 100, 100)
    assert [slot.index for slot in found] == list(range(MAX_SLOTS - 100, MAX_SLOTS))
    assert await switch.slots(5, 0) == []


@pytest.mark.slow
async def test_all_slots_of_a_switch(switch: Observed) -> None:
    assert len(await switch.slots(0, MAX_SLOTS)) == MAX_SLOTS


async def test_what_a_slot_holds(switch: Observed, switch_process: RunningSwitch) -> None:
    if switch_process.target is not Target.EMBEDDED:
        pytest.skip("simple_switch_grpc has no registers over P4Runtime to put it there")
    register = next(
        r for r in shipped_program().schema.p4info.registers if r.preamble.alias.endswith("slot_state")
    )
    entry = p4r.RegisterEntry(register_id=register.preamble.id)
    entry.index.index = 1234
    entry.data.bitstring = bytes.fromhex("00000102 00000304 80000001 10 01")
    await set_cell(switch_process, p4r.Entity(register_entry=entry))
    await switch.until(lambda: switch.changes == [True, False, True])
    (slot,) = await switch.slots(1234, 1)
    assert replace(slot, age_us=0) == SlotContent(
        index=1234, generation=0x102, message=0x304, bitmap=0x80000001, chunks=0x10, flags=1
    )


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, -1), (MAX_SLOTS, 1), (MAX_SLOTS - 1, 2)])
async def test_what_is_not_there_is_not_asked_for(switch: Observed, first: int, count: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"slots .* are not within 0..8191"):
        await switch.slots(first, count)
    with pytest.raises(InvalidRequestError, match=r"flows .* are not within 0..1023"):
        await switch.flow_counters(first, count)


async def test_load_is_what_connects(switch_process: RunningSwitch) -> None:
    """Take a switch that was pushed to by hand as it is, without another push."""
    async with guest(switch_process, 1) as client:
        await load(client, shipped_program())
        await client.write([Update(UpdateKind.INSERT, job()[0])])
    async with started(switch_process) as switch:
        await switch.until(lambda: switch.connected)
        assert await switch.read_entries() == {*switch_process.base, job()[0]}
