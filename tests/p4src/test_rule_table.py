"""The rows of table `rule` in slots.p4 are the oracle's: the same names and order, for the same cases.

Those of `accumulate` behind it are what each op asks for.
The compiled entries are read, and each row's name is the comment behind it. That the oracle's rows are those
of docs/protocol.md is tests/p4reduce/oracle/test_rules.py's; that the program does what a row says is
test_rules.py's.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import p4src
from host_agent.wire.aggregation import Op
from p4reduce.oracle.rules import RULES, At, Brings, Holds, Rule, Sender, Sends, Writes

TABLE = "SwitchIngress.slots.rule"
KEYS = ["at", "brings", "holds", "sender"]
ACCUMULATE = "SwitchIngress.slots.accumulate"
FIRST_TRUE = [holds for holds in Holds if holds is not Holds.SOME]  # a bit each, from the left
SENDS = {
    "DISCARD": {Sends.NOTHING},
    "FORWARD": {Sends.ITSELF},
    "EMIT_GROUP": {Sends.SUMS},
    "EMIT_ALONE": {Sends.SUM},
    "SEND_UP": {Sends.UP, Sends.ANSWER},
    "SEND_UP_AND_BACK": {Sends.NOT_READY_AND_UP},
    "NOT_READY": {Sends.NOT_READY},
    "ASK_LEAVES": {Sends.ASK},
}
# READ: the slot stays as it is, and what it holds leaves.
WRITES = {
    "NOTHING": Writes.NOTHING,
    "READ": Writes.NOTHING,
    "CLAIM": Writes.CLAIM,
    "ADD": Writes.ADD,
    "STORE": Writes.STORE,
}
# How lanes are added while others are to come, and with the last.
ADDS = {
    Op.SUM: ("CHUNK_SUM", "CHUNK_SUM"),
    Op.MAX: ("CHUNK_MAX", "CHUNK_MAX"),
    Op.SUM_HALF: ("HALF_SUM", "HALF_LAST"),
    Op.MAX_HALF: ("HALF_MAX", "HALF_MAX"),
}
HELD = {Sends.SUM, Sends.UP, Sends.ANSWER, Sends.NOT_READY_AND_UP}


@dataclass(frozen=True)
class Row:
    """An entry: value and mask of each key, and what its action gets and counts."""

    name: str
    keys: tuple[tuple[int, int], ...]
    writes: str
    verdict: str
    counts: frozenset[str]

    def matches(self, values: tuple[int, ...]) -> bool:
        return all(value & mask == wanted for value, (wanted, mask) in zip(values, self.keys, strict=True))


@cache
def constants(kind: str) -> dict[int, str]:
    """Return names of a type's values."""
    text = "".join(path.read_text() for path in p4src.source_files())
    found = re.findall(rf"^const {kind} (\w+) *= (\d+);", text, re.MULTILINE)
    return {int(value): name for name, value in found}


@cache
def rows() -> tuple[Row, ...]:
    table, actions = table_of(TABLE), {action["id"]: action for action in program()["actions"]}
    assert [key["name"] for key in table["key"]] == KEYS
    return tuple(row(entry, actions[entry["action_entry"]["action_id"]]) for entry in table["entries"])


@cache
def program() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(p4src.JSON_PATH.read_text())
    return loaded


def table_of(name: str) -> dict[str, Any]:
    [table] = [table for table in program()["pipelines"][0]["tables"] if table["name"] == name]
    assert isinstance(table, dict)
    return table


def row(entry: dict[str, Any], action: dict[str, Any]) -> Row:
    place = entry["source_info"]
    line = (p4src.ROOT / place["filename"]).read_text().splitlines()[place["line"] - 1]
    [name] = re.findall(r"/\* ([^*]*) \*/$", line)
    writes, verdict = (int(value, 16) for value in entry["action_entry"]["action_data"])
    counted = [call["parameters"][0]["value"] for call in action["primitives"] if call["op"] == "count"]
    return Row(
        name,
        tuple((int(key["key"], 16), int(key["mask"], 16)) for key in entry["match_key"]),
        constants("writes_t")[writes],
        constants("verdict_t")[verdict],
        frozenset(counter.removeprefix("SwitchIngress.slots.") for counter in counted),
    )


