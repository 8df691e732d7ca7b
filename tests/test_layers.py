"""The house's plan: docs/architecture.md has it as a table, and the code's imports are exactly that.

What decides is pure as well: it does no I/O, starts no thread, reads no clock and no randomness.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_ROW = re.compile(r"^\| `(?P<room>[\w/*]+)` \|[^|]*\| (?P<imports>[^|]*) \|$", re.M)
PURE = [
    *sorted((ROOT / "controller" / "jobs").glob("*.py")),
    *sorted((ROOT / "controller" / "slots").glob("*.py")),
    *sorted((ROOT / "host_agent" / "wire").glob("*.py")),
    *sorted((ROOT / "host_agent" / "collectives").glob("*.py")),
    *(ROOT / "host_agent" / f"{name}.py" for name in ("member", "quantisation", "recovery", "session")),
    *sorted((ROOT / "p4reduce" / "oracle").glob("*.py")),
]
OUTSIDE = {
    "asyncio", "concurrent", "grpc", "os", "random", "secrets", "socket", "subprocess", "threading", "time",
}  # fmt: skip


@cache
def plan() -> dict[str, set[str]]:
    """Return the rooms that each room imports from, by the table, from the ground up."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("| folder | what lives there | imports |") :].partition("\n\n")[0]
    return {row["room"]: set(re.findall(r"`([\w/*]+)`", row["imports"])) for row in _ROW.finditer(table)}


@cache
def room_of(path: str) -> str | None:
    """Return the room of a file, by its path in the repository: the one with the longest name that fits."""
    rooms = [room for room in plan() if path.startswith(room.rstrip("*"))]
    return max(rooms, key=len, default=None)


@cache
def modules() -> dict[str, Path]:
    """Return all of the product's modules by their dotted names."""
    folders = {room.partition("/")[0] for room in plan()}
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


@cache
def imported(path: Path) -> set[str]:
    """Return every module that a file imports, dotted."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in modules() else node.module for name in whole}
    return found


def ours(path: Path) -> Iterator[Path]:
    """Return the files of ours that a file imports."""
    return (modules()[name] for name in imported(path) if name in modules())


def test_every_module_is_in_a_room() -> None:
    homeless = [str(path) for path in modules().values() if room_of(str(path.relative_to(ROOT))) is None]
    assert not homeless


@pytest.mark.parametrize("room", plan())
def test_a_room_imports_what_the_plan_says(room: str) -> None:
    """Check that it imports no more and no less: a row that is no longer true misleads."""
    found = {
        room_of(str(other.relative_to(ROOT)))
        for path in modules().values()
        if room_of(str(path.relative_to(ROOT))) == room
        for other in ours(path)
    }
    assert found - {room} == plan()[room]


def test_the_plan_has_no_way_up() -> None:
    """Check that each room imports from rooms above it in the table alone."""
    seen: set[str] = set()
    for room, imports in plan().items():
        assert imports <= seen, f"{room} imports {sorted(imports - seen)}, further down"
        seen.add(room)


def test_no_modules_import_each_other() -> None:
    """Check direct imports and circles through others; what only types are imported for counts."""
    house = {path: set(ours(path)) - {path} for path in modules().values()}
    try:
        TopologicalSorter(house).prepare()
    except CycleError as error:
        circle = " -> ".join(str(path.relative_to(ROOT)) for path in error.args[1])
        pytest.fail(f"a circle of imports: {circle}")


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_decides_is_pure(path: Path) -> None:
    assert {name.partition(".")[0] for name in imported(path)} & OUTSIDE == set()


def test_what_is_installed_does_not_need_the_tests() -> None:
    for path in modules().values():
        assert not {name.partition(".")[0] for name in imported(path)} & {"tests", "pytest", "hypothesis"}, (
            path
        )


def test_the_glossary_says_where_things_are() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    named = re.findall(r"`([\w/]+(?:/|\.py|\.p4))`", page)
    assert len(named) > 20
    assert not [path for path in named if not (ROOT / path).exists()]
