"""Tables and the control flow between them: nodes as labels, `next_tables` as jumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from soft_switch.bmv2.program import ActionCallNode, Bmv2Program, Conditional, KeySource, Pipeline, Table
from soft_switch.bmv2.syntax import Field, Valid
from soft_switch.compiler import bounds as b
from soft_switch.compiler.actions import Actions, write_color
from soft_switch.compiler.code import Code, comment, word
from soft_switch.compiler.expressions import ExpressionWriter
from soft_switch.compiler.hashes import Calculations
from soft_switch.description import ActionProfileInfo, KeyField

WORD_BITS = 64


@dataclass(frozen=True)
class KeyPart:
    """The place of a key component: words of the key and shift, or for `is_range` the words of the ranges."""

    field: KeyField
    mask: int
    first: int
    shift: int
    is_range: bool

    @cached_property
    def bit(self) -> int:
        """The first bit, counted over all words."""
        return WORD_BITS * self.first + self.shift

    @cached_property
    def greatest(self) -> int:
        """The greatest value of the field."""
        return b.ones(self.field.width)


@dataclass(frozen=True)
class TableLayout:
    """The layout of a table's entries in words; `index` is its number in the C++ program.

    `ranges` are the words of each range field, `profile` is the number of the table's action profile.
    """

    index: int
    table: Table
    parts: tuple[KeyPart, ...]
    key_words: int
    ranges: tuple[int, ...]
    param_words: int
    priorities: bool
    profile: int | None = None

    @property
    def range_words(self) -> int:
        """Words of all range fields together."""
        return sum(self.ranges)

    @property
    def kind(self) -> str:
        """The C++ type."""
        info = self.table.info
        flags = [
            ("PRIORITIES", self.priorities),
            ("COUNTED", info.has_direct_counter),
            ("AGED", info.has_idle_timeout),
        ]
        chosen = " | ".join(name for name, wanted in flags if wanted) or "0"
        sizes = [self.key_words, self.param_words, chosen, *self.ranges]
        return f"Table<{', '.join(map(str, sizes))}>"


@dataclass(frozen=True)
class ProfileLayout:
    """An action profile; `index` is its number in the C++ program.

    Tables that share a profile have copies of the same actions under the same names: members have the ids
    in `actions`, whichever table points to them.
    """

    index: int
    info: ActionProfileInfo
    actions: Mapping[str, int]
    param_words: int
    calculation: str | None


def lay_out_profiles(program: Bmv2Program) -> dict[str, ProfileLayout]:
    """Return the action profiles of a program, by name."""
    tables = [table for pipeline in program.pipelines.values() for table in pipeline.tables]
    result = {}
    for index, info in enumerate(program.description.action_profiles.values()):
        actions: dict[str, int] = {}
        for table in tables:
            if table.info.profile == info.name:
                for number in table.action_ids:
                    actions.setdefault(program.actions[number].info.name, number)
        size = max((_param_words(program, number) for number in actions.values()), default=0)
        calculation = program.selectors.get(info.name)
        result[info.name] = ProfileLayout(index, info, actions, size, calculation)
    return result


def _param_words(program: Bmv2Program, action_id: int) -> int:
    return sum(b.words(param.width) for param in program.actions[action_id].info.params)


def lay_out(
    program: Bmv2Program, table: Table, index: int, profiles: Mapping[str, ProfileLayout]
) -> TableLayout:
    """Pack the key: narrow fields share words, wide ones have their own."""
    free: list[int] = []  # bits left in each word
    parts: dict[int, KeyPart] = {}
    ranges: list[int] = []
    order = sorted(range(len(table.keys)), key=lambda i: -table.info.keys[i].width)
    for i in order:
        field, key = table.info.keys[i], table.keys[i]
        mask = b.ones(field.width) if key.mask is None else key.mask & b.ones(field.width)
        if field.kind == "range":
            parts[i] = KeyPart(field, mask, sum(ranges), 0, True)
            ranges.append(b.words(field.width))
        elif field.width > WORD_BITS:
            parts[i] = KeyPart(field, mask, len(free), 0, False)
            free += [0] * b.words(field.width)
        else:
            at = next((n for n, left in enumerate(free) if left >= field.width), len(free))
            if at == len(free):
                free.append(WORD_BITS)
            parts[i] = KeyPart(field, mask, at, WORD_BITS - free[at], False)
            free[at] -= field.width
    default = table.default_action_id
    size = 0 if default is None else _param_words(program, default)
    profile = None
    if table.info.profile is not None:
        profile, size = profiles[table.info.profile].index, max(size, 1)
    else:
        size = max([size, *(_param_words(program, number) for number in table.action_ids)])
    kinds = {field.kind for field in table.info.keys}
    return TableLayout(
        index=index,
        table=table,
        parts=tuple(parts[i] for i in range(len(table.keys))),
        key_words=max(1, len(free)),
        ranges=tuple(ranges),
        param_words=size,
        priorities=bool(kinds & {"ternary", "range", "optional"}),
        profile=profile,
    )


def is_call(table: Table, program: Bmv2Program) -> bool:
    """Tell whether p4c made the table of a statement: no key, no entries, no default but its action."""
    info = table.info
    no_params = (
        table.default_action_id is not None and not program.actions[table.default_action_id].info.params
    )
    return not info.keys and info.default_is_const and no_params and not info.has_direct_counter


@dataclass(frozen=True)
class FixedEntry:
    """An entry that the program came with, in words: for keys that under `mask` are `key`."""

    key: tuple[int, ...]
    mask: tuple[int, ...]
    action_id: int
    params: tuple[int, ...]


class PipelineWriter:
    """Writer of the functions `ingress(g, p, c)` and `egress(g, p, c)`.

    The entries of a table in `fixed` are tried one by one, the best first, as long as nobody changes any.
    """

    def __init__(
        self,
        program: Bmv2Program,
        actions: Actions,
        writer: ExpressionWriter,
        layouts: Mapping[str, TableLayout],
        profiles: Mapping[str, ProfileLayout],
        calculations: Calculations,
        fixed: Mapping[str, Sequence[FixedEntry]],
    ) -> None:
        self._program = program
        self._actions = actions
        self._write = writer
        self._out: Code = writer.out
        self._layouts = layouts
        self._profiles = profiles
        self._calculations = calculations
        self._fixed = fixed
        self._nodes: dict[str, int] = {}

    def used_actions(self, pipelines: Sequence[Pipeline]) -> frozenset[int]:
        """Return the actions that some table or node can run."""
        used: set[int] = set()
        for pipeline in pipelines:
            used.update(call.action_id for call in pipeline.action_calls)
            for table in pipeline.tables:
                used.update(table.action_ids)
                if table.default_action_id is not None:
                    used.add(table.default_action_id)
        return frozenset(used)

    def write(self, pipeline: Pipeline) -> None:
        """Write the function of a pipeline."""
        out = self._out
        nodes: list[Table | Conditional | ActionCallNode] = [
            *pipeline.tables,
            *pipeline.conditionals,
            *pipeline.action_calls,
        ]
        names = [node.info.name if isinstance(node, Table) else node.name for node in nodes]
        self._nodes = {name: number for number, name in enumerate(names)}
        with out.block(f"static void {pipeline.name}(Program& g, Phv& p, Context& c)"):
            out(self._goto(pipeline.first))
            for name, node in zip(names, nodes, strict=True):
                out.label(f"node{self._nodes[name]}")
                with out.block(tail=f"  {comment(name)}"):
                    if isinstance(node, Table):
                        self._table(node)
                    elif isinstance(node, Conditional):
                        self._conditional(node)
                    else:
                        self._run(node.action_id, "nullptr")
                        out(self._goto(node.next_node))
            out.label("done")
            out("(void)g, (void)p, (void)c;")

    def _goto(self, node: str | None) -> str:
        return "goto done;" if node is None else f"goto node{self._nodes[node]};"

    def _conditional(self, node: Conditional) -> None:
        self._write.source = node.source
        condition = self._write.boolean(node.condition)
        self._out(f"if ({condition}) {self._goto(node.true_next)}\n{self._goto(node.false_next)}")

    def _run(self, action_id: int, params: str) -> None:
        if not self._actions.is_empty(action_id):
            self._out(f"action{action_id}(g, p, c, {params});")
        if self._actions.ends(action_id):
            self._out("if (c.exit) goto done;")

    def _name(self, action_id: int) -> str:
        return self._program.actions[action_id].info.name

    def _next(self, table: Table, action_id: int) -> str | None:
        return table.next_by_action.get(self._name(action_id), table.base_next)

    def _table(self, table: Table) -> None:
        out, info = self._out, table.info
        self._write.source = table.source
        if is_call(table, self._program) and table.default_action_id is not None:
            self._run(table.default_action_id, "nullptr")
            out(self._goto(table.next_miss if table.by_hit else self._next(table, table.default_action_id)))
            return
        layout = self._layouts[info.name]
        self._key(table, layout)
        now = "g.host.now_us()" if info.has_idle_timeout else "0"
        profile = None if info.profile is None else self._profiles[info.profile]
        head = "const Match match" if profile is None else "Match match"
        name, found = f"g.t{layout.index}", f"g.t{layout.index}.lookup(key, ranges, c.length, {now})"
        if info.name in self._fixed:
            entries = self._fixed[info.name]
            as_made = f"{name}.is_as_made({len(entries)})"
            with out.block(f"if ({as_made})"):
                self._try_fixed(table, entries)
            found = f"{as_made} ? {name}.miss() : {found}"
        out(f"{head} = {found};")
        if profile is not None:
            self._resolve(profile)
        self._direct_meter(table)
        with out.block("switch (match.action)"):
            for number, action_id in self._cases(table, profile).items():
                out(f"case {number}:  {comment(self._name(action_id))}")
                self._run(action_id, "match.params")
                out("break;" if table.by_hit else self._goto(self._next(table, action_id)))
            out("default: break;")
        if table.by_hit:
            out(f"if (match.hit()) {self._goto(table.next_hit)}")
            out(self._goto(table.next_miss))
        else:
            out(self._goto(table.base_next))

    def _try_fixed(self, table: Table, entries: Sequence[FixedEntry]) -> None:
        """Write comparisons and actions with constants, which the C++ compiler sees through."""
        out = self._out
        for entry in entries:
            tests = [
                f"(key[{i}] & {word(mask)}) == {word(key)}"
                for i, (key, mask) in enumerate(zip(entry.key, entry.mask, strict=True))
                if mask
            ]
            action = comment(self._name(entry.action_id))
            with out.block(f"if ({' && '.join(tests) or 'true'})", f"  {action}"):
                params = ", ".join(map(word, entry.params))
                if params:
                    out(f"static constexpr uint64_t params[] = {{{params}}};")
                self._run(entry.action_id, "params" if params else "nullptr")
                out(self._goto(table.next_hit if table.by_hit else self._next(table, entry.action_id)))

    def _resolve(self, profile: ProfileLayout) -> None:
        """Write the step from an entry's target to a member's action."""
        out, name = self._out, f"g.a{profile.index}"
        out(f"if (match.action == TO_MEMBER) {name}.member(match, match.params[0]);")
        if profile.info.selector:
            # BMv2 keeps 32 bits of a hash for its selectors.
            value = "0" if profile.calculation is None else self._calculations.call(profile.calculation)
            choice = f"{name}.choose(match, match.params[0], uint32_t({value}));"
            out(f"else if (match.action == TO_GROUP) {choice}")

    def _cases(self, table: Table, profile: ProfileLayout | None) -> dict[int, int]:
        """Return the table's own action for each number that a match can give."""
        cases = {number: number for number in table.action_ids}
        if profile is not None:
            cases = {profile.actions[self._name(number)]: number for number in table.action_ids}
        if table.default_action_id is not None:
            cases.setdefault(table.default_action_id, table.default_action_id)
        return cases

    def _direct_meter(self, table: Table) -> None:
        """Write the metering of a packet, before the entry's action runs, even if that ignores the color."""
        if table.direct_meter is not None:
            name = table.direct_meter.name
            number = list(self._program.description.meters).index(name)
            with self._out.block("if (match.hit())"):
                target = self._write.place(table.direct_meter.target)
                meter = self._program.description.meters[name]
                write_color(self._write, target, meter, f"g.m{number}[match.entry]")

    def _key(self, table: Table, layout: TableLayout) -> None:
        out = self._out
        key: list[list[str]] = [[] for _ in range(layout.key_words)]
        ranges: dict[int, str] = {}
        for part, source in zip(layout.parts, table.keys, strict=True):
            for i in range(b.words(part.field.width)):
                text = self._key_word(source, part.mask >> (WORD_BITS * i) & b.WORD_MASK, i)
                if part.is_range:
                    ranges[part.first + i] = text
                else:
                    key[part.first + i].append(f"{text} << {part.shift}" if part.shift else text)
        parts = ", ".join(" | ".join(items) or "0" for items in key)
        out(f"const uint64_t key[{layout.key_words}] = {{{parts}}};")
        values = ", ".join(ranges[i] for i in range(layout.range_words)) or "0"
        out(f"const uint64_t ranges[{max(1, layout.range_words)}] = {{{values}}};")

    def _key_word(self, source: KeySource, mask: int, index: int) -> str:
        """Return one word of a key component; fields of a header that is not valid count as 0."""
        if isinstance(source.value, Valid):
            return f"uint64_t({self._write.boolean(source.value)})"
        field: Field = source.value
        header = self._write.header(field.header)
        place = self._write.layout.field(header, field.field)
        text = f"{place.text}.w[{index}]" if place.width > WORD_BITS else f"uint64_t({place.text})"
        full = b.ones(min(place.width - WORD_BITS * index, WORD_BITS))
        if mask & full != full:
            text = f"({text} & {word(mask & full)})"
        if header.valid is None or field.field == "$valid$":
            return text
        return f"({header.valid} ? {text} : 0)"
