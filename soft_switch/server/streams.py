"""One StreamChannel on the server's side: a queue of what is to be sent, and how the stream ends."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator

from finsy.proto import p4r

from soft_switch.server.errors import P4RuntimeError

LOG = logging.getLogger(__name__)

# What may wait for a controller that reads too slowly; beyond that it is lost, as on a full port queue.
MAX_QUEUED = 4096  # messages
MAX_QUEUED_BYTES = 16 << 20


class StreamSession:
    """The sending half of a stream. Any thread may put messages; one thread takes them."""

    def __init__(self, session_id: int, peer: str) -> None:
        self.id = session_id
        self.peer = peer
        self.error: P4RuntimeError | None = None
        self.dropped = 0
        self._lock = threading.Lock()
        self._bytes = 0  # queued by `offer`
        self._queue: queue.SimpleQueue[tuple[p4r.StreamMessageResponse, int] | None] = queue.SimpleQueue()

    def send(self, message: p4r.StreamMessageResponse) -> None:
        """Queue a message that must arrive."""
        self._queue.put((message, 0))

    def offer(self, message: p4r.StreamMessageResponse) -> None:
        """Queue a message that may be lost: a packet-in, a notification, or a report of an error."""
        size = message.ByteSize()
        with self._lock:
            if self._queue.qsize() < MAX_QUEUED and self._bytes + size <= MAX_QUEUED_BYTES:
                self._bytes += size
                self._queue.put((message, size))
                return
            self.dropped += 1
            dropped = self.dropped
        if dropped & (dropped - 1) == 0:  # at 1, 2, 4, 8, ...: a flood does not flood the log
            LOG.warning("controller %s reads too slowly: %d messages lost", self.peer, dropped)

    def close(self, error: P4RuntimeError | None = None) -> None:
        """End the stream after what is queued, with an error if the client broke the rules."""
        self.error = self.error or error
        self._queue.put(None)

    def messages(self) -> Iterator[p4r.StreamMessageResponse]:
        """Yield what to send, until the stream is closed."""
        while (item := self._queue.get()) is not None:
            message, size = item
            if size:
                with self._lock:
                    self._bytes -= size
            yield message
