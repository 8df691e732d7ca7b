"""Actions: what each primitive of v1model's simple_switch does (targets/simple_switch/primitives.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from soft_switch.bmv2 import syntax as p4
from soft_switch.bmv2.program import Action, Bmv2Program
from soft_switch.compiler.bounds import WORD_MASK, ones, words
from soft_switch.compiler.code import Code, comment, string, word
from soft_switch.compiler.effects import ENDING, marks_to_drop
from soft_switch.compiler.expressions import Constants, ExpressionWriter
from soft_switch.compiler.hashes import Calculations
from soft_switch.compiler.layout import HeaderPlace, Layout, Place, StackPlace
from soft_switch.description import MeterInfo
from soft_switch.errors import ProgramError, Source, UnsupportedConstruct

ASSIGNMENTS = ("assign", "set", "modify_field")


def param_words(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first word of each parameter in an entry, and its width."""
    result, at = [], 0
    for width in widths:
        result.append((at, width))
        at += words(width)
    return result


def write_color(write: ExpressionWriter, target: Place, meter: MeterInfo, cell: str) -> None:
    """Run a meter cell and store the color."""
    units = "1" if meter.unit == "packets" else "c.length"
    color = write.out.name()
    write.out(f"const uint64_t {color} = {cell}.execute(g.host.now_us(), {units});")
    write.store(target, Place(color, 64, False))


