"""Packets that no switch or host sends: again, damaged, cut, at the wrong port, with other fields."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from host_agent.wire.aggregation import MAGIC, SIGNATURE
from host_agent.wire.headers import RocePacket
from p4reduce.oracle.tree_packets import TREE_VERSION, Kind, TreePacket

_MAGIC = MAGIC.to_bytes(4, "big")
_MESSAGE = slice(12, 16)  # of an aggregation header


def something_else(chance: Random, frames: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    """Return what might come by accident or malice."""
    recent = chance.random() < 0.7
    port, frame = frames[-1] if recent else chance.choice(frames)
    kind = chance.choice(["again", "port", "bit", "cut", "longer", "field", "field", "field", "field"])
    if kind == "port":
        return chance.choice([1, 2, 3, 4, 101, 102, 103, 104]), frame
    if kind == "bit":
        damaged = bytearray(frame)
        damaged[chance.randrange(34, len(frame))] ^= 1 << chance.randrange(8)
        return port, bytes(damaged)
    if kind == "cut":
        tree = TreePacket.parse(frame)
        whole = frame if tree is None else replace(tree, psn=tree.psn ^ 1).build()
        return port, whole[: chance.randrange(42, len(whole))]
    if kind == "longer":
        return port, frame + bytes(chance.choice([1, 8, 256]))
    if kind == "field":
        tree = TreePacket.parse(frame)
        return port, other_field(chance, frame) if tree is None else other_tree_field(chance, tree)
    return port, frame


def other_tree_field(chance: Random, packet: TreePacket) -> bytes:
    """Return the packet with another value in one field, and a right ICRC."""
    near = (-32, -16, -8, -4, -2, -1, 1, 2, 4, 8, 16, 1 << 31)
    size = chance.choice([0, 1, 2, 3, 16])
    changed = [
        {"version": chance.choice([0, TREE_VERSION + 1])},
        {"kind": chance.choice([*Kind, 0, 6])},
        {"kind": chance.choice([*Kind, 0, 6])},
        {"opcode": chance.randrange(5)},
        {"op": chance.choice([0, 1, 2, 3, 4, 5, 255])},
        {"index": chance.choice([packet.index ^ 1, chance.randrange(256)])},
        {"flags": chance.randrange(8)},
        {"generation": (packet.generation + chance.choice([-1, 1])) % 2**32},
        {"message": (packet.message + chance.choice(near)) % 2**32},
        {"message": (packet.message + chance.choice(near)) % 2**32},
        {"psn": chance.randrange(2**24)},
        {"reserved": 7, "reserved_too": 9},
        {"payload": (packet.payload * 17)[: 256 * size]},
        {"payload": chance.randbytes(len(packet.payload))},
        {"ip": replace(packet.ip, tos=chance.randrange(256), ttl=chance.randrange(3))},
        {"ip": replace(packet.ip, identification=chance.randrange(2**16), flags=chance.choice([0, 2]))},
    ]
    return replace(packet, **chance.choice(changed)).build()


def other_header(chance: Random, payload: bytes) -> bytes:
    """Return an aggregation header with another op, or of the message that takes the same slots next."""
    head = bytearray(payload)
    if chance.random() < 0.5:
        head[SIGNATURE.start] = chance.randrange(6)
    else:
        message = int.from_bytes(head[_MESSAGE], "big") + chance.choice([1, 2, 4, 8, 16])
        head[_MESSAGE] = (message % 2**32).to_bytes(4, "big")
    return bytes(head)


def other_field(chance: Random, frame: bytes) -> bytes:
    """Return a host's packet with another value in one field, and a right ICRC."""
    try:
        packet = RocePacket.parse(frame)
    except ValueError:
        return frame
    bth, ip = packet.bth, packet.ip
    changed: list[RocePacket] = [
        replace(packet, bth=replace(bth, psn=(bth.psn + chance.choice([-8, -2, -1, 1, 2, 8])) % 2**24)),
        replace(packet, bth=replace(bth, opcode=chance.choice([0, 1, 2, 4, 0x81]))),
        replace(packet, bth=replace(bth, reserved=0x40)),
        replace(packet, bth=replace(bth, dest_qp=bth.dest_qp ^ 1)),
        replace(packet, ip=replace(ip, src=ip.src + 1)),
        replace(packet, ip=replace(ip, ttl=chance.randrange(3))),
        replace(packet, payload=packet.payload * 2),
        replace(packet, payload=chance.randbytes(len(packet.payload))),
    ]
    if packet.aeth is not None:
        syndrome = chance.choice([0x1F, 0x60, 0x2C, 0x61])
        changed.append(replace(packet, aeth=replace(packet.aeth, syndrome=syndrome)))
    if packet.payload.startswith(_MAGIC):  # what a member may say that differs from the others, or runs ahead
        changed += [replace(packet, payload=other_header(chance, packet.payload))] * 4
    chosen = chance.choice(changed)
    if packet.aeth is not None and chosen.bth.opcode != bth.opcode:
        chosen = replace(chosen, aeth=None, payload=bytes(16))
    return chosen.build()
