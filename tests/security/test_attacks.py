"""A host that is no member, and knows everything, changes nothing that a job's members get from the switches.

A job runs on model switches with the real endpoints. What came to each switch is played to the compiled
program twice, the second time with an attacker's frames between: what leaves for each of the job's own frames
has to be the same to the byte, and nothing of the attacker's may reach a member's queue pair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from controller.entries import TableEntry
from controller.fabric.routes import base_entries
from controller.fabric.tables.edges import EDGE_PORT
from controller.fabric.tables.membership import FLOW, MEMBER_QP
from host_agent.wire.headers import Opcode, RocePacket
from p4reduce.oracle.comparing import describe
from p4reduce.oracle.tree_packets import TreePacket
from p4reduce.simulation.faults.recording import Came, Restarted, Step, Wrote
from p4reduce.simulation.faults.schedule import Rates, Schedule
from p4reduce.simulation.network import fabric_config
from tests.p4reduce.simulation.worlds import a_gather, a_job, a_schedule, a_sum, frames_of, recorded
from tests.p4src.entry_pair import EntryPair
from tests.security.attacks import Attacker, as_a_host_reads, cnp, disguises

SEEDS = int(os.environ.get("P4REDUCE_SEEDS", "3"))
ATTACKS = 3  # frames of the attacker for each of the job's


def setting(seed: int, *, racks: bool) -> Schedule:
    """Return a schedule in which nobody works on the last host of each leaf."""
    places = (0, 4, 1, 5) if racks else (0, 1, 2, 3)
    job = a_job(places, [a_sum(500), a_gather(60)], path_mtu=512, late_ns=[0, 0, 20_000_000, 0])
    faults = Rates(loss=0.03, duplicate=0.05, reorder=0.05)
    return a_schedule(2 if racks else 0, [4, 3] if racks else [5], job, links=faults, seed=seed)


def attacker_in(schedule: Schedule, leaf: str, chance: Random) -> tuple[int, Attacker]:
    """Return the port of the idle host behind a leaf, and an attacker on it."""
    host = schedule.config().hosts_of(leaf)[-1]
    return host.port, Attacker(host.ip, chance)


@pytest.fixture(scope="module")
def pair() -> Iterator[EntryPair]:
    made = EntryPair()
    yield made
    made.plane.close()


def happen(pair: EntryPair, step: Step) -> list[tuple[int, bytes]] | None:
    """Return what leaves for a frame, or None if something was written."""
    if isinstance(step, Came):
        return sorted((out, bytes(data)) for out, data in pair.plane.process(step.port, step.frame))
    if isinstance(step, Restarted):
        pair.restart()
    else:
        pair.write(step.insert, delete=step.delete)
    return None


def play(
    pair: EntryPair, steps: list[Step], port: int = 0, attacker: Attacker | None = None
) -> list[list[tuple[int, bytes]]]:
    """Return what leaves for each frame of the job; assert that nothing of the attacker's comes through."""
    pair.reset()
    left = []
    members: set[tuple[Any, Any]] = set()
    for step in steps:
        out = happen(pair, step)
        if isinstance(step, Wrote):
            inserted = [entry for entry in step.insert if isinstance(entry, TableEntry)]
            members |= {(e.match[0][1], e.match[1][1]) for e in inserted if e.table == MEMBER_QP}
        if not isinstance(step, Came) or out is None:
            continue
        left.append(out)
        if attacker is None:
            continue
        for frame in (step.frame, *(data for _, data in out)):
            attacker.see(frame)
        for _ in range(ATTACKS if attacker.seen else 0):
            attack(pair, port, attacker.draw(), members)
    return left


def attack(pair: EntryPair, port: int, frame: bytes, members: set[tuple[Any, Any]]) -> None:
    """Send one frame of the attacker's, at its own port, and check what leaves."""
    for out, leaving in pair.plane.process(port, frame):
        data = bytes(leaving)
        told = f"{describe(frame)} went out of port {out} as {describe(data)}"
        assert out != 255, f"to the controller: {told}"
        assert TreePacket.parse(data) is None, told
        read = as_a_host_reads(data)
        if read is not None:
            assert (int(read[1]), read[2]) not in members, told


