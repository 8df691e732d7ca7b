"""The common part of the two transports: operations posted, waited for and let go of, failures raised.

`RcDriver` (userspace) and `VerbsLink` (an RDMA device) have a native object each.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from host_agent.transport import native
from host_agent.transport.config import TransportConfig
from host_agent.transport.errors import (
    ProtocolError,
    RetryLimitError,
    TransportClosedError,
    TransportTimeoutError,
)
from host_agent.transport.events import Counters, EventType, Failure, FailureCode, Progress
from host_agent.transport.operation import Operation

_SLICE_NS: Final = 100_000_000  # a native wait lasts this long, then signals get their turn
_OK, _TIMEOUT, _FAILED, _CLOSED = range(4)

L = TypeVar("L", bound="NativeLink")


class _Connection:
    """A native object, taken down when nobody refers to it any more, at the latest when Python exits.

    A caller inside a call holds a reference, so that the memory outlives the call.
    """

    def __init__(self, handle: int, stop: Callable[[], None], free: Callable[[int], None]) -> None:
        self.handle = handle
        self.operations: dict[int, Operation] = {}  # keeps the arrays alive that the native code uses
        self.stop = stop
        weakref.finalize(self, _release, handle, stop, free, self.operations, weakref.ref(self), os.getpid())


def _release(
    handle: int,
    stop: Callable[[], None],
    free: Callable[[int], None],
    operations: dict[int, Operation],
    connection: weakref.ref[_Connection],
    process: int,
) -> None:
    if os.getpid() != process:
        return  # a fork has the memory, but not the thread that would have to end
    stop()
    operations.clear()
    if connection() is None:  # not so at exit, where other threads may still wait
        free(handle)


class NativeLink:
    """One worker's connection to its neighbours. Safe to use from several threads.

    Keeps answering its neighbours until `close` or `abort`: a peer may still need an acknowledgement, so
    close only after the job's Leave barrier. One that is dropped without is closed, at exit as well.
    """

    def __init__(self, config: TransportConfig) -> None:
        self.config = config
        self._lib = native.library()
        self._lock = threading.Lock()  # guards what follows
        self._connection: _Connection | None = None
        self._ended = "the connection is not started"

    def start(self) -> None:
        """Bring the connection up; idempotent. TransportError names the interface and the reason."""
        raise NotImplementedError

    def _on_post(self) -> None:
        """Act after a `post`: the sender may have something to do."""

    def _on_abort(self) -> None:
        """Act on an `abort`, with the lock held."""

    def _attach(self, handle: int, stop: Callable[[], None], free: Callable[[int], None]) -> None:
        """Note that the connection is up. `stop` (idempotent) takes it down; `free` follows it, or not."""
        self._connection = _Connection(handle, stop, free)
        self._ended = ""

    def post(self, operation: Operation) -> int:
        """Queue an operation behind those posted before; return its id (counts up from 1). Does not block.

        ValueError: it cannot be sent as it is. TransportClosedError: not after `abort` or `close`.
        """
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        raw = native.native_operation(operation)
        with self._lock:
            connection = self._open()
            if self._ended:
                raise TransportClosedError(self._ended)
            op_id = int(self._lib.p4r_link_post(connection.handle, raw, error, len(error)))
            if op_id == 0:
                raise ValueError(error.value.decode())
            connection.operations[op_id] = operation
            self._forget(connection)
        self._on_post()
        return op_id

    def wait(
        self, op_id: int, *, timeout_s: float | None = None, until: EventType = EventType.RECEIVED
    ) -> None:
        """Block until the operation is RECEIVED (result in place) or COMPLETED (send buffer free as well).

        Raises TransportTimeoutError (may be waited for again), ProtocolError, TransportClosedError.
        Ctrl-C interrupts it.
        """
        deadline = None if timeout_s is None else time.monotonic_ns() + round(timeout_s * 1e9)
        with self._lock:
            connection = self._open()
        while True:
            left = _SLICE_NS if deadline is None else deadline - time.monotonic_ns()
            slice_ns = max(0, min(left, _SLICE_NS))
            result = self._lib.p4r_link_wait(connection.handle, op_id, until, slice_ns)
            if result != _TIMEOUT:
                break
            if timeout_s is not None and left <= _SLICE_NS:
                raise TransportTimeoutError(self._what_is_missing(op_id, timeout_s))
        if result == _FAILED:
            self._raise_failure()
        if result == _CLOSED:
            raise TransportClosedError(self._ended or "the connection was closed")

    def failure(self) -> Failure | None:
        """Return the fatal event, if the connection failed."""
        raw = native.NativeEvent()
        with self._lock:
            if not self._lib.p4r_link_failure(self._open().handle, raw):
                return None
        return native.failure_of(raw, self.config)

    def abort(self, reason: str) -> None:
        """Make every `wait` for what is not done, now and later, raise TransportClosedError(reason).

        Once it returns, nothing reads or writes the arrays of any operation; nothing is sent any more.
        """
        with self._lock:
            if self._connection is not None:
                self._ended = self._ended or reason
                self._lib.p4r_link_abort(self._connection.handle)
                self._on_abort()

    def counters(self) -> Counters:
        """Return the counts since `start`."""
        with self._lock:
            handle = self._open().handle
            return native.read_counters(lambda out: self._lib.p4r_link_counters(handle, out))

    def progress(self) -> Progress:
        """Return the connection's progress."""
        with self._lock:
            handle = self._open().handle
            return native.read_progress(lambda out: self._lib.p4r_link_progress(handle, out))

    def close(self) -> None:
        """Take the connection down; waits in other threads end. Idempotent."""
        self.abort("the connection was closed")
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.stop()
            connection.operations.clear()

    def __enter__(self: L) -> L:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> _Connection:
        if self._connection is None:
            raise TransportClosedError(self._ended or "the connection was closed")
        return self._connection

    def _forget(self, connection: _Connection) -> None:
        """Let go of the arrays of operations that are completed (ids are in order of completion)."""
        completed = self._lib.p4r_link_done(connection.handle, EventType.COMPLETED)
        for op_id in list(connection.operations):
            if op_id > completed:
                break
            del connection.operations[op_id]

    def _raise_failure(self) -> None:
        failure = self.failure()
        if failure is None:
            raise TransportClosedError("the connection failed")
        raise (RetryLimitError if failure.code is FailureCode.RETRY_LIMIT else ProtocolError)(failure)

    def _what_is_missing(self, op_id: int, timeout_s: float) -> str:
        progress, successor = self.progress(), self.config.successor
        text = (
            f"rank {self.config.rank}: operation {op_id} is not done after {timeout_s:g} s: "
            f"message {progress.received_messages} has not arrived"
        )
        if progress.acked_messages < progress.sent_messages:
            text += (
                f"; message {progress.acked_messages} (PSN {progress.first_unacked_psn}) is not "
                f"acknowledged by {native.address_text(successor.ip, successor.qpn_in)}"
            )
        return text
