"""Parser states, header stacks and parser errors, against a parser written in Python."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from soft_switch.dataplane import DataPlane
from tests.soft_switch.bits import pack, unpack
from tests.soft_switch.layouts import DEPTH, LABEL, labels_frame
from tests.soft_switch.programs import program

REPORT = {"error_code": 8, "branch": 8, "labels": 8, "peeked": 8, "length": 32}
NO_ERROR, TOO_SHORT, STACK, BAD_VERSION = 0, 1, 3, 10


def expected(frame: bytes) -> bytes:
    """Return what the program makes of a frame."""
    at, error, branch, peeked = 0, NO_ERROR, 0, 0
    labels: list[dict[str, int]] = []
    first = tail = b""

    def run() -> int:
        nonlocal at, branch, peeked, first, tail

        def take(count: int) -> bytes | None:
            nonlocal at
            if len(frame) - at < count:
                return None
            at += count
            return frame[at - count : at]

        head = take(2)
        if head is None:
            return TOO_SHORT
        first = head
        kind, version = head
        if version >= 128:
            return BAD_VERSION
        if kind == 1:
            while True:
                if len(labels) == DEPTH:
                    return STACK
                data = take(4)
                if data is None:
                    return TOO_SHORT
                labels.append(unpack(LABEL, data))
                if labels[-1]["bottom"]:
                    break
            branch = 1
        elif (2 <= kind <= 9 and version <= 15) or (kind == 0xFC and 1 <= version <= 3):
            branch = 2
            return NO_ERROR
        elif kind & 0xC0 == 0x40:
            branch = 3
        elif kind == 0xFF and version == 7:
            branch = 4
            if len(frame) - at < 3:
                return TOO_SHORT
            peeked = int.from_bytes(frame[at : at + 3], "big") >> 4 & 0xFF
            return NO_ERROR
        elif kind == 0xFD:
            branch = 5
            if take(3) is None:
                return TOO_SHORT
        else:
            branch = 6
            return NO_ERROR  # p4c writes no default transition where there is none, BMv2 ends without error
        data = take(2)
        if data is None:
            return TOO_SHORT
        tail = data
        return NO_ERROR

    error = run()
    report = {"error_code": error, "branch": branch, "labels": len(labels), "peeked": peeked}
    report["length"] = len(frame)
    if error == NO_ERROR and branch == 1:
        if labels[0]["label"] == 0xABCDE:
            labels.insert(0, {"label": 77, "ttl": labels[0]["ttl"] - 1})
            del labels[DEPTH:]
        elif labels[0]["label"] == 0x12345:
            del labels[:2]
    stack = b"".join(pack(LABEL, label) for label in labels)
    return pack(REPORT, report) + first + stack + tail + frame[at:]


@pytest.fixture(scope="module")
def plane() -> Iterator[DataPlane]:
    made = DataPlane()
    made.load(program("stacks"))
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(8))
def test_random_frames(plane: DataPlane, seed: int) -> None:
    chance = random.Random(seed)
    seen = set()
    for _ in range(1000):
        if chance.random() < 0.5:
            frame = labels_frame(chance)
        else:
            kind = chance.choice([0, 1, 2, 9, 10, 0x40, 0x7F, 0x80, 0xFC, 0xFD, 0xFF, chance.getrandbits(8)])
            frame = bytes([kind, chance.choice([0, 1, 3, 4, 5, 7, 15, 16, 127, 128, 255])])
        frame += chance.randbytes(chance.randrange(12))
        frame = frame[: chance.randrange(len(frame) + 1)] if chance.random() < 0.3 else frame
        [(port, left)] = plane.process(1, frame)
        assert (port, left) == (1, expected(frame)), frame.hex()
        seen.add((left[0], left[1]))
    assert {error for error, _ in seen} == {NO_ERROR, TOO_SHORT, STACK, BAD_VERSION}
    assert {branch for _, branch in seen} == set(range(7))


def test_an_empty_frame(plane: DataPlane) -> None:
    assert plane.process(1, b"") == [(1, expected(b""))]
