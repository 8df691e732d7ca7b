"""A table key between its two forms: `p4.v1.FieldMatch` messages and the data plane's match values.

Source: P4Runtime specification, section "Match Format". A don't-care field is left out of the message and
present in the data plane's key, which always has one value for each field, in the table's order.
"""

from __future__ import annotations

from collections.abc import Sequence

from finsy.proto import p4r

from soft_switch.description import Exact, KeyField, Lpm, Match, Optional_, Range, Ternary
from soft_switch.server.bytestrings import decode, encode
from soft_switch.server.errors import P4RuntimeError, invalid, malformed
from soft_switch.server.schema import Table
from soft_switch.server.sdn_keys import format_translated, parse_translated
from soft_switch.server.sdn_types import UnknownName

MAX_PRIORITY = 2**31 - 1  # int32 on the wire


def parse_key(table: Table, messages: Sequence[p4r.FieldMatch], *, new: bool = False) -> tuple[Match, ...]:
    """Return the key of an entry; INVALID_ARGUMENT says which field of which table is wrong.

    A translated string that stands for nothing yet is UnknownName, or introduced if it may be `new`.
    """
    return parse_fields(f"table {table.name}", table.fields, messages, new=new)


def parse_fields(
    owner: str, fields: Sequence[KeyField], messages: Sequence[p4r.FieldMatch], *, new: bool
) -> tuple[Match, ...]:
    """Return one value for each of `fields`; INVALID_ARGUMENT errors name their `owner`."""
    by_id: dict[int, p4r.FieldMatch] = {}
    for message in messages:
        if message.field_id in by_id:
            raise invalid(f"{owner}: match field {message.field_id} is given twice")
        by_id[message.field_id] = message
    key = []
    for field in fields:
        given = by_id.pop(field.id, None)
        if given is None:
            key.append(_dont_care(owner, field))
        else:
            key.append(_parse_field(owner, field, given, new=new))
    if by_id:
        known = ", ".join(f"{field.id} ({field.name})" for field in fields) or "none"
        raise invalid(f"{owner} has no match field {min(by_id)}; its fields are {known}")
    return tuple(key)


def check_priority(table: Table, priority: int) -> None:
    """Require a priority above zero where entries can overlap, zero elsewhere."""
    if priority < 0:
        raise invalid(f"table {table.name}: priority {priority} is negative")
    if table.needs_priority and priority == 0:
        raise invalid(
            f"table {table.name}: zero priority, but its key has a ternary, range or optional field: "
            f"give a priority of 1 to {MAX_PRIORITY} (greater wins)"
        )
    if not table.needs_priority and priority > 0:
        raise invalid(
            f"table {table.name}: priority {priority}, but its key has no ternary, range or optional field: "
            "leave the priority out"
        )


def format_key(table: Table, key: Sequence[Match]) -> list[p4r.FieldMatch]:
    """Return the canonical messages of a key, don't-care fields left out."""
    return format_fields(table.fields, key)


def format_fields(fields: Sequence[KeyField], key: Sequence[Match]) -> list[p4r.FieldMatch]:
    """Return the canonical messages of one value for each of `fields`, don't-care fields left out."""
    messages = []
    for field, match in zip(fields, key, strict=True):
        message = _format_field(field, match)
        if message is not None:
            messages.append(message)
    return messages


def _parse_field(owner: str, field: KeyField, message: p4r.FieldMatch, *, new: bool) -> Match:
    kind = message.WhichOneof("field_match_type")
    if kind != field.kind:
        what = f"{owner}, match field {field.name or field.id}"
        raise invalid(f"{what} is {field.kind}, but the request gives {kind or 'no match'}")
    try:
        if field.sdn is not None:
            return parse_translated(field, field.sdn, message, new=new)
        return _PARSERS[kind](field.width, message)
    except UnknownName as error:
        raise UnknownName(f"{owner}, match field {field.name or field.id}{error.message}") from error
    except P4RuntimeError as error:
        # A byte string that does not fit is OUT_OF_RANGE elsewhere; "Match Format" wants INVALID_ARGUMENT.
        raise malformed(error, f"{owner}, match field {field.name or field.id}") from error


# What is wrong is said in words that follow the name of the field: that costs nothing while nothing is.


def _parse_exact(width: int, message: p4r.FieldMatch) -> Match:
    return Exact(decode(message.exact.value, width, ""))


def _parse_lpm(width: int, message: p4r.FieldMatch) -> Match:
    given = message.lpm
    value, length = decode(given.value, width, ""), given.prefix_len
    if length == 0:
        raise invalid(": prefix length 0 matches everything, leave the field out instead")
    if not 0 < length <= width:
        raise invalid(f": prefix length {length} is not within 1 to {width}")
    if value & ((1 << (width - length)) - 1):
        raise invalid(f": value {value:#x} has bits set behind its prefix of {length} bits")
    return Lpm(value, length)


def _parse_ternary(width: int, message: p4r.FieldMatch) -> Match:
    given = message.ternary
    value, mask = decode(given.value, width, ""), decode(given.mask, width, ", mask")
    if mask == 0:
        raise invalid(": mask 0 matches everything, leave the field out instead")
    if value & ~mask:
        raise invalid(f": value {value:#x} has bits set outside its mask {mask:#x}")
    return Ternary(value, mask)


def _parse_range(width: int, message: p4r.FieldMatch) -> Match:
    given = message.range
    low, high = decode(given.low, width, ", low"), decode(given.high, width, ", high")
    if low > high:
        raise invalid(f": low {low:#x} is greater than high {high:#x}")
    if low == 0 and high == (1 << width) - 1:
        raise invalid(": the range is everything, leave the field out instead")
    return Range(low, high)


def _parse_optional(width: int, message: p4r.FieldMatch) -> Match:
    return Optional_(decode(message.optional.value, width, ""))


_PARSERS = {
    "exact": _parse_exact,
    "lpm": _parse_lpm,
    "ternary": _parse_ternary,
    "range": _parse_range,
    "optional": _parse_optional,
}


def _dont_care(owner: str, field: KeyField) -> Match:
    if field.kind == "exact":
        raise invalid(f"{owner}: exact match field {field.name} ({field.id}) is missing")
    if field.kind == "lpm":
        return Lpm(0, 0)
    if field.kind == "ternary":
        return Ternary(0, 0)
    if field.kind == "range":
        return Range(0, (1 << field.width) - 1)
    return Optional_(None)


def _format_field(field: KeyField, match: Match) -> p4r.FieldMatch | None:
    if field.sdn is not None:
        return format_translated(field, field.sdn, match)
    message = p4r.FieldMatch(field_id=field.id)
    if isinstance(match, Exact):
        message.exact.value = encode(match.value)
    elif isinstance(match, Lpm):
        if match.prefix_len == 0:
            return None
        message.lpm.value = encode(match.value)
        message.lpm.prefix_len = match.prefix_len
    elif isinstance(match, Ternary):
        if match.mask == 0:
            return None
        message.ternary.value = encode(match.value)
        message.ternary.mask = encode(match.mask)
    elif isinstance(match, Range):
        if match.low == 0 and match.high == (1 << field.width) - 1:
            return None
        message.range.low = encode(match.low)
        message.range.high = encode(match.high)
    else:
        if match.value is None:
            return None
        message.optional.value = encode(match.value)
    return message
