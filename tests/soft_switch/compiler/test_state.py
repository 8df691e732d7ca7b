"""Registers, counters, hashes, replication and the ends of the pipeline, against a model in Python."""

from __future__ import annotations

import logging
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from soft_switch.dataplane import DataPlane
from soft_switch.errors import TableError, UnknownEntry
from tests.soft_switch.bits import pack, size, unpack
from tests.soft_switch.layouts import STATE_COMMAND as COMMAND
from tests.soft_switch.programs import program

DIGEST = {"crc32": 32, "crc16": 16, "csum16": 16, "xor16": 16, "bounded": 32, "masked": 32}
CELLS, CHUNKS, FLAGS = 8, 4, 64


def crc16(data: bytes) -> int:
    """Compute CRC-16/ARC, bit by bit."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


def csum16(data: bytes) -> int:
    """Compute the checksum of RFC 1071."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def xor16(data: bytes) -> int:
    result = 0
    for (word,) in struct.iter_unpack(">H", data):
        result ^= word
    return result


class Model:
    """A model of what the program does with packets whose op is below 8, state included."""

    def __init__(self) -> None:
        self.cells = [0] * CELLS
        self.chunks = [0] * CHUNKS
        self.flags = [0] * FLAGS

    def process(self, op: int, index: int, value: int, wide: int) -> dict[str, int]:
        if op == 1:
            value = self.cells[index] if index < CELLS else 0
        elif op == 2 and index < CELLS:
            self.cells[index] = value
        elif op == 3:
            before = self.cells[index] if index < CELLS else 0
            if index < CELLS:
                self.cells[index] = before + value & 0xFFFFFFFF
            value = before
        elif op == 4:
            wide = (self.chunks[index] if index < CHUNKS else 0) + wide & (1 << 2048) - 1
            if index < CHUNKS:
                self.chunks[index] = wide
        elif op == 5:
            value = self.flags[index] if index < FLAGS else 0
            if index < FLAGS:
                self.flags[index] ^= 1
        return {"op": op, "index": index, "value": value, "wide": wide}


@pytest.fixture(scope="module", params=[True, False], ids=["optimised", "plain"])
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[DataPlane, bool]]:
    made = DataPlane(cpu_port=255, seed=7)
    yield made, request.param
    made.close()


@pytest.fixture
def plane(loaded: tuple[DataPlane, bool]) -> DataPlane:
    made, optimise = loaded
    made.load(program("state"), optimise=optimise)
    return made


def send(plane: DataPlane, rest: bytes = b"", port: int = 1, **command: int) -> list[tuple[int, bytes]]:
    return plane.process(port, pack(COMMAND, command) + rest)


@pytest.mark.parametrize("seed", range(3))
def test_registers(plane: DataPlane, seed: int) -> None:
    chance, model = random.Random(seed), Model()
    for _ in range(500):
        index = chance.choice([*range(CELLS + 2), FLAGS - 1, FLAGS, 2**32 - 1])
        command = {
            "op": chance.randint(0, 5),
            "index": index,
            "value": chance.getrandbits(32),
            "wide": chance.getrandbits(2048),
        }
        [(port, frame)] = send(plane, b"rest", **command)
        assert (port, frame[size(COMMAND) :]) == (4, b"rest")
        assert unpack(COMMAND, frame) == model.process(**command)
    assert [plane.register_read("TestIngress.cells", i) for i in range(CELLS)] == model.cells
    assert [plane.register_read("TestIngress.chunks", i) for i in range(CHUNKS)] == model.chunks
    assert [plane.register_read("TestIngress.flags", i) for i in range(FLAGS)] == model.flags


def test_registers_from_outside(plane: DataPlane) -> None:
    plane.register_write("TestIngress.chunks", 3, (1 << 2048) - 1)
    [(_, frame)] = send(plane, op=4, index=3, wide=2)
    assert unpack(COMMAND, frame)["wide"] == 1
    plane.register_write("TestIngress.cells", 0, 0xDEADBEEF)
    [(_, frame)] = send(plane, op=1, index=0)
    assert unpack(COMMAND, frame)["value"] == 0xDEADBEEF
    for index in (-1, CELLS):
        with pytest.raises(UnknownEntry, match="8 cells"):
            plane.register_read("TestIngress.cells", index)
    with pytest.raises(TableError, match="32 bits"):
        plane.register_write("TestIngress.cells", 0, 1 << 32)
    with pytest.raises(UnknownEntry, match="nothing"):
        plane.register_read("nothing", 0)