def leaves(schedule: Schedule) -> dict[str, list[Step]]:
    """Return what came to the leaves."""
    return {name: steps for name, steps in recorded(schedule).items() if name.startswith("l")}


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_attacker_changes_nothing(pair: EntryPair, seed: int, racks: bool) -> None:
    schedule = setting(seed, racks=racks)
    for name, steps in leaves(schedule).items():
        port, attacker = attacker_in(schedule, name, Random(seed))
        alone = play(pair, steps)
        attacked = play(pair, steps, port, attacker)
        assert attacked == alone, f"{name}, seed {seed}"


@pytest.mark.parametrize("racks", [False, True], ids=["rack", "racks"])
def test_a_member_cannot_send_as_another(pair: EntryPair, racks: bool) -> None:
    """Send each member's frames once more at another member's port, and again after the job has ended."""
    for steps in leaves(setting(1, racks=racks)).values():
        alone = play(pair, steps)
        pair.reset()
        ports = sorted({at for at, _ in frames_of(steps) if at < 100})
        left = []
        for step in steps:
            out = happen(pair, step)
            if not isinstance(step, Came):
                continue
            left.append(out)
            for port in ports:
                if port != step.port:
                    assert pair.plane.process(port, step.frame) == [], describe(step.frame)
        assert left == alone
        for at, frame in frames_of(steps):  # its entries have gone by now, and with them its QPs
            for port in ports:
                if at < 100 and port != at:
                    assert pair.plane.process(port, frame) == [], describe(frame)


def test_every_disguise_of_a_members_frame_is_dropped(pair: EntryPair) -> None:
    """Send it at the attacker's port and at the member's own, where it would get past the slots."""
    pair.reset()
    chance = Random(5)
    count = 0
    for step in recorded(setting(2, racks=False))["l1"]:
        happen(pair, step)
        if not isinstance(step, Came):
            continue
        at, whole = step.port, step.frame
        count += 1
        for frame in disguises(whole, chance) if count % 20 == 0 else ():
            for port in (5, at):
                for out, data in pair.plane.process(port, frame):
                    read = as_a_host_reads(bytes(data))
                    # Behind a whole packet there may be anything, and its own port may say that again, or
                    # cut an acknowledgement, which nobody takes without its ICRC.
                    own = frame.startswith(whole) or (whole[42] == Opcode.ACKNOWLEDGE and frame in whole)
                    assert read is None or (port == at and own), f"port {port}: {describe(frame)}, by {out}"
    assert count > 40


def test_acknowledgements_and_congestion_notices_come_from_the_peer_alone(pair: EntryPair) -> None:
    """Check that no other host makes a member wait or send again by a NAK, an RNR NAK or a CNP."""
    pair.reset()
    tried = 0
    for step in recorded(setting(0, racks=False))["l1"]:
        happen(pair, step)
        if not isinstance(step, Came):
            continue
        at, frame = step.port, step.frame
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
    """Check a rack, not just a fabric: members that sum by ring have no guards, and know peers by address."""
    config = fabric_config(1, [3])
    rack = base_entries(config, config.switches[0])
    known = {
        e.match[0][1]: dict(e.params)["ip"]
        for e in rack
        if isinstance(e, TableEntry) and e.table == EDGE_PORT and e.params
    }
    assert known == {host.port: int(host.ip) for host in config.hosts}


def test_a_ring_without_guards_is_safe_from_forged_addresses(pair: EntryPair) -> None:
    """Check that no host reaches a member's QP with the address of its peer, whatever else it forges."""
    config = fabric_config(1, [4])
    entries = list(base_entries(config, config.switches[0]))
    pair.reset()
    pair.write(entries)
    assert not any(isinstance(e, TableEntry) and e.table == FLOW for e in entries)
    attacker = Attacker(config.hosts[3].ip, Random(3))
    for _, frame in frames_of(recorded(setting(3, racks=False))["l1"]):
        attacker.see(frame)
    reached = 0
    for _ in range(3000):
        for _, data in pair.plane.process(4, attacker.draw()):
            read = as_a_host_reads(bytes(data))
            if read is not None:
                assert read[0] == attacker.ip, describe(bytes(data))
                reached += 1
    assert reached > 0
