"""Which metadata has to be cleared for a packet, and which has to follow its replicas.

Most metadata is p4c's: locals of P4 controls that are written before they are read. Clearing and copying them for
every packet would cost more than the program itself. A field needs clearing only if on some way through the
program it is read before it is written, and copying only if egress reads it before it writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from soft_switch.bmv2.program import ActionCallNode, Bmv2Program, Conditional, KeySource, Pipeline, Table
from soft_switch.bmv2.syntax import Field, Valid
from soft_switch.compiler.actions import ENDING
from soft_switch.compiler.effects import Effects, EffectsFinder, Variable, sequence

END = None


@dataclass(frozen=True)
class Liveness:
    """Variables that are read before they are written: anywhere, and in egress."""

    cleared: frozenset[Variable]
    copied: frozenset[Variable]


@dataclass(frozen=True)
class _Way:
    """A way through a node: what it does and where it leads."""

    effects: Effects
    following: str | None


def find_liveness(program: Bmv2Program) -> Liveness:
    """Analyse a program."""
    finder = EffectsFinder(program)
    cleared: set[Variable] = set()
    for state in program.parser_states.values():
        cleared |= sequence(_parser_effects(finder, state)).reads
    verify, update = _checksum_reads(program, finder, "verify"), _checksum_reads(program, finder, "update")
    ingress = _ways(program, finder, program.pipelines["ingress"])
    egress = _ways(program, finder, program.pipelines["egress"])
    copied = _live(program.pipelines["egress"].first, egress, update)
    needed = _live(program.pipelines["ingress"].first, ingress, copied)
    # An exit or an error can lead past anything; what is wanted there is wanted from the start.
    return Liveness(frozenset(cleared | verify | needed), copied)


def _parser_effects(finder: EffectsFinder, state: object) -> Iterator[Effects]:
    from soft_switch.bmv2.program import ParserState

    assert isinstance(state, ParserState)
    for op in state.ops:
        reads: set[Variable] = set()
        writes: frozenset[Variable] = frozenset()
        if op.primitive is not None:
            yield finder.primitive(op.primitive)
            continue
        if op.value is not None:
            reads |= finder.variables(op.value)
        if op.op == "set" and isinstance(op.target, Field):
            writes = finder.variables(op.target)
        elif op.target is not None:
            reads |= finder.operand(op.target)
        yield Effects(frozenset(reads), writes)
    yield Effects(frozenset().union(*(finder.variables(part) for part in state.key)), frozenset())


def _checksum_reads(program: Bmv2Program, finder: EffectsFinder, which: str) -> frozenset[Variable]:
    reads: set[Variable] = set()
    for item in program.checksums:
        if getattr(item, which):
            reads |= finder.calculation(program.calculations[item.calculation])
            if item.condition is not None:
                reads |= finder.variables(item.condition)
            if which == "verify":
                reads |= finder.variables(item.target)
    return frozenset(reads)


def _ways(program: Bmv2Program, finder: EffectsFinder, pipeline: Pipeline) -> Mapping[str, list[_Way]]:
    """The ways through each node of a pipeline."""
    effects = {number: finder.action(action) for number, action in program.actions.items()}
    ends = {n for n, action in program.actions.items() if any(c.op in ENDING for c in action.primitives)}
    nodes: dict[str, list[_Way]] = {}

    def run(ways: list[_Way], before: Effects, action_id: int, following: str | None) -> None:
        ways.append(_Way(sequence([before, effects[action_id]]), following))
        if action_id in ends:
            ways.append(_Way(Effects(sequence([before, effects[action_id]]).reads, frozenset()), END))

    for conditional in pipeline.conditionals:
        before = Effects(finder.variables(conditional.condition), frozenset())
        nodes[conditional.name] = [_Way(before, conditional.true_next), _Way(before, conditional.false_next)]
    for call in pipeline.action_calls:
        nodes[call.name] = []
        run(nodes[call.name], Effects(frozenset(), frozenset()), call.action_id, call.next_node)
    for table in pipeline.tables:
        reads = frozenset().union(*(_key_reads(finder, key) for key in table.keys))
        before = Effects(reads, frozenset())
        ways = nodes[table.info.name] = []
        numbers = [*table.action_ids, *([] if table.default_action_id is None else [table.default_action_id])]
        for number in numbers:
            name = program.actions[number].info.name
            successors = [table.next_hit, table.next_miss] if table.by_hit else [
                table.next_by_action.get(name, table.base_next)
            ]
            for following in successors:
                run(ways, before, number, following)
        ways.append(_Way(before, table.next_miss if table.by_hit else table.base_next))  # no action at all
    return nodes


def _key_reads(finder: EffectsFinder, key: KeySource) -> frozenset[Variable]:
    value: Field | Valid = key.value
    return finder.variables(value)


def _live(first: str | None, nodes: Mapping[str, list[_Way]], at_end: frozenset[Variable]) -> frozenset[Variable]:
    """What is live at the start, given what is live at the end."""
    live: dict[str, frozenset[Variable]] = {name: frozenset() for name in nodes}

    def at(name: str | None) -> frozenset[Variable]:
        return at_end if name is None else live[name]

    changed = True
    while changed:
        changed = False
        for name, ways in reversed(nodes.items()):
            value = frozenset().union(
                *(way.effects.reads | (at(way.following) - way.effects.writes) for way in ways)
            )
            if value != live[name]:
                live[name], changed = value, True
    return at(first)


_ = (ActionCallNode, Conditional, Table)
