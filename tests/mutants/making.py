"""Mutants of a Python file: its syntax tree with one thing changed.

| what | becomes |
| --- | --- |
| a condition (`if`, `while`, a guard, a yes or no that is returned or kept) | always true; always false |
| an operand of `and` or `or` | left out |
| a comparison | its border moves (`<`, `<=`), or it is turned around (`==`, `!=`) |
| `True` and `False`; `min` and `max`; `+` and `-` | each other |
| a statement without which the function still runs; one of several targets | left out |
| a `case` | left out |
| a row of a table | left out |
| a cell of a table: a name in a tuple, a key, a value | each other value of its column |
| a set of an enum's members | without each of its members; with each other one |

A mutant changes the tree in place: it does so in a process of its own.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

LONGEST: Final = 100  # letters of a piece of source in a name
_SWAPS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_DROPPED: Final = (ast.AugAssign, ast.Delete, ast.Break, ast.Continue, ast.Expr)
_BORDERS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True)
class Mutant:
    """One change. `name` says where and which, without line numbers; `change` makes it, for good."""

    path: str
    line: int
    name: str
    change: Callable[[], None]


@dataclass(frozen=True)
class Place:
    """Position of a node in the tree."""

    parent: ast.AST
    field: str
    index: int | None = None

    def put(self, *nodes: ast.AST) -> None:
        """Put these in place of the node; several, or none, only in a list."""
        if self.index is None:
            (node,) = nodes
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index : self.index + 1] = nodes


def mutants_of(path: Path, name: str, tree: ast.Module) -> list[Mutant]:
    """Return all mutants of a file, in the order of its lines, each with a name of its own."""
    seen: Counter[str] = Counter()
    found = []
    maker = _Maker(name, _enums(path, tree))
    for mutant in (*maker.tables(tree), *maker.code(tree)):
        seen[mutant.name] += 1
        again = f" ({seen[mutant.name]})" if seen[mutant.name] > 1 else ""
        found.append(replace(mutant, name=mutant.name + again))
    return sorted(found, key=lambda mutant: mutant.line)


def _enums(path: Path, tree: ast.Module) -> dict[str, list[str]]:
    """Return the members of the enums that a file has or imports from a file of ours."""
    root = Path(__file__).parents[2]
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
            assigned = [line for line in node.body if isinstance(line, ast.Assign)]
            found[node.name] = [ast.unparse(line.targets[0]) for line in assigned]
        elif isinstance(node, ast.ImportFrom) and node.module:
            other = root / Path(*node.module.split(".")).with_suffix(".py")
            if other.exists() and other != path:
                wanted = {name.name for name in node.names}
                there = _enums(other, ast.parse(other.read_text())) if wanted else {}
                found |= {name: members for name, members in there.items() if name in wanted}
    return found


def _spelt(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _children(node: ast.AST) -> Iterator[tuple[Place, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield Place(node, field), value
        elif isinstance(value, list):
            nodes = enumerate(value)
            yield from ((Place(node, field, i), child) for i, child in nodes if isinstance(child, ast.AST))


class _Maker:
    def __init__(self, path: str, enums: dict[str, list[str]]) -> None:
        self.path = path
        self.enums = enums
        self.sets: dict[str, list[str]] = {}  # by the name with which another set has all of them

    def made(self, node: Any, name: str, change: Callable[[], None]) -> Mutant:
        return Mutant(self.path, node.lineno, name, change)

    # What functions do

    def code(self, tree: ast.AST, where: str = "") -> Iterator[Mutant]:
        """Yield the mutants of all functions."""
        for place, node in _children(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inside = f"{where}.{node.name}" if where else node.name
                yield from (
                    self.code(node, inside) if isinstance(node, ast.ClassDef) else self.body(node, inside)
                )
            elif isinstance(node, ast.If | ast.Try | ast.With):
                yield from self.code(node, where)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
                yield from self.node(place, node, where)

    def body(self, function: ast.FunctionDef | ast.AsyncFunctionDef, where: str) -> Iterator[Mutant]:
        for place, node in _children(function):
            if place.field == "body":
                yield from self.node(place, node, where)

    def node(self, place: Place, node: ast.AST, where: str) -> Iterator[Mutant]:
        """Yield the mutants of this node and of all that is in it."""
        if isinstance(node, ast.Assert | ast.Raise):
            return
        yield from self.here(place, node, where)
        for inner, child in _children(node):
            inside = f"{where}.{child.name}" if isinstance(child, ast.FunctionDef) else where
            yield from self.node(inner, child, inside)

    def here(self, place: Place, node: Any, where: str) -> Iterator[Mutant]:
        if isinstance(node, ast.expr):
            yield from self.expression(place, node, where)
        elif isinstance(node, ast.stmt):
            yield from self.statement(place, node, where)
        elif isinstance(node, ast.match_case):
            name = f"{where}: without `case {_spelt(node.pattern)}`"
            cases = getattr(place.parent, place.field)
            if len(cases) > 1:
                yield self.made(node.pattern, name, partial(cases.remove, node))

    def expression(self, place: Place, node: Any, where: str) -> Iterator[Mutant]:
        whole = _is_condition(place, node)
        if whole:
            for value in (True, False):
                name = f"{where}: `{_spelt(node)}` is always {value}"
                yield self.made(node, name, partial(place.put, ast.Constant(value)))
        if isinstance(node, ast.BoolOp):
            for operand in node.values:
                name = f"{where}: without `{_spelt(operand)}` in `{_spelt(node)}`"
                yield self.made(operand, name, partial(_leave_out, place, node, operand))
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            if isinstance(node.ops[0], _BORDERS) or not whole:
                before, swapped = _spelt(node), _SWAPS[type(node.ops[0])]()
                after = _spelt(ast.Compare(node.left, [swapped], node.comparators))
                change = Place(node, "ops", 0)
                yield self.made(node, f"{where}: `{before}` is `{after}`", partial(change.put, swapped))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            name = f"{where}: {not node.value} in `{_spelt(place.parent)}`"
            yield self.made(node, name, partial(place.put, ast.Constant(not node.value)))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
        ):
            other = "max" if node.func.id == "min" else "min"
            name = f"{where}: {other} in `{_spelt(node)}`"
            yield self.made(node, name, partial(setattr, node.func, "id", other))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            swapped_op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            name = f"{where}: `{_spelt(node)}` is `{_spelt(ast.BinOp(node.left, swapped_op, node.right))}`"
            yield self.made(node, name, partial(setattr, node, "op", swapped_op))

    def statement(self, place: Place, node: Any, where: str) -> Iterator[Mutant]:
        for what, change in _left_out(place, node, declares=where.endswith("__init__")):
            yield self.made(node, f"{where}: without `{_spelt(what)}`", change)

    # What tables say

    def tables(self, tree: ast.Module) -> Iterator[Mutant]:
        """Yield the mutants of the containers that a module or an enum names."""
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in self.enums:
                for line in node.body:
                    if isinstance(line, ast.Assign):
                        yield from self.cells(line, f"{node.name}.{_spelt(line.targets[0])}", {})
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield from self.cells(node, _spelt(target), {})

    def cells(self, line: Any, where: str, columns: dict[Any, list[str]]) -> Iterator[Mutant]:
        if isinstance(line.value, ast.Dict):
            columns = _columns(line.value)
        yield from self.cell(Place(line, "value"), line.value, where, columns, ())

    def cell(
        self, place: Place, node: Any, where: str, columns: dict[Any, list[str]], column: tuple[Any, ...]
    ) -> Iterator[Mutant]:
        if isinstance(node, ast.Dict):
            for i, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
                assert key is not None
                row = f"{where}[{_spelt(key)}]"
                yield self.made(key, f"{row}: without the row", partial(_drop_row, node, i))
                yield from self.cell(Place(node, "keys", i), key, row, columns, ("key",))
                yield from self.cell(Place(node, "values", i), value, row, columns, ("value",))
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            if members := self.set_of(node):
                yield from self.members(node, where, members)
            else:
                for i, element in enumerate(node.elts):
                    yield from self.cell(Place(node, "elts", i), element, where, columns, (*column, i))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            for i, element in enumerate(node.args):
                yield from self.cell(Place(node, "args", i), element, where, columns, (*column, i))
        else:
            for other in self.others(node, columns.get(column, [])):
                change = ast.parse(other, mode="eval").body
                yield self.made(node, f"{where}: {other} for {_spelt(node)}", partial(place.put, change))

    def others(self, node: ast.AST, column: list[str]) -> list[str]:
        """Return the other values that a cell may have."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            enum = node.value.id
            return [f"{enum}.{member}" for member in self.enums.get(enum, []) if member != node.attr]
        if isinstance(node, ast.Name):
            return [name for name in dict.fromkeys(column) if name != node.id]
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return [str(not node.value)]
        return []

    def set_of(self, node: ast.Tuple | ast.List | ast.Set) -> list[str]:
        """Return all members, by whole names, of the enum of which this is a set; none if it is not one."""
        named = [element for element in node.elts if isinstance(element, ast.Attribute)]
        enums = {ast.unparse(element.value) for element in named}
        if len(enums) != 1 or not enums <= set(self.enums):
            return []
        if not all(isinstance(element, ast.Attribute | ast.Starred) for element in node.elts):
            return []
        (enum,) = enums
        return [f"{enum}.{member}" for member in self.enums[enum]]

    def members(self, node: Any, where: str, members: list[str]) -> Iterator[Mutant]:
        has = [ast.unparse(element) for element in node.elts]
        self.sets[f"*{where}"] = has
        has = [name for element in has for name in self.sets.get(element, [element])]
        for element in node.elts:
            change = partial(node.elts.remove, element)
            yield self.made(element, f"{where}: without {_spelt(element)}", change)
        for member in members:
            if member not in has:
                added = ast.parse(member, mode="eval").body
                yield self.made(node, f"{where}: {member} too", partial(node.elts.append, added))


