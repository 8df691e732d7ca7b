"""A leaf's and a spine's entries in a real switch: written, modified in one request, removed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controller.api.messages import Mode
from controller.config import Spread
from controller.entries import Entry
from controller.fabric.graph import LinkState
from controller.fabric.routes import base_entries
from controller.fabric.tables.up import UPLINK
from controller.fabric.trees import Tree, entries_on, moved
from controller.jobs.specs import Plan
from controller.slots.allocator import Region
from controller.switches.difference import difference
from controller.switches.switch import Switch
from controller.switches.updates import Update, UpdateKind
from tests.controller.bench import fabric, member
from tests.controller.running_switch import DEVICE_ID, RunningSwitch

pytestmark = pytest.mark.slow  # switch processes come and go

PATIENCE_S = 60.0
CONFIG = fabric((2, 1), spines=2, spread=Spread.MESSAGES)
PLAN = Plan(job_id=3, generation=3, window=4, message_packets=4, path_mtu=1024, mode=Mode.IN_NETWORK)
REGION = Region(2, 64, 32)


@pytest.mark.parametrize("name", ["l1", "s2"])
async def test_entries_of_a_fabric_come_and_go(switch_process: RunningSwitch, name: str) -> None:
    tree = Tree.of(CONFIG, [member(CONFIG, rank, rank) for rank in range(3)])
    config = replace(
        CONFIG.switch(name), address=switch_process.address, device_id=DEVICE_ID, target=switch_process.target
    )
    base = base_entries(CONFIG, CONFIG.switch(name))
    after = base_entries(CONFIG, CONFIG.switch(name), LinkState(lost=frozenset({"s1"})))
    entries = entries_on(CONFIG, tree, name, PLAN, REGION, ["s1", "s2"])
    connected = asyncio.Event()
    switch = Switch(config, base, on_change=lambda switch: connected.set())
    await switch.start()
    try:
        await asyncio.wait_for(connected.wait(), PATIENCE_S)
        await switch.adopt([])
        assert await switch.read_entries() == set(base)
        await switch.install(entries)
        assert await switch.read_entries() == {*base, *entries}
        wanted: set[Entry] = {*after, *moved(tree.graph, name, REGION, entries, ["s2"])}
        changes = difference({*base, *entries}, wanted).of(UpdateKind.MODIFY)
        uplinks = [entry for entry in changes if entry.table == UPLINK]
        assert (len(uplinks), len(changes)) == ((8, 9) if name == "l1" else (0, 0))
        assert await switch.write_batch([Update(UpdateKind.MODIFY, e) for e in changes]) == []
        assert await switch.read_entries() == wanted == set(switch.written.values())
        switch.base = lambda: after
        await switch.remove(wanted - set(after))
        assert await switch.read_entries() == set(after)
        await switch.send_frame(101, bytes(64))
    finally:
        await switch.close()
