"""The data plane as its users see it: life cycle, frames of every length, packets of the control plane."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable

import pytest

from soft_switch.dataplane import DataPlane
from tests.p4src.rack import JSON as P4REDUCE
from tests.soft_switch.bits import pack
from tests.soft_switch.conftest import PlaneFactory
from tests.soft_switch.layouts import STATE_COMMAND as COMMAND
from tests.soft_switch.programs import NAMES, program

pytestmark = pytest.mark.slow

LONGEST = 9000


@pytest.mark.parametrize("name", [*(name for name in NAMES if name != "forever"), "p4reduce"])
def test_garbage_of_every_length(name: str) -> None:
    chance = random.Random(name)
    plane = DataPlane(cpu_port=255)
    plane.load(P4REDUCE.read_bytes() if name == "p4reduce" else program(name))
    plane.multicast_set(1, [(port, port) for port in range(1, 5)])
    plane.clone_set(0, [(1, 1), (2, 2)])
    added = 256 * 45 if name == "flow" else 2048  # 45 bytes each time it goes round
    garbage = chance.randbytes(2 * LONGEST)
    for length in range(LONGEST + 1):
        start = chance.randrange(LONGEST)
        # Mostly headers that a parser goes on with: what RoCE, IPv4 and labels begin with.
        head = chance.choice([b"", b"\x01\x00", bytes(12) + b"\x08\x00\x45", bytes([8, 0, 0, 0, 1])])
        frame = (head + garbage[start : start + length])[:length]
        for _, left in plane.process(chance.randrange(1, 5), frame):
            assert len(left) <= length + added
    plane.close()


def test_roce_frames_with_random_bits_turned() -> None:
    """Process what the aggregation program parses deepest, damaged and cut anywhere."""
    chance = random.Random(6)
    plane = DataPlane(cpu_port=255)
    plane.load(P4REDUCE.read_bytes())
    head = bytes.fromhex("020000000001020000000002080045000000000040004011000001020304050607080012b7")
    whole = head + b"\x00" * 5 + bytes.fromhex("0400ffff00000101000000005034524401") + chance.randbytes(4300)
    for _ in range(3000):
        frame = bytearray(whole[: chance.randrange(1, len(whole))])
        for _ in range(chance.randrange(6)):
            frame[chance.randrange(min(len(frame), 120))] ^= 1 << chance.randrange(8)
        plane.process(chance.randrange(1, 5), bytes(frame))
    plane.close()


def test_the_longest_frame() -> None:
    plane = DataPlane()
    plane.load(program("stacks"))
    [(_, left)] = plane.process(1, bytes([2, 0]) + bytes(16000))
    assert len(left) == 16002 + 8
    before = plane.stats().too_long
    assert plane.process(1, bytes([2, 0]) + bytes(16384 - 4 - 2)) == []  # the report does not fit any more
    assert plane.stats().too_long == before + 1
    with pytest.raises(ValueError, match="longer than"):
        plane.process(1, bytes(16384))
    plane.close()


def test_packets_to_and_from_the_control_plane(plane_with: PlaneFactory) -> None:
    plane = plane_with("state")
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    plane.on_packet_in(arrived.put)
    plane.multicast_set(3, [(255, 1), (255, 2)])
    plane.packet_out(pack(COMMAND, {"op": 8, "index": 3}))
    got = [arrived.get(timeout=10) for _ in range(2)]
    assert got == [pack(COMMAND, {"op": 8, "index": n, "value": 1}) for n in (1, 2)]


def test_a_callback_that_fails_does_not_stop_the_next(plane_with: PlaneFactory) -> None:
    plane = plane_with("state")
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def callback(frame: bytes) -> None:
        arrived.put(frame)
        raise RuntimeError("a user's mistake")

    plane.on_packet_in(callback)
    plane.multicast_set(3, [(255, 1)])
    for _ in range(2):
        plane.packet_out(pack(COMMAND, {"op": 8, "index": 3}))
        arrived.get(timeout=10)


def test_loading_again_starts_afresh(plane_with: PlaneFactory) -> None:
    plane = plane_with("state")
    plane.register_write("TestIngress.cells", 1, 5)
    plane.load(program("state"))
    assert plane.register_read("TestIngress.cells", 1) == 0


def test_without_a_program() -> None:
    plane = DataPlane()
    assert plane.program is None
    with pytest.raises(RuntimeError, match="no program"):
        plane.process(1, b"x")
    plane.close()
    plane.close()


def test_what_cannot_be_attached() -> None:
    plane = DataPlane(cpu_port=255)
    with pytest.raises(OSError, match="no-such0"):
        plane.attach(1, "no-such0")
    with pytest.raises(ValueError, match="CPU port"):
        plane.attach(255, "lo")
    for beyond in (512, 513, 767, 65536):  # 9 bits of them would be ports 0, 1, the CPU port, and 0
        with pytest.raises(ValueError, match=f"port {beyond} is not within 0 and 511"):
            plane.attach(beyond, "lo")
    plane.close()


def test_switches_in_one_process_share_nothing(plane_with: PlaneFactory) -> None:
    one, other = plane_with("state"), plane_with("state")
    one.register_write("TestIngress.cells", 0, 1)
    one.multicast_set(1, [(1, 1)])
    assert other.register_read("TestIngress.cells", 0) == 0
    assert other.process(1, pack(COMMAND, {"op": 8, "index": 1})) == []
    assert other.counter_read("TestIngress.seen", 1) == (1, len(pack(COMMAND, {})))
    assert one.counter_read("TestIngress.seen", 1) == (0, 0)


CALLS: dict[str, Callable[[DataPlane], object]] = {
    "load": lambda plane: plane.load(program("stacks")),
    "attach": lambda plane: plane.attach(1, "lo"),
    "detach": lambda plane: plane.detach(1),
    "stats": lambda plane: plane.stats(),
    "set_loss": lambda plane: plane.set_loss(1, "in", 0.5, 1),
    "start": lambda plane: plane.start(),
    "stop": lambda plane: plane.stop(),
    "multicast_set": lambda plane: plane.multicast_set(1, [(1, 1)]),
    "multicast_delete": lambda plane: plane.multicast_delete(1),
    "clone_set": lambda plane: plane.clone_set(1, [(1, 1)]),
    "clone_delete": lambda plane: plane.clone_delete(1),
    "packet_out": lambda plane: plane.packet_out(bytes(60)),
    "process": lambda plane: plane.process(1, bytes(60)),
    "register_read": lambda plane: plane.register_read("r", 0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_closed_data_plane_says_so(call: Callable[[DataPlane], object]) -> None:
    plane = DataPlane(cpu_port=255)
    plane.load(program("stacks"))
    plane.close()
    plane.close()
    with pytest.raises(RuntimeError, match=r"the data plane is closed|no program is loaded"):
        call(plane)


def test_a_callback_may_close_its_data_plane(caplog: pytest.LogCaptureFixture) -> None:
    plane = DataPlane(cpu_port=255)
    plane.load(program("state"))
    closed = threading.Event()

    def close(data: bytes) -> None:
        plane.close()
        closed.set()

    plane.on_packet_in(close)
    plane.multicast_set(3, [(255, 1)])
    plane.packet_out(pack(COMMAND, {"op": 8, "index": 3}))
    assert closed.wait(10)
    with pytest.raises(RuntimeError, match="closed"):
        plane.stats()
    assert not caplog.records