def _columns(table: ast.Dict) -> dict[Any, list[str]]:
    """Return the names in each column of a table, by the column's place in a row."""
    found: dict[Any, list[str]] = {}

    def look(node: ast.AST | None, column: tuple[Any, ...]) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            for i, element in enumerate(node.elts):
                look(element, (*column, i))
        elif isinstance(node, ast.Call):
            for i, element in enumerate(node.args):
                look(element, (*column, i))
        elif isinstance(node, ast.Name):
            found.setdefault(column, []).append(node.id)

    for key, value in zip(table.keys, table.values, strict=True):
        look(key, ("key",))
        look(value, ("value",))
    return found


def _is_condition(place: Place, node: ast.AST) -> bool:
    """Tell whether a node says yes or no, and is no part of what does."""
    parent, field = place.parent, place.field
    if field in ("test", "guard") or (isinstance(parent, ast.comprehension) and field == "ifs"):
        return True
    says = isinstance(node, ast.BoolOp | ast.Compare) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )
    return says and field == "value" and isinstance(parent, ast.Return | ast.Assign | ast.NamedExpr)


def _is_last(place: Place, node: ast.AST) -> bool:
    """Tell whether it is a function's last statement, without which there is no result at all."""
    return isinstance(place.parent, ast.FunctionDef) and place.parent.body[-1] is node


