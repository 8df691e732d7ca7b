"""The native endpoint with less Python around it: buffers are made once, what is asked often is read fast."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from host_agent.transport import Endpoint, Event, EventType, TransportConfig, native
from p4reduce.simulation.nic import NicEndpoint

MAX_FRAMES = 64


@cache
def _room(size: int) -> tuple[Any, int]:
    """For frames that are on their way from an endpoint, and where it is."""
    frames = ctypes.create_string_buffer(size)
    return frames, ctypes.addressof(frames)


class FastEndpoint(Endpoint):
    """As `Endpoint`; `position` is what the invariants look at."""

    # Of all endpoints: what is in them is made objects of before the call returns.
    _lengths = (ctypes.c_uint32 * MAX_FRAMES)()
    _raw_event = native.NativeEvent()
    _events_of = ctypes.byref(_raw_event)

    def __init__(self, config: TransportConfig) -> None:
        super().__init__(config)
        self._frames, self._start = _room(self._stride * MAX_FRAMES)
        self._raw_progress = native.NativeProgress()
        self._progress_of = ctypes.byref(self._raw_progress)

    def poll(self, now_ns: int, max_frames: int = MAX_FRAMES) -> list[bytes]:
        stride, start = self._stride, self._start
        count = self._lib.p4r_endpoint_poll(
            self._handle, now_ns, self._frames, stride, self._lengths, MAX_FRAMES
        )
        if not count:
            return []
        lengths = self._lengths
        return [ctypes.string_at(start + n * stride, lengths[n]) for n in range(count)]

    def events(self) -> list[Event]:
        if not self._lib.p4r_endpoint_event(self._handle, self._events_of):
            return []
        events = []
        while True:
            event = native.event_of(self._raw_event, self.config)
            if event.type is EventType.COMPLETED:
                del self._operations[event.op_id]
            events.append(event)
            if not self._lib.p4r_endpoint_event(self._handle, self._events_of):
                return events

    def position(self) -> native.NativeProgress:
        """Where it stands; the same object every time."""
        self._lib.p4r_endpoint_progress(self._handle, self._progress_of)
        return self._raw_progress


class FastNicEndpoint(NicEndpoint):
    """A simulated RDMA adapter, with the same names."""

    def __init__(self, config: TransportConfig) -> None:
        super().__init__(config)
        self._raw_progress = native.NativeProgress()
        self._progress_of = ctypes.byref(self._raw_progress)

    def position(self) -> native.NativeProgress:
        """Where it stands; the same object every time."""
        self.engine.lib.p4r_link_progress(self.engine.handle, self._progress_of)
        self._raw_progress.expected_psn = self.expected
        return self._raw_progress


AnyEndpoint = FastEndpoint | FastNicEndpoint
