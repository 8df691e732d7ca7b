"""Names and messages of the program `features.p4`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finsy.proto import p4r

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller

STATIONS, SOURCES, MIRRORS = 0x02000001, 0x02000002, 0x02000003
FORWARD, LEARN, MIRROR, DROP, NO_ACTION = 0x01000001, 0x01000002, 0x01000003, 0x01000006, 21257015
METER, DIRECT_METER, COUNTER = 0x14000001, 0x15000001, 0x13000001
VALUE_SET = 0x03000001
LEARN_DIGEST, LEVEL_DIGEST = 398033514, 388164576


def call(action_id: int, *values: int) -> p4r.TableAction:
    params = [p4r.Action.Param(param_id=number, value=bytes([v])) for number, v in enumerate(values, 1)]
    return p4r.TableAction(action=p4r.Action(action_id=action_id, params=params))


def exact(field_id: int, value: int) -> p4r.FieldMatch:
    data = value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")
    return p4r.FieldMatch(field_id=field_id, exact=p4r.FieldMatch.Exact(value=data))


def station(mac: int, port: int = 1, **fields: Any) -> p4r.TableEntry:
    """Return an entry of the table with counters, meters and timeouts; action=None leaves the action out."""
    return p4r.TableEntry(
        **{"table_id": STATIONS, "match": [exact(1, mac)], "action": call(FORWARD, port), **fields}
    )


def source(mac: int, **fields: Any) -> p4r.TableEntry:
    """Return an entry of a table with timeouts."""
    return p4r.TableEntry(**{"table_id": SOURCES, "match": [exact(1, mac)], "action": call(LEARN), **fields})


def mirror(ether_type: int, session: int, **fields: Any) -> p4r.TableEntry:
    """Return an entry of a table with nothing, which clones to a session."""
    return p4r.TableEntry(
        table_id=MIRRORS, match=[exact(1, ether_type)], action=call(MIRROR, session), **fields
    )


def why(controller: Controller, kind: str, **entity: Any) -> str:
    """Return the code and message that a single update is refused with."""
    refusal = controller.refused(getattr(controller, kind), **entity)
    assert len(refusal.codes) == 1
    return f"{refusal.codes[0]}: {refusal.details[0].message}"
