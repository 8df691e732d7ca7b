"""Packet sequence numbers: 24-bit serial arithmetic (InfiniBand spec vol. 1, 9.7.2)."""

from __future__ import annotations

from typing import Final

PSN_BITS: Final = 24
PSN_MODULUS: Final = 1 << PSN_BITS
PSN_MASK: Final = PSN_MODULUS - 1


def add(psn: int, count: int) -> int:
    """Return the PSN `count` packets after `psn` (before it, where `count` is negative)."""
    return (psn + count) & PSN_MASK


def distance(start: int, end: int) -> int:
    """Return how many packets `end` lies after `start`: 0 .. 2^24 - 1."""
    return (end - start) & PSN_MASK


def compare(left: int, right: int) -> int:
    """Return a number below, equal to or above 0, as `left` is older than, equal to or newer than `right`."""
    ahead = (left - right) & PSN_MASK
    return ahead - PSN_MODULUS if ahead >= PSN_MODULUS // 2 else ahead
