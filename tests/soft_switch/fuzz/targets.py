"""Targets of fuzzing: a program, entries in its tables, sequences of frames to start from."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.entries import Group, key_of
from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.recording import Step
from p4src import CPU_PORT, JSON_PATH
from soft_switch.bmv2.reader import read_program
from soft_switch.compiler import compile_program
from soft_switch.dataplane import DataPlane, Exact, Lpm
from tests.p4reduce.simulation.worlds import frames_of, recorded, written
from tests.p4src.strange import something_else
from tests.soft_switch.fuzz.entries import fill
from tests.soft_switch.fuzz.packets import PacketMaker
from tests.soft_switch.fuzz.recording import recorded as recorded_calls

Frames = list[tuple[int, bytes]]
SEQUENCE = 6
ROLES = {"leaf": "l", "spine": "s"}


@dataclass(frozen=True)
class Target:
    """C++ of a program and of what fills its tables, and the corpus."""

    name: str
    source: str
    entries: str
    corpus: Sequence[Frames]


def _made(name: str, program: bytes, install: Callable[[DataPlane], None], frames: Frames) -> Target:
    with recorded_calls(program, cpu_port=CPU_PORT) as (plane, recording):
        install(plane)
    corpus = [frames[at : at + SEQUENCE] for at in range(0, len(frames), SEQUENCE)]
    return Target(name, compile_program(read_program(program)).source, recording.text(), corpus)


def any_program(path: Path, seed: int, packets: int = 300) -> Target:
    """Return a program with random entries; frames are what its parser takes, and some that say nothing."""
    chance = random.Random(seed)
    program = path.read_bytes()
    maker = PacketMaker(json.loads(program), chance)
    frames = [(chance.randrange(1, 9), maker.packet()) for _ in range(packets)]
    frames += [(1, b""), (1, bytes(1)), (2, bytes(60)), (3, bytes(1514))]
    return _made(path.stem, program, lambda plane: fill(plane, chance), frames)


def aggregation(role: str, seed: int) -> Target:
    """Return the aggregation program on a leaf or a spine, with what is written and sent while a job runs.

    The controller writes, and sends packets of its own and ARP; hosts and switches send, acknowledgements and
    tree packets among it.
    """
    chance = random.Random(seed)
    steps = _busiest(role, seed)
    frames: Frames = []
    for frame in frames_of(steps):
        frames.append(frame)
        if chance.random() < 0.2:
            frames.append(something_else(chance, frames))
    frames = frames[:6000]
    frames += [(CPU_PORT, bytes([op]) + chance.randbytes(chance.choice([6, 20, 60]))) for op in range(6)]
    frames += [
        (1, bytes.fromhex("ffffffffffff020000000001080600010800060400010200000000010a000001" + "00" * 28))
    ]
    return _made(f"p4reduce-{role}", JSON_PATH.read_bytes(), lambda plane: _install(plane, steps), frames)


def _busiest(role: str, seed: int) -> list[Step]:
    """Return what came to the busiest switch of that role, in 100 runs from `seed` on."""
    found: list[Step] = []
    for schedule in map(draw, range(seed, seed + 100)):
        if schedule.spines:
            scripts = recorded(schedule)
            fitting = [steps for name, steps in scripts.items() if name.startswith(ROLES[role])]
            found = max(found, *fitting, key=len)
    return found


def _install(plane: DataPlane, steps: list[Step]) -> None:
    known: dict[object, int] = {}
    for entry in written(steps):
        if isinstance(entry, Group):
            plane.multicast_set(entry.group, entry.replicas)
            continue
        key, params = key_of(entry), [value for _, value in entry.params]
        if key in known:
            plane.modify(entry.table, known[key], action=entry.action, params=params)
            continue
        match = [Lpm(*value) if isinstance(value, tuple) else Exact(value) for _, value in entry.match]
        known[key] = plane.insert(entry.table, match, priority=0, action=entry.action, params=params)
