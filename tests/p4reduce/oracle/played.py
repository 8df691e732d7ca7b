"""Each row of the slot rules, played wherever it is for: by hand, up to the packet that the row is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from host_agent.wire.aggregation import ElementType
from p4reduce.oracle.rules import At
from p4reduce.oracle.tree_packets import Kind, TreeFlags, TreePacket
from tests.p4reduce.oracle.racks import UP1, UP2, Left, Racks, tree

DIFFERENT = {"element_type": ElementType.FLOAT32}


class World(Racks):
    """Rank 0 wants RNR NAKs. By default 0 and 1 are behind l1, 2 behind l2. A lane of rank r has 10^r."""

    def send(self, rank: int, message: int, index: int, value: int = 0, **header: Any) -> Left:
        return super().send(rank, message, index, value or 10**rank, **header)

    def sends(self, *packets: tuple[int, int, int]) -> Left:
        """Send packets (rank, message, index), and return what leaves for the last of them."""
        return [self.send(*packet) for packet in packets][-1]

    def leaf(self, packet: TreePacket, port: int = UP1) -> Left:
        """Play `packet` as it comes to l1 by `port`."""
        return self.come("l1", port, packet)

    def spine(self, packet: TreePacket, leaf: int = 1) -> Left:
        return self.come("s1", leaf, packet)

    def partial(self, rank: int = 2, number: int = 0, **fields: Any) -> TreePacket:
        """Return what goes up when a rank sends that message, with `fields` changed."""
        return replace(tree(self.send(rank, number, 0))[0][1], **fields)

    def whole_rack(self, **fields: Any) -> TreePacket:
        """Return what goes up from l1 once both its ranks have sent message 0."""
        self.send(0, 0, 0)
        return self.partial(1, **fields)

    def sum(self) -> TreePacket:
        """Return what l1 gets for message 0."""
        self.spine(self.whole_rack())
        return tree(self.spine(self.partial(), 2))[0][1]


def over(world: World) -> None:
    """Send until rank 1 and its leaf lack the sum of (0, 1), and rank 0 is past message 1."""
    world.sends((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1), (0, 2, 0), (1, 0, 1))


def twice(
    step: Callable[[World], TreePacket], to: Callable[[World, TreePacket], Left]
) -> Callable[[World], Any]:
    """Return a play in which a packet comes again."""

    def played(world: World) -> None:
        packet = step(world)
        to(world, packet)
        to(world, packet)

    return played


def second(world: World, packet: TreePacket) -> Left:
    """Play `packet` as it comes to the spine from l2."""
    return world.spine(packet, 2)


A, B, C = (0, 0, 0), (1, 0, 0), (2, 0, 0)
STALE = [A, B, C, (0, 1, 0), (1, 1, 0), (2, 1, 0), (1, 2, 0), A]  # rank 1 begins with message 2
SIZES = [A, B, C, (0, 0, 1)]

IN_A_RACK: dict[str, Callable[[World], Any]] = {
    "1 claim": lambda w: w.sends(A),
    "2 add": lambda w: w.sends(A, B),
    "2 complete": lambda w: w.sends(A, B, C),
    "3 duplicate": lambda w: w.sends(A, B, B),
    "3 not ready": lambda w: w.sends(B, A, A),
    "4 replay": lambda w: w.sends(A, B, C, A),
    "5 stale": lambda w: w.sends(*STALE),
    "other shape": lambda w: w.sends(*SIZES) or w.send(1, 0, 1, chunks=2),
    "differs": lambda w: w.sends(A) or w.send(1, 0, 0, **DIFFERENT) or w.send(0, 0, 1),
}
AT_A_LEAF: dict[str, Callable[[World], Any]] = {
    "1 claim": lambda w: w.sends(A),
    "1 whole rack": lambda w: w.sends(C),
    "2 add": lambda w: w.sends(A, B),
    "2 whole rack": lambda w: w.sends(A, B),
    "3 duplicate": lambda w: w.sends(A, B, B),
    "3 not ready": lambda w: w.sends(B, A, A),
    "3 up again": lambda w: w.sends(A, B, B),
    "3 NAK and up": lambda w: w.sends(A, B, A),
    "4 replay": lambda w: w.leaf(w.sum()) and w.send(0, 0, 0),
    "4 tell sum": lambda w: w.leaf(w.sum()) and w.leaf(w.partial(kind=Kind.ASK), UP2),
    "4 tell part": lambda w: w.leaf(w.whole_rack(kind=Kind.ASK, payload=bytes(512)), UP2),
    "5 stale": lambda w: w.sends(A, B, (0, 1, 0), (1, 1, 0), (0, 2, 0), B),
    "5 over": over,
    "5 stale sum": lambda w: w.sends((0, 2, 0)) or w.leaf(w.partial(kind=Kind.RESULT)),
    "sum for rack": lambda w: w.leaf(w.sum()),
    "sum again": twice(World.sum, World.leaf),
    "late": lambda w: w.leaf(w.partial(kind=Kind.ASK)),
    "other shape": lambda w: w.sends(A, B, (0, 0, 1)) or w.send(1, 0, 1, chunks=2),
    "differs": lambda w: w.sends(A) or (w.send(1, 0, 0, **DIFFERENT) and w.send(0, 0, 1)),
}
AT_A_SPINE: dict[str, Callable[[World], Any]] = {
    "1 claim": lambda w: w.spine(w.partial()),
    "1 by a sum": lambda w: w.spine(w.partial(kind=Kind.RESULT), 2),
    "2 add": lambda w: w.spine(w.partial(0)) or w.spine(w.partial(1), 2),
    "2 complete": lambda w: w.sum(),
    "3 ask others": lambda w: w.spine(w.partial(0)) or twice(lambda w: w.partial(1), second)(w),
    "4 replay": lambda w: w.spine(replace(w.sum(), kind=Kind.PARTIAL)),
    "5 stale part": lambda w: (
        w.spine(w.partial(2, 2)) or w.spine(w.partial(2, 2, message=0, payload=bytes(512)))
    ),
    "5 stale sum": lambda w: (
        w.spine(w.partial(2, 2)) or w.spine(w.partial(2, 2, message=0, kind=2, payload=bytes(512)))
    ),
    "sum of leaf": lambda w: w.spine(w.whole_rack()) or w.spine(w.partial(kind=Kind.RESULT), 2),
    "sum again": twice(World.sum, World.spine),
    "other shape": lambda w: (
        w.spine(w.partial(2, index=1)) or w.spine(w.partial(2, index=1, payload=b"\1" * 256))
    ),
    "differs": lambda w: w.spine(w.partial(flags=TreeFlags.MISMATCH)) or w.spine(w.partial(index=1)),
}
PLAYED = {At.RACK: IN_A_RACK, At.LEAF: AT_A_LEAF, At.SPINE: AT_A_SPINE}
HOSTS = {At.RACK: (3,), At.LEAF: (2, 1), At.SPINE: (2, 1)}
MORE = {  # where others are to come
    ("2 add", At.LEAF): (3, 1),
    ("3 duplicate", At.LEAF): (3, 1),
    ("3 not ready", At.LEAF): (3, 1),
    ("2 add", At.SPINE): (1, 1, 1),
    ("3 ask others", At.SPINE): (1, 1, 1),
}


def world_of(at: At, name: str, make: Callable[[str], Any]) -> World:
    """Return a world in which that row can be played."""
    return World(frozenset({0}), hosts=MORE.get((name, at), HOSTS[at]), make=make)
