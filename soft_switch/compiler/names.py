"""The fields that BMv2's simple_switch finds by name (targets/simple_switch/simple_switch.cpp).

A program has them where an instance has that name, or where an alias leads from it: p4c writes aliases from
all of them to standard_metadata, P4_14 programs of before November 2018 have instances of their own.
"""

from __future__ import annotations

from soft_switch.bmv2.program import Bmv2Program
from soft_switch.compiler.flow import Variable
from soft_switch.errors import ProgramError

STANDARD = "standard_metadata"
INSTANCES = {
    STANDARD: (
        *("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port"),
        *("parser_error", "checksum_error"),
    ),
    "intrinsic_metadata": (
        *("mcast_grp", "egress_rid", "priority", "ingress_global_timestamp", "egress_global_timestamp"),
    ),
    "queueing_metadata": ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth", "qid"),
}
FULL_NAMES = {field: f"{instance}.{field}" for instance, fields in INSTANCES.items() for field in fields}
REQUIRED = ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port")
QUEUEING = ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")
MAX_NAMED_WIDTH = 64


def named_fields(program: Bmv2Program) -> dict[str, Variable]:
    """Find where a program has these fields, by their names without the instance."""
    found = {}
    for field, name in FULL_NAMES.items():
        variable = program.by_name(name)
        if variable is not None:
            found[field] = variable
        elif field in REQUIRED:
            raise ProgramError(f"the program has no {name}: is it for another target?")
    if any(field not in found for field in QUEUEING):  # BMv2 writes all of them or none
        for field in INSTANCES["queueing_metadata"]:
            found.pop(field, None)
    for field, (instance, own) in found.items():
        _check(FULL_NAMES[field], program, instance, own)
    return found


def _check(name: str, program: Bmv2Program, instance: str, field: str) -> None:
    """Refuse a field that numbers without a sign do not go into as they are."""
    kind = program.header_instances[instance].type.field(field)
    odd = (
        "a varbit field"
        if kind.varbit
        else "signed"
        if kind.signed
        else "saturating"
        if kind.saturating
        else f"{kind.width} bits wide"
        if kind.width > MAX_NAMED_WIDTH
        else None
    )
    if odd is not None:
        own = f"{instance}.{field}"
        alias = "" if own == name else f", to which the alias {name} leads,"
        raise ProgramError(
            f"{own}{alias} is {odd}, and the switch finds it by its name: "
            f"declare it as bit<N> of at most {MAX_NAMED_WIDTH} bits, or name it otherwise"
        )
