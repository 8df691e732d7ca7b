"""Errors of a worker's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from host_agent.transport.events import Failure


class TransportError(Exception):
    """Base of everything this package raises on purpose."""


class NativeLibraryError(TransportError):
    """The native library is missing, does not load, or is of another version."""


class TransportClosedError(TransportError):
    """The connection was closed while, or before, something was asked of it."""


class TransportTimeoutError(TransportError, TimeoutError):
    """An operation did not complete in the time given; the connection still works on it."""


class ProtocolError(TransportError):
    """The connection failed: what arrived contradicts what this worker posted. `failure` has the details."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class RetryLimitError(ProtocolError):
    """The connection got no acknowledgement after `retry_limit` retransmissions in a row."""
