"""RDMA devices in one process: the interface of `QueuePairs`, with an eventfd for each kind of event."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from host_agent.membership import RcParameters
from host_agent.transport import TransportConfig, TransportError
from host_agent.transport.verbs import RoceDevice
from host_agent.transport.verbs.completions import Status
from host_agent.transport.verbs.queue_pairs import RECEIVE


@dataclass
class FakeCompletion:
    wr_id: int
    status: int = 0
    byte_len: int = 0


@dataclass
class FakeWire:
    """A SEND waits for a posted receive, as with RNR retries without end."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    devices: list[FakeQueuePairs] = field(default_factory=list)

    def deliver(self) -> None:
        for device in self.devices:
            after = self.devices[(device.rank + 1) % len(self.devices)]
            while device.sends and after.receives and not after.down and not device.down:
                slot, data = device.sends.popleft()
                target = after.receives.popleft()
                ctypes.memmove(after.receive_buffers[target], data, len(data))
                after.complete(FakeCompletion(RECEIVE | target, byte_len=len(data)))
                device.complete(FakeCompletion(slot))


class FakeQueuePairs:
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
        self.sends: deque[tuple[int, bytes]] = deque()
        self.receives: deque[int] = deque()
        self.completions: deque[FakeCompletion] = deque()
        self.device_events: deque[int] = deque()
        self.down = False
        self.calls: list[str] = []
        self.polls = 0
        self.refusal: TransportError | Exception | None = None  # of the next poll
        self.rc: RcParameters | None = None
        self.on_event: Callable[[], None] = lambda: None
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
        with self.wire.lock:
            assert slot not in self.receives
            self.receives.append(slot)
            self.wire.deliver()

    def post_send(self, slot: int, length: int) -> None:
        with self.wire.lock:
            assert slot not in [sent for sent, _ in self.sends]
            self.sends.append((slot, ctypes.string_at(self.send_buffers[slot], length)))
            self.wire.deliver()

    def poll(self, most: int) -> list[FakeCompletion]:
        with self.wire.lock:
            self.polls += 1
            if self.refusal is not None:
                raise self.refusal
            return [self.completions.popleft() for _ in range(min(most, len(self.completions)))]

    def take_completion_event(self) -> None:
        os.eventfd_read(self.completion_fd)

    def take_device_event(self) -> int:
        os.eventfd_read(self.event_fd)
        self.on_event()
        return self.device_events.popleft()

    def stop(self) -> None:
        with self.wire.lock:
            self.calls.append("stop")
            self.down = True
            for slot, _ in self.sends:
                self.complete(FakeCompletion(slot, status=Status.WR_FLUSH_ERR))
            self.sends.clear()

    def close(self) -> None:
        self.calls.append("close")

    def complete(self, completion: FakeCompletion) -> None:
        with self.wire.lock:
            self.completions.append(completion)
            os.eventfd_write(self.completion_fd, 1)

    def report(self, event: int) -> None:
        self.device_events.append(event)
        os.eventfd_write(self.event_fd, 1)

    def refuse(self, error: Exception) -> None:
        """Whatever is asked next fails with `error`."""
        self.refusal = error
        os.eventfd_write(self.completion_fd, 1)
