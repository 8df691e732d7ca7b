"""Questions that tests ask of the p4c on the PATH, with stand-ins for versions that are not here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p4src.compile import COMPILER
from tests import p4c

STANDIN = """#!/bin/sh
if [ "$1" = --version ]; then echo "Version {version} (SHA: 0123456789 BUILD: Release)"; exit; fi
{otherwise}
"""
OLD = 'while [ "$1" != -o ]; do shift; done; echo "{}" > "$2"'
NEW = 'echo "error: --std: illegal language version p4-14" >&2; exit 1'


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Puts a p4c of a version on the PATH, which does something."""
    questions = (p4c.version, p4c.without_p4_14)

    def standin(version: str, otherwise: str) -> None:
        path = tmp_path / COMPILER
        path.write_text(STANDIN.format(version=version, otherwise=otherwise))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(p4c, "P4C", str(path))
        for question in questions:
            question.cache_clear()

    yield standin
    for question in questions:
        question.cache_clear()


def test_a_p4c_that_takes_p4_14(install: Callable[[str, str], None]) -> None:
    install("1.2.4.17", OLD)
    assert (p4c.version(), p4c.without_p4_14()) == ("1.2.4.17", None)


def test_a_p4c_that_takes_none_says_so(install: Callable[[str, str], None]) -> None:
    install("1.2.5.16", NEW)
    said = p4c.without_p4_14()
    assert said == "p4c 1.2.5.16 takes no P4_14 (error: --std: illegal language version p4-14)"


def test_another_p4c_may_write_other_json_and_the_same_one_may_not(
    install: Callable[[str, str], None],
) -> None:
    install("1.2.5.16", NEW)
    p4c.assert_is_made_of_its_source("x.json", 1, 1)
    with pytest.raises(pytest.skip.Exception, match=r"p4c 1\.2\.5\.16 writes x\.json differently"):
        p4c.assert_is_made_of_its_source("x.json", 1, 2)
    install(p4c.MADE_WITH, OLD)
    with pytest.raises(AssertionError):
        p4c.assert_is_made_of_its_source("x.json", 1, 2)
