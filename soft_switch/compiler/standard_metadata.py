"""The fields that the switch itself reads and writes (docs/simple_switch.md), most in standard_metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.compiler.bounds import ones
from soft_switch.compiler.code import Code, word
from soft_switch.compiler.flow import Variable
from soft_switch.compiler.layout import Layout, Place
from soft_switch.compiler.names import named_fields

# What decides on the way of a packet, whether or not the program itself reads it.
STEERING = frozenset({"egress_spec", "mcast_grp", "priority"})


class StandardMetadata:
    """Places of the fields; a program that lacks an optional one, or does not read it, does not get it.

    `read` is what metadata the program reads.
    """

    def __init__(self, program: Bmv2Program, layout: Layout, read: Container[Variable]) -> None:
        self.variables = named_fields(program)
        self._places: dict[str, Place] = {
            name: layout.field(layout.headers[header], field)
            for name, (header, field) in self.variables.items()
        }
        steering = {self.variables[name] for name in STEERING if name in self.variables}
        # A packet's headers are read by the deparser.
        self._packet = {
            variable
            for variable in self.variables.values()
            if not program.header_instances[variable[0]].metadata
        }
        self._shared = {item for item, names in Counter(self.variables.values()).items() if names > 1}
        self._unread = {
            name
            for name, variable in self.variables.items()
            if variable not in steering and variable not in read and variable not in self._packet
        }

    def has(self, name: str) -> bool:
        """Tell whether the program has the field."""
        return name in self._places

    def reads(self, name: str) -> bool:
        """Tell whether the program has the field and something reads it."""
        return name in self._places and name not in self._unread

    def is_written(self, name: str, written: Container[Variable]) -> bool:
        """Tell whether anything can write the field, if the program writes the metadata in `written`.

        The parser writes the fields of a packet's header; the switch writes a field that has two names.
        """
        variable = self.variables.get(name)
        return variable is not None and (
            variable in written or variable in self._packet or variable in self._shared
        )

    def get(self, name: str) -> str:
        """Return C++ that reads a field."""
        return self._places[name].text

    def set(self, out: Code, name: str, value: str) -> None:
        """Write a field if the program reads it."""
        if self.reads(name):
            place = self._places[name]
            out(f"{place.text} = uint64_t({value}) & {word(ones(place.width))};")
