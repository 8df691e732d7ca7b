"""YAML that knows its lines: which aliases it takes."""

from __future__ import annotations

import pytest

from controller.configuration.marked import DocumentError, read


def levels(number: int, width: int = 9) -> str:
    """Return a document of so many lines after the first, each naming the one before `width` times."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, number + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines)


def test_aliases_that_multiply_are_refused_at_the_line_where_they_are_too_many() -> None:
    with pytest.raises(DocumentError, match=r"^line 5: with alias \*a3, aliases stand for \d+ values; ") as e:
        read(levels(9))
    assert e.value.line == 5
    assert "write out what is meant" in str(e.value)


def test_an_alias_within_what_it_stands_for_is_refused() -> None:
    for text in ("a: 1\nb: &b [1, *b]", "a: 1\nb: &b {c: {d: *b}}"):
        with pytest.raises(DocumentError, match=r"^line 2: alias \*b is part of what it stands for"):
            read(text)


def test_anchors_may_be_used_many_times_and_documents_may_be_long() -> None:
    text = "base: &base {a: 1, b: [2, 3]}\nall:\n" + "  - *base\n" * 500
    values = read(text).mapping()["all"].items()
    assert [value.mapping()["b"].items()[1].text() for value in values] == ["3"] * 500
    assert len(read("[" + ", ".join(["1"] * 30_000) + "]").items()) == 30_000
    assert [len(value.items()) for value in read(levels(3)).mapping().values()] == [1, 9, 9, 9]


def test_an_alias_of_nothing_is_not_yaml() -> None:
    with pytest.raises(DocumentError, match=r"^line 2: not YAML: found undefined alias 'b'"):
        read("a: 1\nb: *b")
