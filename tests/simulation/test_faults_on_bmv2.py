"""What a switch of a run got, given to BMv2 as well: equal bytes out, as from the model. Needs root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from controller.entries import Entry
from simulation.faults.drawing import draw
from simulation.faults.node import SwitchNode
from simulation.faults.world import World
from simulation.switch.comparing import normal
from simulation.switch.state import Out
from tests.p4src.test_fabric_on_bmv2 import BATCH, bmv2, install
from tests.soft_switch.switches import BMV2

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.timeout(300),
]
FRAMES = 300


@dataclass
class Recorder:
    """The entries of a switch when the first frames come, and those frames, until its entries change."""

    node: SwitchNode
    entries: list[Entry] = field(default_factory=list)
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    expected: list[list[Out]] = field(default_factory=list)
    over: bool = False

    def write(self, insert: Sequence[Entry], delete: Sequence[Entry]) -> None:
        self.over = self.over or bool(self.frames)

    def restart(self) -> None:
        """Before it begins."""

    def process(self, port: int, frame: bytes, left: list[Out], echoes: list[int]) -> None:
        if self.over or len(self.frames) == FRAMES:
            return
        if not self.frames:
            self.entries = list(self.node.plane.entries.values())
        self.frames.append((port, frame))
        self.expected.append(left)


@pytest.mark.parametrize("seed", [206, 259])
def test_bmv2_does_what_the_model_did(seed: int) -> None:
    """From the job's first frame on, with all that the links did to them."""
    recorders: list[Recorder] = []

    def record(world: World, node: SwitchNode) -> None:
        node.shadow = Recorder(node)
        recorders.append(node.shadow)

    schedule = draw(seed)
    outcome = World(schedule, shadow=record).run()
    assert not outcome.error
    assert outcome.strikes
    (recorder,) = recorders
    assert len(recorder.frames) > 100
    ports = list(range(1, schedule.hosts[0] + 1))
    with bmv2(ports) as (switch, bench):
        install(switch, recorder.entries, ports)
        left = bench.play(recorder.frames, batch=BATCH)
    expected = [out for outs in recorder.expected for out in outs]
    for port in ports:
        wanted = sorted(normal((port, frame)) for to, frame in expected if to == port)
        assert sorted(normal((port, frame)) for frame in left[port]) == wanted
