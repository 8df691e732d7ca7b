"""The compiled program and the model decide alike as leaf and as spine, packet by packet.

A scenario of simulation runs on model switches. What came to each of them, and what was written to it, is
played again to the program and to a second model, with packets between that no switch or host sends: frames
again, damaged, cut, at the wrong port, with other fields and a right ICRC.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from controller.entries import Entry
from controller.routes import base_entries, switch_ip, switch_mac
from host_agent.wire.headers import Ethernet, IPv4, RocePacket, Udp
from simulation.fabric import FabricSimulation
from simulation.network import fabric_config
from simulation.scenarios import Scenario, draw
from simulation.switch.state import Out
from simulation.switch.tree_packets import TREE_PORT, TREE_VERSION, Kind, TreePacket
from tests.p4src.entry_pair import EntryPair

pytestmark = pytest.mark.slow


@dataclass
class Script:
    """What happened to one switch, in order."""

    steps: list[tuple[str, int, bytes] | tuple[str, list[Entry], list[Entry]]] = field(default_factory=list)


@pytest.fixture(scope="module")
def pair() -> Iterator[EntryPair]:
    made = EntryPair()
    yield made
    made.plane.close()


def recorded(scenario: Scenario) -> dict[str, Script]:
    """What came to each switch while the scenario ran."""
    simulation = scenario.build()
    scripts: dict[str, Script] = {}
    for name in simulation.switches:
        scripts[name] = Script([("write", list(simulation.switches[name].entries.values()), [])])
        record(simulation, name, scripts[name])
    simulation.run()
    return scripts


def record(simulation: FabricSimulation, name: str, script: Script) -> None:
    switch = simulation.switches[name]
    process, write, restart = switch.process, switch.write, switch.restart

    def on_frame(port: int, frame: bytes) -> list[Out]:
        script.steps.append(("frame", port, frame))
        return process(port, frame)

    def on_write(insert: list[Entry] | tuple[()] = (), *, delete: list[Entry] | tuple[()] = ()) -> None:
        script.steps.append(("write", list(insert), list(delete)))
        write(insert, delete=delete)

    def on_restart() -> None:
        script.steps.append(("restart", [], []))
        restart()

    vars(switch).update(process=on_frame, write=on_write, restart=on_restart)


def play(pair: EntryPair, script: Script, chance: Random, strange: float) -> None:
    """Both do the same with all of it; `strange`: how often something comes between."""
    pair.reset()
    frames: list[tuple[int, bytes]] = []
    for step in script.steps:
        if isinstance(step[1], int):
            assert isinstance(step[2], bytes)
            frames.append((step[1], step[2]))
            pair.process(*frames[-1])
            while chance.random() < strange:
                pair.process(*something_else(chance, frames))
        elif step[0] == "restart":
            pair.restart()
        else:
            assert isinstance(step[2], list)
            pair.write(step[1], delete=step[2])
    pair.assert_counters_agree()


def something_else(chance: Random, frames: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    """What might come by accident or malice."""
    recent = chance.random() < 0.7
    port, frame = frames[-1] if recent else chance.choice(frames)
    kind = chance.choice(["again", "port", "bit", "cut", "longer", "field", "field", "field", "field"])
    if kind == "port":
        return chance.choice([1, 2, 3, 4, 101, 102, 103, 104]), frame
    if kind == "bit":
        damaged = bytearray(frame)
        damaged[chance.randrange(34, len(frame))] ^= 1 << chance.randrange(8)
        return port, bytes(damaged)
    if kind == "cut":
        tree = TreePacket.parse(frame)
        whole = frame if tree is None else replace(tree, psn=tree.psn ^ 1).build()
        return port, whole[: chance.randrange(42, len(whole))]
    if kind == "longer":
        return port, frame + bytes(chance.choice([1, 8, 256]))
    if kind == "field":
        tree = TreePacket.parse(frame)
        return port, other_field(chance, frame) if tree is None else other_tree_field(chance, tree)
    return port, frame


def other_tree_field(chance: Random, packet: TreePacket) -> bytes:
    """Another value in one field, with a right ICRC."""
    near = (-32, -16, -8, -4, -2, -1, 1, 2, 4, 8, 16, 1 << 31)
    size = chance.choice([0, 1, 2, 3, 16])
    changed = [
        {"version": chance.choice([0, TREE_VERSION + 1])},
        {"kind": chance.choice([*Kind, 0, 6])},
        {"kind": chance.choice([*Kind, 0, 6])},
        {"opcode": chance.randrange(5)},
        {"op": chance.choice([0, 1, 2, 4, 5, 255])},  # a forged SUM_HALF adds to what others left
        {"index": chance.choice([packet.index ^ 1, chance.randrange(256)])},
        {"flags": chance.randrange(8)},
        {"generation": packet.generation + chance.choice([-1, 1])},
        {"message": (packet.message + chance.choice(near)) % 2**32},
        {"message": (packet.message + chance.choice(near)) % 2**32},
        {"psn": chance.randrange(2**24)},
        {"reserved": 7, "reserved_too": 9},
        {"payload": (packet.payload * 17)[: 256 * size]},
        {"payload": chance.randbytes(len(packet.payload))},
        {"ip": replace(packet.ip, tos=chance.randrange(256), ttl=chance.randrange(3))},
        {"ip": replace(packet.ip, identification=chance.randrange(2**16), flags=chance.choice([0, 2]))},
    ]
    return replace(packet, **chance.choice(changed)).build()


def other_field(chance: Random, frame: bytes) -> bytes:
    """The same for a host's packet."""
    try:
        packet = RocePacket.parse(frame)
    except ValueError:
        return frame
    bth, ip = packet.bth, packet.ip
    changed: list[RocePacket] = [
        replace(packet, bth=replace(bth, psn=(bth.psn + chance.choice([-8, -2, -1, 1, 2, 8])) % 2**24)),
        replace(packet, bth=replace(bth, opcode=chance.choice([0, 1, 2, 4, 0x81]))),
        replace(packet, bth=replace(bth, reserved=0x40)),
        replace(packet, bth=replace(bth, dest_qp=bth.dest_qp ^ 1)),
        replace(packet, ip=replace(ip, src=ip.src + 1)),
        replace(packet, ip=replace(ip, ttl=chance.randrange(3))),
        replace(packet, payload=packet.payload * 2),
        replace(packet, payload=chance.randbytes(len(packet.payload))),
    ]
    if packet.aeth is not None:
        syndrome = chance.choice([0x1F, 0x60, 0x2C, 0x61])
        changed.append(replace(packet, aeth=replace(packet.aeth, syndrome=syndrome)))
    chosen = chance.choice(changed)
    if packet.aeth is not None and chosen.bth.opcode != bth.opcode:
        chosen = replace(chosen, aeth=None, payload=bytes(16))
    return chosen.build()


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), strange=st.sampled_from([0.0, 0.1, 0.5]))
@example(seed=1420, strange=0.5)  # a forged op on one switch, behind another one's numbers
def test_whatever_comes_to_a_leaf_or_a_spine_is_decided_alike(
    pair: EntryPair, seed: int, strange: float
) -> None:
    compare(pair, seed, strange)


