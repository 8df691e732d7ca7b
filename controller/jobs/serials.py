"""Serial numbers of collectives and messages, counted modulo 2^32 and compared by RFC 1982. No I/O.

Numbers that are compared have to be less than 2^31 apart.
"""

from __future__ import annotations

from collections.abc import Collection

SERIALS = 1 << 32


def ahead(number: int, of: int) -> int:
    """Return how far a number is ahead of another; negative if it is behind."""
    return (number - of + SERIALS // 2) % SERIALS - SERIALS // 2


def furthest(numbers: Collection[int]) -> int:
    """Return the number that is ahead of all others."""
    any_one = next(iter(numbers))
    return max(numbers, key=lambda number: ahead(number, any_one))


def rearmost(numbers: Collection[int]) -> int:
    """Return the number that all others are ahead of."""
    any_one = next(iter(numbers))
    return min(numbers, key=lambda number: ahead(number, any_one))
