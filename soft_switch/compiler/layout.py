"""Places of headers, metadata and stacks in the C++ program, and names of fields there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from soft_switch.bmv2.program import Bmv2Program, FieldType, HeaderInstance, HeaderStack, HeaderType
from soft_switch.bmv2.syntax import VALID
from soft_switch.compiler.bounds import Bounds, signed, unsigned, words
from soft_switch.compiler.code import Code, comment
from soft_switch.compiler.flow import Variable
from soft_switch.compiler.liveness import Liveness


def field_type(field: FieldType) -> str:
    """Return the C++ type of a field."""
    return f"Varbit<{field.width // 8}>" if field.varbit else c_type(field.width)


def c_type(width: int) -> str:
    """Return the C++ type that holds a field of that width."""
    for size in (8, 16, 32, 64):
        if width <= size:
            return f"uint{size}_t"
    return f"Wide<{words(width)}>"


@dataclass(frozen=True)
class Place:
    """A stored field: C++ lvalue, width and sign."""

    text: str
    width: int
    signed: bool
    varbit: bool = False
    saturating: bool = False

    @property
    def words(self) -> int:
        """64-bit words that hold it."""
        return words(self.width)

    @property
    def bounds(self) -> Bounds:
        """The values it can have."""
        return signed(self.width) if self.signed else unsigned(self.width)


@dataclass(frozen=True)
class HeaderPlace:
    """A stored header: C++ lvalue, C++ lvalue of its validity (None for metadata, which is always valid).

    `others` are the validities of the other headers of its union, which end when this one becomes valid.
    """

    text: str
    valid: str | None
    type: HeaderType
    name: str | None = None
    others: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """C++ for its bytes in a packet."""
        fixed = self.type.width // 8
        for index, field in enumerate(self.type.fields):
            if field.varbit:
                return f"({fixed}u + {self.text}.f{index}.size)"
        return f"{fixed}u"

    def mark_valid(self) -> str:
        """Return C++ that makes it valid."""
        return "".join(f"{other} = 0;\n" for other in self.others) + f"{self.valid} = 1;"


@dataclass(frozen=True)
class StackPlace:
    """A stored stack: C++ array with one spare element, number of real elements, first validity index.

    `others` are the first validity indices of the other columns, in a stack of unions.
    """

    array: str
    depth: int
    first_valid: int
    next: str
    type: HeaderType
    others: tuple[int, ...] = ()

    def element(self, index: str, name: str | None = None) -> HeaderPlace:
        """Return the header at an index."""
        others = tuple(f"p.v[{first} + {index}]" for first in self.others)
        valid = f"p.v[{self.first_valid} + {index}]"
        return HeaderPlace(f"{self.array}[{index}]", valid, self.type, name, others)


# Groups of metadata in `Phv`, by what has to happen to them: cleared for a packet, copied for a replica.
GROUPS = {(True, True): "kept", (True, False): "cleared", (False, True): "copied", (False, False): "local"}


class Layout:
    """The packet header vector `Phv`; generated functions call it `p`."""

    def __init__(self, program: Bmv2Program, liveness: Liveness) -> None:
        self._types: dict[str, int] = {}
        self.headers: dict[str, HeaderPlace] = {}
        self.stacks: dict[str, StackPlace] = {}
        self.plain: list[str] = []
        self._metadata: dict[Variable, Place] = {}
        self.first_writes = liveness.first_writes
        self._groups: dict[str, list[tuple[str, FieldType]]] = {name: [] for name in GROUPS.values()}
        self.valid_count = 0
        in_stack = {name for stack in program.stacks.values() for name in stack.headers}
        self._counters: dict[str, int] = {}
        self._add_stacks(list(program.stacks.values()))
        for header in program.header_instances.values():
            if header.name in in_stack:
                continue
            if header.metadata:
                self.headers[header.name] = HeaderPlace("", None, header.type, header.name)
                self._add_metadata(header, liveness)
            else:
                self._type_number(header.type)
                text = f"p.h{len(self.plain)}"
                self.plain.append(header.name)
                valid = f"p.v[{self.valid_count}]"
                self.valid_count += 1
                self.headers[header.name] = HeaderPlace(text, valid, header.type, header.name)
        for union in program.unions:
            self._add_union([self.headers[name] for name in union if name not in in_stack])

    def _add_union(self, members: list[HeaderPlace]) -> None:
        for member in members:
            others = tuple(other.valid for other in members if other is not member and other.valid)
            assert member.name is not None
            self.headers[member.name] = replace(member, others=others)

    def _add_metadata(self, header: HeaderInstance, liveness: Liveness) -> None:
        for field in header.type.fields:
            variable = (header.name, field.name)
            cleared = variable in liveness.cleared
            group = GROUPS[cleared, variable in liveness.copied]
            text = f"p.{group}.x{len(self._groups[group])}"
            self._groups[group].append((f"{header.name}.{field.name}", field))
            self._metadata[variable] = _place(text, field)

    def _add_stacks(self, stacks: list[HeaderStack]) -> None:
        firsts: dict[str, list[int]] = {}
        for number, stack in enumerate(stacks):
            self._type_number(stack.type)
            counter = self._counters.setdefault(stack.counter, len(self._counters))
            place = StackPlace(
                f"p.s{number}", len(stack.headers), self.valid_count, f"p.next[{counter}]", stack.type
            )
            firsts.setdefault(stack.counter, []).append(self.valid_count)
            self.stacks[stack.name] = place
            self.valid_count += place.depth + 1  # the spare one takes accesses beyond the end
        for stack in stacks:
            place = self.stacks[stack.name]
            others = tuple(first for first in firsts[stack.counter] if first != place.first_valid)
            self.stacks[stack.name] = place = replace(place, others=others)
            for index, element in enumerate(stack.headers):
                self.headers[element] = place.element(str(index), element)

    def _type_number(self, header_type: HeaderType) -> int:
        return self._types.setdefault(header_type.name, len(self._types))

    def type_name(self, header_type: HeaderType) -> str:
        """Return the C++ struct of a header type."""
        return f"T{self._types[header_type.name]}"

    def field(self, header: HeaderPlace, name: str) -> Place:
        """Return a field of a header."""
        if name == VALID:
            return Place("1" if header.valid is None else header.valid, 1, False)
        if header.valid is None and header.name is not None:
            return self._metadata[header.name, name]
        return _place(f"{header.text}.f{header.type.numbers[name]}", header.type.field(name))

    def find(self, header: str, field: str) -> Place | None:
        """Return a field by names, if the program has it."""
        place = self.headers.get(header)
        if place is None or all(item.name != field for item in place.type.fields):
            return None
        return self.field(place, field)

    def declare(self, out: Code, program: Bmv2Program) -> None:
        """Write the structs and what resets and copies them."""
        types = {h.type.name: h.type for h in program.header_instances.values() if not h.metadata}
        types |= {s.type.name: s.type for s in program.stacks.values()}
        for name, header_type in types.items():
            with out.block(f"struct {self.type_name(header_type)}", f";  {comment(name)}"):
                for index, field in enumerate(header_type.fields):
                    out(f"{field_type(field)} f{index};  {comment(field.name)}")
        for group, members in self._groups.items():
            with out.block(f"struct {group.capitalize()}", ";"):
                for index, (name, field) in enumerate(members):
                    out(f"{field_type(field)} x{index};  {comment(name)}")
        with out.block("struct Phv", ";"):
            out(f"uint8_t v[{self.valid_count + 1}];\nuint32_t next[{len(self._counters) + 1}];")
            for group in self._groups:
                out(f"{group.capitalize()} {group};")
            for index, name in enumerate(self.plain):
                out(f"{self.type_name(self.headers[name].type)} h{index};  {comment(name)}")
            for index, (name, stack) in enumerate(self.stacks.items()):
                out(f"alignas(64) {self.type_name(stack.type)} s{index}[{stack.depth + 1}];  {comment(name)}")
        with out.block("static P4_INLINE void reset(Phv& p)"):
            for member in ("v", "next", "kept", "cleared"):
                out(f"std::memset(&p.{member}, 0, sizeof p.{member});")
            for size in self._varbit_sizes():
                out(f"{size} = 0;")
        with out.block("static void copy(Phv& to, const Phv& p)"):
            for member in ("v", "next", "kept", "copied"):
                out(f"std::memcpy(&to.{member}, &p.{member}, sizeof p.{member});")
            for size in self._varbit_sizes():
                out(f"to.{size[2:]} = 0;")
            for index, name in enumerate(self.plain):
                out(f"if ({self.headers[name].valid}) to.h{index} = p.h{index};")
            for index, stack in enumerate(self.stacks.values()):
                out(f"for (int i = 0; i < {stack.depth}; i++)")
                out(f"    if (p.v[{stack.first_valid} + i]) to.s{index}[i] = p.s{index}[i];")

    def _varbit_sizes(self) -> list[str]:
        """Return the sizes of all varbit fields in headers.

        A header that was not extracted has an empty one.
        """
        stacks = [
            stack.element(str(index)) for stack in self.stacks.values() for index in range(stack.depth + 1)
        ]
        return [
            f"{self.field(header, header.type.varbit.name).text}.size"
            for header in [*(self.headers[name] for name in self.plain), *stacks]
            if header.type.varbit is not None
        ]


def _place(text: str, field: FieldType) -> Place:
    return Place(text, field.width, field.signed, field.varbit, field.saturating)


def field_offsets(header_type: HeaderType) -> list[tuple[int, FieldType]]:
    """Return fields with their bit offset in the packet, where a varbit field is empty."""
    offset, result = 0, []
    for field in header_type.fields:
        result.append((offset, field))
        offset += 0 if field.varbit else field.width
    return result
