"""Bounds of the values of an expression: BMv2 computes with integers of any size, machines do not.

The bounds say how many words a computation needs to be exact. The bits that can be one (`maybe`) and
those that must be one (`must`) say more: where no carry can cross from one 64-bit word into the next, a
wide addition is 64-bit additions side by side. Known bits of a sum: LLVM, lib/Support/KnownBits.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

WORD_BITS = 64
WORD_MASK = (1 << WORD_BITS) - 1
# A shift to the left by an amount that is not known makes a number this much longer at most.
MAX_SHIFT = 1 << 12


def ones(bits: int) -> int:
    """Return a number of that many ones."""
    return (1 << bits) - 1


def words(bits: int) -> int:
    """Return how many 64-bit words hold that many bits."""
    return max(1, -(-bits // WORD_BITS))


@dataclass(frozen=True)
class Bounds:
    """low <= value <= high; for values that cannot be negative, must & ~maybe == 0 and value within them."""

    low: int
    high: int
    maybe: int
    must: int = 0

    @property
    def negative(self) -> bool:
        """True if the value can be negative; then `maybe` and `must` say nothing."""
        return self.low < 0

    @property
    def bits(self) -> int:
        """Bits that hold the value exactly, with a sign bit where it can be negative."""
        if not self.negative:
            return self.high.bit_length()
        return max(self.high.bit_length(), (~self.low).bit_length()) + 1


def constant(value: int) -> Bounds:
    """Return the bounds of one value."""
    return Bounds(value, value, value, value) if value >= 0 else Bounds(value, value, 0)


def unsigned(bits: int) -> Bounds:
    """Return the bounds of a bit<bits>."""
    return Bounds(0, ones(bits), ones(bits))


def signed(bits: int) -> Bounds:
    """Return the bounds of an int<bits>."""
    return Bounds(-(1 << (bits - 1)), ones(bits - 1), 0)


def between(low: int, high: int, maybe: int | None = None, must: int = 0) -> Bounds:
    """Return the bounds of a range, with what is known of its bits."""
    if low < 0:
        return Bounds(low, high, 0)
    limit = ones(high.bit_length())
    return Bounds(low, high, limit if maybe is None else maybe & limit, must)


def union(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of either of two values."""
    return between(min(a.low, b.low), max(a.high, b.high), a.maybe | b.maybe, a.must & b.must)


def add(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a + b."""
    low, high = a.low + b.low, a.high + b.high
    if a.negative or b.negative:
        return between(low, high)
    most, least = a.maybe + b.maybe, a.must + b.must
    carry_known = ~(most ^ a.maybe ^ b.maybe) | (least ^ a.must ^ b.must)
    known = ~(a.maybe ^ a.must) & ~(b.maybe ^ b.must) & carry_known
    limit = ones(high.bit_length())
    return Bounds(low, high, (most | ~known) & limit, least & known & limit)


def subtract(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a - b."""
    return between(a.low - b.high, a.high - b.low)


def multiply(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a * b."""
    products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return between(min(products), max(products))


def bit_and(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a & b."""
    if a.negative and b.negative:
        return between(-(1 << max(a.bits, b.bits)), ones(max(a.bits, b.bits)))
    if a.negative or b.negative:
        positive = b if a.negative else a
        return Bounds(0, positive.high, positive.maybe)
    maybe = a.maybe & b.maybe
    return Bounds(0, min(a.high, b.high, maybe), maybe, a.must & b.must)


def bit_or(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a | b."""
    if a.negative or b.negative:
        size = max(a.bits, b.bits)
        return between(-(1 << size), ones(size))
    maybe = a.maybe | b.maybe
    return Bounds(max(a.low, b.low), maybe, maybe, a.must | b.must)


def bit_xor(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a ^ b."""
    if a.negative or b.negative:
        size = max(a.bits, b.bits)
        return between(-(1 << size), ones(size))
    maybe = (a.maybe | b.maybe) & ~(a.must & b.must)
    must = (a.must & ~b.maybe) | (b.must & ~a.maybe)
    return Bounds(must, maybe, maybe, must)


def invert(a: Bounds) -> Bounds:
    """Return the bounds of ~a."""
    return between(~a.high, ~a.low)


def shift_left(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a << b; amounts beyond MAX_SHIFT are no longer exact."""
    least, most = min(max(b.low, 0), MAX_SHIFT), min(max(b.high, 0), MAX_SHIFT)
    if least == most and not a.negative:
        return Bounds(a.low << most, a.high << most, a.maybe << most, a.must << most)
    return between(min(a.low << most, a.low << least), max(a.high << most, a.high << least))


def shift_right(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a >> b."""
    least, most = max(b.low, 0), max(b.high, 0)
    if least == most and not a.negative:
        return Bounds(a.low >> most, a.high >> most, a.maybe >> most, a.must >> most)
    values = [x >> min(y, 1 << 17) for x in (a.low, a.high) for y in (least, most)]
    return between(min(values), max(values))


def saturate(a: Bounds, low: int, high: int) -> Bounds:
    """Return the bounds of a, limited to low..high."""
    return between(min(max(a.low, low), high), min(max(a.high, low), high))


def wrap_signed(a: Bounds, bits: int) -> Bounds:
    """Return the bounds of a as int<bits>."""
    limit = signed(bits)
    return a if limit.low <= a.low and a.high <= limit.high else limit


def no_carry(a: Bounds, b: Bounds, count: int) -> bool:
    """Tell whether a + b, modulo `count` words, carries nothing from one word into the next."""
    if count == 1:
        return True
    if a.negative or b.negative:
        return False
    return all(_word(a.maybe, i) + _word(b.maybe, i) <= WORD_MASK for i in range(count - 1))


def no_borrow(a: Bounds, b: Bounds, count: int) -> bool:
    """Tell whether a - b, modulo `count` words, borrows nothing from one word for the next."""
    if count == 1:
        return True
    if a.negative or b.negative:
        return False
    return all(_word(a.must, i) >= _word(b.maybe, i) for i in range(count - 1))


def stays_left(a: Bounds, amount: int, count: int, kept: int = -1) -> bool:
    """Tell whether no `kept` bit of a << amount, modulo `count` words, comes from another word."""
    if not 0 <= amount < WORD_BITS or a.negative:
        return False
    maybe, low = a.maybe << amount, ones(amount)
    return all(_word(maybe & kept, i) & low == 0 for i in range(1, count))


def stays_right(a: Bounds, amount: int, count: int, kept: int = -1) -> bool:
    """Tell the same of a >> amount; `a` has to fit into those words."""
    if not 0 <= amount < WORD_BITS or a.negative or a.bits > WORD_BITS * count:
        return False
    maybe, high = a.maybe >> amount, WORD_MASK & ~(WORD_MASK >> amount)
    return all(_word(maybe & kept, i) & high == 0 for i in range(count - 1))


def _word(value: int, index: int) -> int:
    return value >> (WORD_BITS * index) & WORD_MASK
