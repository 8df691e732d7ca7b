"""RoCE v2 reliable connections to the neighbours on the ring, and the message window on top of them.

Two ways to run the same native state machines (`host_agent/native`):

- `RcDriver`: a thread that owns a raw socket on a network interface; what a worker uses.
- `Endpoint`: the bare state machine. No I/O, no thread, no clock: frames and the time go in, frames
  and events come out. Tests and the in-process simulation use it.

Both take `Operation`s: one contiguous tensor to aggregate in the switch (SUM, MAX) or to pass to the
successor while one arrives from the predecessor (PASS).
"""

from __future__ import annotations

from host_agent.transport.config import Predecessor, Successor, TransportConfig
from host_agent.transport.driver import RcDriver
from host_agent.transport.engine import Endpoint
from host_agent.transport.errors import (
    NativeLibraryError,
    ProtocolError,
    RetryLimitError,
    TransportClosedError,
    TransportError,
    TransportTimeoutError,
)
from host_agent.transport.events import Counters, Event, EventType, Failure, FailureCode, Progress
from host_agent.transport.operation import Arrival, ElementType, Operation, SwitchOp

__all__ = [
    "Arrival",
    "Counters",
    "ElementType",
    "Endpoint",
    "Event",
    "EventType",
    "Failure",
    "FailureCode",
    "NativeLibraryError",
    "Operation",
    "Predecessor",
    "Progress",
    "ProtocolError",
    "RcDriver",
    "RetryLimitError",
    "Successor",
    "SwitchOp",
    "TransportClosedError",
    "TransportConfig",
    "TransportError",
    "TransportTimeoutError",
]
