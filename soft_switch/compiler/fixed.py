"""Tables whose entries come with the program (`const entries`): comparisons in place of a lookup.

The JSON does not say whether they may change, and the data plane lets them. So the compiled program asks its
table whether they are still those that it came with, and looks up what it holds where they are not.
"""

from __future__ import annotations

from collections.abc import Mapping

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.compiler.bounds import WORD_BITS, WORD_MASK
from soft_switch.compiler.tables import FixedEntry, TableLayout
from soft_switch.entries import pack_match, pack_params
from soft_switch.errors import ProgramError, TableError

MOST = 64  # entries to try one after the other; a lookup finds one of many faster


def fixed_entries(program: Bmv2Program, layouts: Mapping[str, TableLayout]) -> dict[str, list[FixedEntry]]:
    """Return the entries of each such table, the one that wins first."""
    try:
        return {name: _entries(program, layout) for name, layout in layouts.items() if _is_fixed(layout)}
    except TableError as error:
        raise ProgramError(f"the program's own entries do not fit: {error}") from error


def _is_fixed(layout: TableLayout) -> bool:
    """Tell whether the key alone decides, and nothing is kept for each entry."""
    table, info = layout.table, layout.table.info
    kept = info.has_direct_counter or info.has_idle_timeout or table.direct_meter is not None
    return 0 < len(info.entries) <= MOST and not (kept or layout.ranges or layout.profile is not None)


def _entries(program: Bmv2Program, layout: TableLayout) -> list[FixedEntry]:
    ranked: list[tuple[int, FixedEntry]] = []
    for entry, action_id in zip(layout.table.info.entries, layout.table.entry_action_ids, strict=True):
        packed, rank = pack_match(layout, entry.match, entry.priority)
        params = pack_params(program.actions[action_id].info, entry.call.params)
        key, mask = (
            _words(packed, layout.key_words),
            _words(packed >> WORD_BITS * layout.key_words, layout.key_words),
        )
        made = FixedEntry(key, mask, action_id, _words(params, layout.param_words))
        ranked.append((rank, made))
    # Among equals the first wins, as in the table; sorting keeps their order.
    return [entry for _, entry in sorted(ranked, key=lambda item: -item[0])]


def _words(number: int, count: int) -> tuple[int, ...]:
    return tuple(number >> WORD_BITS * i & WORD_MASK for i in range(count))


__all__ = ["MOST", "fixed_entries"]
