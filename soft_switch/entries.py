"""Entries as the words that a compiled table takes (see `soft_switch.compiler.tables`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from soft_switch.compiler.bounds import WORD_BITS, ones, words
from soft_switch.compiler.tables import KeyPart, TableLayout
from soft_switch.description import ActionInfo, Exact, KeyField, Lpm, Match, Optional_, Range, Ternary
from soft_switch.errors import TableError

MAX_PRIORITY = (1 << 31) - 1


def pack_match(layout: TableLayout, match: Sequence[Match], priority: int) -> tuple[int, int]:
    """Check a match against the table's key and lay it out; with the rank that decides between entries.

    As one number whose 64-bit digits are the words of key, mask, low and high ends of ranges.
    """
    name = layout.table.info.name
    if len(match) != len(layout.parts):
        raise TableError(f"table {name} has {len(layout.parts)} key fields, the entry has {len(match)}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise TableError(f"table {name}: priority {priority} is not within 0 and {MAX_PRIORITY}")
    key = mask = lows = highs = 0
    rank = priority if layout.priorities else 0
    for part, value in zip(layout.parts, match, strict=True):
        if isinstance(value, Exact) and part.field.kind == "exact":  # first, because most are
            bits, care = value.value, part.mask
            if not 0 <= bits <= part.greatest:
                raise _too_great(name, part.field, bits)
            bits &= care
        elif isinstance(value, Range):
            _check_kind(name, part.field, "range")
            low, high = _checked(name, part.field, value.low), _checked(name, part.field, value.high)
            if low > high:
                raise TableError(f"table {name}: the range {low}..{high} of {part.field.name} is empty")
            lows |= low << part.bit
            highs |= high << part.bit
            continue
        elif part.is_range:
            raise _wrong_kind(name, part.field, value)
        else:
            bits, care = _ternary(name, part, value)
            if isinstance(value, Lpm) and not layout.priorities:
                rank = value.prefix_len  # the longest prefix wins
        key |= bits << part.bit
        mask |= care << part.bit
    size, ranges = WORD_BITS * layout.key_words, WORD_BITS * layout.range_words
    return key | (mask | (lows | highs << ranges) << size) << size, rank


def _ternary(table: str, part: KeyPart, value: Match) -> tuple[int, int]:
    """Value and mask of a key field."""
    field, full = part.field, ones(part.field.width)
    match value:
        case Exact(wanted):
            _check_kind(table, field, "exact")
            bits, care = wanted, full
        case Lpm(wanted, length):
            _check_kind(table, field, "lpm")
            if not 0 <= length <= field.width:
                raise TableError(
                    f"table {table}: {field.name} is {field.width} bits, its prefix length is {length}"
                )
            bits, care = wanted, full >> length ^ full
        case Ternary(wanted, mask):
            _check_kind(table, field, "ternary", "optional")
            bits, care = wanted, _checked(table, field, mask)
        case Optional_(wanted):
            _check_kind(table, field, "optional", "ternary")  # p4c writes optional keys as ternary
            bits, care = (0, 0) if wanted is None else (wanted, full)
        case _:
            raise _wrong_kind(table, field, value)
    care &= part.mask
    return _checked(table, field, bits) & care, care


def _check_kind(table: str, field: KeyField, *kinds: str) -> None:
    if field.kind not in kinds:
        raise TableError(f"table {table}: {field.name} is an {field.kind} field, the entry gives {kinds[0]}")


def _wrong_kind(table: str, field: KeyField, value: Match) -> TableError:
    return TableError(f"table {table}: {field.name} is an {field.kind} field, the entry gives {value}")


def _checked(table: str, field: KeyField, value: int) -> int:
    if not 0 <= value <= ones(field.width):
        raise _too_great(table, field, value)
    return value


def _too_great(table: str, field: KeyField, value: int) -> TableError:
    return TableError(f"table {table}: {value} does not fit the {field.width} bits of {field.name}")


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
    """The 64-bit digits of a number as `count` words, least first; there is at least one, for its address."""
    return number.to_bytes(8 * max(1, count), "little")


def actions_by_name(layout: TableLayout, actions: Mapping[int, ActionInfo]) -> dict[str, ActionInfo]:
    """The actions of a table, its default action included."""
    default = layout.table.default_action_id
    numbers = [*([] if default is None else [default]), *reversed(layout.table.action_ids)]
    return {actions[number].name: actions[number] for number in numbers}
