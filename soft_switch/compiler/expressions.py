"""Expressions as C++.

BMv2 computes with unlimited integers and cuts a value to a width where it is stored. Sums, products, bit
operations and shifts to the left can be computed modulo 2^(64 n) instead, if only the low n words are wanted;
comparisons, shifts to the right, division and saturation get their operands exactly, in as many words as
`bounds` says they need. Wide operations whose words do not depend on each other become one fused loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from soft_switch.bmv2 import syntax as p4
from soft_switch.bmv2.program import HeaderType
from soft_switch.compiler import bounds as b
from soft_switch.compiler.bounds import Bounds
from soft_switch.compiler.code import Code, word
from soft_switch.compiler.layout import HeaderPlace, Layout, Place
from soft_switch.errors import Source, UnsupportedConstruct

COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
WORD_PARALLEL = frozenset({"&", "|", "^"})

# What can be computed: an expression of the program, or something the generated code has stored.
Value = Union[p4.Expression, Place]  # noqa: UP007
COMPOSITE = (p4.Binary, p4.Unary, p4.Mux)


class Constants:
    """Wide constants of the program, each once."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, ...], str] = {}

    def name(self, value: int, count: int) -> str:
        """Return the C++ array with the low `count` words of a value."""
        key = tuple(value >> (64 * i) & b.WORD_MASK for i in range(count))
        return self._names.setdefault(key, f"K{len(self._names)}")

    def declare(self, out: Code) -> None:
        """Write the arrays."""
        for key, name in self._names.items():
            out(f"alignas(64) static const uint64_t {name}[{len(key)}] = {{{', '.join(map(word, key))}}};")


