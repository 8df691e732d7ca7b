"""JSON that p4c did not write: other versions' forms, damaged, cut. It is run or refused with a sentence."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from p4src import JSON_PATH
from soft_switch.bmv2.reader import read_program
from soft_switch.compiler import compile_program
from soft_switch.errors import ProgramError
from tests.soft_switch.programs import NAMES, program

SEEDS = int(os.environ.get("P4REDUCE_SEEDS", "3"))
DAMAGES = 60
HUGE = "0x1ffffffffffffffff"
STRANGE: tuple[Any, ...] = (None, True, -1, 0, 1 << 70, "", "0x", "0xzz", HUGE, "no_such", 1.5)
STRANGE += ([], {}, [[]], [None], {"type": "x"})


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything inside."""
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def damaged(document: Any, ways: list[tuple[Any, ...]], chance: random.Random) -> Any:
    """Return a copy with one to three places changed: removed, doubled, another type, another's value."""
    made = copy.deepcopy(document)
    for _ in range(chance.randrange(1, 4)):
        way = chance.choice(ways)
        try:
            holder = made
            for step in way[:-1]:
                holder = holder[step]
            kind = chance.randrange(5)
            if kind == 0:
                del holder[way[-1]]
            elif kind == 1 and isinstance(holder, list):
                holder.append(copy.deepcopy(holder[way[-1]]))
            elif kind == 2:
                other = made
                for step in chance.choice(ways):
                    other = other[step]
                holder[way[-1]] = copy.deepcopy(other)
            else:
                holder[way[-1]] = chance.choice(STRANGE)
        except (KeyError, IndexError, TypeError):  # an earlier damage took the place away
            continue
    return made


def refused_or_run(text: bytes) -> bool:
    """Tell whether it is refused, which has to be by ProgramError and nothing else."""
    try:
        compile_program(read_program(text))
    except ProgramError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_json_is_refused_or_runs(name: str, seed: int) -> None:
    chance = random.Random(f"{name} {seed}")
    document = json.loads(program(name))
    ways = list(places(document))
    refused = 0
    for number in range(DAMAGES):
        text = json.dumps(damaged(document, ways, chance)).encode()
        try:
            refused += refused_or_run(text)
        except Exception as error:
            raise AssertionError(f"damage {number} of {name}, seed {seed}") from error
    assert refused > DAMAGES // 10


@pytest.mark.parametrize(
    "text", [b"", b"\0", b"{", b"[]", b"null", b"7", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000]
)
def test_what_is_no_program(text: bytes) -> None:
    assert refused_or_run(text)


@pytest.mark.slow
def test_a_json_that_was_cut() -> None:
    chance = random.Random(4)
    for text in (program("state"), JSON_PATH.read_bytes()):
        for _ in range(20):
            assert refused_or_run(text[: chance.randrange(len(text) - 2)])


def test_action_profiles_as_older_compilers_wrote_them() -> None:
    """Check the format before version 2.7, in which a table said what its action profile is."""
    document = json.loads(program("profiles"))
    for pipeline in document["pipelines"]:
        known = {item["name"]: item for item in pipeline.pop("action_profiles")}
        for table in pipeline["tables"]:
            profile = known.get(table.pop("action_profile", ""))
            if profile is not None:
                table["act_prof_name"] = profile["name"]
                table.update({"selector": profile["selector"]} if "selector" in profile else {})
    del document["__meta__"]
    old, new = (
        read_program(json.dumps(document).encode()).description,
        read_program(program("profiles")).description,
    )
    assert {name: item.selector for name, item in old.action_profiles.items()} == {
        name: item.selector for name, item in new.action_profiles.items()
    }
    assert [table.profile for table in old.tables.values()] == [
        table.profile for table in new.tables.values()
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d["parsers"][0].update(init_state="nowhere"), "the program refers to 'nowhere'"),
        (lambda d: d["deparsers"][0]["order"].append("ghost"), "the program refers to 'ghost'"),
        (lambda d: d["pipelines"][0].update(init_table="ghost"), "the program refers to 'ghost'"),
        (lambda d: d.update(__meta__={"version": [3, 1]}), "BMv2 JSON version 3.1 is not supported"),
        (lambda d: d.update(extern_instances=[{"name": "mine"}]), "extern instance mine is not supported"),
    ],
)
def test_what_leads_nowhere_is_named(change: Callable[[Any], None], text: str) -> None:
    document = json.loads(program("state"))
    change(document)
    with pytest.raises(ProgramError, match=text):
        compile_program(read_program(json.dumps(document).encode()))


@pytest.mark.parametrize("size", [-1, 1 << 62, 1 << 70])
@pytest.mark.parametrize(
    ("arrays", "key"),
    [("register_arrays", "size"), ("register_arrays", "bitwidth"), ("counter_arrays", "size")],
)
def test_sizes_that_no_memory_has(arrays: str, key: str, size: int) -> None:
    text = json.loads(program("state"))
    for item in text[arrays]:
        item[key] = size
    with pytest.raises(ProgramError, match=f"has a {key} of {size}"):
        read_program(json.dumps(text).encode())


def test_a_table_of_negative_size() -> None:
    text = json.loads(program("state"))
    text["pipelines"][0]["tables"][0]["max_size"] = -1
    with pytest.raises(ProgramError, match="has a max_size of -1"):
        read_program(json.dumps(text).encode())