def test_counters(plane: DataPlane) -> None:
    frames = [(index, bytes(length)) for index in (0, 3, 15, 16, 2**32 - 1) for length in (0, 50)]
    for index, rest in frames:
        send(plane, rest, op=0, index=index)
    assert plane.process(1, b"short") == []  # the header is not valid
    seen = plane.counter_read_all("TestIngress.seen")
    for index in (3, 15):
        assert tuple(seen[index]) == (2, 2 * size(COMMAND) + 50)
        assert plane.counter_read("TestIngress.seen", index) == (2, 2 * size(COMMAND) + 50)
    assert seen[[1, 2, 4, 14]].sum() == 0
    assert plane.counter_read("TestEgress.left", 4)[0] == len(frames)
    plane.counter_write("TestIngress.seen", 3, 10, 2**50)
    send(plane, op=0, index=3)
    assert plane.counter_read("TestIngress.seen", 3) == (11, 2**50 + size(COMMAND))
    with pytest.raises(UnknownEntry, match="16 cells"):
        plane.counter_read("TestIngress.seen", 16)


@pytest.mark.parametrize("seed", range(20))
def test_hashes(plane: DataPlane, seed: int) -> None:
    chance = random.Random(seed)
    index, value, wide = chance.getrandbits(32), chance.getrandbits(32), chance.getrandbits(2048)
    [(_, frame)] = send(plane, op=6, index=index, value=value, wide=wide)
    digest = unpack(DIGEST, frame[size(COMMAND) :])
    eight = struct.pack(">II", index, value)
    bits = ((index & 0x1FFF) << 31 | value & 0x7FFFFFFF) << 4 | 9
    assert digest == {
        "crc32": zlib.crc32(struct.pack(">I", index) + wide.to_bytes(256, "big") + struct.pack(">I", value)),
        "crc16": crc16(eight),
        "csum16": csum16(bytes([6, 0x5A]) + eight[4:]),
        "xor16": xor16(eight),
        "bounded": 1000 + zlib.crc32(bits.to_bytes(6, "big")) % 77,
        "masked": value % 0x10000,
    }


def test_random_stays_within_its_range(plane: DataPlane) -> None:
    values = [unpack(COMMAND, send(plane, op=7, index=12)[0][1])["value"] for _ in range(200)]
    assert set(values) == {10, 11, 12}


def test_replicas(plane: DataPlane) -> None:
    plane.multicast_set(5, [(1, 1), (2, 2), (9, 3), (7, 4), (1, 1)])
    left = send(plane, b"tail", op=8, index=5, value=100)
    assert [port for port, _ in left] == [1, 2, 7, 1]  # instance 3 is dropped in egress
    for (_, frame), instance in zip(left, (1, 2, 4, 1), strict=True):
        assert unpack(COMMAND, frame) == {"op": 8, "index": instance, "value": 201, "wide": 0}
        assert frame.endswith(b"tail")
    plane.multicast_set(5, [(3, 9)])
    assert [port for port, _ in send(plane, op=8, index=5)] == [3]
    plane.multicast_delete(5)
    assert send(plane, op=8, index=5) == []
    with pytest.raises(UnknownEntry, match="group 5"):
        plane.multicast_delete(5)


def test_a_packet_sees_nothing_of_the_one_before(plane: DataPlane) -> None:
    plane.multicast_set(1, [(1, 1)])
    for value in (3, 0xFFFF):
        send(plane, op=8, index=1, value=value)
        [(port, frame)] = send(plane, op=20, value=1000)
        assert (port, unpack(COMMAND, frame)["value"]) == (5, 1001)


def test_ends(plane: DataPlane, caplog: pytest.LogCaptureFixture) -> None:
    assert send(plane, op=9) == []
    assert [port for port, _ in send(plane, op=13)] == [9]
    assert [port for port, _ in send(plane, op=10, value=12)] == [4]
    before = plane.stats().failed_asserts
    assert send(plane, op=10, value=13) == []
    assert plane.stats().failed_asserts == before + 1


def test_truncate(plane: DataPlane) -> None:
    [(_, frame)] = send(plane, bytes(range(50)), op=12, index=100)
    assert len(frame) == 100
    assert frame == (pack(COMMAND, {"op": 12, "index": 100}) + bytes(range(50)))[:100]
    [(_, frame)] = send(plane, b"x", op=12, index=5000)
    assert len(frame) == size(COMMAND) + 1


def test_log_messages_reach_the_log() -> None:
    class Records(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[tuple[int, str]] = []

        def emit(self, record: Any) -> None:
            self.lines.append((record.levelno, record.getMessage()))

    log, records = logging.getLogger("test of log_msg"), Records()
    log.addHandler(records)
    log.setLevel(logging.INFO)
    plane = DataPlane(log=log)
    plane.load(program("state"))
    send(plane, op=11, value=42, index=7)
    send(plane, op=10, value=13)
    plane.close()  # hands over what is under way
    assert (logging.INFO, "value 42 at 7") in records.lines
    [error] = [text for level, text in records.lines if level == logging.ERROR]
    assert "assert failed (state.p4:" in error
