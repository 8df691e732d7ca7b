"""A host that is no member, and knows everything, changes nothing that a job's members get from the switches.

A job runs on model switches with the real endpoints. What came to each switch is played to the compiled
program twice, the second time with an attacker's frames between: what leaves for each of the job's own frames
has to be the same to the byte, and nothing of the attacker's may reach a member's queue pair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from controller.entries import Entry, TableEntry
from controller.flows import FLOW, MEMBER_QP
from controller.routes import EDGE_PORT, base_entries
from host_agent.wire.headers import Opcode, RocePacket
from simulation.cases import Case
from simulation.jobs import JobSettings
from simulation.network import fabric_config
from simulation.rack import Faults
from simulation.scenarios import Scenario
from simulation.switch.comparing import describe
from simulation.switch.tree_packets import TreePacket
from tests.p4src.entry_pair import EntryPair
from tests.p4src.test_fabric_against_model import Script, recorded
from tests.security.attacks import Attacker, as_a_host_reads, cnp, disguises

SEEDS = int(os.environ.get("P4REDUCE_SEEDS", "3"))
ATTACKS = 3  # frames of the attacker for each of the job's


@dataclass(frozen=True)
class Setting:
    """A fabric, and on each leaf a host (the last one) on which nobody works."""

    scenario: Scenario

    @classmethod
    def of(cls, seed: int, *, racks: bool) -> Setting:
        hosts = [4, 3] if racks else [5]
        config = fabric_config(2 if racks else 1, hosts)
        places = (0, 4, 1, 5) if racks else (0, 1, 2, 3)
        int32 = np.dtype(np.int32)
        cases = [Case("in_network", "all_reduce", int32, 500), Case("ring", "all_gather", int32, 60)]
        faults = Faults(loss=0.03, duplicate=0.05, reorder=0.05)
        job = JobSettings(placement=[config.hosts[k] for k in places], cases=cases, path_mtu=512)
        return cls(
            Scenario(
                seed=seed,
                spines=2 if racks else 1,
                hosts=hosts,
                jobs=[job],
                starts_ns=[0],
                late_ns=[(0, 0, 20_000_000, 0)],
                host_links=faults,
                uplinks=faults,
            )
        )

    def attacker(self, leaf: int, chance: Random) -> tuple[int, Attacker]:
        """The idle host behind a leaf: its port."""
        config = fabric_config(self.scenario.spines, self.scenario.hosts)
        host = config.hosts_of(f"l{leaf}")[-1]
        return host.port, Attacker(host.ip, chance)


@pytest.fixture(scope="module")
def pair() -> Iterator[EntryPair]:
    made = EntryPair()
    yield made
    made.plane.close()


Steps = list[tuple[int, bytes] | tuple[list[Entry], list[Entry]]]


def steps_of(script: Script) -> Steps:
    """Frames, as port and bytes; and what is written: inserted and deleted."""
    steps: Steps = []
    for _, first, second in script.steps:
        steps.append((first, second))  # type: ignore[arg-type]
    return steps


def frames_of(script: Script) -> list[tuple[int, bytes]]:
    """What came to the switch."""
    return [(s[1], s[2]) for s in script.steps if isinstance(s[1], int) and isinstance(s[2], bytes)]


def happen(pair: EntryPair, step: Any) -> list[tuple[int, bytes]] | None:
    """What leaves for a frame; None where something was written."""
    first, second = step
    if isinstance(first, int):
        return sorted((out, bytes(data)) for out, data in pair.plane.process(first, second))
    pair.write(first, delete=second)
    return None


def play(
    pair: EntryPair, script: Script, port: int = 0, attacker: Attacker | None = None
) -> list[list[tuple[int, bytes]]]:
    """What leaves for each frame of the job; after asserting that nothing of the attacker's comes through."""
    pair.reset()
    left = []
    members: set[tuple[Any, Any]] = set()
    for step in steps_of(script):
        out = happen(pair, step)
        if out is None:
            inserted = [entry for entry in step[0] if isinstance(entry, TableEntry)]  # type: ignore[union-attr]
            members |= {(e.match[0][1], e.match[1][1]) for e in inserted if e.table == MEMBER_QP}
            continue
        left.append(out)
        if attacker is None:
            continue
        for frame in (step[1], *(data for _, data in out)):
            assert isinstance(frame, bytes)
            attacker.see(frame)
        for _ in range(ATTACKS if attacker.seen else 0):
            attack(pair, port, attacker.draw(), members)
    return left


