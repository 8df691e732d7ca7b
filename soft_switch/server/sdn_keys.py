"""Match fields of translated types: the data plane's match for a controller's, and back.

A match has to mean the same on both sides and to be read as it was written. Numbers keep their value, so
exact matches, prefixes, ranges and masks can be translated: bits beyond the data plane's width are zero in
values, and in masks as the highest bit within it, so that a mask of all ones stays one. Strings match as a
whole.

Source: P4Runtime specification, "Translation of Match Fields", which asks for exact matches only.
"""

from __future__ import annotations

from finsy.proto import p4r

from soft_switch.description import Exact, KeyField, Lpm, Match, Optional_, Range, Ternary, Translation
from soft_switch.server.bytestrings import decode, encode
from soft_switch.server.errors import invalid

# What is wrong is said in words that follow the name of the field, as in `keys`.


def parse_translated(field: KeyField, sdn: Translation, message: p4r.FieldMatch, *, new: bool) -> Match:
    """Read the match of a field, whose kind the message has; strings get numbers if they may be `new`."""
    width = field.width
    if field.kind == "exact":
        return Exact(sdn.decode(message.exact.value, width, "", new=new))
    if field.kind == "optional":
        return Optional_(sdn.decode(message.optional.value, width, "", new=new))
    if field.kind == "lpm":
        value = sdn.decode(message.lpm.value, width, "", new=new)
        return Lpm(value, _parse_length(sdn, width, value, message.lpm.prefix_len))
    if field.kind == "ternary":
        value = sdn.decode(message.ternary.value, width, "", new=new)
        return Ternary(value, _parse_mask(sdn, width, value, message.ternary.mask))
    low = sdn.decode(message.range.low, width, ", low", new=new)
    high = sdn.decode(message.range.high, width, ", high", new=new)
    if not sdn.sdn_width and low != high:
        raise invalid(f": {sdn.name} is a string, which has no ranges: give the same low and high")
    if low > high:
        raise invalid(f": low {low:#x} is greater than high {high:#x}")
    if low == 0 and high == (1 << width) - 1:
        raise invalid(": the range is everything, leave the field out instead")
    return Range(low, high)


def format_translated(field: KeyField, sdn: Translation, match: Match) -> p4r.FieldMatch | None:
    """Make the canonical message of a match, None for don't care."""
    message = p4r.FieldMatch(field_id=field.id)
    beyond = sdn.sdn_width - field.width if sdn.sdn_width else 0
    if isinstance(match, Exact):
        message.exact.value = sdn.encode(match.value)
    elif isinstance(match, Lpm):
        if match.prefix_len == 0 or match.prefix_len + beyond <= 0:
            return None
        message.lpm.value = sdn.encode(match.value)
        message.lpm.prefix_len = match.prefix_len + beyond
    elif isinstance(match, Ternary):
        if match.mask == 0:
            return None
        message.ternary.value = sdn.encode(match.value)
        message.ternary.mask = encode(_resize(match.mask, field.width, sdn.sdn_width or field.width))
    elif isinstance(match, Range):
        if match.low == 0 and match.high == (1 << field.width) - 1:
            return None
        message.range.low = sdn.encode(match.low)
        message.range.high = sdn.encode(match.high)
    else:
        if match.value is None:
            return None
        message.optional.value = sdn.encode(match.value)
    return message


def _parse_length(sdn: Translation, width: int, value: int, length: int) -> int:
    """Read a prefix length, as one of the data plane's bits."""
    if not sdn.sdn_width:
        if length != width:
            raise invalid(f": {sdn.name} is a string, which has no prefixes: give a prefix length of {width}")
        return length
    shortest = max(1, sdn.sdn_width - width + 1)
    if not shortest <= length <= sdn.sdn_width:
        raise invalid(
            f": prefix length {length} is not within {shortest} to {sdn.sdn_width}: {sdn.name} has {width} "
            "bits in the data plane"
        )
    behind = sdn.sdn_width - length
    if value & ((1 << behind) - 1):
        raise invalid(f": value {value:#x} has bits set behind its prefix of {length} bits")
    return width - behind


def _parse_mask(sdn: Translation, width: int, value: int, data: bytes) -> int:
    """Read a mask, as one of the data plane's bits."""
    mask = decode(data, sdn.sdn_width or width, ", mask")
    full = (1 << width) - 1
    if not sdn.sdn_width:
        if mask != full:
            raise invalid(f": {sdn.name} is a string, which has no masks: give a mask of {full:#x}")
        return mask
    if mask == 0:
        raise invalid(": mask 0 matches everything, leave the field out instead")
    if value & ~mask:
        raise invalid(f": value {value:#x} has bits set outside its mask {mask:#x}")
    resized = _resize(mask, sdn.sdn_width, width)
    if _resize(resized, width, sdn.sdn_width) != mask:
        raise invalid(
            f": mask {mask:#x}: {sdn.name} has {width} bits in the data plane, so the bits beyond have to be "
            f"as the highest of these: {_resize(mask & full, width, sdn.sdn_width):#x} would do"
        )
    return resized


def _resize(mask: int, width: int, to: int) -> int:
    """Cut a mask, or put bits in front that repeat its highest one."""
    if to <= width:
        return mask & ((1 << to) - 1)
    return mask | ((1 << to) - (1 << width) if mask >> (width - 1) & 1 else 0)
