"""Values of P4 types as `p4.v1.P4Data`, and their types as `P4DataTypeSpec` gives them.

The data plane knows no types: a value is a tuple of unsigned numbers, one for each field, in order. Source:
P4Runtime specification, section "Representation of Arbitrary P4 Types".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

from finsy.proto import p4d, p4t

from soft_switch.server.bytestrings import decode, decode_signed, encode, encode_signed
from soft_switch.server.errors import invalid
from soft_switch.server.sdn_types import SdnType, SdnTypes


@dataclass(frozen=True)
class Scalar:
    """One number of `width` bits; `form`, bitstring, bool or enum_value, is its P4Data member.

    Values of an `sdn` type, strings as well, travel as bitstring; their width is in the BMv2 JSON only.
    """

    width: int
    signed: bool = False
    form: str = "bitstring"
    sdn: SdnType | None = None


@dataclass(frozen=True)
class Fields:
    """Several values in a row; `form` is the P4Data member they travel in: struct or tuple."""

    members: tuple[Type, ...]
    form: str


@dataclass(frozen=True)
class Other:
    """A type that this switch carries nowhere: a stack, a union, a varbit, an enum without values..."""

    form: str


Type = Union[Scalar, Fields, Other]  # noqa: UP007  (evaluated at run time, Python 3.10 has no alias syntax)


def parse_type(spec: p4t.P4DataTypeSpec, types: p4t.P4TypeInfo, translated: SdnTypes) -> Type:
    """Return the type that a `P4DataTypeSpec` describes; Other for one that cannot be carried."""
    kind = spec.WhichOneof("type_spec")
    if kind == "bitstring":
        form = spec.bitstring.WhichOneof("type_spec")
        if form == "bit":
            return Scalar(spec.bitstring.bit.bitwidth)
        if form == "int":
            return Scalar(spec.bitstring.int.bitwidth, signed=True)
    if kind == "bool":
        return Scalar(1, form="bool")
    if kind == "serializable_enum":
        enum = types.serializable_enums[spec.serializable_enum.name]
        return Scalar(enum.underlying_type.bitwidth, form="enum_value")
    if kind == "new_type":
        new_type = types.new_types[spec.new_type.name]
        if new_type.WhichOneof("representation") == "original_type":
            return parse_type(new_type.original_type, types, translated)
        sdn = translated.get(spec.new_type.name)
        return Scalar(0, sdn=sdn) if sdn is not None else Other("new type")
    if kind == "struct":
        struct = types.structs[spec.struct.name]
        parts = tuple(parse_type(member.type_spec, types, translated) for member in struct.members)
        return Fields(parts, "struct")
    if kind == "tuple":
        return Fields(tuple(parse_type(member, types, translated) for member in spec.tuple.members), "tuple")
    return Other(kind or "none")


def scalars(kind: Type) -> tuple[Scalar, ...] | None:
    """Return the numbers a value consists of, None if it has a part that cannot be carried."""
    parts = tuple(_parts(kind))
    found = tuple(part for part in parts if isinstance(part, Scalar))
    return found if len(found) == len(parts) else None


def _parts(kind: Type) -> Iterator[Scalar | Other]:
    if isinstance(kind, Fields):
        for member in kind.members:
            yield from _parts(member)
    else:
        yield kind


def parse_scalar(kind: Scalar, data: p4d.P4Data, what: str) -> int:
    """Return the number in a message; INVALID_ARGUMENT or OUT_OF_RANGE name `what`."""
    form = data.WhichOneof("data")
    if form != kind.form:
        raise invalid(f"{what} must be a {kind.form}, the request gives {form or 'none'}")
    if form == "bool":
        return int(data.bool)
    if form == "enum_value":
        return decode(data.enum_value, kind.width, what)
    if kind.sdn is not None:
        return kind.sdn.decode(data.bitstring, kind.width, what)
    return (decode_signed if kind.signed else decode)(data.bitstring, kind.width, what)


def format_data(kind: Type, values: Iterator[int]) -> p4d.P4Data:
    """Return the message of a value, whose numbers are taken off `values`."""
    if isinstance(kind, Fields):
        data = p4d.P4Data()
        members = data.tuple if kind.form == "tuple" else data.struct
        members.SetInParent()
        for member in kind.members:
            members.members.append(format_data(member, values))
        return data
    if isinstance(kind, Other):
        raise invalid(f"a value of type {kind.form} cannot be carried")
    value = next(values)
    if kind.sdn is not None:
        return p4d.P4Data(bitstring=kind.sdn.encode(value))
    if kind.form == "bool":
        return p4d.P4Data(bool=bool(value))
    if kind.form == "enum_value":
        return p4d.P4Data(enum_value=encode(value))
    return p4d.P4Data(bitstring=encode_signed(value, kind.width) if kind.signed else encode(value))
