"""The parser: states as labels, transitions as jumps (behavioral-model, src/bm_sim/parser.cpp)."""

from __future__ import annotations

from collections.abc import Sequence

from soft_switch.bmv2 import syntax as p4
from soft_switch.bmv2.program import CORE_ERRORS, Bmv2Program, ParserOp, ParserState, Transition
from soft_switch.compiler import bounds as b
from soft_switch.compiler.actions import Primitives
from soft_switch.compiler.code import Code, comment, word
from soft_switch.compiler.expressions import ExpressionWriter
from soft_switch.compiler.layout import HeaderPlace, Place
from soft_switch.errors import ProgramError, UnsupportedConstruct

# A parser that goes round in circles without consuming the packet is stopped: ParserTimeout in core.p4.
MAX_STEPS = 1 << 16
MAX_INT = (1 << 31) - 1


class ParserExpressionWriter(ExpressionWriter):
    """Writer of expressions in parser states, which can look ahead in the packet."""

    def _lookahead(self, expression: p4.Lookahead) -> str:
        end = -(-(expression.offset + expression.width) // 8)
        self.out(f"if (left < {end}u) {{ error = PacketTooShort; goto stop; }}")
        at, offset = f"at + {expression.offset // 8}", expression.offset % 8
        if expression.width <= 64:
            return f"load_bits<{offset}, {expression.width}>({at})"
        name = self.out.name()
        count = b.words(expression.width)
        self.out(f"Wide<{count}> {name};\nload_bits_wide<{offset}, {expression.width}>({name}, {at});")
        return name


class ParserWriter:
    """Writer of the function `parse(g, p, c)`, which leaves the rest of the packet as the payload."""

    def __init__(self, program: Bmv2Program, writer: ParserExpressionWriter, primitives: Primitives) -> None:
        self._program = program
        self._write = writer
        self._primitives = primitives
        self._out: Code = writer.out
        self._numbers = {name: number for number, name in enumerate(program.parser_states)}

    def write(self) -> None:
        """Write the function."""
        out, errors = self._out, self._program.errors
        for name in CORE_ERRORS:
            out(f"[[maybe_unused]] static constexpr uint32_t {name} = {errors[name]};")
        with out.block("static void parse(Program& g, Phv& p, Context& c)"):
            out("const uint8_t* at = c.frame;\nuint32_t left = c.length, error = NoError, steps = 0;")
            out(self._goto(self._program.parser_start))
            for state in self._program.parser_states.values():
                self._state(state)
            out.label("stop")
            out("c.payload = at;\nc.payload_length = left;\nc.error = error;\n(void)g, (void)p, (void)steps;")

    def _goto(self, state: str | None) -> str:
        return "goto stop;" if state is None else f"goto state{self._numbers[state]};"

    def _state(self, state: ParserState) -> None:
        out = self._out
        out.label(f"state{self._numbers[state.name]}")
        with out.block(tail=f"  {comment(state.name)}"):
            out(f"if (++steps > {MAX_STEPS}) {{ error = ParserTimeout; goto stop; }}")
            for op in state.ops:
                with out.block():
                    self._op(op)
            self._transitions(state)

    def _op(self, op: ParserOp) -> None:
        out = self._out
        if op.primitive is not None:
            self._primitives.write(op.primitive, self._write)
        elif op.op == "extract" and isinstance(op.target, p4.Stack):
            stack = self._write.layout.stacks[op.target.name]
            out(f"const uint32_t i = {stack.next};")
            out(f"if (i >= {stack.depth}u) {{ error = StackOutOfBounds; goto stop; }}")
            self._extract(stack.element("i"), op.value)
            out(f"{stack.next} = i + 1;")
        elif op.op == "extract" and isinstance(op.target, (p4.Header, p4.StackElement)):
            self._extract(self._write.header(op.target), op.value)
        elif op.op == "set" and isinstance(op.target, (p4.Field, p4.LastField)) and op.value is not None:
            self._write.assign(op.target, op.value)
        elif op.op == "verify" and op.value is not None:
            out(f"if (!{self._write.boolean(op.value)}) {{")
            out(f"    error = uint32_t({self._write.value(op.target, 1)});\n    goto stop;\n}}")  # type: ignore[arg-type]
        elif op.op == "advance" and op.value is not None:
            self._advance(op.value)
        else:
            raise UnsupportedConstruct(f"parser operation {op.op} with these operands")

    def _extract(self, header: HeaderPlace, length: p4.Expression | None) -> None:
        out, fixed = self._out, header.type.width // 8
        if header.valid is None:
            raise UnsupportedConstruct(f"extract of metadata {header.name}")
        varbit = header.type.varbit
        if (varbit is None) != (length is None):
            raise ProgramError(f"extract of {header.type.name} does not fit its varbit field, or lack of one")
        if varbit is None or length is None:
            out(f"if (left < {fixed}u) {{ error = PacketTooShort; goto stop; }}")
            out(f"extract(at, {header.text});\n{header.mark_valid()}\nat += {fixed}, left -= {fixed};")
            return
        bounds = self._write.bounds(length)
        bits = self._write.hoist(length, 1)
        beyond = "" if bounds.high <= MAX_INT else f"{bits} > {MAX_INT} || "
        out(f"if ({beyond}{bits} % 8) {{ error = ParserInvalidArgument; goto stop; }}")
        # BMv2 adds what the header has from an earlier extract.
        out(f"const uint64_t wanted = {header.size} + {bits} / 8;")
        out("if (left < wanted) { error = PacketTooShort; goto stop; }")
        out(f"if (wanted > {fixed + varbit.width // 8}u) {{ error = HeaderTooShort; goto stop; }}")
        out(f"extract(at, {header.text}, uint32_t({bits} / 8));\n{header.mark_valid()}")
        out(f"at += {fixed} + {bits} / 8, left -= uint32_t({fixed} + {bits} / 8);")

    def _advance(self, amount: p4.Expression) -> None:
        out = self._out
        bits = self._write.hoist(amount, 1)
        out(f"if ({bits} % 8) {{ error = ParserInvalidArgument; goto stop; }}")
        out(f"if (left < {bits} / 8) {{ error = PacketTooShort; goto stop; }}")
        out(f"at += {bits} / 8, left -= uint32_t({bits} / 8);")

    def _transitions(self, state: ParserState) -> None:
        """Write the key's comparison, part by part; in the JSON each part is padded to whole bytes."""
        out, write = self._out, self._write
        default = next((t.next_state for t in state.transitions if t.is_default), None)
        keys: list[tuple[str, int, int]] = []  # C++ text, words, padded width
        if not all(t.is_default for t in state.transitions):
            for part in state.key:
                bounds = write.bounds(part)
                width = self._key_width(part, bounds)
                count = b.words(width)
                keys.append((self._key_part(part, width, count), count, -(-width // 8) * 8))
        for transition in state.transitions:
            if transition.value_set is not None:
                self._value_set(transition, keys)
            if transition.value is None:
                continue
            tests, value, mask = [], transition.value, transition.mask
            for part, (text, count, padded) in zip(reversed(state.key), reversed(keys), strict=True):
                ones = b.ones(padded)
                wanted = value & ones
                if write.bounds(part).negative and wanted >> (padded - 1):
                    value += 1 << padded  # p4c adds up the components, of which this one is negative
                    wanted &= b.ones(self._key_width(part, write.bounds(part)))
                tests.append(self._test(text, count, wanted, ones if mask is None else mask & ones, padded))
                value >>= padded
                mask = None if mask is None else mask >> padded
            matches = " && ".join(test for test in reversed(tests) if test) or "true"
            out(f"if ({matches}) {self._goto(transition.next_state)}")
        out(self._goto(default))

    def _key_part(self, part: p4.Expression, width: int, count: int) -> str:
        """Return a component's bits, without sign."""
        if isinstance(part, (p4.Field, p4.LastField)):
            stored = self._write.place(part)
            return self._write.hoist(Place(stored.text, width, False), count)
        if isinstance(part, p4.StackCount):
            return f"uint64_t(uint32_t({self._write.value(part, 1)}))"
        return self._write.hoist(part, count)

    def _value_set(self, transition: Transition, keys: Sequence[tuple[str, int, int]]) -> None:
        out = self._out
        number = list(self._program.description.value_sets).index(str(transition.value_set))
        words = [f"{text}.w[{i}]" if count > 1 else text for text, count, _ in keys for i in range(count)]
        with out.block():
            out(f"const uint64_t key[{max(1, len(words))}] = {{{', '.join(words) or '0'}}};")
            out(f"if (g.value_sets[{number}].contains(key)) {self._goto(transition.next_state)}")

    def _key_width(self, part: p4.Expression, bounds: b.Bounds) -> int:
        if isinstance(part, (p4.Field, p4.LastField)):
            return self._write._static_place(part).width
        if isinstance(part, p4.Lookahead):
            return part.width
        if isinstance(part, p4.Const):
            return 8
        if isinstance(part, p4.StackCount):
            return 32
        return bounds.bits

    def _test(self, text: str, count: int, value: int, mask: int, padded: int) -> str:
        if mask == 0:
            return ""
        if count == 1:
            masked = text if mask == b.ones(padded) else f"({text} & {word(mask)})"
            return f"{masked} == {word(value & mask)}"
        tests = []
        for i in range(count):
            part, wanted = mask >> (64 * i) & b.WORD_MASK, value >> (64 * i) & b.WORD_MASK
            if part:
                tests.append(f"({text}.w[{i}] & {word(part)}) == {word(wanted & part)}")
        return " && ".join(tests)
