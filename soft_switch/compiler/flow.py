"""The ways through a pipeline, and which statements are the first on every way to write their target."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from soft_switch.bmv2.program import Action, Bmv2Program, Pipeline
from soft_switch.bmv2.syntax import Const, Field, Header, Primitive

Variable = tuple[str, str]  # instance and field
Edge = tuple[str, int | None, str | None]  # a node, the action it runs on that way, the node after it

JUMPS = frozenset({"_jump", "_jump_if_zero"})


def edges(program: Bmv2Program, pipeline: Pipeline) -> Iterator[Edge]:
    """Yield all edges out of all nodes; None is the end of the pipeline."""
    for item in pipeline.conditionals:
        yield item.name, None, item.true_next
        yield item.name, None, item.false_next
    for call in pipeline.action_calls:
        yield call.name, call.action_id, call.next_node
    for table in pipeline.tables:
        default = [] if table.default_action_id is None else [table.default_action_id]
        for number in dict.fromkeys([*table.action_ids, *default]):
            if table.by_hit:
                yield table.info.name, number, table.next_hit
                yield table.info.name, number, table.next_miss
            else:
                name = program.actions[number].info.name
                yield table.info.name, number, table.next_by_action.get(name, table.base_next)
        if table.default_action_id is None or table.info.profile is not None:
            yield table.info.name, None, table.next_miss if table.by_hit else table.base_next


def as_number(bits: dict[Variable, int], variables: Iterable[Variable]) -> int:
    """Return a set as a number: each variable has a bit, kept in `bits`, where new ones get the next."""
    result = 0
    for variable in variables:
        result |= 1 << bits.setdefault(variable, len(bits))
    return result


def first_writes(program: Bmv2Program, targets: Callable[[Primitive], frozenset[Variable]]) -> frozenset[int]:
    """Return the `id` of each primitive call whose targets no way through the program has written before.

    `targets` says what a call can write. The parser counts as if it wrote everything it can write, and so do
    the meters of tables and what copies of a packet keep.
    """
    bits: dict[Variable, int] = {}
    number = partial(as_number, bits)
    written = number(_parser_writes(program, targets)) | number(_other_writes(program))
    in_action = {
        index: number(itertools.chain.from_iterable(targets(call) for call in action.primitives))
        for index, action in program.actions.items()
    }
    before = dict.fromkeys(program.actions, 0)
    for name in ("ingress", "egress"):
        ways = list(edges(program, program.pipelines[name]))
        at: dict[str | None, int] = {node: written for node, _, _ in ways}
        at[None] = written
        changed = True
        while changed:
            changed = False
            for node, action, following in ways:
                after = at[node] | (0 if action is None else in_action[action])
                if after & ~at[following]:
                    at[following] |= after
                    changed = True
        for node, action, _ in ways:
            if action is not None:
                before[action] |= at[node]
                written |= in_action[action]  # an exit can lead to the next pipeline from anywhere
    names = list(bits)

    def variables(value: int) -> set[Variable]:
        return {names[index] for index in range(value.bit_length()) if value >> index & 1}

    found: set[int] = set()
    for key, item in program.actions.items():
        found.update(_first_in_action(item, variables(before[key] & in_action[key]), targets))
    return frozenset(found)


def _first_in_action(
    action: Action, before: set[Variable], targets: Callable[[Primitive], frozenset[Variable]]
) -> Iterator[int]:
    if any(_jumps_back(call, index) for index, call in enumerate(action.primitives)):
        return
    written = set(before)
    for call in action.primitives:
        writes = targets(call)
        if writes and not writes & written:
            yield id(call)
        written |= writes


def _jumps_back(call: Primitive, index: int) -> bool:
    if call.op not in JUMPS:
        return False
    target = call.operands[-1]
    return not isinstance(target, Const) or target.value <= index


def _parser_writes(
    program: Bmv2Program, targets: Callable[[Primitive], frozenset[Variable]]
) -> Iterator[Variable]:
    for state in program.parser_states.values():
        for op in state.ops:
            if op.primitive is not None:
                yield from targets(op.primitive)
            elif op.op == "set" and isinstance(op.target, Field) and isinstance(op.target.header, Header):
                yield op.target.header.name, op.target.field


def _other_writes(program: Bmv2Program) -> Iterator[Variable]:
    fields = [item for kept in program.field_lists.values() for item in kept]
    for pipeline in program.pipelines.values():
        fields += [table.direct_meter.target for table in pipeline.tables if table.direct_meter]
    for item in fields:
        if isinstance(item.header, Header):
            yield item.header.name, item.field