def compare(pair: EntryPair, seed: int, strange: float) -> None:
    chance = Random(seed)
    for name, script in recorded(draw(seed, most_jobs=2, most_workers=5, elements=200)).items():
        try:
            play(pair, script, chance, strange)
        except AssertionError as error:
            raise AssertionError(f"{name}, seed {seed}, strange {strange}: {error}") from error


def mac(device_id: int, port: int) -> bytes:
    return switch_mac(device_id, port).to_bytes(6, "big")


@pytest.mark.parametrize("kind", [Kind.ECHO_REQUEST, Kind.ECHO_REPLY])
def test_echoes_while_a_port_is_being_written(pair: EntryPair, kind: Kind) -> None:
    """A controller writes one table after the other, and what it sent before is on its way."""
    config = fabric_config(1, [1, 1])
    leaf, link = config.switches[0], config.links[0]
    near, far = leaf.device_id, config.switch(link.b).device_id
    echo = TreePacket(
        ethernet=Ethernet(dst=mac(near, link.a_port), src=mac(far, link.b_port)),
        ip=IPv4(src=IPv4Address(switch_ip(far)), dst=IPv4Address(switch_ip(near)), total_length=0),
        udp=Udp(length=0, src_port=TREE_PORT, dst_port=TREE_PORT),
        kind=kind,
        message=7,
    ).build()
    pair.reset()
    for entry in base_entries(config, leaf):
        pair.process(link.a_port, echo)
        pair.write([entry])
    pair.process(link.a_port, echo)
    pair.assert_counters_agree()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("start", range(0, int(os.environ.get("P4REDUCE_SEEDS", "40")), 20))
def test_many_seeds(pair: EntryPair, start: int) -> None:
    """The error names the seed. $P4REDUCE_SEEDS says how many, for a longer run."""
    for seed in range(start, start + 20):
        compare(pair, seed, 0.3)
