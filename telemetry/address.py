"""Where metrics are served: "unix:/path", or "HOST:PORT"."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNIX: Final = "unix:"
STATE_PATH: Final = "/state"  # what a process says of itself beside metrics, as JSON
VARIABLE: Final = (
    "P4REDUCE_METRICS"  # where workers serve theirs: an address, or a directory for Unix sockets
)
_LONGEST_PATH: Final = 107  # sun_path of unix(7), without its final zero
_PROBE_S: Final = 1.0


class MetricsError(Exception):
    """Metrics cannot be served there, or be read from there; the message is one sentence for the user."""


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
        """A socket that listens there; MetricsError. A Unix socket that nobody listens on is replaced."""
        try:
            if self.path is None:
                family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
                return socket.create_server((self.host, self.port), family=family)
            self._remove_abandoned(self.path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(str(self.path))
                listener.listen()
            except OSError:
                listener.close()
                raise
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise MetricsError(f"cannot serve metrics on {self}: {why}; choose another address") from error
        return listener

    def connect(self, timeout_s: float) -> socket.socket:
        """A connection to what listens there. OSError."""
        if self.path is None:
            return socket.create_connection((self.host, self.port), timeout_s)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(str(self.path))
        except OSError:
            connection.close()
            raise
        return connection

    def _remove_abandoned(self, path: Path) -> None:
        if not path.is_socket():
            return
        try:
            self.connect(_PROBE_S).close()
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def parse(text: str) -> Address:
    """An address as users write it; MetricsError says what is wrong with it."""
    if text.startswith(UNIX):
        path = Path(text[len(UNIX) :])
        if not path.is_absolute():
            raise MetricsError(f"{text!r} is no address for metrics: the path of a Unix socket begins with /")
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise MetricsError(
                f"cannot serve metrics on {text}: the path of a Unix socket has at most {_LONGEST_PATH} bytes"
            )
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise MetricsError(
            f"{text!r} is no address for metrics: say HOST:PORT, for instance 127.0.0.1:9464, or unix:/PATH"
        )
    return Address(host=host, port=int(port))
