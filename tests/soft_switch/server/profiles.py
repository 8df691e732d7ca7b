"""Names, packets and messages of the program `profiles.p4`."""

from __future__ import annotations

from typing import Any

from finsy.proto import p4i, p4r
from google.protobuf import text_format

from tests.soft_switch.programs import p4info

KEY = {"which": 8, "a": 32, "b": 16, "wide": 128}
RESULT = {"action_number": 8, "value": 32, "wide": 128, "after": 8}
INFO = text_format.Parse(p4info("profiles"), p4i.P4Info())
TABLES = {table.preamble.alias: table.preamble.id for table in INFO.tables}
PROFILES = {profile.preamble.alias: profile.preamble.id for profile in INFO.action_profiles}
ACTIONS = {action.preamble.alias: action.preamble.id for action in INFO.actions}


def call(name: str, *values: int) -> p4r.Action:
    params = [
        p4r.Action.Param(param_id=number, value=value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))
        for number, value in enumerate(values, 1)
    ]
    return p4r.Action(action_id=ACTIONS[name], params=params)


def member(number: int, *values: int, profile: str = "identity", name: str = "one") -> p4r.Entity:
    return p4r.Entity(
        action_profile_member=p4r.ActionProfileMember(
            action_profile_id=PROFILES[profile],
            member_id=number,
            action=call(name, *values) if values else None,
        )
    )


def group(
    number: int,
    *members: tuple[int, int] | tuple[int, int, int],
    profile: str = "identity",
    **fields: Any,
) -> p4r.Entity:
    """Return a group of (member, weight) or (member, weight, watch port)."""
    return p4r.Entity(
        action_profile_group=p4r.ActionProfileGroup(
            action_profile_id=PROFILES[profile],
            group_id=number,
            members=[
                p4r.ActionProfileGroup.Member(
                    member_id=given[0],
                    weight=given[1],
                    **({"watch_port": bytes([given[2]])} if len(given) == 3 else {}),
                )
                for given in members
            ],
            **fields,
        )
    )


def entry(table: str = "by_identity", a: int = 7, **action: Any) -> p4r.Entity:
    exact = p4r.FieldMatch.Exact(value=bytes([a]))
    return p4r.Entity(
        table_entry=p4r.TableEntry(
            table_id=TABLES[table],
            match=[p4r.FieldMatch(field_id=1, exact=exact)],
            action=p4r.TableAction(**action) if action else None,
        )
    )


def one_shot(
    *actions: tuple[p4r.Action, int] | tuple[p4r.Action, int, int], **fields: Any
) -> p4r.ActionProfileActionSet:
    return p4r.ActionProfileActionSet(
        action_profile_actions=[
            p4r.ActionProfileAction(
                action=given[0],
                weight=given[1],
                **({"watch_port": bytes([given[2]])} if len(given) == 3 else {}),
            )
            for given in actions
        ],
        **fields,
    )
