"""Actions with their arguments as P4Runtime gives them: the `Action` message."""

from __future__ import annotations

from collections.abc import Mapping

from finsy.proto import p4i, p4r

from soft_switch.description import ActionCall, ActionInfo
from soft_switch.server.bytestrings import decode, encode
from soft_switch.server.errors import P4RuntimeError, denied, invalid, malformed
from soft_switch.server.schema import Schema


def parse_action(
    schema: Schema,
    owner: str,
    scopes: Mapping[int, int],
    message: p4r.Action,
    *,
    default: bool = False,
) -> ActionCall:
    """Return an action that `owner` ("table x") has among `scopes`, with all of its arguments."""
    action = schema.lookup("action", schema.actions, message.action_id)
    scope = scopes.get(message.action_id)
    if scope is None:
        raise invalid(f"action {action.name} is not one of {owner}'s actions")
    if default and scope == p4i.ActionRef.TABLE_ONLY:
        raise denied(f"{owner}: action {action.name} is @tableonly, it cannot be the default action")
    if not default and scope == p4i.ActionRef.DEFAULT_ONLY:
        raise denied(f"{owner}: action {action.name} is @defaultonly, an entry cannot have it")
    return ActionCall(action.name, _parse_params(action, message))


def format_action(schema: Schema, call: ActionCall) -> p4r.Action:
    """Return the canonical message of an action."""
    action = schema.actions_by_name[call.action]
    params = [
        p4r.Action.Param(param_id=param.id, value=param.sdn.encode(value) if param.sdn else encode(value))
        for param, value in zip(action.params, call.params, strict=True)
    ]
    return p4r.Action(action_id=action.id, params=params)


def _parse_params(action: ActionInfo, message: p4r.Action) -> tuple[int, ...]:
    given = {param.param_id: param.value for param in message.params}
    if len(given) != len(message.params):
        raise invalid(f"action {action.name}: a parameter is given twice")
    values = []
    for param in action.params:
        data = given.pop(param.id, None)
        if data is None:
            raise invalid(f"action {action.name}: parameter {param.name} ({param.id}) is missing")
        try:
            if param.sdn is None:
                values.append(decode(data, param.width, ""))
            else:
                values.append(param.sdn.decode(data, param.width, ""))
        except P4RuntimeError as error:
            # As for match fields: "Action Specification" wants INVALID_ARGUMENT, not OUT_OF_RANGE.
            raise malformed(error, f"action {action.name}, parameter {param.name}") from error
    if given:
        raise invalid(f"action {action.name} has no parameter {min(given)}")
    return tuple(values)
