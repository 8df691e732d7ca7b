"""One StreamChannel on the server's side: a queue of what is to be sent, and how the stream ends."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator

from finsy.proto import p4r

from soft_switch.server.errors import P4RuntimeError

LOG = logging.getLogger(__name__)

# Packets waiting for a controller that reads too slowly; beyond that they are lost, as on a full port queue.
MAX_QUEUED = 4096


class StreamSession:
    """The sending half of a stream. Any thread may put messages; one thread takes them."""

    def __init__(self, session_id: int, peer: str) -> None:
        self.id = session_id
        self.peer = peer
        self.error: P4RuntimeError | None = None
        self.dropped = 0
        self._queue: queue.SimpleQueue[p4r.StreamMessageResponse | None] = queue.SimpleQueue()

    def send(self, message: p4r.StreamMessageResponse) -> None:
        """Queue a message that must arrive."""
        self._queue.put(message)

    def offer(self, message: p4r.StreamMessageResponse) -> None:
        """Queue a message that may be lost: a packet-in, or a report of an error."""
        if self._queue.qsize() < MAX_QUEUED:
            self._queue.put(message)
            return
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:  # at 1, 2, 4, 8, ...: a flood does not flood the log
            LOG.warning("controller %s reads too slowly: %d packet-ins lost", self.peer, self.dropped)

    def close(self, error: P4RuntimeError | None = None) -> None:
        """End the stream after what is queued, with an error if the client broke the rules."""
        self.error = self.error or error
        self._queue.put(None)

    def messages(self) -> Iterator[p4r.StreamMessageResponse]:
        """What to send, until the stream is closed."""
        while (message := self._queue.get()) is not None:
            yield message
