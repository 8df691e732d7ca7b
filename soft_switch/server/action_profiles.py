"""Action profiles: `ActionProfileMember`, `ActionProfileGroup` and one-shot `ActionProfileActionSet`.

Where an action profile has a selector, a hash over the packet chooses one member of a group: the nth in the
order of the handles that the data plane gave out. A member with weight w is in a group with w handles, and
handles are asked for in the order in which simple_switch_grpc does it (PI, proto/frontend/src/
action_prof_mgr.cpp): so both choose the same member for the same packet. A member whose watch port is down
is left out of its groups; an entry whose group is empty does nothing to its packets.

Source: P4Runtime specification, sections "ActionProfileMember & ActionProfileGroup" and "One Shot Action
Selector Programming".
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Union

from finsy.proto import p4r

from soft_switch.dataplane import DataPlane
from soft_switch.description import ActionCall, Group, Member, Target
from soft_switch.server.actions import format_action, parse_action
from soft_switch.server.errors import already_exists, exhausted, invalid, not_found, unimplemented
from soft_switch.server.group_rules import (
    Weighted,
    check_copies,
    check_max_size,
    check_weights,
    in_use,
    mixed,
    watched_port,
)
from soft_switch.server.schema import ActionProfile, Schema, Table


@dataclass(frozen=True)
class ToMember:
    """An entry's action is that of a member."""

    member_id: int


@dataclass(frozen=True)
class ToGroup:
    """An entry's action is that of one of a group's members."""

    group_id: int


@dataclass
class OneShot:
    """An entry has a group of its own; handles are known while the entry is there."""

    message: p4r.ActionProfileActionSet
    calls: tuple[ActionCall, ...]
    group: int = -1
    members: list[int] = field(default_factory=list)


PORT_CHECK_NS = 100_000_000  # how often watched ports are looked at

Choice = Union[ToMember, ToGroup, OneShot]  # noqa: UP007  (evaluated at run time)


@dataclass
class MemberState:
    """A member: its action, its handles (several where it has weight) and how often it is referred to."""

    call: ActionCall
    handles: list[int]
    weights: dict[int, int] = field(default_factory=dict)  # by group id
    entries: int = 0


@dataclass
class GroupState:
    """A group: its handle, what its members are, and how many entries refer to it."""

    handle: int
    max_size: int
    members: tuple[p4r.ActionProfileGroup.Member, ...] = ()
    entries: int = 0


@dataclass
class ProfileState:
    """One action profile as it is now; one shots by the handle of their group."""

    profile: ActionProfile
    members: dict[int, MemberState] = field(default_factory=dict)
    groups: dict[int, GroupState] = field(default_factory=dict)
    one_shots: dict[int, OneShot] = field(default_factory=dict)