def codes(kind: str, names: dict[str, Any]) -> dict[Any, int]:
    return {names[name]: value for value, name in constants(kind).items()}


def held(holds: Holds) -> Iterator[int]:
    """Yield what a switch may find where `holds` is the first that is true: all behind it can be true too."""
    at = FIRST_TRUE.index(holds) if holds in FIRST_TRUE else len(FIRST_TRUE)
    first = 1 << len(FIRST_TRUE) - 1 - at if holds in FIRST_TRUE else 0
    yield from (first | others for others in range(max(first, 1)))


def senders(sender: Sender) -> set[int]:
    """Return bits seen, last, awaited: who has contributed can be the last, who has not can be awaited."""
    bits = {Sender.NEW: {0b000, 0b001}, Sender.LAST: {0b010, 0b011}}
    return bits.get(sender, {0b100, 0b110} if sender is Sender.SEEN else {0b101, 0b111})


def cases() -> Iterator[tuple[Rule, tuple[int, ...]]]:
    """Yield each row of the oracle with each case that it is for, as a switch may find it."""
    at_codes = codes("at_t", {at.name: at for at in At})
    brings_codes = codes("brings_t", {brings.name: brings for brings in Brings})
    for rule in RULES:
        for at, brings, holds, sender in itertools.product(rule.at, rule.brings, rule.holds, rule.sender):
            for keys in itertools.product(held(holds), senders(sender)):
                yield rule, (at_codes[at], brings_codes[brings], *keys)


def test_the_names_are_the_oracles() -> None:
    assert list(dict.fromkeys(row.name for row in rows())) == [rule.name for rule in RULES]


def test_every_case_has_the_oracles_row_alone() -> None:
    used = set()
    for rule, keys in cases():
        matching = [row for row in rows() if row.matches(keys)]
        assert [row.name for row in matching] == [rule.name], keys
        used.update(matching)
    assert used == set(rows())


def test_a_row_counts_writes_and_sends_what_the_oracles_does() -> None:
    rules = {rule.name: rule for rule in RULES}
    for row in rows():
        rule = rules[row.name]
        assert row.counts == set(rule.counts), row
        assert rule.sends in SENDS[row.verdict], row
        assert WRITES[row.writes] is rule.writes, row
        assert (row.writes == "READ") == (rule.writes is Writes.NOTHING and rule.sends in HELD), row


def accumulators(writes: str, op: Op, verdict: str, index: int) -> list[str]:
    """Return the actions on the first chunk's accumulators, and on the others'."""
    last = verdict != "DISCARD"
    if writes == "READ":
        return ["CHUNK_LOAD", "CHUNK_LOAD"]
    if writes == "ADD":
        others = ADDS[op][last]
        return ["HEADER_MAX" if index == 0 else others, others]
    two = writes == "CLAIM" and op is Op.SUM_HALF and not last
    others = "HALF_CLAIM" if two else "CHUNK_CLAIM"
    return ["CHUNK_CLAIM" if index == 0 else others, others]


def test_each_op_has_its_accumulators_with_whatever_a_row_writes_and_sends() -> None:
    table, codes_of = table_of(ACCUMULATE), {name: code for code, name in constants("writes_t").items()}
    verdicts = {name: code for code, name in constants("verdict_t").items()}
    used = set()
    for writes, verdict in sorted({(row.writes, row.verdict) for row in rows() if row.writes != "NOTHING"}):
        for op, index in itertools.product(ADDS, (0, 1, 255)):
            values = (codes_of[writes], op, verdicts[verdict], index)
            matching = [
                (number, entry["action_entry"])
                for number, entry in enumerate(table["entries"])
                if all(value & mask == key for value, (key, mask) in zip(values, masked(entry), strict=True))
            ]
            number, call = matching[0] if matching else (-1, table["default_entry"])
            done = [constants("chunk_op_t")[int(value, 16)] for value in call["action_data"]]
            assert done == accumulators(writes, op, verdict, index), (writes, op, verdict, index)
            used.add(number)
    assert used == {-1, *range(len(table["entries"]))}


def masked(entry: dict[str, Any]) -> list[tuple[int, int]]:
    """Return value and mask of each key; an exact one has all bits."""
    return [(int(key["key"], 16), int(key.get("mask", "0xff"), 16)) for key in entry["match_key"]]