def _left_out(place: Place, node: Any, *, declares: bool) -> Iterator[tuple[ast.AST, Callable[[], None]]]:
    """Yield what can be left out of a statement, or all of it. `declares`: a first value is a declaration."""
    away = partial(place.put, ast.Pass())
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets: list[Any] = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None or (declares and _is_plain(node.value)):
            return
        if len(targets) > 1:
            for target in targets:
                yield ast.Assign([target], node.value, lineno=0), partial(targets.remove, target)
        elif isinstance(targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            for target, value in zip(targets[0].elts, node.value.elts, strict=True):
                if not isinstance(target, ast.Name) and not (declares and _is_plain(value)):
                    change = partial(_unpack_without, targets[0], node.value, target, value)
                    yield ast.Assign([target], value, lineno=0), change
        elif not isinstance(targets[0], ast.Name):
            yield node, away
    elif isinstance(node, ast.Return):
        if node.value is None or not _is_last(place, node):
            yield node, away
    elif isinstance(node, _DROPPED) and not _is_docstring(node):
        yield node, away


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_plain(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Tuple):
        return not value.elts
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())


def _leave_out(place: Place, node: ast.BoolOp, operand: ast.expr) -> None:
    node.values.remove(operand)
    if len(node.values) == 1:
        place.put(node.values[0])


def _unpack_without(targets: ast.Tuple, values: ast.Tuple, target: ast.expr, value: ast.expr) -> None:
    targets.elts.remove(target)
    values.elts.remove(value)


def _drop_row(table: ast.Dict, row: int) -> None:
    del table.keys[row], table.values[row]
