"""A compiled program in memory: its library, its state, its tables' entries, its action profiles' members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from soft_switch import native_api as api
from soft_switch.compiler import CompiledProgram
from soft_switch.compiler.tables import ProfileLayout, TableLayout
from soft_switch.description import ActionInfo, Match, Member, Target
from soft_switch.entries import actions_by_name, pack_match, pack_params, to_bytes
from soft_switch.errors import DuplicateEntry, EntryInUse, ProgramError, TableError, TableFull, UnknownEntry


class LoadedProgram:
    """A compiled program and its state in native memory."""

    def __init__(self, compiled: CompiledProgram, library: Path, host: int) -> None:
        self.compiled = compiled
        self.library = api.program_library(library)
        self.actions = {action.info.id: action.info for action in compiled.program.actions.values()}
        self._by_name = {
            layout.index: actions_by_name(layout, self.actions) for layout in compiled.tables.values()
        }
        self.state = self.library.p4_create(host)
        if not self.state:
            raise ProgramError("there is not enough memory for the program's registers and counters")
        self.profiles = Profiles(self)
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
            if layout.profile is not None:
                raise TableError(f"table {info.name} has an action profile, which can have none")
            params = pack_params(self.actions[action_id], entry.call.params)
            self._insert(layout, entry.match, entry.priority, action_id, params)

    def restore_default(self, layout: TableLayout) -> None:
        """Restore the program's own default action."""
        number, default = layout.table.default_action_id, layout.table.info.default
        if number is None or default is None:
            params, number = 0, -1
        else:
            params = pack_params(self.actions[number], default.params)
        self.library.p4_set_default(self.state, layout.index, number, to_bytes(params, layout.param_words))

    def set_default(self, layout: TableLayout, action: str, params: Sequence[int]) -> None:
        """Set another default action."""
        if layout.profile is not None:
            name = layout.table.info.name
            raise TableError(f"table {name} has an action profile: its default action cannot change")
        info = self._action(layout, action)
        packed = to_bytes(pack_params(info, params), layout.param_words)
        self.library.p4_set_default(self.state, layout.index, info.id, packed)

    # Entries

    def insert(
        self,
        layout: TableLayout,
        match: Sequence[Match],
        priority: int,
        action: str | None,
        params: Sequence[int],
        target: Target | None,
    ) -> int:
        """Insert an entry; return its handle."""
        return self._insert(layout, match, priority, *self._work(layout, action, params, target))

    def _insert(
        self, layout: TableLayout, match: Sequence[Match], priority: int, action_id: int, params: int
    ) -> int:
        packed, rank = pack_match(layout, match, priority)
        key_words = 2 * (layout.key_words + layout.range_words)
        entry = to_bytes(packed | params << 64 * key_words, key_words + layout.param_words)
        handle: int = self.library.p4_insert(self.state, layout.index, entry, rank, action_id)
        if handle < 0:
            info = layout.table.info
            if handle == api.TABLE_FULL:
                raise TableFull(f"table {info.name} is full: it holds {info.size} entries")
            if handle == api.TABLE_DUPLICATE:
                raise DuplicateEntry(f"table {info.name} has an entry with this match already")
            if handle == api.TABLE_UNKNOWN:
                raise TableError(f"table {info.name} has no key and a constant default action: no entries")
            raise self._no_target(layout)
        return handle

    def modify(
        self,
        layout: TableLayout,
        handle: int,
        action: str | None,
        params: Sequence[int],
        target: Target | None,
    ) -> None:
        """Give an entry another action or target."""
        action_id, packed = self._work(layout, action, params, target)
        words = to_bytes(packed, layout.param_words)
        status = self.library.p4_modify(self.state, layout.index, handle, action_id, words)
        if status == api.TABLE_NO_TARGET:
            raise self._no_target(layout)
        if status < 0:
            raise UnknownEntry(f"table {layout.table.info.name} has no entry {handle}")

    def _work(
        self, layout: TableLayout, action: str | None, params: Sequence[int], target: Target | None
    ) -> tuple[int, int]:
        """Return an entry's action number and packed arguments, or those that stand for its target."""
        name = layout.table.info.name
        if layout.profile is None:
            if target is not None or action is None:
                raise TableError(f"table {name} has no action profile: its entries have an action")
            info = self._action(layout, action)
            return info.id, pack_params(info, params)
        if target is None or action is not None:
            raise TableError(f"table {name} has an action profile: its entries have a member or a group")
        if target.handle < 0:
            raise self._no_target(layout)
        if isinstance(target, Member):
            return api.TO_MEMBER, target.handle
        if not self.compiled.program.description.action_profiles[layout.table.info.profile or ""].selector:
            raise TableError(f"table {name} has an action profile without a selector: there are no groups")
        return api.TO_GROUP, target.handle

    def _action(self, layout: TableLayout, name: str) -> ActionInfo:
        info = self._by_name[layout.index].get(name)
        if info is None:
            raise UnknownEntry(f"table {layout.table.info.name} has no action {name}")
        return info

    @staticmethod
    def _no_target(layout: TableLayout) -> UnknownEntry:
        return UnknownEntry(f"action profile {layout.table.info.profile} has no such member or group")

    def idle_ns(self, layout: TableLayout, handle: int) -> int:
        """Return nanoseconds since an entry was hit."""
        name = layout.table.info.name
        if not layout.table.info.has_idle_timeout:
            raise TableError(f"table {name} keeps no times: the program does not set its support_timeout")
        idle_us: int = self.library.p4_idle_us(self.state, layout.index, handle)
        if idle_us < 0:
            raise UnknownEntry(f"table {name} has no entry {handle}")
        return 1000 * idle_us

    def destroy(self) -> None:
        """Give the memory back."""
        if self.state:
            self.library.p4_destroy(self.state)
        self.state = None