class ActionProfiles:
    """The action profiles of one pipeline on one data plane: what members, groups and entries refer to."""

    def __init__(
        self, schema: Schema, plane: DataPlane, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._schema = schema
        self._plane = plane
        self._clock = clock
        self._looked = 0  # at the ports, last
        self._states = {profile.id: ProfileState(profile) for profile in schema.action_profiles.values()}
        self._up: dict[int, bool] = {}  # ports that are watched
        self._watchers: Counter[int] = Counter()  # groups and one shots, by the ports they watch

    def state(self, profile_id: int) -> ProfileState:
        """Return the action profile with this id, INVALID_ARGUMENT if the P4Info has none."""
        return self._schema.lookup("action profile", self._states, profile_id)

    def select(self, profile_id: int) -> list[ProfileState]:
        """Return the profiles that a read is about: one, or all for id 0."""
        return self._schema.select("action profile", self._states, profile_id)

    # What entries refer to

    def parse(self, table: Table, message: p4r.TableAction) -> Choice:
        """Read what an entry of an indirect table is to do."""
        state = self._states[table.profile_id]
        kind, name = message.WhichOneof("type"), table.name
        if kind == "action_profile_member_id":
            self._check_manual(state)
            self._member(state, message.action_profile_member_id)
            return ToMember(message.action_profile_member_id)
        if kind not in ("action_profile_group_id", "action_profile_action_set"):
            raise invalid(f"table {name} has an action profile: it takes members or groups, not {kind}")
        if not state.profile.selector:
            raise invalid(f"table {name}: its action profile has no selector, so it takes members only")
        if kind == "action_profile_group_id":
            self._check_manual(state)
            self._group(state, message.action_profile_group_id)
            return ToGroup(message.action_profile_group_id)
        return self._parse_one_shot(state, table, message.action_profile_action_set)

    def _parse_one_shot(
        self, state: ProfileState, table: Table, message: p4r.ActionProfileActionSet
    ) -> OneShot:
        if state.members or state.groups:
            raise mixed(state.profile)
        profile, what = state.profile, f"table {table.name}"
        if message.action_selection_mode:
            raise unimplemented(f"{what}: the selection mode of a one shot is the action selector's")
        semantics = p4r.ActionProfileActionSet.SizeSemantics
        own = semantics.SUM_OF_MEMBERS if profile.sum_of_members else semantics.SUM_OF_WEIGHTS
        if message.size_semantics not in (0, own):
            raise unimplemented(f"{what}: the size semantics of a one shot are the action selector's")
        actions = message.action_profile_actions
        calls = tuple(parse_action(self._schema, what, table.actions, action.action) for action in actions)
        size = check_weights(profile, what, actions)
        if profile.max_group_size and size > profile.max_group_size:
            raise invalid(
                f"{what}: a group of {size} is greater than max_group_size {profile.max_group_size}"
            )
        check_copies(profile, actions)
        for action in actions:
            self._check_port(what, action)
        kept = p4r.ActionProfileActionSet()
        kept.CopyFrom(message)
        for action, call in zip(kept.action_profile_actions, calls, strict=True):
            action.action.CopyFrom(format_action(self._schema, call))
        return OneShot(kept, calls)

    def acquire(self, table: Table, choice: Choice) -> Target:
        """Count a new reference of an entry; return its target."""
        state = self._states[table.profile_id]
        if isinstance(choice, ToMember):
            member = self._member(state, choice.member_id)
            member.entries += 1
            return Member(member.handles[0])
        if isinstance(choice, ToGroup):
            group = self._group(state, choice.group_id)
            group.entries += 1
            return Group(group.handle)
        name = state.profile.name
        for action, call in zip(choice.message.action_profile_actions, choice.calls, strict=True):
            for _ in range(max(1, action.weight)):
                choice.members.append(self._insert_member(name, call))
        choice.group = self._plane.profile_group_insert(name, [])
        state.one_shots[choice.group] = choice
        self._watch(choice.message.action_profile_actions)
        self._fill_one_shot(name, choice)
        return Group(choice.group)

    def release(self, table: Table, choice: Choice) -> None:
        """Give up an entry's reference."""
        state = self._states[table.profile_id]
        if isinstance(choice, ToMember):
            state.members[choice.member_id].entries -= 1
        elif isinstance(choice, ToGroup):
            state.groups[choice.group_id].entries -= 1
        else:
            name = state.profile.name
            self._plane.profile_group_delete(name, choice.group)
            del state.one_shots[choice.group]
            self._unwatch(choice.message.action_profile_actions)
            for handle in choice.members:
                self._plane.profile_member_delete(name, handle)
            choice.members.clear()

    def format(self, choice: Choice) -> p4r.TableAction:
        """Return the message that was written."""
        if isinstance(choice, ToMember):
            return p4r.TableAction(action_profile_member_id=choice.member_id)
        if isinstance(choice, ToGroup):
            return p4r.TableAction(action_profile_group_id=choice.group_id)
        return p4r.TableAction(action_profile_action_set=choice.message)

    # Members

    def insert_member(self, message: p4r.ActionProfileMember) -> None:
        """Add a member."""
        state = self.state(message.action_profile_id)
        self._check_manual(state)
        profile, number = state.profile, message.member_id
        if number == 0:
            raise invalid(f"action profile {profile.name}: the member id is missing (0)")
        call = self._parse_member_action(profile, message)
        if number in state.members:
            raise already_exists(f"action profile {profile.name} has a member {number} already")
        if profile.size and len(state.members) >= profile.size:
            raise exhausted(f"action profile {profile.name} is full: it holds {profile.size} members")
        state.members[number] = MemberState(call, [self._insert_member(profile.name, call)])

    def modify_member(self, message: p4r.ActionProfileMember) -> None:
        """Give a member another action, in all of its groups."""
        state = self.state(message.action_profile_id)
        member = self._member(state, message.member_id)
        call = self._parse_member_action(state.profile, message)
        for handle in member.handles:
            self._plane.profile_member_modify(state.profile.name, handle, call.action, call.params)
        member.call = call

    def delete_member(self, message: p4r.ActionProfileMember) -> None:
        """Delete a member that nothing refers to."""
        state = self.state(message.action_profile_id)
        member = self._member(state, message.member_id)
        if member.weights:
            raise in_use(state.profile, f"member {message.member_id}", f"group {min(member.weights)} has it")
        if member.entries:
            raise in_use(state.profile, f"member {message.member_id}", "a table entry refers to it")
        for handle in member.handles:
            self._plane.profile_member_delete(state.profile.name, handle)
        del state.members[message.member_id]

    def _parse_member_action(self, profile: ActionProfile, message: p4r.ActionProfileMember) -> ActionCall:
        if not message.HasField("action"):
            raise invalid(f"action profile {profile.name}: a member needs an action")
        return parse_action(self._schema, f"action profile {profile.name}", profile.actions, message.action)

    def _insert_member(self, profile: str, call: ActionCall) -> int:
        return self._plane.profile_member_insert(profile, call.action, call.params)

    # Groups

    def insert_group(self, message: p4r.ActionProfileGroup) -> None:
        """Add a group."""
        state = self._selector(message)
        self._check_manual(state)
        profile, number = state.profile, message.group_id
        if number == 0:
            raise invalid(f"action profile {profile.name}: the group id is missing (0)")
        if number in state.groups:
            raise already_exists(f"action profile {profile.name} has a group {number} already")
        check_max_size(profile, message.max_size)
        self._check_group(state, message, message.max_size)
        handle = self._plane.profile_group_insert(profile.name, [])
        state.groups[number] = GroupState(handle, message.max_size)
        self._set_group(state, number, message.members)

    def modify_group(self, message: p4r.ActionProfileGroup) -> None:
        """Give a group other members."""
        state = self._selector(message)
        group = self._group(state, message.group_id)
        # As in simple_switch_grpc, clients that leave max_size out of a MODIFY are not refused.
        if message.max_size not in (0, group.max_size):
            raise invalid(
                f"group {message.group_id} was inserted with max_size {group.max_size}: it cannot be changed"
            )
        self._check_group(state, message, group.max_size)
        self._set_group(state, message.group_id, message.members)

    def delete_group(self, message: p4r.ActionProfileGroup) -> None:
        """Delete a group that no entry refers to."""
        state = self._selector(message)
        group = self._group(state, message.group_id)
        if group.entries:
            raise in_use(state.profile, f"group {message.group_id}", "a table entry refers to it")
        self._set_group(state, message.group_id, ())
        self._plane.profile_group_delete(state.profile.name, group.handle)
        del state.groups[message.group_id]

    def _selector(self, message: p4r.ActionProfileGroup) -> ProfileState:
        state = self.state(message.action_profile_id)
        if not state.profile.selector:
            raise invalid(f"action profile {state.profile.name} has no selector: there are no groups")
        return state

    def _check_group(self, state: ProfileState, message: p4r.ActionProfileGroup, max_size: int) -> None:
        profile, what = state.profile, f"group {message.group_id}"
        seen = set()
        for member in message.members:
            self._member(state, member.member_id)
            if member.member_id in seen:
                raise invalid(f"{what}: member {member.member_id} is given twice, give it a weight instead")
            seen.add(member.member_id)
            self._check_port(what, member)
        size, limit = check_weights(profile, what, message.members), max_size or profile.max_group_size
        if limit and size > limit:
            raise exhausted(f"{what}: a size of {size} is greater than the greatest size, {limit}")
        check_copies(profile, message.members)

    def _set_group(
        self, state: ProfileState, number: int, members: Sequence[p4r.ActionProfileGroup.Member]
    ) -> None:
        """Put valid members into a group, with as many handles as they weigh."""
        group, name = state.groups[number], state.profile.name
        wanted = {member.member_id: max(1, member.weight) for member in members}
        concerned = sorted(wanted.keys() | {member.member_id for member in group.members})
        for member_id in concerned:
            member = state.members[member_id]
            while len(member.handles) < wanted.get(member_id, 0):
                member.handles.append(self._insert_member(name, member.call))
        for member_id in concerned:
            if member_id in wanted:
                state.members[member_id].weights[number] = wanted[member_id]
            else:
                state.members[member_id].weights.pop(number, None)
        kept = []
        for message in members:
            kept.append(p4r.ActionProfileGroup.Member())
            kept[-1].CopyFrom(message)
        before, group.members = group.members, tuple(kept)
        self._watch(members)
        self._unwatch(before)
        self._fill_group(state, group)
        for member_id in concerned:
            member = state.members[member_id]
            while len(member.handles) > max([1, *member.weights.values()]):
                self._plane.profile_member_delete(name, member.handles.pop())

    # Watch ports

    def deadline(self) -> int | None:
        """Return when to look at the watched ports again, None: there are none."""
        return self._looked + PORT_CHECK_NS if self._up else None

    def check_ports(self, now: int) -> None:
        """Look at the watched ports if it is time, and leave out the members whose port is down."""
        if self._up and now >= self._looked + PORT_CHECK_NS:
            self._look(now)

    def _look(self, now: int) -> None:
        self._looked = now
        is_up = self._plane.port_is_up
        changed = {port for port, up in self._up.items() if bool(is_up(port)) != up}
        if not changed:
            return
        for port in changed:
            self._up[port] = not self._up[port]
        for state in self._states.values():
            for group in state.groups.values():
                if self._watched(group.members) & changed:
                    self._fill_group(state, group)
            for one_shot in state.one_shots.values():
                if self._watched(one_shot.message.action_profile_actions) & changed:
                    self._fill_one_shot(state.profile.name, one_shot)

    def _watch(self, members: Iterable[Weighted]) -> None:
        ports = self._watched(members)
        self._watchers.update(ports)
        for port in ports - self._up.keys():
            self._up[port] = bool(self._plane.port_is_up(port))
        self._look(self._clock())

    def _unwatch(self, members: Iterable[Weighted]) -> None:
        for port in self._watched(members):
            self._watchers[port] -= 1
            if not self._watchers[port]:
                del self._watchers[port], self._up[port]

    def _check_port(self, what: str, member: Weighted) -> None:
        port = watched_port(self._schema, member)
        if port is not None and self._plane.port_is_up(port) is None:
            raise invalid(f"{what}: its watch port {port} is not there")

    def _watched(self, members: Iterable[Weighted]) -> set[int]:
        ports = {watched_port(self._schema, member) for member in members}
        return {port for port in ports if port is not None}

    def _is_up(self, member: Weighted) -> bool:
        port = watched_port(self._schema, member)
        return port is None or self._up[port]

    def _fill_group(self, state: ProfileState, group: GroupState) -> None:
        handles: list[int] = []
        for member in group.members:
            if self._is_up(member):
                handles += state.members[member.member_id].handles[: max(1, member.weight)]
        self._plane.profile_group_modify(state.profile.name, group.handle, handles)

    def _fill_one_shot(self, profile: str, one_shot: OneShot) -> None:
        handles: list[int] = []
        at = 0
        for action in one_shot.message.action_profile_actions:
            weight = max(1, action.weight)
            if self._is_up(action):
                handles += one_shot.members[at : at + weight]
            at += weight
        self._plane.profile_group_modify(profile, one_shot.group, handles)

    # Looking up

    def _member(self, state: ProfileState, number: int) -> MemberState:
        member = state.members.get(number)
        if member is None:
            raise not_found(f"action profile {state.profile.name} has no member {number}")
        return member

    def _group(self, state: ProfileState, number: int) -> GroupState:
        group = state.groups.get(number)
        if group is None:
            raise not_found(f"action profile {state.profile.name} has no group {number}")
        return group

    def _check_manual(self, state: ProfileState) -> None:
        if state.one_shots:
            raise mixed(state.profile)

    def format_action(self, call: ActionCall) -> p4r.Action:
        """Return the canonical message of an action."""
        return format_action(self._schema, call)
