"""Rules of a group of an action selector: weights, sizes, watch ports.

Source: P4Runtime specification, sections "Group Programming" and "One Shot Action Selector Programming".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import grpc
from finsy.proto import p4r

from soft_switch.server.errors import P4RuntimeError, exhausted, invalid
from soft_switch.server.schema import ActionProfile, Schema
from soft_switch.server.sdn_types import decode_port

MAX_COPIES = 1 << 16  # of members in one group, that is its sum of weights

Weighted = Union[p4r.ActionProfileGroup.Member, p4r.ActionProfileAction]  # noqa: UP007  (evaluated at run time)


def check_weights(profile: ActionProfile, what: str, members: Sequence[Weighted]) -> int:
    """Refuse wrong weights; return the size of the group as the selector counts it."""
    for member in members:
        if profile.weights_disallowed and member.weight:
            raise invalid(f"{what}: the weights of action selector {profile.name} are the switch's")
        if not profile.weights_disallowed and member.weight <= 0:
            raise invalid(f"{what}: a weight of {member.weight}: give 1 or more")
        if profile.sum_of_members and member.weight > (profile.max_member_weight or member.weight):
            raise invalid(f"{what}: a weight of {member.weight} is above {profile.max_member_weight}")
    return len(members) if profile.sum_of_members else sum(max(1, member.weight) for member in members)


def check_copies(profile: ActionProfile, members: Sequence[Weighted]) -> None:
    """Refuse a group that would take too many handles."""
    copies = sum(max(1, member.weight) for member in members)
    if copies > MAX_COPIES:
        raise exhausted(f"action profile {profile.name}: this switch takes groups of weight {MAX_COPIES}")


def check_max_size(profile: ActionProfile, max_size: int) -> None:
    """Refuse a bound that a new group cannot have."""
    if max_size < 0:
        raise invalid(f"a group's max_size is {max_size}: it cannot be negative")
    limit = profile.max_group_size
    # As in simple_switch_grpc, a max_size of 0 stands for the program's.
    if limit and max_size > limit:
        raise invalid(f"a group's max_size is {max_size}, greater than max_group_size {limit}")


def watched_port(schema: Schema, member: Weighted) -> int | None:
    """Return the port that a member depends on."""
    if member.WhichOneof("watch_kind") == "watch":
        return member.watch or None
    data, kind = member.watch_port, schema.port_type
    if not data:
        return None
    if kind is not None:
        return decode_port(kind, data, schema.port_width, "a watch port")
    return int.from_bytes(data, "big")


def mixed(profile: ActionProfile) -> P4RuntimeError:
    """Return the error of a selector whose tables are programmed in both styles."""
    return invalid(
        f"action selector {profile.name}: either all of its tables' entries are one shots, or none is, and "
        "members and groups are written by themselves"
    )


def in_use(profile: ActionProfile, what: str, why: str) -> P4RuntimeError:
    """Return the error of a DELETE of what something refers to."""
    message = f"action profile {profile.name}: {what} is still in use, {why}"
    return P4RuntimeError(grpc.StatusCode.FAILED_PRECONDITION, message)
