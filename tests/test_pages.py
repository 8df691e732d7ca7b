"""Markdown pages: their links lead somewhere, and the list of decisions names each record."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DECISIONS = ROOT / "docs" / "decisions"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
_LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)


def prose(page: Path) -> str:
    """Return a page's text without blocks of code."""
    return _FENCE.sub("", page.read_text())


@cache
def anchors(page: Path) -> set[str]:
    """Return what `#…` may name in a page, as forges make it from headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def broken(page: Path) -> list[str]:
    """List a page's links that lead nowhere."""
    wrong = []
    for link in _LINK.finditer(prose(page)):
        path, anchor = link["path"], link["anchor"]
        target = (page.parent / path).resolve() if path else page
        is_there = target.exists() and (
            not anchor or target.suffix != ".md" or anchor.lower() in anchors(target)
        )
        if not is_there:
            wrong.append(link[0][1:])
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `thing`\n[a](#one-thing) [b](#two) [c](other.md) [d](page.md#one-thing)\n")
    assert broken(page) == ["(#two)", "(other.md)"]


def test_all_decisions_are_listed() -> None:
    listed = re.findall(r"\]\(([^)]+\.md)\)", (DECISIONS / "README.md").read_text())
    records = {path.name for path in DECISIONS.glob("*.md")} - {"README.md"}
    assert records <= set(listed)
    dated = [name[:10] for name in listed if name in records]
    assert dated == sorted(dated, reverse=True)
