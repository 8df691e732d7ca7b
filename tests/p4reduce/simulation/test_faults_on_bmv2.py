"""BMv2 beside simulated runs does what the model did, frame by frame; nothing stays of it. Needs root."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.entries import Entry, Group, table_entry
from controller.fabric.tables.forward import FLOOD, MAC
from p4reduce.oracle import emit
from p4reduce.simulation.bmv2 import Bmv2
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.playing import run
from p4reduce.simulation.faults.targets import Targeted, players
from tests.soft_switch.switches import BMV2

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def play() -> Iterator[Targeted]:
    with players("bmv2") as made:
        yield made


def seed_of(*, restarted: bool) -> int:
    """Return a seed of a rack, or a fabric in which a switch restarts; it loses frames and adds halves."""
    for seed in itertools.count(1):
        schedule = draw(seed)
        kinds = {mishap.kind for mishap in schedule.mishaps}
        halves = [
            work
            for job in schedule.jobs
            for work in job.work
            if (work.module, work.name) == ("in_network", "all_reduce")
            and work.dtype in ("float16", "bfloat16")
            and (work.scaled, work.reduction) == (True, "SUM")
            and work.elements > 20
            and job.mode == ""
        ]
        fits = bool(schedule.spines) == restarted == ("switch-restart" in kinds) and halves
        if fits and 10 < len(run(schedule).strikes) < 200:
            return seed
    raise AssertionError


@pytest.mark.parametrize("restarted", [False, True])
def test_bmv2_does_what_the_model_did(play: Targeted, restarted: bool) -> None:
    """Check it with all that links did to frames; a leaf and a spine come back empty, links are probed."""
    outcome = play.one(draw(seed_of(restarted=restarted)))
    assert not outcome.error
    assert outcome.strikes


def test_a_switch_that_does_otherwise_is_noticed(play: Targeted, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = draw(seed_of(restarted=False))
    monkeypatch.setattr(emit, "SUMMED_BIT", 0x20)
    assert "BMv2 and the model differ on what came in by port" in play.one(schedule).error


def test_a_restarted_switch_has_no_groups() -> None:
    """Check that the groups of the program before are gone: else the next ones would have their members."""
    broadcast = bytes.fromhex("ffffffffffff0200000000010806") + bytes(46)
    entries: list[Entry] = [
        Group(7, ((1, 0), (2, 0))),
        table_entry(MAC, {"dst_mac": 0xFFFFFFFFFFFF}, FLOOD, group=7),
    ]
    with Bmv2([1, 2]) as switch:
        for _ in range(2):
            switch.restart()
            switch.write(entries, [])
            assert switch.play([(1, broadcast)]) == {1: [], 2: [broadcast]}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_nothing_stays_of_it(how: signal.Signals, tmp_path: Path) -> None:
    """Check it whatever ends the process that started it; another one beside it goes on."""
    code = (
        "from p4reduce.simulation.bmv2 import Bmv2\nimport time\n"
        "with Bmv2([1, 2]) as switch:\n"
        "    print(switch.process_id, flush=True)\n"
        "    time.sleep(200)\n"
    )
    with Bmv2([1, 2]) as other:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        started = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(how)
        process.wait()
        process.stdout.close()
        assert select.select([started], [], [], 30.0)[0]  # readable when it has ended
        os.close(started)
        assert not list(tmp_path.iterdir())
        other.restart()
        frame = other.bench.fence.frame(2) + b"a frame"
        assert other.play([(1, frame)])[2][0].endswith(b"a frame")
