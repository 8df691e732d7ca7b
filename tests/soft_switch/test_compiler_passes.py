"""Clones, resubmitted and recirculated packets, digests, and what of a packet's metadata they keep."""

from __future__ import annotations

from tests.soft_switch.bits import pack

COMMAND = {
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
    """A packet for `flow.p4`; what is seen of it is zero so far."""
    return pack(COMMAND, command) + pack(SEEN, {})
