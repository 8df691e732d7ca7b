"""RDMA devices in one process: the interface of `QueuePairs`, with an eventfd for each kind of event."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controller.api.messages import RcParameters
from host_agent.transport import SwitchOp, TransportConfig, TransportError
from host_agent.transport.verbs import RoceDevice
from host_agent.transport.verbs.completions import Status
from host_agent.transport.verbs.queue_pairs import RECEIVE, Completion, QueuePairs
from host_agent.wire.aggregation import CHUNK_BYTES, AggregationHeader, Flags


@dataclass
class FakeCompletion:
    wr_id: int
    status: int = 0
    byte_len: int = 0


@dataclass(frozen=True)
class FakeSend:
    """A SEND, from when it is posted to its completion: the device may read the slot at any time."""

    slot: int
    address: int
    posted: bytes

    def read(self) -> bytes:
        now = ctypes.string_at(self.address, len(self.posted))
        assert now == self.posted, f"slot {self.slot} was written before its SEND completed"
        return now


@dataclass
class FakeWire:
    """A SEND waits for a posted receive, as with RNR retries without end.

    Plays the switch as well: of aggregated messages everybody gets the sum, when everybody has sent.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    devices: list[FakeQueuePairs] = field(default_factory=list)
    sums: dict[int, bytes] = field(default_factory=dict)  # by message

    def deliver(self) -> None:
        for device in self.devices:
            after = self.devices[(device.rank + 1) % len(self.devices)]
            while device.undelivered and after.receives and not after.down and not device.down:
                send = device.undelivered[0]
                data = self.arriving(send)
                if data is None:
                    break
                device.undelivered.popleft()
                target = after.receives.popleft()
                ctypes.memmove(after.receive_buffers[target], data, len(data))
                after.complete(FakeCompletion(RECEIVE | target, byte_len=len(data)))
                device.complete(FakeCompletion(send.slot))

    def arriving(self, send: FakeSend) -> bytes | None:
        """Return what the successor gets for this, or None if that is nothing yet."""
        data = send.read()
        header = AggregationHeader.unpack(data)
        if header.op == SwitchOp.PASS:
            return data
        if header.message not in self.sums:
            contributions = [device.contribution(header.message) for device in self.devices]
            if not all(contributions):
                return None
            lanes = [np.frombuffer(c[CHUNK_BYTES:], ">i4").astype(np.int32) for c in contributions]
            self.sums[header.message] = sum(lanes[1:], lanes[0]).astype(">i4").tobytes()
        return replace(header, flags=Flags.RESULT).pack() + self.sums[header.message]


class FakeQueuePairs(QueuePairs):
    """One worker's device."""

    def __init__(self, wire: FakeWire, rank: int) -> None:
        self.device = RoceDevice(name="fake0", port=1, gid_index=1, interface="eth0")
        self.wire = wire
        self.rank = rank
        self.qpn_out, self.qpn_in, self.path_mtu = 0x11, 0x12, 1024
        self.completion_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self.send_buffers: Sequence[int] = []
        self.receive_buffers: Sequence[int] = []
        self.sends: dict[int, FakeSend] = {}  # by slot: not completed
        self.undelivered: deque[FakeSend] = deque()
        self.receives: deque[int] = deque()
        self.completions: deque[FakeCompletion] = deque()
        self.held: deque[FakeCompletion] = deque()
        self.holds: Callable[[FakeCompletion], bool] = lambda completion: False  # those that come late
        self.armed = True  # the next completion is an event, as was asked for when the queue was made
        self.device_events: deque[int] = deque()
        self.down = False
        self.calls: list[str] = []
        self.polls = 0
        self.refusal: TransportError | Exception | None = None  # of the next poll
        self.rc: RcParameters | None = None
        self.on_event: Callable[[], None] = lambda: None
        self.on_post_receive: Callable[[], None] = lambda: None
        wire.devices.append(self)

    def connect(self, config: TransportConfig, rc: RcParameters, *, slots: int, slot_bytes: int) -> None:
        self.rc = rc
        self.memory = ctypes.create_string_buffer(2 * slots * slot_bytes)
        base = ctypes.addressof(self.memory)
        self.send_buffers = [base + slot * slot_bytes for slot in range(slots)]
        self.receive_buffers = [base + (slots + slot) * slot_bytes for slot in range(slots)]
        self.receives.extend(range(slots))
        self.calls.append("connect")

    def post_receive(self, slot: int) -> None:
        self.on_post_receive()
        with self.wire.lock:
            assert slot not in self.receives
            self.receives.append(slot)
            self.wire.deliver()

    def post_send(self, slot: int, length: int) -> None:
        with self.wire.lock:
            assert slot not in self.sends, f"slot {slot} was posted again before its SEND completed"
            address = self.send_buffers[slot]
            self.sends[slot] = send = FakeSend(slot, address, ctypes.string_at(address, length))
            self.undelivered.append(send)
            self.wire.deliver()

    def contribution(self, message: int) -> bytes:
        """Return what the device has sent of an aggregated message; empty if nothing yet."""
        with self.wire.lock:
            for send in self.undelivered:
                if AggregationHeader.unpack(send.posted).message == message:
                    return send.read()
        return b""

    def poll(self, most: int) -> list[Completion]:
        with self.wire.lock:
            self.polls += 1
            if self.refusal is not None:
                raise self.refusal
            return [self.completions.popleft() for _ in range(min(most, len(self.completions)))]

    def take_completion_event(self) -> None:
        """Take the event; what completed before causes no further event, as with verbs."""
        with self.wire.lock:
            os.eventfd_read(self.completion_fd)
            self.armed = True

    def take_device_event(self) -> int:
        os.eventfd_read(self.event_fd)
        self.on_event()
        return self.device_events.popleft()

    def stop(self) -> None:
        with self.wire.lock:
            self.calls.append("stop")
            self.down = True
            for send in self.undelivered:
                self.complete(FakeCompletion(send.slot, status=Status.WR_FLUSH_ERR))
            self.undelivered.clear()

    def close(self) -> None:
        self.calls.append("close")

    def complete(self, completion: FakeCompletion) -> None:
        with self.wire.lock:
            if self.holds(completion):
                self.held.append(completion)
                return
            send = self.sends.pop(completion.wr_id, None)
            if send is not None:
                send.read()
            self.completions.append(completion)
            self.notify()

    def release(self) -> None:
        """Complete all that was held, at once: receives first (the two queue pairs know no order)."""
        with self.wire.lock:
            self.holds = lambda completion: False
            held, self.held = sorted(self.held, key=lambda c: not c.wr_id & RECEIVE), deque()
            for completion in held:
                self.complete(completion)

    def notify(self) -> None:
        """Raise one event, if it was asked for since the last."""
        if self.armed:
            self.armed = False
            os.eventfd_write(self.completion_fd, 1)

    def report(self, event: int) -> None:
        self.device_events.append(event)
        os.eventfd_write(self.event_fd, 1)

    def refuse(self, error: Exception) -> None:
        """Let whatever is asked next fail with `error`."""
        with self.wire.lock:
            self.refusal = error
            self.notify()
