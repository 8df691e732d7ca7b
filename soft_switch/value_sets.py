"""Members of parser value sets as rows of values and masks (native/value_set.h)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from soft_switch.compiler.bounds import WORD_BITS, WORD_MASK, ones, words
from soft_switch.description import KeyField, Match, Range, ValueSetInfo
from soft_switch.entries import ends, ternary
from soft_switch.errors import TableError


def pack_member(info: ValueSetInfo, member: Sequence[Match]) -> Iterator[list[int]]:
    """Yield a member's rows: one, or several if it has ranges."""
    if len(member) != len(info.fields):
        raise TableError(
            f"value set {info.name} compares {len(info.fields)} fields, the member has {len(member)}"
        )
    choices = [
        list(_ternaries(f"value set {info.name}", field, match))
        for field, match in zip(info.fields, member, strict=True)
    ]
    for parts in itertools.product(*choices):
        pairs = [*zip(info.fields, parts, strict=True)]
        values = [word for field, (value, mask) in pairs for word in _words(value & mask, field.width)]
        yield values + [word for field, (_, mask) in pairs for word in _words(mask, field.width)]


def _words(value: int, width: int) -> list[int]:
    return [value >> (WORD_BITS * i) & WORD_MASK for i in range(words(width))]


def _ternaries(owner: str, field: KeyField, match: Match) -> Iterator[tuple[int, int]]:
    """Yield values and masks that together are the match."""
    if isinstance(match, Range):
        yield from _prefixes(*ends(owner, field, match), ones(field.width))
    else:
        yield ternary(owner, field, match)


def _prefixes(low: int, high: int, full: int) -> Iterator[tuple[int, int]]:
    """Yield a range as the fewest aligned blocks."""
    while low <= high:
        size = low & -low or full + 1
        while low + size - 1 > high:
            size >>= 1
        yield low, full & ~(size - 1)
        low += size
