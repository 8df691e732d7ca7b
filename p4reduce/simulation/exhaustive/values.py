"""The ranks' contributions and their sums, and frames by what they mean.

A frame's *meaning* leaves out what decides nothing (IP identification, checksums) and what its link says
(addresses, queue pairs, the header's rank), and names data by whose they are. So frames of different ranks
can be alike, and a state of the job can be another one with its ranks turned around the ring.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from host_agent.transport import ElementType, Operation, SwitchOp, TransportConfig
from host_agent.transport.operation import elements_of_message
from host_agent.wire.aggregation import CHUNK_BYTES, RANK_OFFSET, SUMMED_BIT, Reduction
from host_agent.wire.headers import MalformedPacket, Opcode, RocePacket
from p4reduce.oracle.placement import FIRSTS
from p4reduce.simulation.exhaustive.scopes import Call, Scope
from p4reduce.simulation.rack import configs

PATH_MTU = 512
HEADERS = 54  # before the payload
NOTHING = np.int32(-0x5EED)  # what receive buffers hold before
NEXT_QPNS = 0x1000  # a renewal's, above those of before

Array = NDArray[np.int32]


@cache
def elements(packets: int) -> int:
    """Return the number of elements that go into a message."""
    return elements_of_message(path_mtu=PATH_MTU, message_packets=packets)


@cache
def contribution(generation: int, rank: int, message: int, packets: int) -> Array:
    """Return a rank's elements of a message.

    Each generation, rank and message has others, so that nothing can be taken for another thing.
    """
    chance = np.random.default_rng([generation, rank, message])
    return chance.integers(-(2**31), 2**31, elements(packets), np.int64).astype(np.int32)


@cache
def sum_of(generation: int, ranks: frozenset[int], message: int, packets: int) -> Array:
    total = np.zeros(elements(packets), np.int32)
    for rank in ranks:
        total = total + contribution(generation, rank, message, packets)
    return total


def part(values: Array, index: int) -> Array:
    """Return the elements in packet `index` of a message."""
    start = 0 if index == 0 else (index * PATH_MTU - CHUNK_BYTES) // 4
    return values[start : ((index + 1) * PATH_MTU - CHUNK_BYTES) // 4]


def configs_of(scope: Scope, renewed: int) -> list[TransportConfig]:
    """Return all ranks' connections in the generation that has been `renewed` so many times."""
    again = renewed and not scope.qpns_again
    found = configs(
        scope.ranks,
        window=scope.window,
        packets=scope.packets,
        path_mtu=PATH_MTU,
        psns=[(scope.first_psn + again * 0x4000) & 0xFFFFFF] * scope.ranks,
        selective=scope.selective,
        retry_limit=scope.retry_limit,
        first_message=scope.first_message,
        rto_low_s=0.0,
        rto_max_s=0.05,
    )
    return [_renumbered(config, scope.generation + renewed, NEXT_QPNS * again) for config in found]


def _renumbered(config: TransportConfig, generation: int, above: int) -> TransportConfig:
    ahead, behind = config.successor, config.predecessor
    return replace(
        config,
        generation=generation,
        qpn_out=config.qpn_out + above,
        qpn_in=config.qpn_in + above,
        successor=replace(ahead, qpn_in=ahead.qpn_in + above),
        predecessor=replace(behind, qpn_out=behind.qpn_out + above),
    )


def operation(scope: Scope, call: Call, number: int, config: TransportConfig, first: int) -> Operation:
    """Return `call` as this rank posts it, its messages counting from `first`."""
    messages = [(first + m) & 0xFFFFFFFF for m in range(call.messages)]
    send = np.concatenate([contribution(config.generation, config.rank, m, scope.packets) for m in messages])
    summed = call.kind == "sum"
    reduction = Reduction.SUM if summed else Reduction.NONE
    return Operation(
        switch_op=SwitchOp.SUM if summed else SwitchOp.PASS,
        send=send,
        receive=np.full(send.size, NOTHING),
        element_type=ElementType.INT32 if summed else ElementType.RAW,
        reduction=Reduction.AVG if call.disagrees == config.rank else reduction,
        collective=number,
        total_elements=send.size,
    )


def expected(scope: Scope, call: Call, config: TransportConfig, first: int) -> Array:
    """Return what `operation` has to receive."""
    found = []
    for message in range(first, first + call.messages):
        m = message & 0xFFFFFFFF
        if call.kind == "sum":
            found.append(sum_of(config.generation, frozenset(range(scope.ranks)), m, scope.packets))
        else:
            found.append(contribution(config.generation, config.predecessor_rank, m, scope.packets))
    return np.concatenate(found)


class Meanings:
    """The names of data, and the meanings of frames by them."""

    def __init__(self, scope: Scope) -> None:
        self.ranks = scope.ranks
        self.names: dict[bytes, tuple[int, int, int, int]] = {}  # generation, message, index, rank or -1
        everybody = frozenset(range(scope.ranks))
        starts = [(scope.generation + n, scope.first_message) for n in range(scope.renewals + 1)]
        if scope.earlier is not None:
            starts.append((scope.earlier.generation, scope.earlier.first_message))
        for generation, first in starts:
            for count in range(scope.messages):
                message = (first + count) & 0xFFFFFFFF
                for rank in (*everybody, -1):
                    whose = everybody if rank < 0 else frozenset([rank])
                    values = sum_of(generation, whose, message, scope.packets)
                    for index in range(scope.packets):
                        name = (generation, message, index, rank)
                        lanes = part(values, index)
                        self.names[lanes.astype(">i4").tobytes()] = name
                        self.names[lanes.tobytes()] = name  # as PASS messages have them

    def of(self, frame: bytes, owner: int) -> bytes:
        """Return a frame's meaning. `owner`: the rank at the end of the link."""
        opcode = frame[42]
        head = frame[42:44] + frame[46:49] + frame[50:54]  # opcode, bits, reserved, the QPN's block, PSN
        payload = frame[HEADERS:-4]
        if opcode == Opcode.ACKNOWLEDGE:
            return head + payload
        header = b""
        if opcode in FIRSTS:
            rank = (payload[RANK_OFFSET] - owner) % self.ranks
            header = payload[:RANK_OFFSET] + bytes([rank]) + payload[RANK_OFFSET + 1 : CHUNK_BYTES]
            payload = payload[CHUNK_BYTES:]
        name = self.names.get(payload)
        if name is None:
            return head + header + payload
        generation, message, index, rank = name
        whose = -1 if rank < 0 else (rank - owner) % self.ranks
        return head + header + repr((generation, message, index, whose)).encode()


def in_words(frame: bytes) -> str:
    """Return a frame in words, for readers of a counterexample."""
    try:
        packet = RocePacket.parse(frame)
    except MalformedPacket:
        return f"a frame of {len(frame)} bytes"
    if packet.aeth is not None:
        kinds = {0x00: "ACK", 0x20: "RNR NAK", 0x60: "NAK"}
        kind = kinds.get(packet.aeth.syndrome & 0xE0, "answer")
        return f"{kind} PSN {packet.bth.psn:#x} to QP {packet.bth.dest_qp:#x}"
    made = "result" if packet.bth.reserved & SUMMED_BIT else "contribution"
    message = ""
    if packet.bth.opcode in FIRSTS:
        message = f" of message {int.from_bytes(packet.payload[12:16], 'big')}"
    kind = Opcode(packet.bth.opcode).name.replace("SEND_", "").capitalize()
    return f"{kind}{message} PSN {packet.bth.psn:#x} to QP {packet.bth.dest_qp:#x}, a {made}"
