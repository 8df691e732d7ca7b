"""A member's IPv4 type of service (priority and congestion bits) reaches packets of its own job alone.

What completes a sum lends its own to the sum: on flows in a rack, up to the spine, and from there to all
leaves (docs/security.md). No decision and no other byte depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from controller.entries import Entry
from host_agent.wire.headers import PROTOCOL_UDP, IPv4
from p4reduce.oracle.tree_packets import TreePacket
from p4reduce.simulation.faults.recording import Came, Restarted, Step
from p4reduce.simulation.faults.schedule import Rates
from tests.p4reduce.simulation.worlds import a_job, a_schedule, a_sum, recorded
from tests.p4src.entry_pair import EntryPair

pytestmark = pytest.mark.slow

TOS, START = 0xBB, 14  # expedited forwarding, and congestion experienced; where the IPv4 header starts
WORK = [a_sum(300), a_sum(200, "float32", scaled=True)]
JOBS = a_job([0, 1, 3, 4], WORK), a_job([2, 5], WORK, 2)


@pytest.fixture(scope="module")
def pair() -> Iterator[EntryPair]:
    made = EntryPair()
    yield made
    made.plane.close()


def with_tos(frame: bytes, tos: int) -> bytes:
    """Return the frame with that TOS and a right checksum; no ICRC covers either."""
    if frame[12:14] != b"\x08\0" or frame[START + 9] != PROTOCOL_UDP:
        return frame
    ip = IPv4.unpack(frame[START : START + IPv4.SIZE])
    packed = bytearray(frame[START : START + IPv4.SIZE])
    packed[1] = tos
    packed[10:12] = b"\0\0"
    total = sum(int.from_bytes(packed[at : at + 2], "big") for at in range(0, IPv4.SIZE, 2))
    total = (total & 0xFFFF) + (total >> 16)
    packed[10:12] = (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    assert ip.tos == 0
    return frame[:START] + bytes(packed) + frame[START + IPv4.SIZE :]


def played(
    pair: EntryPair, steps: list[Step], marked: Callable[[int, bytes], bool]
) -> list[list[tuple[int, bytes]]]:
    """Return what leaves for each frame, where some come with `TOS`."""
    pair.reset()
    left = []
    for step in steps:
        if isinstance(step, Came):
            frame = with_tos(step.frame, TOS) if marked(step.port, step.frame) else step.frame
            left.append(pair.process(step.port, frame))
        elif isinstance(step, Restarted):
            pair.restart()
        else:
            insert: list[Entry] = list(step.insert)
            pair.write(insert, delete=step.delete)
    pair.assert_counters_agree()
    return left


@pytest.mark.parametrize(
    "links", [Rates(), Rates(loss=0.03, duplicate=0.03, reorder=0.05)], ids=["good", "bad"]
)
@pytest.mark.parametrize("switch", ["l1", "s1"])
def test_it_changes_no_other_byte_and_no_packet_of_another_job(
    pair: EntryPair, switch: str, links: Rates
) -> None:
    schedule = a_schedule(1, [3, 3], *JOBS, links=links)
    steps = recorded(schedule)[switch]
    config = schedule.config()
    if switch == "l1":  # all that its first host sends
        port = config.hosts[0].port

        def marked(at: int, frame: bytes) -> bool:
            return at == port
    else:  # what the first leaf has made of that: partial sums of the first job
        generation = min(p.generation for _, p in trees(steps))

        def marked(at: int, frame: bytes) -> bool:
            packet = TreePacket.parse(frame)
            return packet is not None and packet.generation == generation

    plain = played(pair, steps, lambda at, frame: False)
    lent = played(pair, steps, marked)
    mine = {config.hosts[number].ip for number in JOBS[0].hosts}
    some = 0
    for before, after in zip(plain, lent, strict=True):
        assert [port for port, _ in before] == [port for port, _ in after]
        for (_, frame), (_, changed) in zip(before, after, strict=True):
            if frame == changed:
                continue
            some += 1
            assert changed == with_tos(frame, TOS)
            packet = TreePacket.parse(changed)
            if packet is None:
                assert IPv4.unpack(changed[START : START + IPv4.SIZE]).dst in mine
            else:
                assert packet.icrc_ok()
                assert packet.generation == min(p.generation for _, p in trees(steps))
    assert some > 5


def trees(steps: list[Step]) -> list[tuple[int, TreePacket]]:
    """Return the packets between switches that came for jobs, by port."""
    found = [(step.port, TreePacket.parse(step.frame)) for step in steps if isinstance(step, Came)]
    return [(port, packet) for port, packet in found if packet is not None and packet.generation]
