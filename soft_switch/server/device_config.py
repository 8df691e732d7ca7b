"""What a controller may wrap a program into.

Older clients send a `p4.tmp.P4DeviceConfig`, which simple_switch_grpc calls deprecated and takes:

    message P4DeviceConfig { bool reassign = 1; Extras extras = 2; bytes device_data = 3; }
"""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

DEVICE_DATA = 3


def unwrap(data: bytes) -> bytes:
    """The program in a `P4DeviceConfig`; anything else as it is."""
    if data.lstrip()[:1] == b"{":
        return data
    try:
        fields = UnknownFieldSet(Empty.FromString(data))
    except DecodeError:
        return data
    items = (fields[number] for number in range(len(fields)))
    found = [item.data for item in items if item.field_number == DEVICE_DATA]
    return found[-1] if found and isinstance(found[-1], bytes) else data
