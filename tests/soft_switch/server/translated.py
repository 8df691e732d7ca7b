"""Names and messages of the program `translated.p4`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finsy.proto import p4i, p4r
from google.protobuf import text_format

HERE = Path(__file__).parent
PORTS, MASKS, PREFIXES, FIXED, ROUTES, WHOLE, BALANCED, TINY = range(0x02000001, 0x02000009)
NOP, SEND, SEND_TO, SET_VRF, SET_TINY, PAINT = range(0x01000001, 0x01000007)
BALANCE, PER_PORT, LAST = 0x11000001, 0x12000001, 0x16000001


def translated() -> p4r.ForwardingPipelineConfig:
    """Return the program with translated types."""
    return p4r.ForwardingPipelineConfig(
        p4info=text_format.Parse((HERE / "translated.p4info.txtpb").read_text(), p4i.P4Info()),
        p4_device_config=(HERE / "translated.json").read_bytes(),
    )


def in_sixteen_bits() -> p4r.ForwardingPipelineConfig:
    """Return the program with numbers of 16 bits, which take as many bytes as the data plane's 9.

    simple_switch_grpc takes the bytes of such numbers as they are. It refuses the program's digest, and has
    no entries where a key or argument is a string.
    """
    config = translated()
    config.p4info.ClearField("digests")
    config.p4info.type_info.new_types["port_t"].translated_type.sdn_bitwidth = 16
    for table in config.p4info.tables:
        for field in table.match_fields:
            field.bitwidth = 16 if field.bitwidth == 32 else field.bitwidth
    for action in config.p4info.actions:
        for param in action.params:
            param.bitwidth = 16 if param.bitwidth == 32 else param.bitwidth
    return config


def call(action_id: int, *values: bytes) -> p4r.Action:
    """Return an action with the values of its parameters, as bytes."""
    params = [p4r.Action.Param(param_id=number, value=value) for number, value in enumerate(values, 1)]
    return p4r.Action(action_id=action_id, params=params)


def does(action_id: int, *values: bytes) -> p4r.TableAction:
    """Return the same for an entry."""
    return p4r.TableAction(action=call(action_id, *values))


def exact(field_id: int, value: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, exact=p4r.FieldMatch.Exact(value=value))


def optional(field_id: int, value: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, optional=p4r.FieldMatch.Optional(value=value))


def ternary(field_id: int, value: bytes, mask: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, ternary=p4r.FieldMatch.Ternary(value=value, mask=mask))


def between(field_id: int, low: bytes, high: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, range=p4r.FieldMatch.Range(low=low, high=high))


def prefix(field_id: int, value: bytes, length: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=length))


def entry(
    table_id: int, *match: p4r.FieldMatch, action: p4r.TableAction | None = None, **fields: Any
) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=table_id, match=match, action=action, **fields)


def route(vrf: bytes, action: p4r.TableAction | None = None, **fields: Any) -> p4r.TableEntry:
    """Return an entry of the table of strings for one vrf."""
    return entry(ROUTES, exact(1, vrf), action=action, priority=1, **fields)


def whole(vrf: bytes, name: bytes, tiny: bytes, **fields: Any) -> p4r.TableEntry:
    """Return an entry whose strings are a prefix, a value with its mask and a range."""
    match = [prefix(1, vrf, 10), ternary(2, name, b"\x01\xff"), between(3, tiny, tiny)]
    return entry(WHOLE, *match, priority=1, **fields)
