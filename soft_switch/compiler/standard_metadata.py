"""The fields of standard_metadata that the switch itself reads and writes (docs/simple_switch.md)."""

from __future__ import annotations

from collections.abc import Container

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.compiler.bounds import ones
from soft_switch.compiler.code import Code, word
from soft_switch.compiler.flow import Variable
from soft_switch.compiler.layout import Layout, Place
from soft_switch.errors import ProgramError

# BMv2 knows some fields by names of its own, which the JSON's aliases lead to standard_metadata.
ALIASES = {
    "mcast_grp": "intrinsic_metadata.mcast_grp",
    "egress_rid": "intrinsic_metadata.egress_rid",
    "ingress_global_timestamp": "intrinsic_metadata.ingress_global_timestamp",
    "egress_global_timestamp": "intrinsic_metadata.egress_global_timestamp",
    "enq_timestamp": "queueing_metadata.enq_timestamp",
    "enq_qdepth": "queueing_metadata.enq_qdepth",
    "deq_timedelta": "queueing_metadata.deq_timedelta",
    "deq_qdepth": "queueing_metadata.deq_qdepth",
    "qid": "queueing_metadata.qid",
    "priority": "intrinsic_metadata.priority",
}
# What decides on the way of a packet, whether or not the program itself reads it.
STEERING = frozenset({"egress_spec", "mcast_grp", "priority"})
REQUIRED = ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port")


class StandardMetadata:
    """Places of the fields; a program that lacks an optional one, or does not read it, does not get it.

    `read` is what metadata the program reads.
    """

    def __init__(self, program: Bmv2Program, layout: Layout, read: Container[Variable]) -> None:
        self._places: dict[str, Place] = {}
        self._unread: set[str] = set()
        self.variables: dict[str, Variable] = {}
        names = set(ALIASES) | set(REQUIRED) | {"parser_error", "checksum_error"}
        for name in sorted(names):
            header, field = program.aliases.get(ALIASES.get(name, ""), ("standard_metadata", name))
            place = layout.find(header, field)
            if place is not None:
                self._places[name] = place
                self.variables[name] = (header, field)
                if name not in STEERING and (header, field) not in read:
                    self._unread.add(name)
            elif name in REQUIRED:
                raise ProgramError(f"the program has no standard_metadata.{name}: is it for another target?")

    def has(self, name: str) -> bool:
        """Whether the program has the field."""
        return name in self._places

    def reads(self, name: str) -> bool:
        """Whether the program has the field and something reads it."""
        return name in self._places and name not in self._unread

    def get(self, name: str) -> str:
        """C++ that reads a field."""
        return self._places[name].text

    def set(self, out: Code, name: str, value: str) -> None:
        """Write a field if the program reads it."""
        if self.reads(name):
            place = self._places[name]
            out(f"{place.text} = uint64_t({value}) & {word(ones(place.width))};")
