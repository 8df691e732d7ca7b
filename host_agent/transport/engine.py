"""The bare state machine, without I/O, thread or clock."""

from __future__ import annotations

import ctypes
import threading
from typing import Final

from host_agent.transport import native
from host_agent.transport.config import TransportConfig
from host_agent.transport.errors import TransportClosedError, TransportError
from host_agent.transport.events import Counters, Event, EventType, Progress
from host_agent.transport.operation import Operation

_MAX_FRAMES: Final = 64
_LARGEST_FRAME: Final = 4096 + 58  # the largest path MTU, and all headers


class _Memory(threading.local):
    """Buffers for frames and events of a thread's endpoints: they are copied out before a call returns."""

    def __init__(self) -> None:
        self.frames = ctypes.create_string_buffer(_MAX_FRAMES * _LARGEST_FRAME)
        self.frames_at = ctypes.addressof(self.frames)
        self.lengths = (ctypes.c_uint32 * _MAX_FRAMES)()
        self.event = native.NativeEvent()
        self.event_at = ctypes.byref(self.event)


_MEMORY: Final = _Memory()


class Endpoint:
    """Requester on QP_out, responder on QP_in and message window of one worker. Times are int nanoseconds.

    Not thread safe. Feed every frame to `receive`, then `poll` for what to send; `poll` again at
    `next_timeout_ns`.
    """

    def __init__(self, config: TransportConfig) -> None:
        self.config = config
        self._lib = native.library()
        self._operations: dict[int, Operation] = {}  # keeps the arrays alive
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        handle = self._lib.p4r_endpoint_new(native.native_config(config), error, len(error))
        if not handle:
            raise TransportError(f"the connection cannot be set up: {error.value.decode()}")
        self._handle: int | None = handle
        self._stride = self._lib.p4r_endpoint_frame_bytes(handle)
        self._position = native.NativeProgress()
        self._position_at = ctypes.byref(self._position)

    def post(self, operation: Operation, now_ns: int) -> int:
        """Queue an operation behind those posted before; return its id (counts up from 1)."""
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        op_id = int(
            self._lib.p4r_endpoint_post(
                self._open(), native.native_operation(operation), now_ns, error, len(error)
            )
        )
        if op_id == 0:
            raise ValueError(error.value.decode())
        self._operations[op_id] = operation
        return op_id

    def receive(self, frame: bytes, now_ns: int) -> None:
        """Take one Ethernet frame from the wire. An error in it is counted, or becomes a FAILED event."""
        self._lib.p4r_endpoint_receive(self._open(), frame, len(frame), now_ns)

    def poll(self, now_ns: int, max_frames: int = _MAX_FRAMES) -> list[bytes]:
        """Return the frames to send now, acknowledgements first, 64 at most; run timers that are due."""
        stride, start, lengths = self._stride, _MEMORY.frames_at, _MEMORY.lengths
        count = self._lib.p4r_endpoint_poll(self._open(), now_ns, start, stride, lengths, max_frames)
        return [ctypes.string_at(start + n * stride, lengths[n]) for n in range(count)]

    def next_timeout_ns(self) -> int | None:
        """Return when `poll` has to be called next if nothing arrives; None: never."""
        deadline = int(self._lib.p4r_endpoint_next_timeout(self._open()))
        return None if deadline == native.NEVER else deadline

    def halt(self) -> None:
        """Send nothing and touch no operation's array from now on; frames are ignored."""
        self._lib.p4r_endpoint_halt(self._open())

    def events(self) -> list[Event]:
        """Return what happened since the last call."""
        events, memory = [], _MEMORY
        while self._lib.p4r_endpoint_event(self._open(), memory.event_at):
            event = native.event_of(memory.event, self.config)
            if event.type is EventType.COMPLETED:
                del self._operations[event.op_id]
            events.append(event)
        return events

    def counters(self) -> Counters:
        """Return the counts since the endpoint was made."""
        handle = self._open()
        return native.read_counters(lambda out: self._lib.p4r_endpoint_counters(handle, out))

    def progress(self) -> Progress:
        """Return the endpoint's progress."""
        handle = self._open()
        return native.read_progress(lambda out: self._lib.p4r_endpoint_progress(handle, out))

    def position(self) -> native.NativeProgress:
        """Return `progress` for frequent callers: always the same object, with its present numbers."""
        self._lib.p4r_endpoint_progress(self._open(), self._position_at)
        return self._position

    def state(self, now_ns: int) -> bytes:
        """Return all that decides what it does from now on: endpoints with the same bytes do the same."""
        handle = self._open()
        return native.read_state(lambda out, room: self._lib.p4r_endpoint_state(handle, now_ns, out, room))

    def close(self) -> None:
        """Free the endpoint. Idempotent."""
        if self._handle is not None:
            self._lib.p4r_endpoint_free(self._handle)
            self._handle = None
            self._operations.clear()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _open(self) -> int:
        if self._handle is None:
            raise TransportClosedError("the endpoint is closed")
        return self._handle
