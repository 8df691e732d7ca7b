"""Where headers, metadata and stacks live in the C++ program, and how fields are named there."""

from __future__ import annotations

from dataclasses import dataclass

from soft_switch.bmv2.program import Bmv2Program, FieldType, HeaderInstance, HeaderType
from soft_switch.bmv2.syntax import VALID
from soft_switch.compiler.bounds import Bounds, signed, unsigned, words
from soft_switch.compiler.code import Code, comment
from soft_switch.compiler.flow import Variable
from soft_switch.compiler.liveness import Liveness
from soft_switch.errors import ProgramError


def c_type(width: int) -> str:
    """The C++ type that holds a field of that width."""
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
    """A stored header: C++ lvalue, C++ lvalue of its validity (None for metadata, which is always valid)."""

    text: str
    valid: str | None
    type: HeaderType
    name: str | None = None


@dataclass(frozen=True)
class StackPlace:
    """A stored stack: C++ array with one spare element, number of real elements, first validity index."""

    array: str
    depth: int
    first_valid: int
    next: str
    type: HeaderType


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
        for stack in program.stacks.values():
            self._add_stack(stack.name, stack.type, stack.headers)
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

    def _add_metadata(self, header: HeaderInstance, liveness: Liveness) -> None:
        for field in header.type.fields:
            variable = (header.name, field.name)
            cleared = variable in liveness.cleared
            group = GROUPS[cleared, variable in liveness.copied]
            text = f"p.{group}.x{len(self._groups[group])}"
            self._groups[group].append((f"{header.name}.{field.name}", field))
            self._metadata[variable] = Place(text, field.width, field.signed)

    def _add_stack(self, name: str, header_type: HeaderType, elements: tuple[str, ...]) -> None:
        self._type_number(header_type)
        number = len(self.stacks)
        array, first = f"p.s{number}", self.valid_count
        self.stacks[name] = StackPlace(array, len(elements), first, f"p.next[{number}]", header_type)
        for index, element in enumerate(elements):
            self.headers[element] = HeaderPlace(
                f"{array}[{index}]", f"p.v[{first + index}]", header_type, element
            )
        self.valid_count += len(elements) + 1  # the spare one takes accesses beyond the end

    def _type_number(self, header_type: HeaderType) -> int:
        return self._types.setdefault(header_type.name, len(self._types))

    def type_name(self, header_type: HeaderType) -> str:
        """The C++ struct of a header type."""
        return f"T{self._types[header_type.name]}"

    def field(self, header: HeaderPlace, name: str) -> Place:
        """A field of a header."""
        if name == VALID:
            return Place("1" if header.valid is None else header.valid, 1, False)
        if header.valid is None and header.name is not None:
            return self._metadata[header.name, name]
        for index, field in enumerate(header.type.fields):
            if field.name == name:
                return Place(f"{header.text}.f{index}", field.width, field.signed)
        raise ProgramError(f"header type {header.type.name} has no field {name}")

    def find(self, header: str, field: str) -> Place | None:
        """A field by names, if the program has it."""
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
                    out(f"{c_type(field.width)} f{index};  {comment(field.name)}")
        for group, members in self._groups.items():
            with out.block(f"struct {group.capitalize()}", ";"):
                for index, (name, field) in enumerate(members):
                    out(f"{c_type(field.width)} x{index};  {comment(name)}")
        with out.block("struct Phv", ";"):
            out(f"uint8_t v[{self.valid_count + 1}];\nuint32_t next[{len(self.stacks) + 1}];")
            for group in self._groups:
                out(f"{group.capitalize()} {group};")
            for index, name in enumerate(self.plain):
                out(f"{self.type_name(self.headers[name].type)} h{index};  {comment(name)}")
            for index, (name, stack) in enumerate(self.stacks.items()):
                out(f"alignas(64) {self.type_name(stack.type)} s{index}[{stack.depth + 1}];  {comment(name)}")
        with out.block("static P4_INLINE void reset(Phv& p)"):
            for member in ("v", "next", "kept", "cleared"):
                out(f"std::memset(&p.{member}, 0, sizeof p.{member});")
        with out.block("static void copy(Phv& to, const Phv& p)"):
            for member in ("v", "next", "kept", "copied"):
                out(f"std::memcpy(&to.{member}, &p.{member}, sizeof p.{member});")
            for index, name in enumerate(self.plain):
                out(f"if ({self.headers[name].valid}) to.h{index} = p.h{index};")
            for index, stack in enumerate(self.stacks.values()):
                out(f"for (int i = 0; i < {stack.depth}; i++)")
                out(f"    if (p.v[{stack.first_valid} + i]) to.s{index}[i] = p.s{index}[i];")


def field_offsets(header_type: HeaderType) -> list[tuple[int, FieldType]]:
    """Fields with their bit offset in the packet."""
    offset, result = 0, []
    for field in header_type.fields:
        result.append((offset, field))
        offset += field.width
    return result
