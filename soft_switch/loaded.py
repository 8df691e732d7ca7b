"""A compiled program in memory: its library, its state, its tables' entries."""

from __future__ import annotations

from collections.abc import Sequence

from soft_switch import native_api as api
from soft_switch.build import build_program
from soft_switch.compiler import CompiledProgram
from soft_switch.compiler.tables import TableLayout
from soft_switch.description import ActionInfo, Match
from soft_switch.entries import pack_key, pack_params
from soft_switch.errors import DuplicateEntry, ProgramError, TableError, TableFull


class LoadedProgram:
    """A compiled program and its state in native memory."""

    def __init__(self, compiled: CompiledProgram, host: int) -> None:
        self.compiled = compiled
        self.library = api.program_library(build_program(compiled.source))
        self.actions = {action.info.id: action.info for action in compiled.program.actions.values()}
        self.state = self.library.p4_create(host)
        if not self.state:
            raise ProgramError("there is not enough memory for the program's registers and counters")
        try:
            for layout in compiled.tables.values():
                self._fill(layout)
        except TableError as error:
            self.destroy()
            raise ProgramError(f"the program's own entries do not fit: {error}") from error

    def _fill(self, layout: TableLayout) -> None:
        self.restore_default(layout)
        info = layout.table.info
        for entry, action_id in zip(info.entries, layout.table.entry_action_ids, strict=True):
            self.insert(layout, entry.match, entry.priority, self.actions[action_id], entry.call.params)

    def restore_default(self, layout: TableLayout) -> None:
        """The program's own default action."""
        number, default = layout.table.default_action_id, layout.table.info.default
        if number is None or default is None:
            params, number = [0] * layout.param_words, -1
        else:
            params = pack_params(layout, self.actions[number], default.params)
        self.library.p4_set_default(self.state, layout.index, number, api.to_words(params))

    def insert(
        self,
        layout: TableLayout,
        match: Sequence[Match],
        priority: int,
        action: ActionInfo,
        params: Sequence[int],
    ) -> int:
        """Insert an entry; its handle."""
        key = pack_key(layout, match, priority)
        handle: int = self.library.p4_insert(
            self.state,
            layout.index,
            api.to_words(key.key),
            api.to_words(key.mask),
            api.to_words(key.ranges),
            key.priority,
            action.id,
            api.to_words(pack_params(layout, action, params)),
        )
        info = layout.table.info
        if handle == api.TABLE_UNKNOWN:
            raise TableError(f"table {info.name} has no key, and its default action is constant: no entries")
        if handle == api.TABLE_FULL:
            raise TableFull(f"table {info.name} is full: it holds {info.size} entries")
        if handle == api.TABLE_DUPLICATE:
            raise DuplicateEntry(f"table {info.name} has an entry with this match already")
        return handle

    def destroy(self) -> None:
        """Give the memory back."""
        if self.state:
            self.library.p4_destroy(self.state)
        self.state = None
