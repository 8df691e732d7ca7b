"""Whether all that a program refers to is there. p4c sees to that; what else writes JSON may not."""

from __future__ import annotations

from collections.abc import Iterator

from soft_switch.bmv2.program import Bmv2Program, Pipeline
from soft_switch.errors import ProgramError


def check_consistency(program: Bmv2Program) -> None:
    """ProgramError names the first reference that leads nowhere."""
    _check_parser(program)
    for pipeline in program.pipelines.values():
        _check_pipeline(program, pipeline)
    for name in program.deparser_order:
        if name not in program.header_instances and name not in program.stacks:
            raise ProgramError(f"the deparser emits {name}, which is no header")


def _check_parser(program: Bmv2Program) -> None:
    start = program.parser_start
    if start is not None and start not in program.parser_states:
        raise ProgramError(f"the parser starts in state {start}, which is not there")
    for state in program.parser_states.values():
        for transition in state.transitions:
            to = transition.next_state
            if to is not None and to not in program.parser_states:
                raise ProgramError(f"parser state {state.name} goes on to {to}, which is not there")


def _check_pipeline(program: Bmv2Program, pipeline: Pipeline) -> None:
    nodes = {node.name for node in pipeline.conditionals} | {node.name for node in pipeline.action_calls}
    nodes |= {table.info.name for table in pipeline.tables}
    for origin, to in _edges(pipeline):
        if to is not None and to not in nodes:
            raise ProgramError(f"{origin} of {pipeline.name} goes on to {to}, which is not there")
    for call in pipeline.action_calls:
        if call.action_id not in program.actions:
            raise ProgramError(f"{call.name} calls action {call.action_id}, which is not there")
    for table in pipeline.tables:
        default = () if table.default_action_id is None else (table.default_action_id,)
        for number in (*table.action_ids, *table.entry_action_ids, *default):
            if number not in program.actions:
                raise ProgramError(f"table {table.info.name} has action {number}, which is not there")


def _edges(pipeline: Pipeline) -> Iterator[tuple[str, str | None]]:
    yield "the beginning", pipeline.first
    for table in pipeline.tables:
        for to in (*table.next_by_action.values(), table.next_hit, table.next_miss, table.base_next):
            yield f"table {table.info.name}", to
    for conditional in pipeline.conditionals:
        yield f"condition {conditional.name}", conditional.true_next
        yield f"condition {conditional.name}", conditional.false_next
    for call in pipeline.action_calls:
        yield call.name, call.next_node