class ExpressionWriter:
    """Writer of expressions of one C++ function; operands that need statements go to `out` first."""

    def __init__(
        self, layout: Layout, constants: Constants, out: Code, params: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.layout = layout
        self.out = out
        self.source: Source | None = None
        self._constants = constants
        self._params = params  # (first word, width) of each action parameter
        self._known: dict[int, tuple[Value, Bounds]] = {}  # by identity, kept alive
        self._locals: dict[p4.Field, tuple[str, Bounds]] = {}  # of the loop that is being written

    # Places

    def header(self, reference: p4.HeaderRef) -> HeaderPlace:
        """Return the header of a reference; an index beyond the stack means its spare element."""
        if isinstance(reference, p4.Header):
            return self.layout.headers[reference.name]
        if isinstance(reference, p4.HeaderMux):
            return self._header_mux(reference)
        stack = self.layout.stacks[reference.stack]
        index = self.out.name("i")
        bounds = self.bounds(reference.index)
        value = self.value(reference.index, b.words(bounds.bits))
        low = value if b.words(bounds.bits) == 1 else f"{value}.w[0]"
        self.out(f"uint64_t {index} = {low};\nif ({index} >= {stack.depth}u) {index} = {stack.depth}u;")
        return stack.element(index)

    def _header_mux(self, reference: p4.HeaderMux) -> HeaderPlace:
        left, right = self.header(reference.left), self.header(reference.right)
        if left.valid is None or right.valid is None or left.type != right.type:
            raise UnsupportedConstruct("a choice between two structs", self.source)
        name = self.out.name("m")
        condition = self.boolean(reference.condition)
        self.out(f"const bool {name} = {condition};")
        self.out(f"auto& {name}h = {name} ? {left.text} : {right.text};")
        self.out(f"uint8_t& {name}v = {name} ? {left.valid} : {right.valid};")
        return HeaderPlace(f"{name}h", f"{name}v", left.type)

    def header_type(self, reference: p4.HeaderRef) -> HeaderType:
        """Return the type of a header, without code for an index."""
        match reference:
            case p4.Header(name):
                return self.layout.headers[name].type
            case p4.HeaderMux(_, left, _):
                return self.header_type(left)
            case p4.StackElement(stack, _):
                return self.layout.stacks[stack].type

    def place(self, field: p4.Field | p4.LastField | Place) -> Place:
        """Return the field to read or write."""
        if isinstance(field, Place):
            return field
        if isinstance(field, p4.Field):
            return self.layout.field(self.header(field.header), field.field)
        stack = self.layout.stacks[field.stack]
        index = f"({stack.next} ? {stack.next} - 1 : {stack.depth}u)"
        return self.layout.field(stack.element(index), field.field)

    def _static_place(self, field: p4.Field | p4.LastField) -> Place:
        """Return width and sign of a field, without code for an index."""
        if isinstance(field, p4.LastField):
            header_type = self.layout.stacks[field.stack].type
        elif isinstance(field.header, p4.Header):
            return self.layout.field(self.layout.headers[field.header.name], field.field)
        else:
            header_type = self.header_type(field.header)
        return self.layout.field(HeaderPlace("", "", header_type), field.field)

    # Bounds

    def bounds(self, expression: Value) -> Bounds:
        """Return the bounds of the values of an expression that yields a number."""
        if not isinstance(expression, COMPOSITE):
            return self._bounds(expression)
        known = self._known.get(id(expression))
        if known is None:
            known = self._known[id(expression)] = expression, self._bounds(expression)
        return known[1]

    def _bounds(self, expression: Value) -> Bounds:
        match expression:
            case p4.Const(value):
                return b.constant(value)
            case Place():
                return expression.bounds
            case p4.Field() if expression in self._locals:
                return self._locals[expression][1]
            case p4.Field() | p4.LastField():
                place = self._static_place(expression)
                if place.varbit:
                    raise UnsupportedConstruct(
                        f"varbit field {expression.field} in a computation", self.source
                    )
                return place.bounds
            case p4.Param(index):
                return b.unsigned(self._params[index][1])
            case p4.Lookahead(_, width):
                return b.unsigned(width)
            case p4.StackCount(_, last):
                return b.unsigned(64 if last else 32)  # BMv2: an empty stack's last index is 2^64 - 1
            case p4.Mux(_, left, right):
                return b.union(self.bounds(left), self.bounds(right))
            case p4.Unary("~", operand):
                return b.invert(self.bounds(operand))
            case p4.Unary("b2d", _):
                return b.unsigned(1)
            case p4.Binary(op, left, right):
                return self._binary_bounds(op, self.bounds(left), self.bounds(right), right)
            case _:
                raise UnsupportedConstruct(
                    f"a truth value used as a number ({type(expression).__name__})", self.source
                )

    def _binary_bounds(self, op: str, left: Bounds, right: Bounds, width: p4.Expression) -> Bounds:
        simple = {
            "+": b.add,
            "-": b.subtract,
            "*": b.multiply,
            "&": b.bit_and,
            "|": b.bit_or,
            "^": b.bit_xor,
            "<<": b.shift_left,
            ">>": b.shift_right,
        }
        if op in simple:
            return simple[op](left, right)
        if op == "/":
            return b.between(0, max(left.high, 0))
        if op == "%":
            return b.between(0, max(right.high - 1, 0))
        bits = self._width_operand(width)
        if op == "two_comp_mod":
            return b.wrap_signed(left, bits)
        if op == "usat_cast":
            return b.saturate(left, 0, b.ones(bits))
        if op == "sat_cast":
            return b.saturate(left, -(1 << (bits - 1)), b.ones(bits - 1))
        raise UnsupportedConstruct(f"operator {op}", self.source)

    def _width_operand(self, width: p4.Expression) -> int:
        if not isinstance(width, p4.Const):
            raise UnsupportedConstruct("a cast to a width that is not constant", self.source)
        return width.value

    # Truth values

    def boolean(self, expression: Value) -> str:
        """Return a C++ expression of type bool."""
        match expression:
            case p4.Bool(value):
                return "true" if value else "false"
            case p4.Valid(header):
                return self._valid(self.header(header))
            case p4.Unary("not", operand):
                return f"!{self.boolean(operand)}"
            case p4.Unary("d2b", operand):
                return self._compare("!=", operand, p4.Const(0))
            case p4.Binary("and", left, right):
                return f"({self.boolean(left)} & {self.boolean(right)})"
            case p4.Binary("or", left, right):
                return f"({self.boolean(left)} | {self.boolean(right)})"
            case p4.Binary(op, left, right) if op in COMPARISONS:
                if p4.is_bool(left):
                    return f"({self.boolean(left)} {op} {self.boolean(right)})"
                return self._compare(op, left, right)
            case p4.Mux(condition, left, right):
                return f"({self.boolean(condition)} ? {self.boolean(left)} : {self.boolean(right)})"
            case p4.HeadersEqual(first, second):
                return self._headers_equal(self.header(first), self.header(second))
            case _:
                return self._compare("!=", expression, p4.Const(0))

    @staticmethod
    def _valid(header: HeaderPlace) -> str:
        return "true" if header.valid is None else f"bool({header.valid})"

    def _is_varbit(self, expression: Value) -> bool:
        if isinstance(expression, (p4.Field, p4.LastField)):
            return self._static_place(expression).varbit
        return False

    def _compare(self, op: str, left: Value, right: p4.Expression) -> str:
        if op in ("==", "!=") and self._is_varbit(left) and self._is_varbit(right):
            x, y = self.place(left).text, self.place(right).text  # type: ignore[arg-type]
            return f"{'!' if op == '!=' else ''}equal({x}, {y})"
        both = b.union(self.bounds(left), self.bounds(right))
        count = b.words(both.bits)
        x, y = self.value(left, count), self.value(right, count)
        sign = "true" if both.negative else "false"
        if count == 1:
            cast = "int64_t" if both.negative and op not in ("==", "!=") else "uint64_t"
            return f"({cast}({x}) {op} {cast}({y}))"
        if op in ("==", "!="):
            test = f"is_zero({x})" if right == p4.Const(0) else f"equal({x}, {y})"
            return test if op == "==" else f"!{test}"
        if op in ("<", ">="):
            return f"{'!' if op == '>=' else ''}less({x}, {y}, {sign})"
        return f"{'!' if op == '<=' else ''}less({y}, {x}, {sign})"

    def _headers_equal(self, first: HeaderPlace, second: HeaderPlace) -> str:
        if first.type != second.type:
            return "false"
        tests = [self._valid(first), self._valid(second)]
        for item in first.type.fields:
            x, y = self.layout.field(first, item.name), self.layout.field(second, item.name)
            whole = x.width > 64 or x.varbit
            tests.append(f"equal({x.text}, {y.text})" if whole else f"{x.text} == {y.text}")
        return "(" + " && ".join(tests) + ")"

    # Numbers

    def value(self, expression: Value, count: int) -> str:
        """Return a C++ expression for the value modulo 2^(64 count).

        Its type is uint64_t for one word, else Wide<count>.
        """
        return self._narrow(expression) if count == 1 else self._wide(expression, count)

    def hoist(self, expression: Value, count: int) -> str:
        """Return the value in a local variable (or where it is stored), so that it is computed once."""
        text = self.value(expression, count)
        if text.replace("_", "").isalnum() or (count > 1 and isinstance(expression, p4.Field)):
            return text
        name = self.out.name()
        kind = "uint64_t" if count == 1 else f"Wide<{count}>"
        self.out(f"const {kind} {name} = {text};")
        return name

    def _narrow(self, expression: Value) -> str:
        match expression:
            case p4.Const(value):
                return word(value & b.WORD_MASK)
            case p4.Field() | p4.LastField() | Place():
                place = self.place(expression)
                if place.width > 64:
                    return f"{place.text}.w[0]"
                text = f"uint64_t({place.text})"
                return f"sign_extend({text}, {place.width})" if place.signed else text
            case p4.Param(index):
                return f"a[{self._params[index][0]}]"
            case p4.Lookahead():
                return self._lookahead(expression)
            case p4.StackCount(stack, last):
                return f"(uint64_t({self.layout.stacks[stack].next}){' - 1u' if last else ''})"
            case p4.Unary("~", operand):
                return f"(~{self.value(operand, 1)})"
            case p4.Unary("b2d", operand):
                return f"uint64_t({self.boolean(operand)})"
            case p4.Mux(condition, left, right):
                return f"({self.boolean(condition)} ? {self.value(left, 1)} : {self.value(right, 1)})"
            case p4.Binary("&", left, right) if self._keeps(left, right, 1):
                return self._narrow(left)
            case p4.Binary("+" | "-" | "*" | "&" | "|" | "^" as op, left, right):
                return f"({self.value(left, 1)} {op} {self.value(right, 1)})"
            case p4.Binary("<<", left, right):
                return self._shift_left(left, right, 1)
            case p4.Binary(">>" | "/" | "%" | "sat_cast" | "usat_cast" as op, left, right):
                return self._exact(op, left, right, 1)
            case p4.Binary("two_comp_mod", left, right):
                return self._wrap(left, self._width_operand(right), 1)
            case _:
                return f"uint64_t({self.boolean(expression)})"

    def _wide(self, expression: Value, count: int) -> str:
        if isinstance(expression, COMPOSITE):
            bounds = self.bounds(expression)
            if not bounds.negative and bounds.bits <= b.WORD_BITS:
                return f"from_unsigned<{count}>({self.value(expression, 1)})"
        match expression:
            case p4.Const(value):
                if value >= 0 and value <= b.WORD_MASK:
                    return f"from_unsigned<{count}>({word(value)})"
                return f"from_words<{count}>({self._constants.name(value, count)})"
            case p4.Field() | p4.LastField() | Place():
                place = self.place(expression)
                if place.width <= 64:
                    text = f"uint64_t({place.text})"
                    if place.signed:
                        return f"from_signed<{count}>(int64_t(sign_extend({text}, {place.width})))"
                    return f"from_unsigned<{count}>({text})"
                if place.signed and place.width % 64:
                    return f"resize<{count}>(sign_extend({place.text}, {place.width}), true)"
                if place.words == count:
                    return place.text
                return f"resize<{count}>({place.text}, {'true' if place.signed else 'false'})"
            case p4.Param(index):
                first, width = self._params[index]
                if width <= 64:
                    return f"from_unsigned<{count}>(a[{first}])"
                return f"resize<{count}>(from_words<{b.words(width)}>(a + {first}), false)"
            case p4.Lookahead(_, width):
                text = self._lookahead(expression)
                return f"resize<{count}>({text}, false)" if width > 64 else f"from_unsigned<{count}>({text})"
            case p4.StackCount() | p4.Unary("b2d", _):
                return f"from_unsigned<{count}>({self._narrow(expression)})"
            case p4.Binary("&", left, right) if self._keeps(left, right, count):
                return self._wide(left, count)
            case p4.Binary("+" | "-" as op, left, right) if not self._parallel(expression, count):
                name = "add" if op == "+" else "sub"
                return f"{name}({self.hoist(left, count)}, {self.hoist(right, count)})"
            case p4.Binary("*", left, right):
                return f"mul({self.hoist(left, count)}, {self.hoist(right, count)})"
            case p4.Binary("<<", left, right):
                return self._shift_left(left, right, count)
            case p4.Binary(">>" | "/" | "%" | "sat_cast" | "usat_cast" as op, left, right):
                return self._exact(op, left, right, count)
            case p4.Binary("two_comp_mod", left, right):
                return self._wrap(left, self._width_operand(right), count)
            case p4.Binary() | p4.Unary("~", _) | p4.Mux():
                return f"each<{count}>([&](int i) {{ return {self.word(expression, count)}; }})"
            case _:
                return f"from_unsigned<{count}>({self.boolean(expression)})"

    def fuse(self, group: Sequence[tuple[p4.Field, p4.Expression]], count: int) -> None:
        """Write assignments one after the other, each of which `fusible` allows, as one loop over words."""
        with self.out.block(f"for (int i = 0; i < {count}; i++)"):
            for target, expression in group:
                name = self.out.name("l")
                self.out(f"const uint64_t {name} = {self.word(expression, count)};")
                self.let(target, expression, name)
            for target, (name, _) in list(self._locals.items()):
                self.out(f"{self.place(target).text}.w[i] = {name};")
        self.forget()

    def let(self, target: p4.Field, expression: p4.Expression, name: str) -> None:
        """Note, inside a fused loop, that the field has that value from here on; its word i has that name."""
        self._locals[target] = name, b.bit_and(self.bounds(expression), self._static_place(target).bounds)
        self._known.clear()  # other statements may have the same expressions

    def forget(self) -> None:
        """Forget the names of a loop, which has been written."""
        self._locals.clear()
        self._known.clear()

    def fusible(self, target: p4.Field | p4.LastField, expression: p4.Expression) -> int:
        """Return an assignment's words if they can be computed side by side, without anything else, or 0."""
        if not isinstance(target, p4.Field) or not isinstance(target.header, p4.Header):
            return 0
        place = self._static_place(target)
        count = place.words
        whole = not (place.signed or place.varbit or place.saturating) and place.width == 64 * count
        return count if whole and count > 1 and self._side_by_side(expression, count) else 0

    def _side_by_side(self, expression: p4.Expression, count: int) -> bool:
        match expression:
            case p4.Const(value):
                return value >= 0
            case p4.Field(p4.Header(), _):
                place = self._static_place(expression)
                return not (place.signed or place.varbit) and place.width == 64 * count
            case p4.Binary("&", left, right) if self._keeps(left, right, count):
                return self._side_by_side(left, count)
            case p4.Unary("~", operand):
                return self._side_by_side(operand, count)
            case p4.Binary("&", left, p4.Const(mask)) if shift := self._masked_shift(left, mask, count):
                return self._side_by_side(shift[1], count)
            case p4.Binary("<<" | ">>", left, p4.Const()):
                return self._parallel(expression, count) and self._side_by_side(left, count)
            case p4.Binary(_, left, right) if self._parallel(expression, count):
                return self._side_by_side(left, count) and self._side_by_side(right, count)
            case _:
                return False

    def parallel(self, expression: Value, count: int) -> bool:
        """Tell whether word i of the expression's top operation needs words i of the operands only."""
        return count > 1 and self._parallel(expression, count)

    def _parallel(self, expression: Value, count: int) -> bool:
        match expression:
            case p4.Unary("~", _) | p4.Mux():
                return True
            case p4.Binary("&", left, right) if self._keeps(left, right, count):
                return self._parallel(left, count)
            case p4.Binary("<<" | ">>" as op, left, p4.Const(amount)):
                return self._stays(op, left, amount, count)
            case p4.Binary(op, _, _) if op in WORD_PARALLEL:
                return True
            case p4.Binary("+", left, right):
                return b.no_carry(self.bounds(left), self.bounds(right), count)
            case p4.Binary("-", left, right):
                match self._whole(right, count):
                    case p4.Binary(">>", other, p4.Const(amount)) if left == other:
                        return self._stays(">>", left, amount, count)  # no word is less than itself, shifted
                return b.no_borrow(self.bounds(left), self.bounds(right), count)
            case _:
                return False

    def _masked_shift(
        self, expression: p4.Expression, mask: int, count: int
    ) -> tuple[str, p4.Expression, int] | None:
        """Return operator and operands of a shift if the mask keeps nothing from other words."""
        match self._whole(expression, count):
            case p4.Binary("<<" | ">>" as op, left, p4.Const(amount)):
                return (op, left, amount) if self._stays(op, left, amount, count, mask) else None
            case _:
                return None

    def _whole(self, expression: p4.Expression, count: int) -> p4.Expression:
        """Return the expression without masks that keep its low `count` words."""
        while isinstance(expression, p4.Binary) and expression.op == "&":
            if not self._keeps(expression.left, expression.right, count):
                break
            expression = expression.left
        return expression

    def _stays(self, op: str, left: p4.Expression, amount: int, count: int, kept: int = -1) -> bool:
        """Tell whether a shift moves no bit in `kept` from one word into another."""
        stays = b.stays_left if op == "<<" else b.stays_right
        return stays(self.bounds(left), amount, count, kept)

    def word(self, expression: Value, count: int) -> str:
        """Return word i of the value modulo 2^(64 count), as C++ inside a loop over i."""
        match expression:
            case p4.Const(value):
                parts = {value >> (64 * i) & b.WORD_MASK for i in range(count)}
                if len(parts) == 1:
                    return word(parts.pop())
                return f"{self._constants.name(value, count)}[i]"
            case p4.Field() if expression in self._locals:
                return self._locals[expression][0]
            case p4.Binary("&", left, right) if self._keeps(left, right, count):
                return self.word(left, count)
            case p4.Binary("&", left, p4.Const(mask)) if shift := self._masked_shift(left, mask, count):
                op, shifted, amount = shift
                return f"(({self.word(shifted, count)} {op} {amount}) & {self.word(p4.Const(mask), count)})"
            case p4.Binary("<<" | ">>" as op, left, p4.Const(amount)) if self._parallel(expression, count):
                return f"({self.word(left, count)} {op} {amount})"
            case p4.Unary("~", operand):
                return f"(~{self.word(operand, count)})"
            case p4.Mux(condition, left, right):
                name = self.out.name("c")
                self.out(f"const bool {name} = {self.boolean(condition)};")
                return f"({name} ? {self.word(left, count)} : {self.word(right, count)})"
            case p4.Binary(op, left, right) if self._parallel(expression, count):
                return f"({self.word(left, count)} {op} {self.word(right, count)})"
            case _:
                return f"{self.hoist(expression, count)}.w[i]"

    def _keeps(self, left: p4.Expression, mask: p4.Expression, count: int) -> bool:
        """Tell whether `left & mask` has the low `count` words of `left`."""
        if not isinstance(mask, p4.Const):
            return False
        low = b.ones(64 * count)
        if mask.value & low == low:
            return True
        bounds = self.bounds(left)
        return not bounds.negative and bounds.maybe & low & ~mask.value == 0

    def _shift_left(self, left: p4.Expression, right: p4.Expression, count: int) -> str:
        if isinstance(right, p4.Const):
            if right.value >= 64 * count:
                return "uint64_t(0)" if count == 1 else f"Wide<{count}>{{}}"
            if count == 1:
                return f"({self.value(left, 1)} << {right.value})"
            return f"shl_by<{count}, {right.value}>({self.value(left, count)})"
        return f"shl({self.value(left, count)}, {self._amount(right)})"

    def _amount(self, right: p4.Expression) -> str:
        """Return a shift's amount as one word; amounts too great for it count as the greatest."""
        bounds = self.bounds(right)
        count = b.words(bounds.bits)
        if count == 1:
            return self.value(right, 1)
        name = self.hoist(right, count)
        return f"(equal({name}, from_unsigned<{count}>({name}.w[0])) ? {name}.w[0] : ~uint64_t(0))"

    def _exact(self, op: str, left: p4.Expression, right: p4.Expression, count: int) -> str:
        """Write an operation that needs all of its operands, in as many words as that takes."""
        bounds = self.bounds(left)
        bits = bounds.bits
        if op in ("/", "%"):
            bits = max(bits, self.bounds(right).bits)
            if bounds.negative or self.bounds(right).negative:
                raise UnsupportedConstruct(f"operator {op} on numbers that can be negative", self.source)
        elif op != ">>":
            bits = max(bits, self._width_operand(right) + 1)
        size = b.words(bits)
        if op == ">>" and size > 1 and isinstance(right, p4.Const) and not bounds.negative:
            return self._part(self.value(left, size), right.value, size, count)
        text = {">>": self._shift_right, "/": self._divide, "%": self._divide}.get(op, self._saturate)(
            op, left, right, size
        )
        if size == count:
            return text
        result = self._binary_bounds(op, bounds, self.bounds(right), right)
        if count == 1:
            return f"{text}.w[0]"
        if size == 1:
            return (
                f"from_signed<{count}>(int64_t({text}))"
                if result.negative
                else f"from_unsigned<{count}>({text})"
            )
        return f"resize<{count}>({text}, {'true' if result.negative else 'false'})"

    @staticmethod
    def _part(text: str, amount: int, size: int, count: int) -> str:
        """Return `count` words of a wide value that is shifted to the right by a constant."""
        if amount >= 64 * size:
            return "uint64_t(0)" if count == 1 else f"Wide<{count}>{{}}"
        return f"word_at<{amount}>({text})" if count == 1 else f"part<{count}, {amount}>({text})"

    def _shift_right(self, op: str, left: p4.Expression, right: p4.Expression, size: int) -> str:
        negative = self.bounds(left).negative
        if isinstance(right, p4.Const) and not negative and size == 1:
            return "uint64_t(0)" if right.value >= 64 else f"({self.value(left, 1)} >> {right.value})"
        if size == 1:
            return f"{'sar' if negative else 'shr'}({self.value(left, 1)}, {self._amount(right)})"
        return f"shr({self.value(left, size)}, {self._amount(right)}, {'true' if negative else 'false'})"

    def _divide(self, op: str, left: p4.Expression, right: p4.Expression, size: int) -> str:
        x, y = self.value(left, size), self.value(right, size)
        if size == 1:
            return f"{'quotient' if op == '/' else 'remainder'}({x}, {y})"
        return f"divide({x}, {y}, {'false' if op == '/' else 'true'})"

    def _saturate(self, op: str, left: p4.Expression, right: p4.Expression, size: int) -> str:
        bits = self._width_operand(right)
        low, high = (0, b.ones(bits)) if op == "usat_cast" else (-(1 << (bits - 1)), b.ones(bits - 1))
        bounds = self.bounds(left)
        name = self.hoist(left, size)
        sign = "true" if bounds.negative else "false"
        least, most = self.value(p4.Const(low), size), self.value(p4.Const(high), size)
        if size == 1:
            kind = "int64_t" if bounds.negative else "uint64_t"
            above, below = f"{kind}({name}) > {kind}({most})", f"{kind}({name}) < {kind}({least})"
        else:
            above, below = f"less({most}, {name}, {sign})", f"less({name}, {least}, {sign})"
        if not bounds.negative:
            return f"({above} ? {most} : {name})"
        return f"({above} ? {most} : {below} ? {least} : {name})"

    def _wrap(self, operand: p4.Expression, bits: int, count: int) -> str:
        if b.wrap_signed(self.bounds(operand), bits) == self.bounds(operand):
            return self.value(operand, count)
        if bits >= 64 * count:
            return self.value(operand, count)
        size = b.words(bits)
        inner = f"sign_extend({self.value(operand, size)}, {bits})"
        if size == count:
            return inner
        return f"from_signed<{count}>(int64_t({inner}))" if size == 1 else f"resize<{count}>({inner}, true)"

    def _lookahead(self, expression: p4.Lookahead) -> str:
        raise UnsupportedConstruct("lookahead outside of the parser", self.source)

    # Storing

    def assign(self, target: p4.Field | p4.LastField, expression: Value) -> None:
        """Store a value in a field, cut to its width."""
        place = self.place(target)
        self.store(place, expression)

    def store(self, place: Place, expression: Value) -> None:
        """Store a value in a place, cut to its width."""
        if place.varbit:
            raise UnsupportedConstruct("a number stored in a varbit field", self.source)
        if place.saturating:
            op = "sat_cast" if place.signed else "usat_cast"
            expression = p4.Binary(op, expression, p4.Const(place.width))  # type: ignore[arg-type]
        count = place.words
        bounds = self.bounds(expression)
        fits = not bounds.negative and bounds.maybe & ~b.ones(place.width) == 0
        if count == 1:
            text = self.value(expression, 1)
            if place.width not in (8, 16, 32, 64) and not fits:
                text = f"{text} & {word(b.ones(place.width))}"
            self.out(f"{place.text} = {text};")
        elif self.parallel(expression, count) and (fits or place.width % 64 == 0):
            self.out(
                f"each_into<{count}>({place.text}, [&](int i) {{ return {self.word(expression, count)}; }});"
            )
        else:
            text = self.value(expression, count)
            if not fits and place.width % 64:
                text = f"cut({text}, {place.width})"
            self.out(f"{place.text} = {text};")