class Profiles:
    """The members and groups of a loaded program's action profiles."""

    def __init__(self, loaded: LoadedProgram) -> None:
        self._loaded = loaded
        self._library = loaded.library

    def set_member(self, profile: str, member: int | None, action: str, params: Sequence[int]) -> int:
        """Give a member an action (without `member`, a new one); return its handle."""
        layout = self._layout(profile)
        number = _given(layout, "member", member)
        info = self._action(layout, action)
        words = to_bytes(pack_params(info, params), layout.param_words)
        status = self._library.p4_set_member(self._loaded.state, layout.index, number, info.id, words)
        return _check(layout, "member", number, status)

    def delete_member(self, profile: str, member: int) -> None:
        """Delete a member."""
        layout = self._layout(profile)
        status = self._library.p4_delete_member(self._loaded.state, layout.index, member)
        _check(layout, "member", member, status)

    def set_group(self, profile: str, group: int | None, members: Sequence[int]) -> int:
        """Give a group members (without `group`, a new one); return its handle."""
        layout = self._layout(profile)
        number = _given(layout, "group", group)
        if not layout.info.selector:
            raise TableError(f"action profile {profile} has no selector: there are no groups")
        if len(set(members)) < len(members):
            raise TableError(f"action profile {profile}: a member is in the group twice")
        if any(member < 0 for member in members):
            raise UnknownEntry(f"action profile {profile}: members have handles from 0 on")
        words = api.to_words(list(members))
        status = self._library.p4_set_group(self._loaded.state, layout.index, number, words, len(members))
        return _check(layout, "group", number, status)

    def delete_group(self, profile: str, group: int) -> None:
        """Delete a group."""
        layout = self._layout(profile)
        status = self._library.p4_delete_group(self._loaded.state, layout.index, group)
        _check(layout, "group", group, status)

    def _layout(self, profile: str) -> ProfileLayout:
        layout = self._loaded.compiled.profiles.get(profile)
        if layout is None:
            raise UnknownEntry(f"the program has no action profile {profile}")
        return layout

    def _action(self, layout: ProfileLayout, name: str) -> ActionInfo:
        number = layout.actions.get(name)
        if number is None:
            raise UnknownEntry(f"action profile {layout.info.name} has no action {name}")
        return self._loaded.actions[number]


def _given(layout: ProfileLayout, kind: str, handle: int | None) -> int:
    """Return the handle, or -1 for a new one."""
    if handle is None:
        return -1
    return _check(layout, kind, handle, handle if handle >= 0 else api.TABLE_UNKNOWN)


def _check(layout: ProfileLayout, kind: str, handle: int, status: int) -> int:
    """Return the status if it is good; else raise its error."""
    if status == api.TABLE_UNKNOWN:
        raise UnknownEntry(f"action profile {layout.info.name} has no {kind} {handle}")
    if status == api.TABLE_NO_TARGET:
        raise UnknownEntry(f"action profile {layout.info.name} lacks a member of the group")
    if status == api.TABLE_IN_USE:
        raise EntryInUse(f"action profile {layout.info.name}: {kind} {handle} is still in use")
    return status
