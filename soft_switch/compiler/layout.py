"""Where headers, metadata and stacks live in the C++ program, and how fields are named there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from soft_switch.bmv2.program import Bmv2Program, FieldType, HeaderType
from soft_switch.bmv2.syntax import VALID
from soft_switch.compiler.bounds import Bounds, signed, unsigned, words
from soft_switch.compiler.code import Code, comment
from soft_switch.errors import ProgramError

# Metadata fields above this many bits are cleared for the next packet only if they were written.
LAZY_BITS = 512


def c_type(width: int) -> str:
    """The C++ type that holds a field of that width."""
    for size in (8, 16, 32, 64):
        if width <= size:
            return f"uint{size}_t"
    return f"Wide<{words(width)}>"


@dataclass(frozen=True)
class Place:
    """A stored field: C++ lvalue, width and sign. `dirty` is the flag to raise when it is written."""

    text: str
    width: int
    signed: bool
    dirty: int | None = None

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


class Layout:
    """The packet header vector `Phv`; generated functions call it `p`."""

    def __init__(self, program: Bmv2Program) -> None:
        self._types: dict[str, int] = {}
        self.headers: dict[str, HeaderPlace] = {}
        self.stacks: dict[str, StackPlace] = {}
        self.metadata: list[str] = []
        self.plain: list[str] = []
        self._lazy: dict[tuple[str, str], int] = {}
        self.valid_count = 0
        uses = Counter(header.type.name for header in program.header_instances.values())
        in_stack = {name for stack in program.stacks.values() for name in stack.headers}
        for stack in program.stacks.values():
            self._add_stack(stack.name, stack.type, stack.headers)
        for header in program.header_instances.values():
            if header.name in in_stack:
                continue
            self._type_number(header.type)
            if header.metadata:
                text = f"p.m.m{len(self.metadata)}"
                self.metadata.append(header.name)
                self.headers[header.name] = HeaderPlace(text, None, header.type, header.name)
                for field in header.type.fields:
                    if field.width > LAZY_BITS and uses[header.type.name] == 1:
                        self._lazy[header.name, field.name] = len(self._lazy)
            else:
                text = f"p.h{len(self.plain)}"
                self.plain.append(header.name)
                valid = f"p.v[{self.valid_count}]"
                self.valid_count += 1
                self.headers[header.name] = HeaderPlace(text, valid, header.type, header.name)

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
        for index, field in enumerate(header.type.fields):
            if field.name == name:
                lazy = None if header.name is None else self._lazy.get((header.name, name))
                text = self._lazy_text(lazy) if lazy is not None else f"{header.text}.f{index}"
                return Place(text, field.width, field.signed, lazy)
        raise ProgramError(f"header type {header.type.name} has no field {name}")

    @staticmethod
    def _lazy_text(number: int) -> str:
        return f"p.lazy.z{number}"

    def find(self, header: str, field: str) -> Place | None:
        """A field by names, if the program has it."""
        place = self.headers.get(header)
        if place is None or all(item.name != field for item in place.type.fields):
            return None
        return self.field(place, field)

    def declare(self, out: Code, program: Bmv2Program) -> None:
        """Write the structs and what resets and copies them."""
        types = {h.type.name: h.type for h in program.header_instances.values()}
        types |= {s.type.name: s.type for s in program.stacks.values()}
        lazy_types = self._lazy_types()
        for name, header_type in types.items():
            with out.block(f"struct {self.type_name(header_type)}", f";  {comment(name)}"):
                for index, field in enumerate(header_type.fields):
                    if name not in lazy_types or field.width <= LAZY_BITS:
                        out(f"{c_type(field.width)} f{index};  {comment(field.name)}")
        with out.block("struct Metadata", ";"):
            for index, name in enumerate(self.metadata):
                out(f"{self.type_name(self.headers[name].type)} m{index};  {comment(name)}")
        with out.block("struct Lazy", ";"):
            for (header, field_name), number in self._lazy.items():
                lazy_field = self.headers[header].type.field(field_name)
                out(f"{c_type(lazy_field.width)} z{number};  {comment(f'{header}.{field_name}')}")
        with out.block("struct Phv", ";"):
            out(f"uint8_t v[{self.valid_count + 1}];")
            out(f"uint32_t next[{len(self.stacks) + 1}];")
            out(f"uint64_t dirty[{len(self._lazy) // 64 + 1}];")
            out("Metadata m;\nLazy lazy;")
            for index, name in enumerate(self.plain):
                out(f"{self.type_name(self.headers[name].type)} h{index};  {comment(name)}")
            for index, (name, stack) in enumerate(self.stacks.items()):
                out(f"{self.type_name(stack.type)} s{index}[{stack.depth + 1}];  {comment(name)}")
        self._declare_reset(out)
        self._declare_copy(out)

    def _lazy_types(self) -> set[str]:
        """Types whose big fields are apart; metadata types are used by one instance each."""
        return {self.headers[header].type.name for header, _ in self._lazy}

    def _declare_reset(self, out: Code) -> None:
        with out.block("static P4_INLINE void reset(Phv& p)"):
            out("std::memset(p.v, 0, sizeof p.v);\nstd::memset(p.next, 0, sizeof p.next);")
            out("std::memset(&p.m, 0, sizeof p.m);")
            self._each_dirty(
                out, lambda number: f"std::memset(&p.lazy.z{number}, 0, sizeof p.lazy.z{number});"
            )
            out("std::memset(p.dirty, 0, sizeof p.dirty);")

    def _declare_copy(self, out: Code) -> None:
        with out.block("static void copy(Phv& to, const Phv& p)"):
            # What `to` had written and `p` has not must be zero again.
            for number in range(len(self._lazy)):
                test = f"to.dirty[{number // 64}] & ~p.dirty[{number // 64}] & uint64_t(1) << {number % 64}"
                out(f"if ({test}) std::memset(&to.lazy.z{number}, 0, sizeof to.lazy.z{number});")
            out("std::memcpy(to.v, p.v, sizeof p.v);\nstd::memcpy(to.next, p.next, sizeof p.next);")
            out("std::memcpy(to.dirty, p.dirty, sizeof p.dirty);\nto.m = p.m;")
            self._each_dirty(out, lambda number: f"to.lazy.z{number} = p.lazy.z{number};")
            for index, name in enumerate(self.plain):
                out(f"if ({self.headers[name].valid}) to.h{index} = p.h{index};")
            for index, stack in enumerate(self.stacks.values()):
                out(f"for (int i = 0; i < {stack.depth}; i++)")
                out(f"    if (p.v[{stack.first_valid} + i]) to.s{index}[i] = p.s{index}[i];")

    def _each_dirty(self, out: Code, action: Callable[[int], str]) -> None:
        for number in range(len(self._lazy)):
            out(f"if (p.dirty[{number // 64}] >> {number % 64} & 1) {action(number)}")


def field_offsets(header_type: HeaderType) -> list[tuple[int, FieldType]]:
    """Fields with their bit offset in the packet."""
    offset, result = 0, []
    for field in header_type.fields:
        result.append((offset, field))
        offset += field.width
    return result
