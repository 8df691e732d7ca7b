"""Controller headers: packet-in and packet-out metadata in front of the packet, packed bit by bit.

Source: P4Runtime specification, sections "ControllerPacketMetadata" and "Packet I/O".
"""

from __future__ import annotations

from collections.abc import Sequence

from finsy.proto import p4r

from soft_switch.description import Param
from soft_switch.server.bytestrings import decode, encode
from soft_switch.server.errors import P4RuntimeError, invalid


def encode_packet_out(fields: Sequence[Param], message: p4r.PacketOut) -> bytes:
    """Return the bytes that enter the pipeline on the CPU port.

    Every field must be given once. Only padding (`@padding`, or a name that starts with "_" or "pad") may be
    left out and is then zero: p4c lists it in P4Info like any other field, and clients written for BMv2 omit
    it. A string of a translated type has to be known, or a number: no packet may introduce one.
    """
    given = {item.metadata_id: item.value for item in message.metadata}
    if len(given) != len(message.metadata):
        raise invalid("packet-out: a metadata field is given twice")
    bits = width = 0
    for field in fields:
        data = given.pop(field.id, None)
        if data is None and not field.padding:
            raise invalid(f"packet-out: metadata field {field.name} ({field.id}) is missing")
        what = f"packet-out, metadata field {field.name}"
        try:
            if data is None:
                value = 0
            elif field.sdn is None:
                value = decode(data, field.width, what)
            else:
                value = field.sdn.decode(data, field.width, what, new=False)
        except P4RuntimeError as error:
            raise invalid(error.message) from error
        bits = bits << field.width | value
        width += field.width
    if given:
        raise invalid(f"packet-out: the P4Info has no metadata field with id {min(given)}")
    size = (width + 7) // 8
    return (bits << (size * 8 - width)).to_bytes(size, "big") + message.payload


def decode_packet_in(fields: Sequence[Param], data: bytes) -> p4r.PacketIn:
    """Return the message for a packet that left the pipeline on the CPU port."""
    width = sum(field.width for field in fields)
    size = (width + 7) // 8
    if len(data) < size:
        raise invalid(f"packet-in of {len(data)} bytes is shorter than its controller header of {size}")
    bits = int.from_bytes(data[:size], "big") >> (size * 8 - width)
    message = p4r.PacketIn(payload=data[size:])
    left = width
    for field in fields:
        left -= field.width
        value = bits >> left & ((1 << field.width) - 1)
        message.metadata.add(
            metadata_id=field.id, value=encode(value) if field.sdn is None else field.sdn.encode(value)
        )
    return message
