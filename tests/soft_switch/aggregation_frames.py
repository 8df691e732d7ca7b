"""Frames of a job for the aggregation program, good ones and others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from host_agent.wire import psn as psn_math
from tests.p4src.pair import Pair

PORTS = (1, 2, 3, 4)


class NoPlane:
    """Stands in for a compiled rack where only the packets of a `Pair` are wanted."""

    def reset(self, *_: Any, **__: Any) -> None:
        return


def p4reduce_frames(pair: Pair, chance: random.Random, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield a job's packets in a random order that makes progress, with repetitions and damage."""
    ranks = len(pair.job.flows)
    place = [(0, 0)] * ranks
    for _ in range(count):
        rank = (
            min(range(ranks), key=lambda r: (place[r], chance.random()))
            if chance.random() < 0.7
            else (chance.randrange(ranks))
        )
        message, index = place[rank]
        kind = chance.choice(
            ["next"] * 8 + ["again", "corrupt", "cut", "port", "stranger", "generation", "early", "early"]
        )
        if kind == "early":  # what is awaited comes again before the others have sent it
            psn = pair.psn(rank, message, chance.randrange(index + 1))
            syndrome = chance.choice([0x1F, 0x00, 0x60, 0x33, 0x61, 0x40, 0x80])
            acknowledgement = bytearray(
                pair.acknowledgement(rank, psn if syndrome & 0x60 else psn - 1, syndrome).build()
            )
            if chance.random() < 0.1:
                acknowledgement[chance.randrange(14, len(acknowledgement))] ^= 1 << chance.randrange(8)
            yield pair.job.flows[rank].dst_port, bytes(acknowledgement)
            index = psn_math.distance(pair.psn(rank, message, 0), psn)
        if kind == "again" and message:
            message = max(0, message - chance.randrange(6))
            index = index % pair.packets_of(message)
        wrong = {"generation": pair.job.generation + 1} if kind == "generation" else None
        packet = pair.packet(
            rank, message, index, message * 64 + index * 8 + rank, 1 + message % 4 + (index == 0), wrong
        )
        port = pair.job.flows[rank].port
        if kind == "port":
            port = chance.choice(PORTS)
        elif kind == "stranger":
            packet = replace(packet, bth=replace(packet.bth, dest_qp=0x999))
        frame = bytearray(packet.build())
        if kind == "corrupt":
            frame[chance.randrange(14, len(frame))] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            del frame[chance.randrange(14, len(frame)) :]
        yield port, bytes(frame)
        if kind == "next":
            index += 1
            place[rank] = (message, index) if index < pair.packets_of(message) else (message + 1, 0)
