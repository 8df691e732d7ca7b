"""Loops in place of statements that differ in their indices only.

P4 has no loops: what a program does to each element of a stack stands there element by element. The C++
compiler's time grows with the code, so that such statements become a loop again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

LEAST = 4  # statements that are worth a loop
LONGEST = 6  # lines of a statement
# Numbers that may differ: a whole index, or an offset that is added.
_NUMBER = re.compile(r"(?<=\[)\d+(?=\])|(?<=\+ )\d+(?=[,)\]])")
# Declarations would not outlive the loop's body, labels would not be unique in it.
_NOT_IN_LOOP = re.compile(r'"|:;|^\s*(const|uint64_t|Wide<|for|case|default|static|template|struct|#)\b')

_Line = tuple[str, tuple[int, ...]]


def reroll(lines: Sequence[str]) -> list[str]:
    """The lines of a function body, shorter where they repeat."""
    parsed = [_parse(line) for line in lines]
    result: list[str] = []
    at = 0
    while at < len(lines):
        for period in range(1, LONGEST + 1):
            if not _alike(parsed, at, at + period):
                continue
            times = _repetitions(parsed, at, period)
            if times >= LEAST and _balanced(parsed[at : at + period]):
                result += _loop(lines, parsed, at, period, times)
                at += times * period
                break
        else:
            result.append(lines[at])
            at += 1
    return result


def _parse(line: str) -> _Line | None:
    """A line without its numbers, and its numbers; None for what must stay as it is."""
    if _NOT_IN_LOOP.search(line):
        return None
    text = line.split("  //")[0]
    return _NUMBER.sub("#", text), tuple(map(int, _NUMBER.findall(text)))


def _alike(parsed: Sequence[_Line | None], one: int, other: int) -> bool:
    if other >= len(parsed):
        return False
    a, b = parsed[one], parsed[other]
    return a is not None and b is not None and a[0] == b[0]


def _repetitions(parsed: Sequence[_Line | None], at: int, period: int) -> int:
    """How often `period` lines repeat, with numbers that grow evenly."""
    block = parsed[at : at + period]
    if len(block) < period or None in block:
        return 1
    times, steps = 1, None
    while True:
        following = parsed[at + times * period : at + (times + 1) * period]
        if len(following) < period or None in following:
            return times
        before = parsed[at + (times - 1) * period : at + times * period]
        if any(a[0] != b[0] for a, b in zip(before, following, strict=True)):  # type: ignore[index]
            return times
        grown = [
            y - x
            for a, b in zip(before, following, strict=True)
            for x, y in zip(a[1], b[1], strict=True)  # type: ignore[index]
        ]
        if (steps is not None and grown != steps) or min(grown, default=0) < 0:
            return times
        steps = grown
        times += 1


def _balanced(block: Sequence[_Line | None]) -> bool:
    depth = 0
    for line in block:
        assert line is not None
        for character in line[0]:
            depth += (character == "{") - (character == "}")
            if depth < 0:
                return False
    return depth == 0


def _loop(
    lines: Sequence[str], parsed: Sequence[_Line | None], at: int, period: int, times: int
) -> Iterator[str]:
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    yield f"{indent}for (unsigned n = 0; n < {times}u; n++) {{"
    for index in range(at, at + period):
        one, other = parsed[index], parsed[index + period]
        assert one is not None
        assert other is not None
        steps = iter([y - x for x, y in zip(one[1], other[1], strict=True)])
        text = lines[index].split("  //")[0]
        yield "    " + _NUMBER.sub(lambda number: _term(int(number.group()), next(steps)), text)  # noqa: B023
    yield f"{indent}}}"


def _term(first: int, step: int) -> str:
    if step == 0:
        return str(first)
    return f"{first} + n" if step == 1 else f"{first} + {step} * n"