def attack(pair: EntryPair, port: int, frame: bytes, members: set[tuple[Any, Any]]) -> None:
    """One frame of the attacker's, at its own port."""
    for out, leaving in pair.plane.process(port, frame):
        data = bytes(leaving)
        told = f"{describe(frame)} went out of port {out} as {describe(data)}"
        assert out != 255, f"to the controller: {told}"
        assert TreePacket.parse(data) is None, told
        read = as_a_host_reads(data)
        if read is not None:
            assert (int(read[1]), read[2]) not in members, told


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_attacker_changes_nothing(pair: EntryPair, seed: int, racks: bool) -> None:
    setting = Setting.of(seed, racks=racks)
    scripts = recorded(setting.scenario)
    for name in [name for name in scripts if name.startswith("l")]:
        port, attacker = setting.attacker(int(name[1:]), Random(seed))
        alone = play(pair, scripts[name])
        attacked = play(pair, scripts[name], port, attacker)
        assert attacked == alone, f"{name}, seed {seed}"


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
def test_a_member_cannot_send_as_another(pair: EntryPair, racks: bool) -> None:
    """Each member's frames once more, at another member's port; after the job has ended as well."""
    scripts = recorded(Setting.of(1, racks=racks).scenario)
    for name in [name for name in scripts if name.startswith("l")]:
        script = scripts[name]
        alone = play(pair, script)
        pair.reset()
        ports = sorted({at for at, _ in frames_of(script) if at < 100})
        left = []
        for step in steps_of(script):
            out = happen(pair, step)
            if out is None:
                continue
            left.append(out)
            for port in ports:
                if port != step[0]:
                    assert pair.plane.process(port, step[1]) == [], describe(step[1])  # type: ignore[arg-type]
        assert left == alone
        for at, frame in frames_of(script):  # its entries have gone by now, and with them its QPs
            for port in ports:
                if at < 100 and port != at:
                    assert pair.plane.process(port, frame) == [], describe(frame)


def test_every_disguise_of_a_members_frame_is_dropped(pair: EntryPair) -> None:
    """By the attacker, and at the member's own port: there it would get past the slots."""
    setting = Setting.of(2, racks=False)
    (script,) = [script for name, script in recorded(setting.scenario).items() if name == "l1"]
    pair.reset()
    chance = Random(5)
    count = 0
    for step in steps_of(script):
        if happen(pair, step) is None:
            continue
        at, whole = step
        assert isinstance(at, int)
        assert isinstance(whole, bytes)
        count += 1
        for frame in disguises(whole, chance) if count % 20 == 0 else ():
            for port in (5, at):
                for out, data in pair.plane.process(port, frame):
                    read = as_a_host_reads(bytes(data))
                    # Behind a whole packet there may be anything, and its own port may say that again.
                    assert read is None or (port == at and frame.startswith(whole)), (
                        f"port {port}: {describe(frame)} left by {out}"
                    )
    assert count > 40


def test_acknowledgements_and_congestion_notices_come_from_the_peer_alone(pair: EntryPair) -> None:
    """A NAK, an RNR NAK or a CNP would make a member wait or send again: from nobody else."""
    setting = Setting.of(0, racks=False)
    script = recorded(setting.scenario)["l1"]
    pair.reset()
    tried = 0
    for step in steps_of(script):
        if happen(pair, step) is None:
            continue
        at, frame = step
        assert isinstance(at, int)
        assert isinstance(frame, bytes)
        packet = RocePacket.parse(frame)
        if packet.bth.opcode != Opcode.ACKNOWLEDGE or not pair.model.members:
            continue
        tried += 1
        for port in {1, 2, 3, 4, 5} - {at}:
            assert pair.plane.process(port, frame) == []
            assert pair.plane.process(port, cnp(packet)) == []
        assert pair.plane.process(at, cnp(packet)) != []  # its peer may say so
    assert tried > 10


def test_a_rack_knows_the_address_behind_each_port() -> None:
    """Not just a fabric: members that sum by ring have no guards, and know their peers by address."""
    config = fabric_config(1, [3])
    rack = base_entries(config, config.switches[0])
    known = {
        e.match[0][1]: dict(e.params)["ip"]
        for e in rack
        if isinstance(e, TableEntry) and e.table == EDGE_PORT and e.params
    }
    assert known == {host.port: int(host.ip) for host in config.hosts}


def test_a_ring_without_guards_is_safe_from_forged_addresses(pair: EntryPair) -> None:
    """Nobody reaches a member's QP with the address of its peer, whatever else it forges."""
    config = fabric_config(1, [4])
    entries = list(base_entries(config, config.switches[0]))
    pair.reset()
    pair.write(entries)
    assert not any(isinstance(e, TableEntry) and e.table == FLOW for e in entries)
    script = recorded(Setting.of(3, racks=False).scenario)["l1"]
    attacker = Attacker(config.hosts[3].ip, Random(3))
    for _, frame in frames_of(script):
        attacker.see(frame)
    reached = 0
    for _ in range(3000):
        for _, data in pair.plane.process(4, attacker.draw()):
            read = as_a_host_reads(bytes(data))
            if read is not None:
                assert read[0] == attacker.ip, describe(bytes(data))
                reached += 1
    assert reached > 0
