"""BMv2 with the compiled program as a leaf and as a spine, against the model: equal bytes out. Needs root."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from controller.entries import TableEntry
from host_agent.wire.aggregation import Reduction
from simulation.bmv2 import Bmv2
from simulation.cases import Case
from simulation.jobs import JobSettings
from simulation.network import fabric_config
from simulation.rack import Faults
from simulation.scenarios import Scenario
from simulation.switch.comparing import normal
from simulation.switch.from_entries import EntrySwitch
from tests.p4src.entry_pair import FLOW_COUNTERS
from tests.p4src.test_fabric_against_model import recorded, something_else
from tests.soft_switch.switches import BMV2

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.timeout(300),
]

FRAMES = 500


def scenario() -> Scenario:
    """Two jobs in two racks, one of NICs that want RNR NAKs and of a straggler; links lose and repeat."""
    hosts = fabric_config(2, [3, 2]).hosts
    int32, float16 = np.dtype(np.int32), np.dtype(np.float16)
    cases = [
        Case("in_network", "all_reduce", float16, 700),
        Case("in_network", "all_reduce", float16, 300, Reduction.MAX),
        Case("in_network", "all_reduce", int32, 300),
        Case("ring", "all_gather", int32, 60),
    ]
    cases = [replace(case, scaled=True) for case in cases]
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
    flows = {
        value
        for entry in entries
        if isinstance(entry, TableEntry)
        for name, value in entry.params
        if name == "flow"
    }
    cells = [(full, flow) for full in FLOW_COUNTERS.values() for flow in {0, *flows}]
    with Bmv2(ports) as switch:
        switch.restart()
        switch.write(entries, [])
        left = switch.play(frames)
        counters = switch.read_counters(cells)
    for port in ports:
        wanted = sorted(normal((port, frame)) for to, frame in expected if to == port)
        assert sorted(normal((port, frame)) for frame in left[port]) == wanted
    counted = model.counted()
    for what, full in FLOW_COUNTERS.items():
        assert sum(packets for (name, _), packets in counters.items() if name == full) == counted[what], what
    met = {"l1": ("partials", "results", "replayed", "not_ready", "late"), "s1": ("asked", "replayed")}
    assert all(counted[what] > 0 for what in met[name])
