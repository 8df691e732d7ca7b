"""Metadata that has to be cleared for a packet, and metadata that has to follow its replicas.

Most metadata is p4c's: locals of P4 controls that are written before they are read. Clearing and copying
them for every packet would cost more than the program itself. A field needs clearing only if on some way
through the program it is read before it is written, and copying only if egress reads it before it writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from soft_switch.bmv2.program import Bmv2Program, ParserState, Pipeline
from soft_switch.bmv2.syntax import Field
from soft_switch.compiler.effects import ENDING, Effects, EffectsFinder, sequence
from soft_switch.compiler.flow import Variable, as_number, edges

END = None


@dataclass(frozen=True)
class Liveness:
    """Variables that are read before they are written: anywhere, and in egress.

    `first_writes` are the ids of calls before which nothing writes their target; see `effects`. `read` is
    what some part of the program reads.
    """

    cleared: frozenset[Variable]
    copied: frozenset[Variable]
    read: frozenset[Variable]
    first_writes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Way:
    """A way through a node: what it does and where it leads."""

    effects: Effects
    following: str | None


def everything(program: Bmv2Program) -> Liveness:
    """Return the liveness that needs no analysis: clear and copy all."""
    variables = frozenset(
        (name, field.name)
        for name, item in program.header_instances.items()
        if item.metadata
        for field in item.type.fields
    )
    return Liveness(variables, variables, variables)


def find_liveness(program: Bmv2Program) -> Liveness:
    """Analyse a program."""
    finder = EffectsFinder(program)
    cleared: set[Variable] = set()
    for state in program.parser_states.values():
        cleared |= sequence(parser_effects(finder, state)).reads
    verify, update = checksum_reads(program, finder, "verify"), checksum_reads(program, finder, "update")
    ingress = _ways(program, finder, program.pipelines["ingress"])
    egress = _ways(program, finder, program.pipelines["egress"])
    ends = finder.at_end()
    deparser = sequence(finder.primitive(call) for call in program.deparser_primitives).reads
    copied = _live(program.pipelines["egress"].first, egress, update | deparser | ends)
    needed = _live(program.pipelines["ingress"].first, ingress, copied | ends)
    needed |= cleared | verify | finder.standard
    read = verify.union(update, ends, *_reads(program, finder))
    return Liveness(needed, copied | finder.standard, read, finder.first_writes)


def _reads(program: Bmv2Program, finder: EffectsFinder) -> Iterator[frozenset[Variable]]:
    """Yield the variables that parser, pipelines and deparser read."""
    for state in program.parser_states.values():
        yield from (effects.reads for effects in parser_effects(finder, state))
    for pipeline in program.pipelines.values():
        yield from (finder.variables(conditional.condition) for conditional in pipeline.conditionals)
        yield from (finder.table(table) for table in pipeline.tables)
    blocks = [action.primitives for action in program.actions.values()]
    for calls in [*blocks, program.deparser_primitives]:
        yield from (finder.primitive(call).reads for call in calls)


def parser_effects(finder: EffectsFinder, state: ParserState) -> Iterator[Effects]:
    """Yield the effects of a parser state's operations, one after the other."""
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


def checksum_reads(program: Bmv2Program, finder: EffectsFinder, which: str) -> frozenset[Variable]:
    """Return the variables that checksums read when they "verify" or "update"."""
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
    """Return the ways through each node of a pipeline."""
    effects = {number: finder.action(action) for number, action in program.actions.items()}
    ends = {n for n, action in program.actions.items() if any(c.op in ENDING for c in action.primitives)}
    reads: dict[str, frozenset[Variable]] = {}
    for conditional in pipeline.conditionals:
        reads[conditional.name] = finder.variables(conditional.condition)
    for table in pipeline.tables:
        reads[table.info.name] = finder.table(table)
    nodes: dict[str, list[_Way]] = {}
    for node, action_id, following in edges(program, pipeline):
        before = Effects(reads.get(node, frozenset()), frozenset())
        ways = nodes.setdefault(node, [])
        if action_id is None:
            ways.append(_Way(before, following))
            continue
        ways.append(_Way(sequence([before, effects[action_id]]), following))
        if action_id in ends:
            ways.append(_Way(Effects(ways[-1].effects.reads, frozenset()), END))
    return nodes


def _live(
    first: str | None, nodes: Mapping[str, list[_Way]], at_end: frozenset[Variable]
) -> frozenset[Variable]:
    """Return the variables live at the start, given those live at the end."""
    bits: dict[Variable, int] = {}
    number = partial(as_number, bits)
    ways_of = {
        name: [(number(way.effects.reads), ~number(way.effects.writes), way.following) for way in ways]
        for name, ways in reversed(list(nodes.items()))
    }
    live: dict[str | None, int] = dict.fromkeys(nodes, 0)
    live[None] = number(at_end)
    changed = True
    while changed:
        changed = False
        for name, ways in ways_of.items():
            value = 0
            for reads, kept, following in ways:
                value |= reads | (live[following] & kept)
            if value != live[name]:
                live[name], changed = value, True
    return frozenset(variable for variable, bit in bits.items() if live[first] >> bit & 1)
