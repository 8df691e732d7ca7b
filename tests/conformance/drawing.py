"""Entries at random for any program, out of its P4Info: of few values, so that packets meet them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from finsy.proto import p4i, p4r

from soft_switch.description import KeyField
from tests.conformance.p4runtime import INSERT, MODIFY
from tests.soft_switch.fuzz.entries import ENTRIES, any_match, few_values
from tests.soft_switch.switches import field_matches, shortest

Update = tuple[p4r.Update.Type.ValueType, p4r.Entity]
MEMBERS = range(1, 6)
_KINDS = {
    p4i.MatchField.EXACT: "exact",
    p4i.MatchField.LPM: "lpm",
    p4i.MatchField.TERNARY: "ternary",
    p4i.MatchField.RANGE: "range",
    p4i.MatchField.OPTIONAL: "optional",
}
_ORDERED = {"ternary", "range", "optional"}


class Drawing:
    """Updates that make sense for a program: most are accepted.

    Left out is what docs/conformance.md says the switches differ in: tables with entries of their own, and
    translated types. Entries of a table have a priority each, as none says which of two equal ones wins.
    """

    def __init__(self, info: p4i.P4Info, chance: random.Random) -> None:
        self._info = info
        self._chance = chance
        self._actions = {action.preamble.id: action for action in info.actions}
        self._profiles = {profile.preamble.id: profile for profile in info.action_profiles}
        # A profile takes either members or one-shots.
        self._one_shot = {
            number
            for number, profile in self._profiles.items()
            if profile.with_selector and chance.random() < 0.4
        }

    def updates(self) -> Iterator[Update]:
        """Yield members and groups of action profiles, then entries and defaults of tables."""
        tables = [table for table in self._info.tables if self._is_drawn(table)]
        for profile in self._profiles.values():
            table = next((table for table in tables if table.implementation_id == profile.preamble.id), None)
            if table is not None and profile.preamble.id not in self._one_shot:
                yield from self._members(profile, table)
        for table in tables:
            priorities = self._chance.sample(range(1, 100), ENTRIES)
            for priority in priorities if table.match_fields else ():
                yield INSERT, p4r.Entity(table_entry=self._entry(table, priority))
            calls = self._calls(table, p4i.ActionRef.TABLE_ONLY)
            if calls and not table.const_default_action_id and not table.implementation_id:
                default = p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)
                default.action.action.CopyFrom(self._call(calls))
                yield MODIFY, p4r.Entity(table_entry=default)

    def _is_drawn(self, table: p4i.Table) -> bool:
        """Tell tables that take entries of which both switches have the same idea."""
        types = self._info.type_info.new_types
        actions = [self._actions[reference.id] for reference in table.action_refs]
        named = [item.type_name.name for item in table.match_fields]
        named += [param.type_name.name for action in actions for param in action.params]
        translated = any(types[name].HasField("translated_type") for name in named if name in types)
        return not (table.is_const_table or table.has_initial_entries or translated)

    def _calls(self, table: p4i.Table, without: p4i.ActionRef.Scope.ValueType) -> list[p4i.Action]:
        """List the table's actions, but for those of a scope."""
        return [self._actions[reference.id] for reference in table.action_refs if reference.scope != without]

    def _call(self, actions: Sequence[p4i.Action]) -> p4r.Action:
        action = self._chance.choice(actions)
        called = p4r.Action(action_id=action.preamble.id)
        for param in action.params:
            value = shortest(few_values(param.bitwidth, self._chance))
            called.params.add(param_id=param.id, value=value)
        return called

    def _members(self, profile: p4i.ActionProfile, table: p4i.Table) -> Iterator[Update]:
        number = profile.preamble.id
        calls = self._calls(table, p4i.ActionRef.DEFAULT_ONLY)
        for member in MEMBERS:
            made = p4r.ActionProfileMember(action_profile_id=number, member_id=member)
            made.action.CopyFrom(self._call(calls))
            yield INSERT, p4r.Entity(action_profile_member=made)
        for group in MEMBERS if profile.with_selector else ():
            chosen = self._chance.sample(MEMBERS, self._chance.randint(1, 4))  # BMv2 does not take empty ones
            of = p4r.ActionProfileGroup(action_profile_id=number, group_id=group, max_size=4)
            for member in chosen:
                of.members.add(member_id=member, weight=1)
            yield INSERT, p4r.Entity(action_profile_group=of)

    def _entry(self, table: p4i.Table, priority: int) -> p4r.TableEntry:
        keys = [
            KeyField(field.name, _KINDS[field.match_type], field.bitwidth) for field in table.match_fields
        ]
        match = [any_match(key, self._chance) for key in keys]
        entry = p4r.TableEntry(
            table_id=table.preamble.id,
            match=field_matches(table, match),
            priority=priority if any(key.kind in _ORDERED for key in keys) else 0,
        )
        calls = self._calls(table, p4i.ActionRef.DEFAULT_ONLY)
        profile = self._profiles.get(table.implementation_id)
        if profile is None:
            entry.action.action.CopyFrom(self._call(calls))
        elif profile.preamble.id in self._one_shot:
            for _ in range(self._chance.randint(1, 3)):
                action = entry.action.action_profile_action_set.action_profile_actions.add(weight=1)
                action.action.CopyFrom(self._call(calls))
        elif not profile.with_selector or self._chance.random() < 0.5:
            entry.action.action_profile_member_id = self._chance.choice(MEMBERS)
        else:
            entry.action.action_profile_group_id = self._chance.choice(MEMBERS)
        return entry
