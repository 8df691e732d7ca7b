"""The compiled program does what each row of the slot rules says, wherever it is for.

A switch of `Racks` is here the program and the model: what leaves either, and what they count, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from host_agent.wire.aggregation import ElementType, Op
from p4reduce.oracle import rules, slot_rules
from p4reduce.oracle.rules import RULES, At, Rule
from p4reduce.oracle.tree_packets import Kind, TreeFlags, TreePacket
from tests.p4reduce.oracle.racks import UP1, UP2, Left, Racks, tree
from tests.p4src.entry_pair import EntryPair

DIFFERENT = {"element_type": ElementType.FLOAT32}


class World(Racks):
    """Rank 0 wants RNR NAKs. By default 0 and 1 are behind l1, 2 behind l2."""

    def sends(self, *packets: tuple[int, int, int]) -> Left:
        """Rank, message, index; what leaves for the last of them."""
        return [self.send(*packet) for packet in packets][-1]

    def leaf(self, packet: TreePacket, port: int = UP1) -> Left:
        """It comes to l1."""
        return self.come("l1", port, packet)

    def spine(self, packet: TreePacket, leaf: int = 1) -> Left:
        return self.come("s1", leaf, packet)

    def partial(self, rank: int = 2, number: int = 0, **fields: Any) -> TreePacket:
        """What goes up when a rank sends that message; with other fields."""
        return replace(tree(self.send(rank, number, 0))[0][1], **fields)

    def whole_rack(self, **fields: Any) -> TreePacket:
        """What goes up from l1."""
        self.send(0, 0, 0)
        return self.partial(1, **fields)

    def sum(self) -> TreePacket:
        """What l1 gets for message 0."""
        self.spine(self.whole_rack())
        return tree(self.spine(self.partial(), 2))[0][1]


def over(world: World) -> None:
    """Rank 1 lacks the sum of (0, 1), which its leaf lacks too, and rank 0 is past message 1."""
    world.sends((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1), (0, 2, 0), (1, 0, 1))


def twice(
    step: Callable[[World], TreePacket], to: Callable[[World, TreePacket], Left]
) -> Callable[[World], Any]:
    """A packet that comes again."""

    def played(world: World) -> None:
        packet = step(world)
        to(world, packet)
        to(world, packet)

    return played


A, B, C = (0, 0, 0), (1, 0, 0), (2, 0, 0)
STALE = [A, B, C, (0, 1, 0), (1, 1, 0), (2, 1, 0), (1, 2, 0), A]  # rank 1 begins with message 2
SIZES = [A, B, C, (0, 0, 1)]

IN_A_RACK: dict[str, Callable[[World], Any]] = {
    "1 claim": lambda w: w.sends(A),
    "2 add": lambda w: w.sends(A, B),
    "2 complete": lambda w: w.sends(A, B, C),
    "3 duplicate": lambda w: w.sends(B, B),
    "3 not ready": lambda w: w.sends(A, A),
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
    "3 duplicate": lambda w: w.sends(B, B),
    "3 not ready": lambda w: w.sends(A, A),
    "3 up again": lambda w: w.sends(A, B, B),
    "3 NAK and up": lambda w: w.sends(A, B, A),
    "4 replay": lambda w: w.leaf(w.sum()) and w.send(0, 0, 0),
    "4 tell sum": lambda w: w.leaf(w.sum()) and w.leaf(w.partial(kind=Kind.ASK), UP2),
    "4 tell part": lambda w: w.leaf(w.whole_rack(kind=Kind.ASK)),
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
    "3 ask others": twice(World.whole_rack, World.spine),
    "4 replay": lambda w: w.spine(replace(w.sum(), kind=Kind.PARTIAL)),
    "5 stale part": lambda w: w.spine(w.partial(2, 2)) or w.spine(w.partial(2, 2, message=0)),
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
MORE = {("2 add", At.LEAF): (3, 1), ("2 add", At.SPINE): (1, 1, 1)}  # where others are to come


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, EntryPair]]:
    made = {name: EntryPair() for name in ("l1", "l2", "l3", "s1", "s2")}
    yield made
    for pair in made.values():
        pair.plane.close()


def started(pairs: dict[str, EntryPair]) -> Callable[[str], EntryPair]:
    """Each with nothing in it."""

    def make(switch: str) -> EntryPair:
        pairs[switch].reset()
        return pairs[switch]

    return make


def test_every_rule_is_played_wherever_it_is_for() -> None:
    for at, played in PLAYED.items():
        assert set(played) == {rule.name for rule in RULES if at in rule.at}


@pytest.mark.parametrize(("at", "name"), [(at, name) for at in At for name in PLAYED[at]])
def test_the_program_does_what_a_rule_says(
    pairs: dict[str, EntryPair], monkeypatch: pytest.MonkeyPatch, at: At, name: str
) -> None:
    used: list[tuple[At, str]] = []

    def rule_of(at: At, *case: Any) -> Rule:
        rule = rules.rule_of(at, *case)
        used.append((at, rule.name))
        return rule

    monkeypatch.setattr(slot_rules, "rule_of", rule_of)
    world = World(frozenset({0}), hosts=MORE.get((name, at), HOSTS[at]), make=started(pairs))
    PLAYED[at][name](world)
    assert used[-1] == (at, name)
    for switch in world.switches.values():
        switch.assert_counters_agree()


@pytest.mark.parametrize("op", [Op.SUM, Op.MAX, Op.SUM_HALF, Op.MAX_HALF])
@pytest.mark.parametrize("index", [0, 1])
def test_a_header_is_what_has_index_0(pairs: dict[str, EntryPair], index: int, op: Op) -> None:
    """Leaves may send another first chunk than a header, and later ones that look like one."""
    world = World(hosts=MORE["2 add", At.SPINE], make=started(pairs))
    headers = [world.partial(rank, index=index, op=op) for rank in range(3)]
    for leaf, partial in enumerate(headers, 1):
        world.spine(partial, leaf)
        world.switches["s1"].assert_counters_agree()
    for leaf, byte in enumerate((b"\x12\xfe", b"\x9a\x43", b"\x07\x70"), 1):
        world.spine(replace(headers[leaf - 1], message=2, payload=byte * 256), leaf)
        world.switches["s1"].assert_counters_agree()
