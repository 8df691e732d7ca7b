"""Limits on one peer's requests to a service: token buckets, and the sessions open at a time."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

_REMEMBERED: Final = 4096  # peers


class TooMuchError(Exception):
    """Error about a peer that asks for more than it may; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the controller's service, for each address; a Unix socket has none.

    `message_bytes`: largest message (a document to apply is one); `session_message_bytes`: largest in a
    worker's session. A peer has `sessions` open at a time, begins `sessions_per_s` and asks `requests_per_s`
    on average; a session carries `messages_per_s`. For a moment each may be `burst_s` seconds' worth.
    """

    message_bytes: int = 4 << 20
    session_message_bytes: int = 16 << 10
    sessions: int = 256
    sessions_per_s: float = 50.0
    requests_per_s: float = 100.0
    messages_per_s: float = 100.0
    burst_s: float = 4.0

    def __post_init__(self) -> None:
        for name in ("message_bytes", "session_message_bytes", "sessions"):
            if getattr(self, name) < 1:
                raise ValueError(f"limits.{name} is {getattr(self, name)}, and has to be at least 1")
        for name in ("sessions_per_s", "requests_per_s", "messages_per_s", "burst_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"limits.{name} is {getattr(self, name)}, and has to be above 0")


class Bucket:
    """A token bucket that lets `rate` a second through, and `burst` at once."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, max(1.0, burst), clock
        self._left, self._at = self._burst, clock()

    def take(self) -> bool:
        """Take a token; tell whether there was one."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Peers:
    """The use that each peer has made of the service. Not thread-safe."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], Bucket] = OrderedDict()
        self._open: Counter[str] = Counter()

    def request(self, peer: str) -> None:
        """Count a request. Raise TooMuchError."""
        self._take(peer, "requests", self.limits.requests_per_s)

    @contextlib.contextmanager
    def session(self, peer: str) -> Iterator[None]:
        """Count a session while it is open. Raise TooMuchError for too many, or too many a second."""
        host = host_of(peer)
        if host is None:
            yield
            return
        self._take(peer, "sessions", self.limits.sessions_per_s)
        if self._open[host] >= self.limits.sessions:
            raise TooMuchError(f"{host} has {self._open[host]} sessions open, more are not possible")
        self._open[host] += 1
        try:
            yield
        finally:
            self._open[host] -= 1
            if not self._open[host]:
                del self._open[host]

    def messages(self, peer: str) -> Bucket | None:
        """Return the bucket for the messages of one session; None if they have no limit."""
        if host_of(peer) is None:
            return None
        return Bucket(
            self.limits.messages_per_s, self.limits.messages_per_s * self.limits.burst_s, self._clock
        )

    def _take(self, peer: str, what: str, rate: float) -> None:
        host = host_of(peer)
        if host is None:
            return
        key = (host, what)
        bucket = self._buckets.pop(key, None) or Bucket(rate, rate * self.limits.burst_s, self._clock)
        self._buckets[key] = bucket  # the one that was used last is the last
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        if not bucket.take():
            raise TooMuchError(f"{host} has more than {rate:g} {what} a second: come again in a moment")


def host_of(peer: str) -> str | None:
    """Return the address in gRPC's name of a peer; None for a Unix socket."""
    if peer.startswith("unix"):
        return None
    kind, _, address = peer.partition(":")
    return address.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer
