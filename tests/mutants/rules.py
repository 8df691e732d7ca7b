"""Mutants of the slot rules' table: of its rows in the oracle, and of the entries of the compiled program.

The oracle has the rows, and the program has them once more. A change of one of them is found by what compares
the two. A change of what a row writes, sends or counts could be made in both, and in docs/protocol.md: then
only what asks for behaviour finds it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.mutants.finding import ROOT, import_changed
from tests.mutants.making import Mutant

ORACLE: Final = ROOT / "p4reduce" / "oracle" / "rules.py"
PROGRAM: Final = ROOT / "p4src" / "build" / "p4reduce.json"
COLUMNS: Final = ("rule", "at", "brings", "holds", "sender", "writes", "sends", "counts")
CASES: Final = COLUMNS[1:5]
TABLES: Final = ("SwitchIngress.slots.rule", "SwitchIngress.slots.accumulate")


def _words(tree: ast.Module) -> dict[str, list[str]]:
    """Return the words that the enums At, Brings and so on allow in a cell."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["Word"]:
            values = [line.value for line in node.body if isinstance(line, ast.Assign)]
            found[node.name.lower()] = [ast.literal_eval(value)[0] for value in values]
    return found


def of_the_oracle(*, columns: tuple[str, ...] = COLUMNS[1:], rows: bool = True) -> list[Mutant]:
    """Return mutants with a row left out, or with another value in a cell of these columns."""
    tree = ast.parse(ORACLE.read_text())
    (text,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TABLE"
    )
    assert isinstance(text, ast.Constant)
    lines = str(text.value).split("\n")
    words = _words(tree)
    words["counts"] = sorted({name for line in lines[2:-1] for name in _cells(line)[7].split(", ")})

    def changed(number: int, *line: str) -> Any:
        def change() -> None:
            text.value = "\n".join([*lines[:number], *line, *lines[number + 1 :]])
            import_changed(ORACLE, tree)

        return change

    found = []
    path = str(ORACLE.relative_to(ROOT))
    for number, line in enumerate(lines[2:-1], 2):
        cells, at = _cells(line), text.lineno + number
        if rows:
            found.append(Mutant(path, at, f"{cells[0]}: without the row", changed(number)))
        for i, column in enumerate(COLUMNS):
            if column in columns:
                for other in _others(column, cells[i], words[column]):
                    changes = changed(number, "| " + " | ".join([*cells[:i], other, *cells[i + 1 :]]))
                    found.append(
                        Mutant(path, at, f"{cells[0]}: {column} {other!r} for {cells[i]!r}", changes)
                    )
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:]]


def _others(column: str, cell: str, words: list[str]) -> Iterator[str]:
    """Yield each set that has one word more or less; instead of a single word, each other one."""
    if column in ("writes", "sends"):
        yield from (word for word in words if word != cell)
        return
    has = words if cell == "any" else cell.split(", ")
    for word in words:
        less = [other for other in has if other != word]
        more = [*has, word] if word not in has else less
        if more:
            yield ", ".join(more)


def of_the_program() -> list[Mutant]:
    """Return mutants that lack an entry or a key, or have another value of a key or another argument."""
    program = json.loads(PROGRAM.read_text())
    names = {action["id"]: action["name"].rpartition(".")[2] for action in program["actions"]}
    found: list[Mutant] = []
    for table in program["pipelines"][0]["tables"]:
        if table["name"] in TABLES:
            found += _of_table(program, table, names)
    return found


def _of_table(program: dict[str, Any], table: dict[str, Any], names: dict[int, str]) -> Iterator[Mutant]:
    entries, short = table["entries"], table["name"].rpartition(".")[2]

    def change_of(cell: dict[Any, Any] | list[Any], at: Any, value: Any) -> Any:
        def change() -> None:
            cell[at] = value
            _read_changed(program)

        return change

    def left_out(entry: dict[str, Any]) -> Any:
        def change() -> None:
            entries.remove(entry)
            _read_changed(program)

        return change

    def made(entry: dict[str, Any], what: str, change: Any) -> Mutant:
        place = entry["source_info"]
        row = re.sub(r"\s+", " ", place["source_fragment"])
        return Mutant(f"p4src/{place['filename']}", place["line"], f"{short} {row}: {what}", change)

    for entry in entries:
        yield made(entry, "without the row", left_out(entry))
        for i, key in enumerate(entry["match_key"]):
            name = table["key"][i]["name"]
            keys = {json.dumps(other["match_key"][i], sort_keys=True): None for other in entries}
            for other in map(json.loads, keys):
                if other != key:
                    said = "any" if other.get("mask") and not int(other["mask"], 16) else _said(other)
                    changes = change_of(entry["match_key"], i, other)
                    yield made(entry, f"{name} {said}", changes)
        call = entry["action_entry"]
        for i, value in enumerate(call["action_data"]):
            for other in sorted({each["action_entry"]["action_data"][i] for each in entries} - {value}):
                yield made(entry, f"argument {i} {other}", change_of(call["action_data"], i, other))
        for action in sorted({each["action_entry"]["action_id"] for each in entries} - {call["action_id"]}):
            yield made(entry, names[action], change_of(call, "action_id", action))


def _said(key: dict[str, Any]) -> str:
    return f"{key['key']} &&& {key['mask']}" if "mask" in key else f"{key['key']}"


def _read_changed(program: dict[str, Any]) -> None:
    """Give this program to whoever reads the compiled one from now on."""
    text = json.dumps(program)
    read_bytes, read_text = Path.read_bytes, Path.read_text

    def changed_bytes(path: Path) -> bytes:
        return text.encode() if path.resolve() == PROGRAM else read_bytes(path)

    def changed_text(path: Path, *arguments: Any, **options: Any) -> str:
        return text if path.resolve() == PROGRAM else read_text(path, *arguments, **options)

    Path.read_bytes = changed_bytes  # type: ignore[method-assign,assignment]
    Path.read_text = changed_text  # type: ignore[method-assign,assignment]
