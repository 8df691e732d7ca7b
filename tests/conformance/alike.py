"""Two switches with the same program, entries and packets: where what leaves differs."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from tests.conformance.stf import Packet, Statement

Outputs = Sequence[tuple[int, bytes]]
MAX_RANDOM = 120


def by_port(outputs: Outputs) -> dict[int, list[bytes]]:
    """Return the packets that left each port, in order; ports among each other have none."""
    result = defaultdict(list)
    for port, data in outputs:
        result[port].append(data)
    return dict(result)


def difference(
    sent: tuple[int, bytes], ours: Outputs, theirs: Outputs, *, in_order: bool = True
) -> str | None:
    """Return what differs, in words, or None. Not `in_order`: a port's packets may leave in any order."""
    here, there = by_port(ours), by_port(theirs)
    if not in_order:
        here, there = ({port: sorted(left) for port, left in each.items()} for each in (here, there))
    if here == there:
        return None
    lines = [f"port {sent[0]}, packet {sent[1].hex()}"]
    for port in sorted(here.keys() | there.keys()):
        if here.get(port) != there.get(port):
            for name, left in (("soft_switch", here), ("BMv2", there)):
                frames = " ".join(data.hex() or "(empty)" for data in left.get(port, [])) or "nothing"
                lines.append(f"  {name:11} on port {port}: {frames}")
    return "\n".join(lines)


def variations(script: Sequence[Statement], chance: random.Random, count: int) -> list[tuple[int, bytes]]:
    """Return packets of a script, each cut, with bits changed, with bytes added, or random from the start."""
    seeds = [(s.port, s.data) for s in script if isinstance(s, Packet) and s.data] or [(0, bytes(64))]
    result = list(seeds[: count // 2])
    while len(result) < count:
        port, data = chance.choice(seeds)
        frame = bytearray(data)
        for _ in range(chance.choice([0, 1, 1, 2, 4])):
            frame[chance.randrange(len(frame))] = chance.choice(
                [0, 1, 0x7F, 0x80, 0xFF, chance.getrandbits(8)]
            )
        kind = chance.randrange(8)
        if kind == 0:
            frame = frame[: chance.randint(1, len(frame))]
        elif kind == 1:
            frame += chance.randbytes(chance.randint(1, 40))
        elif kind == 2:
            frame = bytearray(chance.randbytes(chance.randint(1, MAX_RANDOM)))
        result.append((chance.choice([port, port, chance.randrange(8)]), bytes(frame)))
    return result
