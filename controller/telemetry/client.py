"""Client for metrics that another process serves."""

from __future__ import annotations

import http.client
import socket
from typing import Final

from controller.telemetry.address import Address, MetricsError

TIMEOUT_S: Final = 2.0


def fetch(address: Address, *, timeout_s: float = TIMEOUT_S, path: str = "/metrics") -> str:
    """Return the text that is served at `address`. Raise MetricsError if nobody answers in time."""
    connection = _Connection(address, timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise MetricsError(f"no metrics from {address}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise MetricsError(f"no metrics from {address}: {response.status} {response.reason}")
    return text


class _Connection(http.client.HTTPConnection):
    """HTTP connection that can also go to a Unix socket."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._where = address
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock: socket.socket = self._where.connect(self._timeout_s)
