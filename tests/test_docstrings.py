"""Docstrings begin plainly: a function's with a verb, a property's, class's or module's with a noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("bench", "controller", "host_agent", "p4reduce", "p4src", "soft_switch", "tests", "topologies")
_COUNTING = "One All Each Every Several Both Another Other Some Any No The A An"
_OTHERS = """
    What Whether How As Of Where Those By Who Whose When Which Not For With In To That From Until Here If Once
    So Everything Anything Nothing Nobody Somebody Only Since Without At On After Before Because Else Also
    There It Its They Their And Or But Such Same Again Never Always Between Behind Beside Inside Outside Under
    Over None
"""
_VERBS = "Return Tell Say Find Raise Yield Wait Make"  # the commonest ones
COUNTING, OTHERS, VERBS = (frozenset(words.split()) for words in (_COUNTING, _OTHERS, _VERBS))
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
Assigned = ast.Assign | ast.AnnAssign


def documented(path: Path) -> Iterator[tuple[Documented | Assigned, str]]:
    """Yield what has a docstring in a file, and the first word of that."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, Documented):
            continue
        if text := ast.get_docstring(node):
            yield node, _first_word(text)
        for given, behind in pairwise(node.body):
            match behind:
                case ast.Expr(value=ast.Constant(value=str() as text)) if isinstance(given, Assigned):
                    yield given, _first_word(text)


def _first_word(text: str) -> str:
    return re.split(r"\W", text.strip(), maxsplit=1)[0]


def begins_badly(node: Documented | Assigned, word: str) -> bool:
    """Tell whether a docstring begins with a word that its kind may not begin with."""
    if isinstance(node, Assigned):
        return word in OTHERS | VERBS
    if isinstance(node, ast.Module) or node.name.startswith("test_"):  # these are whole sentences
        return word in OTHERS
    marks = " ".join(ast.unparse(each) for each in node.decorator_list)
    if "fixture" in marks:  # it makes a thing, and is used as that
        return word in OTHERS
    if "property" in marks or isinstance(node, ast.ClassDef):
        return word in OTHERS | VERBS
    return word in OTHERS | COUNTING


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_verbs_or_nouns(folder: str) -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {word} …"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.endswith("_pb2.py")
        for node, word in documented(path)
        if begins_badly(node, word)
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("code", "is_bad"),
    [
        ('def f():\n    """Whether it is over."""', True),
        ('def f():\n    """Return whether it is over."""', False),
        ('class C:\n    """What a link is."""', True),
        ('class C:\n    """A link."""', False),
        ('class C:\n    @property\n    def f(self):\n        """One of them."""', False),
        ('def f():\n    """One of them."""', True),
        ('class C:\n    @property\n    def f(self):\n        """Return one of them."""', True),
        ('x = 1\n"""Where it is."""', True),
        ('x = 1\n"""The place."""', False),
        ('class C:\n    def __init__(self):\n        self.x = 1\n        """Whether it is."""', True),
        ('"""How it goes."""', True),
    ],
)
def test_the_list_is_held(code: str, is_bad: bool, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    assert any(begins_badly(node, word) for node, word in documented(path)) is is_bad
