"""Mutants of a file: which ones it has, that each is one change, and that the accepted ones are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import accepted
from tests.mutants.finding import ROOT
from tests.mutants.making import Mutant, mutants_of
from tests.mutants.targets import TARGETS

CODE = '''
"""Nothing of this is changed."""
def says(a: int, b: int) -> bool:
    """Nor this."""
    assert a
    if a < b and not b:
        return True
    self.one = self.two = None
    match a:
        case 1:
            max(a, b)
        case _:
            pass
    return a is None
'''
CHANGED = {
    "says: `a < b and (not b)` is always True",
    "says: `a < b and (not b)` is always False",
    "says: without `a < b` in `a < b and (not b)`",
    "says: without `not b` in `a < b and (not b)`",
    "says: `a < b` is `a <= b`",
    "says: without `return True`",
    "says: False in `return True`",
    "says: without `self.one = None`",
    "says: without `self.two = None`",
    "says: without `case 1`",
    "says: without `case _`",
    "says: without `max(a, b)`",
    "says: min in `max(a, b)`",
    "says: `a is None` is always True",
    "says: `a is None` is always False",
}
TABLE = """
class Word(Enum):
    A = auto()
    B = auto()
    C = auto()
AFTER = {(Word.A, int): Word.B, (Word.B, str): Word.C}
LAST = {Word.A: (Word.B, Word.C)}
"""
CELLS = {
    "AFTER[(Word.A, int)]: without the row",
    "AFTER[(Word.A, int)]: Word.B for Word.A",
    "AFTER[(Word.A, int)]: Word.C for Word.A",
    "AFTER[(Word.A, int)]: str for int",
    "AFTER[(Word.A, int)]: Word.A for Word.B",
    "AFTER[(Word.A, int)]: Word.C for Word.B",
    "LAST[Word.A]: without the row",
    "LAST[Word.A]: Word.B for Word.A",
    "LAST[Word.A]: Word.C for Word.A",
    "LAST[Word.A]: without Word.B",
    "LAST[Word.A]: without Word.C",
    "LAST[Word.A]: Word.A too",
}


def made(source: str) -> list[Mutant]:
    return mutants_of(Path("one.py"), "one.py", ast.parse(source))


def test_each_condition_and_each_statement_is_changed() -> None:
    assert {mutant.name for mutant in made(CODE)} == CHANGED


def test_each_row_and_each_cell_of_a_table_is_changed() -> None:
    names = [mutant.name for mutant in made(TABLE)]
    assert {name for name in names if "Word.B, str" not in name} == CELLS
    assert len(names) == len(set(names))


@pytest.mark.parametrize("source", [CODE, TABLE])
def test_a_mutant_is_one_change_and_a_program_still(source: str) -> None:
    before = ast.unparse(ast.parse(source))
    seen = {before}
    for number in range(len(made(source))):
        tree = ast.parse(source)
        mutants_of(Path("one.py"), "one.py", tree)[number].change()
        after = ast.unparse(ast.fix_missing_locations(tree))
        compile(after, "one.py", "exec")
        assert after not in seen
        seen.add(after)


def test_accepted_mutants_exist_and_have_a_reason() -> None:
    for name, reasons in accepted().items():
        assert set(reasons) <= {mutant.name for mutant in TARGETS[name].mutants()}, name
        assert all(reasons.values())


def test_each_file_has_mutants() -> None:
    for name, target in TARGETS.items():
        assert ":" in name or not (ROOT / name).exists() or target.mutants(), name
