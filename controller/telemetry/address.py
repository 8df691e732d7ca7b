"""Addresses of metrics: "unix:/path", or "HOST:PORT"."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.telemetry import sockets
from controller.telemetry.sockets import UNIX

STATE_PATH: Final = "/state"  # what a process says of itself beside metrics, as JSON
VARIABLE: Final = (
    "P4REDUCE_METRICS"  # where workers serve theirs: an address, or a directory for Unix sockets
)


class MetricsError(Exception):
    """Error about metrics that cannot be served or read; the message is one sentence for the user."""


@dataclass(frozen=True)
class Address:
    """A Unix socket's path, or host and port (0: any free one)."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path is not None:
            return f"{UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """Return a socket that listens there, in place of an abandoned Unix socket. Raise MetricsError."""
        try:
            if self.path is None:
                family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
                return socket.create_server((self.host, self.port), family=family)
            return sockets.listen_at(self.path)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise MetricsError(f"cannot serve metrics on {self}: {why}; choose another address") from error

    def connect(self, timeout_s: float) -> socket.socket:
        """Connect to the listener there. Raise OSError."""
        if self.path is None:
            return socket.create_connection((self.host, self.port), timeout_s)
        return sockets.connected(self.path, timeout_s)


def parse(text: str) -> Address:
    """Parse an address as users write it. Raise MetricsError that says what is wrong with it."""
    if text.startswith(UNIX):
        try:
            return Address(path=sockets.unix_path(text))
        except ValueError as error:
            raise MetricsError(f"{text!r} is no address for metrics: {error}") from error
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise MetricsError(
            f"{text!r} is no address for metrics: say HOST:PORT, for instance 127.0.0.1:9464, or unix:/PATH"
        )
    return Address(host=host, port=int(port))
