"""Headers that packets of the programs here begin with, field by field, and some packets."""

from __future__ import annotations

import random

from tests.soft_switch.bits import pack

STATE_COMMAND = {"op": 8, "index": 32, "value": 32, "wide": 2048}

METERED = {
    "kind": 8,
    "index": 32,
    "packets_color": 8,
    "bytes_color": 8,
    "entry_color": 8,
    "hit": 8,
}

LABEL = {"label": 20, "traffic_class": 3, "bottom": 1, "ttl": 8}
DEPTH = 4


def labels_frame(chance: random.Random) -> bytes:
    count = chance.randint(1, DEPTH + 1)
    stack = [
        {"label": chance.choice([0xABCDE, 0x12345, chance.getrandbits(20)]), "ttl": chance.getrandbits(8)}
        for _ in range(count)
    ]
    stack[-1]["bottom"] = 1
    return bytes([1, 0]) + b"".join(pack(LABEL, label) for label in stack)


FLOW_COMMAND = {
    "ingress_op": 8,
    "egress_op": 8,
    "rounds": 8,
    "port": 8,
    "session": 16,
    "group": 16,
    "length": 16,
    "value": 32,
}
SEEN = {
    "parser_port": 16,
    "parser_instance": 32,
    "port": 16,
    "instance": 32,
    "packet_length": 32,
    "kept": 32,
    "kept_too": 16,
    "egress_port": 16,
    "egress_instance": 32,
    "egress_length": 32,
    "egress_kept": 32,
    "egress_kept_too": 16,
    "rid": 16,
    "spec": 16,
    "error_code": 8,
    "queued": 8,
    "priority": 8,
}


def flow_frame(**command: int) -> bytes:
    """Return a packet for `flow.p4`; what is seen of it is zero so far."""
    return pack(FLOW_COMMAND, command) + pack(SEEN, {})
