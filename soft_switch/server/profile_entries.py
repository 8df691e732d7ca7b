"""The entities `ActionProfileMember` and `ActionProfileGroup`: their updates and reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from finsy.proto import p4r

from soft_switch.server.action_profiles import ActionProfiles
from soft_switch.server.operation import Operation

T = TypeVar("T")


class Members:
    """Handler of `ActionProfileMember`."""

    def __init__(self, profiles: ActionProfiles) -> None:
        self._profiles = profiles

    def write(self, operation: Operation, message: p4r.ActionProfileMember) -> None:
        """Apply one update."""
        if operation == Operation.INSERT:
            self._profiles.insert_member(message)
        elif operation == Operation.MODIFY:
            self._profiles.modify_member(message)
        else:
            self._profiles.delete_member(message)

    def read(self, request: p4r.ActionProfileMember) -> Iterator[p4r.Entity]:
        """Read the members that a request selects; an id of 0 selects everything."""
        for state in self._profiles.select(request.action_profile_id):
            for number, member in _selected(state.members, request.member_id):
                yield p4r.Entity(
                    action_profile_member=p4r.ActionProfileMember(
                        action_profile_id=state.profile.id,
                        member_id=number,
                        action=self._profiles.format_action(member.call),
                    )
                )


class Groups:
    """Handler of `ActionProfileGroup`."""

    def __init__(self, profiles: ActionProfiles) -> None:
        self._profiles = profiles

    def write(self, operation: Operation, message: p4r.ActionProfileGroup) -> None:
        """Apply one update."""
        if operation == Operation.INSERT:
            self._profiles.insert_group(message)
        elif operation == Operation.MODIFY:
            self._profiles.modify_group(message)
        else:
            self._profiles.delete_group(message)

    def read(self, request: p4r.ActionProfileGroup) -> Iterator[p4r.Entity]:
        """Read the groups that a request selects; an id of 0 selects everything."""
        for state in self._profiles.select(request.action_profile_id):
            for number, group in _selected(state.groups, request.group_id):
                yield p4r.Entity(
                    action_profile_group=p4r.ActionProfileGroup(
                        action_profile_id=state.profile.id,
                        group_id=number,
                        members=group.members,
                        max_size=group.max_size,
                    )
                )


def _selected(items: Mapping[int, T], number: int) -> Iterable[tuple[int, T]]:
    if number == 0:
        return items.items()
    return [(number, items[number])] if number in items else []
