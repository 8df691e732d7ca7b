"""BMv2 with the compiled program as a leaf and as a spine, against the model: equal bytes out. Needs root."""

from __future__ import annotations

from random import Random

import pytest

from controller.entries import TableEntry, key_of
from p4reduce.oracle.comparing import normal
from p4reduce.oracle.from_entries import EntrySwitch
from p4reduce.simulation.bmv2 import Bmv2
from p4reduce.simulation.faults.schedule import Rates, Schedule
from tests.p4reduce.simulation.worlds import a_gather, a_job, a_schedule, a_sum, frames_of, recorded, written
from tests.p4src.entry_pair import FLOW_COUNTERS
from tests.p4src.strange import something_else
from tests.soft_switch.switches import BMV2

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.timeout(300),
]

FRAMES = 500


def scenario() -> Schedule:
    """Return two jobs in two racks: NICs that want RNR NAKs, and a straggler; links lose and repeat."""
    work = [
        a_sum(700, "float16", scaled=True),
        a_sum(300, "float16", scaled=True, reduction="MAX"),
        a_sum(300),
        a_gather(60),
    ]
    return a_schedule(
        2,
        [3, 2],
        a_job([0, 3, 1, 4], work, path_mtu=512),
        a_job([2, 4, 0], work, number=2, adapters=[0, 1, 2], late_ns=[0, 0, 60_000_000]),
        links=Rates(loss=0.05, duplicate=0.1, reorder=0.1),
        spread="messages",
    )


@pytest.mark.parametrize("name", ["l1", "s1"])
def test_bmv2_does_what_the_model_does(name: str) -> None:
    """Check it with strange packets between; the job's entries stay to the end."""
    steps = recorded(scenario())[name]
    entries = list({key_of(entry): entry for entry in written(steps)}.values())
    chance = Random(7)
    frames: list[tuple[int, bytes]] = []
    sent: list[tuple[int, bytes]] = []
    for frame in frames_of(steps):
        sent.append(frame)
        frames.append(frame)
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
