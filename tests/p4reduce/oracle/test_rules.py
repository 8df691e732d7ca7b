"""The table of the slot rules: whole, without contradictions, and the one of docs/protocol.md."""

from __future__ import annotations

import re
from pathlib import Path

from p4reduce.oracle.rules import (
    FIVE,
    RULES,
    TABLE,
    At,
    Brings,
    Holds,
    Rule,
    Sender,
    Sends,
    Writes,
    rule_of,
)

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"
IN_A_RACK = set(Holds) - {Holds.ALL, Holds.OVER}  # the sum is there when all are, and nothing crosses a tree
POSSIBLE = {
    (At.RACK, Brings.CONTRIBUTION): IN_A_RACK,
    (At.LEAF, Brings.CONTRIBUTION): set(Holds),
    (At.LEAF, Brings.RESULT): set(Holds),
    (At.LEAF, Brings.ASK): set(Holds),
    (At.SPINE, Brings.CONTRIBUTION): IN_A_RACK,
    (At.SPINE, Brings.RESULT): IN_A_RACK,
}


def senders(at: At, brings: Brings, holds: Holds) -> set[Sender]:
    """Return the senders that are possible; only a contribution rules some out."""
    if brings is not Brings.CONTRIBUTION or holds not in (Holds.OLDER, Holds.SOME, Holds.ALL):
        return set(Sender)
    found = {Sender.NEW, Sender.LAST, Sender.SEEN, Sender.AWAITED}
    if at is At.SPINE:
        found.remove(Sender.AWAITED)
    if holds is Holds.ALL:
        return {Sender.SEEN, Sender.AWAITED}
    if holds is Holds.OLDER:
        return {Sender.NEW, Sender.LAST} if at is At.LEAF else {Sender.NEW}
    return found


def test_every_case_has_one_rule_and_every_rule_a_case() -> None:
    used: set[Rule] = set()
    for (at, brings), held in POSSIBLE.items():
        for holds in held:
            used |= {rule_of(at, brings, holds, sender) for sender in senders(at, brings, holds)}
    assert used == set(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_every_cell_says_what_it_is() -> None:
    for kind in (At, Brings, Holds, Sender, Writes, Sends):
        assert len({word.says for word in kind}) == len(kind)
        assert all(re.search("[a-z]", word.says) for word in kind)


def test_the_protocols_table_has_the_same_rows() -> None:
    rows = [line for line in PROTOCOL.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in rows]
    start = cells.index(["rule", "at", "brings", "holds", "sender", "writes", "sends", "counts"])
    table = [[cell.strip() for cell in line.split("|")[1:]] for line in TABLE.split("\n")[1:-1]]
    found = [*cells[start : start + 1], *cells[start + 2 : start + 1 + len(table)]]
    assert [[cell.replace("`", "") for cell in row] for row in found] == table
    assert cells[start + 1 + len(table)][0] not in {rule.name for rule in RULES}


def test_the_five_rules_are_the_protocols() -> None:
    """Check that a page says of a row, by the number in its name, what the protocol says."""
    found = re.findall(r"^(\d)\. (.*)$", PROTOCOL.read_text().split("Five rules:")[1], re.MULTILINE)[:5]
    assert {number: text.replace("**", "") for number, text in found} == FIVE
    assert {rule.name[0] for rule in RULES if rule.name[0].isdigit()} == set(FIVE)