class Primitives:
    """Writer of primitive calls. A new primitive is one method and one line in `_table`."""

    def __init__(self, program: Bmv2Program, calculations: Calculations) -> None:
        description = program.description
        self._registers = {name: (n, r) for n, (name, r) in enumerate(description.registers.items())}
        indirect = [c for c in description.counters.values() if c.table is None]
        self._counters = {c.name: (n, c) for n, c in enumerate(indirect)}
        self._meters = {name: (n, m) for n, (name, m) in enumerate(description.meters.items())}
        self._calculations = calculations
        self._program = program
        self._table: Mapping[str, Callable[[p4.Primitive, ExpressionWriter], None]] = {
            **dict.fromkeys(ASSIGNMENTS, self._assign),
            "assign_header": self._assign_header,
            "copy_header": self._assign_header,
            "assign_header_stack": self._assign_stack,
            "assign_VL": self._assign_varbit,
            "assign_union": self._assign_union,
            "assign_union_stack": self._assign_union_stack,
            "add_header": self._add_header,
            "remove_header": self._remove_header,
            "push": self._shift,
            "pop": self._shift,
            "mark_to_drop": self._drop,
            "drop": self._drop,
            "register_read": self._register_read,
            "register_write": self._register_write,
            "count": self._count,
            "modify_field_with_hash_based_offset": self._hash,
            "modify_field_rng_uniform": self._random,
            "truncate": self._truncate,
            "execute_meter": self._meter,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "generate_digest": lambda call, write: self._ask("digest", call.operands[1], call, write),
            "resubmit": lambda call, write: self._ask("resubmit", call.operands[0], call, write),
            "recirculate": lambda call, write: self._ask("recirculate", call.operands[0], call, write),
            "log_msg": self._log,
            "assert": self._assert,
            "assume": self._assert,
            "exit": lambda call, write: write.out("c.exit = true;"),
            "no_op": lambda call, write: None,
        }

    def write(self, call: p4.Primitive, writer: ExpressionWriter) -> None:
        """Write one call."""
        method = self._table.get(call.op)
        if method is None:
            raise UnsupportedConstruct(f"primitive {call.op}", call.source)
        writer.source = call.source
        try:
            method(call, writer)
        except (IndexError, KeyError) as error:
            raise ProgramError(
                f"primitive {call.op} has operands that do not fit it ({call.source})"
            ) from error

    # Fields and headers

    def _assign(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        write.assign(_lvalue(call.operands[0], call.source), _expression(call.operands[1], call.source))

    def _assign_header(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        to, source = (write.header(_header(operand, call.source)) for operand in call.operands[:2])
        self._copy_header(write, to, source)

    @staticmethod
    def _copy_header(write: ExpressionWriter, to: HeaderPlace, source: HeaderPlace) -> None:
        if to.valid is None or source.valid is None:
            for item in to.type.fields:
                write.store(write.layout.field(to, item.name), write.layout.field(source, item.name))
            return
        if to.others:
            with write.out.block(f"if ({source.valid})"):
                write.out(f"{to.text} = {source.text};\n{to.mark_valid()}")
            write.out(f"else {to.valid} = 0;")
        else:
            write.out(f"if ({source.valid}) {to.text} = {source.text};\n{to.valid} = {source.valid};")

    def _assign_stack(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        to, source = (_stack(operand, call.source) for operand in call.operands[:2])
        self._copy_stack(write, write.layout.stacks[to], write.layout.stacks[source])

    @staticmethod
    def _copy_stack(write: ExpressionWriter, to: StackPlace, source: StackPlace) -> None:
        write.out(f"{to.next} = {source.next};")
        with write.out.block(f"for (int i = 0; i < {to.depth}; i++)"):
            write.out(f"if (p.v[{source.first_valid} + i]) {to.array}[i] = {source.array}[i];")
            write.out(f"p.v[{to.first_valid} + i] = p.v[{source.first_valid} + i];")

    def _assign_union(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        to, source = call.operands[:2]
        if not isinstance(to, p4.HeaderUnion) or not isinstance(source, p4.HeaderUnion):
            raise UnsupportedConstruct("assign_union with these operands", call.source)
        for one, other in zip(to.headers, source.headers, strict=True):
            self._copy_header(write, write.layout.headers[one], write.layout.headers[other])

    def _assign_union_stack(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        to, source = call.operands[:2]
        if not isinstance(to, p4.UnionStack) or not isinstance(source, p4.UnionStack):
            raise UnsupportedConstruct("assign_union_stack with these operands", call.source)
        for one, other in zip(to.columns, source.columns, strict=True):
            self._copy_stack(write, write.layout.stacks[one], write.layout.stacks[other])

    def _assign_varbit(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        to, source = (write.place(_lvalue(operand, call.source)) for operand in call.operands[:2])
        if not to.varbit or not source.varbit or to.width != source.width:
            raise UnsupportedConstruct("assign_VL of fields of different types", call.source)
        write.out(f"{to.text} = {source.text};")

    def _add_header(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        header = write.header(_header(call.operands[0], call.source))
        if header.valid is None:
            return
        with write.out.block(f"if (!{header.valid})"):
            varbit = header.type.varbit
            if varbit is not None:  # it keeps its length
                size = f"{write.layout.field(header, varbit.name).text}.size"
                write.out(f"const uint32_t size = {size};")
            write.out(f"std::memset(&{header.text}, 0, sizeof {header.text});\n{header.mark_valid()}")
            if varbit is not None:
                write.out(f"{size} = size;")
            write.out(f"c.packet_length += {header.size};")

    def _remove_header(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        header = write.header(_header(call.operands[0], call.source))
        if header.valid is not None:
            write.out(f"if ({header.valid}) c.packet_length -= {header.size};\n{header.valid} = 0;")

    def _shift_unions(self, call: p4.Primitive, write: ExpressionWriter, unions: p4.UnionStack) -> None:
        count = write.hoist(_expression(call.operands[1], call.source), 1)
        stacks = [write.layout.stacks[name] for name in unions.columns]
        depth, following = stacks[0].depth, stacks[0].next
        limited = f"uint32_t({count} < {depth} ? {count} : {depth})"
        if call.op == "push":
            write.out(f"{following} = std::min({depth}u, {following} + {limited});")
        else:
            write.out(f"{following} -= std::min({following}, {limited});")
        for stack in stacks:
            write.out(f"{call.op}_union({stack.array}, &p.v[{stack.first_valid}], {depth}, {count});")

    def _shift(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        if isinstance(call.operands[0], p4.UnionStack):
            self._shift_unions(call, write, call.operands[0])
            return
        stack = write.layout.stacks[_stack(call.operands[0], call.source)]
        count = write.hoist(_expression(call.operands[1], call.source), 1)
        where = f"{stack.array}, &p.v[{stack.first_valid}], {stack.next}, {stack.depth}"
        write.out(f"{call.op}_front({where}, {count});")

    def _drop(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        values = {"egress_spec": "g.host.drop_port", "mcast_grp": "0"}
        for name, (header, field) in marks_to_drop(call, self._program).items():
            place = write.layout.field(write.layout.headers[header], field)
            write.out(f"{place.text} = uint64_t({values[name]}) & {word(ones(place.width))};")

    def _truncate(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        length = write.hoist(_expression(call.operands[0], call.source), 1)
        write.out(f"c.truncate = uint32_t({length} < c.truncate ? {length} : c.truncate);")

    # State

    def _register_read(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        number, register = self._registers[_name(call.operands[1], call.source)]
        index = write.hoist(_expression(call.operands[2], call.source), 1)
        target = write.place(_lvalue(call.operands[0], call.source))
        with write.out.block(f"if ({index} < {register.size}u)"):
            write.store(target, Place(f"g.r{number}[{index}]", register.width, False))
        self._otherwise_zero(call, write, target)

    @staticmethod
    def _otherwise_zero(call: p4.Primitive, write: ExpressionWriter, target: Place) -> None:
        """Write zero if the target stays unset, or it would show what another packet left there."""
        if id(call) in write.layout.first_writes:
            with write.out.block("else"):
                write.store(target, p4.Const(0))

    def _register_write(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        number, register = self._registers[_name(call.operands[0], call.source)]
        index = write.hoist(_expression(call.operands[1], call.source), 1)
        with write.out.block(f"if ({index} < {register.size}u)"):
            write.store(
                Place(f"g.r{number}[{index}]", register.width, False),
                _expression(call.operands[2], call.source),
            )

    def _count(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        number, counter = self._counters[_name(call.operands[0], call.source)]
        index = write.hoist(_expression(call.operands[1], call.source), 1)
        with write.out.block(f"if ({index} < {counter.size}u)"):
            write.out(f"g.c{number}[2 * {index}]++;\ng.c{number}[2 * {index} + 1] += c.length;")

    def _meter(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        number, meter = self._meters[_name(call.operands[1], call.source)]
        index = write.hoist(_expression(call.operands[2], call.source), 1)
        target = write.place(_lvalue(call.operands[0], call.source))
        with write.out.block(f"if ({index} < {meter.size}u)"):
            write_color(write, target, meter, f"g.m{number}[{index}]")
        self._otherwise_zero(call, write, target)

    # What happens when the pipeline ends (see `soft_switch.compiler.passes`)

    def _clone(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        session = write.hoist(_expression(call.operands[0], call.source), 1)
        write.out(f"c.clone = uint16_t(uint16_t({session}) | CLONE);")
        self._ask("clone_list", call.operands[1], call, write)

    @staticmethod
    def _ask(what: str, number: p4.Operand, call: p4.Primitive, write: ExpressionWriter) -> None:
        if not isinstance(number, p4.Const):
            raise UnsupportedConstruct(f"{call.op} with a computed field list", call.source)
        write.out(f"c.{what} = {number.value & 0xFFFF};")

    # Externs

    def _hash(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        name = _name(call.operands[2], call.source)
        base = _expression(call.operands[1], call.source)
        size = _expression(call.operands[3], call.source)
        result = write.out.name()
        text = self._calculations.call(name)
        if not (isinstance(size, p4.Const) and size.value & WORD_MASK > ones(self._calculations.bits(name))):
            text = f"bounded({text}, {write.value(size, 1)})"
        if base != p4.Const(0):
            text = f"{text} + {write.value(base, 1)}"
        write.out(f"const uint64_t {result} = {text};")
        write.assign(_lvalue(call.operands[0], call.source), Place(result, 64, False))

    def _random(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        low = write.hoist(_expression(call.operands[1], call.source), 1)
        high = write.hoist(_expression(call.operands[2], call.source), 1)
        target = write.place(_lvalue(call.operands[0], call.source))
        with write.out.block(f"if ({low} <= {high})"):
            result = write.out.name()
            write.out(f"const uint64_t {result} = g.random.between({low}, {high});")
            write.store(target, Place(result, 64, False))
        self._otherwise_zero(call, write, target)

    def _log(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        text, values = call.operands
        if not isinstance(text, p4.Named) or not isinstance(values, tuple):
            raise UnsupportedConstruct("log_msg with these operands", call.source)
        pieces = text.name.replace("\\{", "\1").replace("\\}", "\2").split("{}")
        if len(pieces) - 1 != len(values):
            raise ProgramError(
                f"log_msg has {len(values)} values for {len(pieces) - 1} places ({call.source})"
            )
        write.out("LogLine line;")
        for index, piece in enumerate(pieces):
            plain = piece.replace("\1", "{").replace("\2", "}")
            if plain:
                write.out(f"line.text({string(plain)});")
            if index < len(values):
                bounds = write.bounds(values[index]) if not p4.is_bool(values[index]) else None
                negative = "true" if bounds is not None and bounds.negative else "false"
                count = 1 if bounds is None else words(bounds.bits)
                value = write.value(values[index], 1) if count == 1 else write.hoist(values[index], count)
                write.out(f"line.number({value}, {negative});")
        write.out("line.send(g.host, LOG_INFO);")

    def _assert(self, call: p4.Primitive, write: ExpressionWriter) -> None:
        """Drop, count and report a packet whose condition is false; BMv2 aborts."""
        condition = write.boolean(_expression(call.operands[0], call.source))
        with write.out.block(f"if (!({condition}))"):
            where = f" ({call.source})" if call.source else ""
            write.out(
                f"g.host.failed_asserts++;\nLogLine line;\nline.text({string(f'{call.op} failed{where}')});"
            )
            write.out("line.send(g.host, LOG_ERROR);\nc.exit = c.aborted = true;\nreturn;")


class Actions:
    """The actions of a program as functions `actionN(g, p, c, a)`."""

    def __init__(
        self,
        program: Bmv2Program,
        layout: Layout,
        constants: Constants,
        primitives: Primitives,
        *,
        fuse: bool = True,
    ) -> None:
        self._program = program
        self._fuses = fuse
        self._layout = layout
        self._constants = constants
        self._primitives = primitives

    def ends(self, action_id: int) -> bool:
        """Tell whether an action can stop the pipeline."""
        return any(call.op in ENDING for call in self._program.actions[action_id].primitives)

    def is_empty(self, action_id: int) -> bool:
        """Tell whether an action does nothing."""
        return not self._program.actions[action_id].primitives

    def declare(self, out: Code, used: frozenset[int]) -> None:
        """Write the functions of the actions that tables refer to."""
        for action in self._program.actions.values():
            number, name = action.info.id, comment(action.info.name)
            if number in used:
                parameters = "Program& g, Phv& p, Context& c, const uint64_t* a"
                out(f"static void action{number}({parameters}) {{  {name}")
                out.lines += self._body(action).lines
                out("}")

    def _body(self, action: Action) -> Code:
        out = Code(1)
        params = param_words([param.width for param in action.info.params])
        writer = ExpressionWriter(self._layout, self._constants, out, params)
        targets = {_jump_target(call) for call in action.primitives if call.op in ("_jump", "_jump_if_zero")}
        fused = 0
        for index, call in enumerate(action.primitives):
            if index < fused:
                continue
            if index in targets:
                out.label(f"L{index}")
            fused = self._fuse(action, index, targets, writer)
            if fused == index:
                with out.block():
                    self._primitive(call, writer)
        for target in sorted(targets):
            if target >= len(action.primitives):
                out.label(f"L{target}")
        out("(void)g, (void)p, (void)c, (void)a;")
        return out

    def _fuse(self, action: Action, index: int, targets: set[int], writer: ExpressionWriter) -> int:
        """Write the assignments from `index` on that can share a loop over words; return where they end."""
        if not self._fuses:
            return index
        group: list[tuple[p4.Field, p4.Expression]] = []
        words = 0
        for call in action.primitives[index:]:
            if call.op not in ASSIGNMENTS or (group and index + len(group) in targets):
                break
            target, expression = call.operands[:2]
            if not isinstance(target, p4.Field) or isinstance(expression, p4.NOT_VALUES):
                break
            count = writer.fusible(target, expression)
            if count == 0 or (group and count != words):
                break
            words = count
            group.append((target, expression))
            writer.let(target, expression, "")
        writer.forget()
        if len(group) < 2:
            return index
        writer.fuse(group, words)
        return index + len(group)

    def _primitive(self, call: p4.Primitive, writer: ExpressionWriter) -> None:
        if call.op == "_jump":
            writer.out(f"goto L{_jump_target(call)};")
        elif call.op == "_jump_if_zero":
            condition = writer.boolean(_expression(call.operands[0], call.source))
            writer.out(f"if (!{condition}) goto L{_jump_target(call)};")
        else:
            self._primitives.write(call, writer)


def _jump_target(call: p4.Primitive) -> int:
    target = call.operands[-1]
    if not isinstance(target, p4.Const):
        raise UnsupportedConstruct("a jump to a computed place", call.source)
    return target.value


def _expression(operand: p4.Operand, source: Source | None) -> p4.Expression:
    if isinstance(operand, p4.NOT_VALUES):
        raise UnsupportedConstruct(f"{type(operand).__name__} as a value", source)
    return operand


def _lvalue(operand: p4.Operand, source: Source | None) -> p4.Field | p4.LastField:
    if not isinstance(operand, (p4.Field, p4.LastField)):
        raise UnsupportedConstruct(f"assignment to {type(operand).__name__}", source)
    return operand


def _header(operand: p4.Operand, source: Source | None) -> p4.HeaderRef:
    if not isinstance(operand, (p4.Header, p4.StackElement, p4.HeaderMux)):
        raise UnsupportedConstruct(f"{type(operand).__name__} as a header", source)
    return operand


def _stack(operand: p4.Operand, source: Source | None) -> str:
    if not isinstance(operand, p4.Stack):
        raise UnsupportedConstruct(f"{type(operand).__name__} as a header stack", source)
    return operand.name


def _name(operand: p4.Operand, source: Source | None) -> str:
    if not isinstance(operand, p4.Named):
        raise UnsupportedConstruct(
            f"{type(operand).__name__} where the name of an extern is expected", source
        )
    return operand.name
