"""Entries as the words that a compiled table takes (see `soft_switch.compiler.tables`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from soft_switch.compiler.bounds import WORD_BITS, ones, words
from soft_switch.compiler.tables import TableLayout
from soft_switch.description import ActionInfo, Exact, KeyField, Lpm, Match, Optional_, Range, Ternary
from soft_switch.errors import TableError

MAX_PRIORITY = (1 << 31) - 1


# Which kinds of field take a match; p4c writes optional keys as ternary.
_KINDS: Mapping[type[Match], tuple[str, ...]] = {
    Exact: ("exact",),
    Lpm: ("lpm",),
    Ternary: ("ternary", "optional"),
    Range: ("range",),
    Optional_: ("optional", "ternary"),
}


def pack_match(layout: TableLayout, match: Sequence[Match], priority: int) -> tuple[int, int]:
    """Check a match against the table's key and lay it out; return it with the rank among entries.

    The match is one number whose 64-bit digits are the words of key, mask, low and high ends of ranges.
    """
    name = layout.table.info.name
    if len(match) != len(layout.parts):
        raise TableError(f"table {name} has {len(layout.parts)} key fields, the entry has {len(match)}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise TableError(f"table {name}: priority {priority} is not within 0 and {MAX_PRIORITY}")
    key = mask = lows = highs = 0
    rank = priority if layout.priorities else 0
    for part, value in zip(layout.parts, match, strict=True):
        field = part.field
        if isinstance(value, Exact) and field.kind == "exact":  # first, because most are
            bits, care = value.value, part.mask
            if not 0 <= bits <= part.greatest:
                raise _too_great(f"table {name}", field, bits)
        elif field.kind not in _KINDS[type(value)]:
            raise TableError(f"table {name}: {field.name} is an {field.kind} field, the entry gives {value}")
        elif isinstance(value, Range):
            low, high = ends(f"table {name}", field, value)
            lows |= low << part.bit
            highs |= high << part.bit
            continue
        else:
            bits, care = ternary(f"table {name}", field, value)
            care &= part.mask
            if isinstance(value, Lpm) and not layout.priorities:
                rank = value.prefix_len  # the longest prefix wins
        key |= (bits & care) << part.bit
        mask |= care << part.bit
    size, ranges = WORD_BITS * layout.key_words, WORD_BITS * layout.range_words
    return key | (mask | (lows | highs << ranges) << size) << size, rank


def ends(owner: str, field: KeyField, value: Range) -> tuple[int, int]:
    """Return the low and high end of a range of `owner`; TableError if the range is not valid."""
    low, high = _checked(owner, field, value.low), _checked(owner, field, value.high)
    if low > high:
        raise TableError(f"{owner}: the range {low}..{high} of {field.name} is empty")
    return low, high


def ternary(owner: str, field: KeyField, value: Exact | Lpm | Ternary | Optional_) -> tuple[int, int]:
    """Return value and mask of a match other than a range; TableError if they do not fit `owner`'s field."""
    full = ones(field.width)
    match value:
        case Exact(wanted):
            return _checked(owner, field, wanted), full
        case Lpm(wanted, length):
            if not 0 <= length <= field.width:
                raise TableError(
                    f"{owner}: {field.name} is {field.width} bits, its prefix length is {length}"
                )
            return _checked(owner, field, wanted), full >> length ^ full
        case Ternary(wanted, mask):
            return _checked(owner, field, wanted), _checked(owner, field, mask)
        case Optional_(wanted):
            return (0, 0) if wanted is None else (_checked(owner, field, wanted), full)


def _checked(owner: str, field: KeyField, value: int) -> int:
    if not 0 <= value <= ones(field.width):
        raise _too_great(owner, field, value)
    return value


def _too_great(owner: str, field: KeyField, value: int) -> TableError:
    return TableError(f"{owner}: {value} does not fit the {field.width} bits of {field.name}")


def pack_params(action: ActionInfo, params: Sequence[int]) -> int:
    """Check arguments against an action's parameters and lay them out, as one number of 64-bit digits."""
    if len(params) != len(action.params):
        raise TableError(
            f"action {action.name} has {len(action.params)} parameters, {len(params)} were given"
        )
    result = shift = 0
    for param, value in zip(action.params, params, strict=True):
        if value < 0 or value >> param.width:
            raise TableError(
                f"action {action.name}: {value} does not fit the {param.width} bits of {param.name}"
            )
        result |= value << shift
        shift += WORD_BITS * words(param.width)
    return result


def to_bytes(number: int, count: int) -> bytes:
    """Return the 64-bit digits of a number as `count` words, least first; at least one, for its address."""
    return number.to_bytes(8 * max(1, count), "little")


def actions_by_name(layout: TableLayout, actions: Mapping[int, ActionInfo]) -> dict[str, ActionInfo]:
    """Return the actions of a table, its default action included."""
    default = layout.table.default_action_id
    numbers = [*([] if default is None else [default]), *reversed(layout.table.action_ids)]
    return {actions[number].name: actions[number] for number in numbers}
