"""BMv2 with the compiled program as a leaf and as a spine, against the model: equal bytes out. Needs root."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from random import Random

import numpy as np
import pytest

from controller.entries import Entry, Group, TableEntry, table_entry
from controller.routes import ROUTE
from p4src import JSON_PATH, P4INFO_PATH
from simulation.cases import Case
from simulation.jobs import JobSettings
from simulation.network import fabric_config
from simulation.rack import Faults
from simulation.scenarios import Scenario
from simulation.switch.comparing import normal
from simulation.switch.from_entries import EntrySwitch
from soft_switch.dataplane import Exact, Lpm
from tests.p4src.entry_pair import FLOW_COUNTERS
from tests.p4src.test_fabric_against_model import recorded, something_else
from tests.soft_switch.switches import BMV2, Bench, Fence, Switch, Wire, namespace, running, unique

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.timeout(300),
]

FRAMES = 500
BATCH = 4  # BMv2's capture buffer holds 32 frames a port, and one of these may leave as several


def scenario() -> Scenario:
    """Two jobs in two racks, one of NICs that want RNR NAKs and of a straggler; links lose and repeat."""
    hosts = fabric_config(2, [3, 2]).hosts
    int32 = np.dtype(np.int32)
    cases = [Case("in_network", "all_reduce", int32, 700), Case("ring", "all_gather", int32, 60)]
    faults = Faults(loss=0.05, duplicate=0.1, reorder=0.1)
    return Scenario(
        seed=5,
        spines=2,
        hosts=[3, 2],
        jobs=[
            JobSettings(placement=[hosts[k] for k in (0, 3, 1, 4)], cases=cases, path_mtu=512),
            JobSettings(placement=[hosts[k] for k in (2, 4, 0)], cases=cases, adapters=frozenset({0, 1, 2})),
        ],
        starts_ns=[0, 0],
        late_ns=[(), (0, 0, 60_000_000)],
        host_links=faults,
        uplinks=faults,
    )


@contextmanager
def bmv2(ports: list[int]) -> Iterator[tuple[Switch, Bench]]:
    """A switch with the program and a wire at each of its ports."""
    names = {port: (f"w{port}", f"p{port}") for port in ports}
    with ExitStack() as stack:
        space = stack.enter_context(namespace(unique("p4fab"), list(names.values())))
        wires = {port: Wire(space, far) for port, (far, _) in names.items()}
        bench = Bench(wires, Fence())
        stack.callback(bench.close)
        near = {port: name for port, (_, name) in names.items()}
        switch = stack.enter_context(running(space, near, bmv2=True))
        switch.push(JSON_PATH.read_bytes(), P4INFO_PATH.read_text())
        yield switch, bench


def install(switch: Switch, entries: list[Entry], ports: list[int]) -> None:
    """Also the ways that fences take."""
    fences = [
        table_entry(
            ROUTE,
            {"dst_ip": (int(IPv4Address(f"10.99.0.{port}")), 32)},
            "SwitchIngress.forward.next_hop",
            port=port,
            src_mac=1,
            dst_mac=2,
        )
        for port in ports
    ]
    for entry in [*entries, *fences]:
        if isinstance(entry, Group):
            switch.multicast_set(entry.group, entry.replicas)
        else:
            insert(switch, entry)


def insert(switch: Switch, entry: TableEntry) -> None:
    match = [Lpm(*value) if isinstance(value, tuple) else Exact(value) for _, value in entry.match]
    params = [value for _, value in entry.params]
    switch.insert(entry.table, match, priority=0, action=entry.action, params=params)


@pytest.mark.parametrize("name", ["l1", "s1"])
def test_bmv2_does_what_the_model_does(name: str) -> None:
    """With strange packets between; the job's entries stay to the end."""
    steps = recorded(scenario())[name].steps
    writes = [step for step in steps if step[0] == "write" and not step[2]]
    entries = [entry for step in writes for entry in step[1]]  # type: ignore[union-attr]
    chance = Random(7)
    frames: list[tuple[int, bytes]] = []
    sent: list[tuple[int, bytes]] = []
    for step in steps:
        if isinstance(step[1], int) and isinstance(step[2], bytes):
            sent.append((step[1], step[2]))
            frames.append(sent[-1])
            if chance.random() < 0.2:
                frames.append(something_else(chance, sent))
    ports = {"l1": [1, 2, 3, 101, 102], "s1": [1, 2]}[name]
    frames = [frame for frame in frames[:FRAMES] if frame[0] in ports]
    model = EntrySwitch()
    model.write(entries)
    expected = [left for port, frame in frames for left in model.process(port, frame)]
    with bmv2(ports) as (switch, bench):
        install(switch, entries, ports)
        left = bench.play(frames, batch=BATCH)
        counters = switch.counters()
    for port in ports:
        wanted = sorted(normal((port, frame)) for to, frame in expected if to == port)
        assert sorted(normal((port, frame)) for frame in left[port]) == wanted
    counted = model.counted()
    for what, full in FLOW_COUNTERS.items():
        assert sum(packets for packets, _ in counters[full]) == counted[what], what
    met = {"l1": ("partials", "results", "replayed", "not_ready", "late"), "s1": ("asked", "replayed")}
    assert all(counted[what] > 0 for what in met[name])
