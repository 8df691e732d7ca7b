"""The compiled program does what each row of the slot rules says, wherever it is for.

A switch of `Racks` is here the program and the model: what leaves either, and what they count, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from host_agent.wire.aggregation import Op
from p4reduce.oracle import rules, slot_rules
from p4reduce.oracle.rules import RULES, At, Rule
from p4reduce.oracle.tree_packets import TreeFlags
from tests.p4reduce.oracle.played import MORE, PLAYED, World, world_of
from tests.p4src.entry_pair import EntryPair


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, EntryPair]]:
    made = {name: EntryPair() for name in ("l1", "l2", "l3", "s1", "s2")}
    yield made
    for pair in made.values():
        pair.plane.close()


def started(pairs: dict[str, EntryPair]) -> Callable[[str], EntryPair]:
    """Return a function that empties a switch's pair and returns it."""

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
    world = world_of(at, name, started(pairs))
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


def test_only_a_header_loses_what_is_behind_it_where_ranks_differ(pairs: dict[str, EntryPair]) -> None:
    """A mark on a later packet, which no leaf of ours sets, leaves its lanes alone."""
    world = World(hosts=(1, 1), make=started(pairs))
    for index in (0, 1):
        for leaf, rank in ((1, 0), (2, 1)):
            partial = world.partial(rank, index=index, message=2 * index, flags=TreeFlags.MISMATCH)
            world.spine(partial, leaf)
            world.switches["s1"].assert_counters_agree()
