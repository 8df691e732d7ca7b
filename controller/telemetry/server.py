"""Server of a process's metrics over HTTP: one thread that sleeps until somebody asks.

The first request imports prometheus_client and http.server: a worker whose metrics nobody reads pays for a
socket and a thread only.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from controller.telemetry import address as addresses
from controller.telemetry.address import STATE_PATH, Address, MetricsError
from controller.telemetry.sockets import Serving

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

Collect = Callable[[], "Iterable[Metric]"]
State = Callable[[], dict[str, Any]]

_CLIENT_S: Final = 5.0  # a client that says nothing holds up the others for so long
_JOIN_S: Final = 1.0
_PATHS: Final = ("/", "/metrics")


class MetricsServer(AbstractContextManager["MetricsServer"]):
    """Server of the metrics that `collect` yields at `address` ("unix:/path", "HOST:PORT").

    Raises MetricsError if it cannot serve there. Its thread calls `collect` once a request; a client gets the
    text of a MetricsError. `process`: also this process's own CPU time, memory and open files. `state`:
    returns an object to serve as JSON at `STATE_PATH`, on a Unix socket only: its users may look into this
    machine's processes anyway.
    """

    def __init__(
        self, address: str, collect: Collect, *, process: bool = False, state: State | None = None
    ) -> None:
        wanted = addresses.parse(address)
        self._collect = collect
        self._process = process
        self._state = state if wanted.path is not None else None
        self._handler: Any = None
        listener = wanted.listen()
        self.address = wanted if wanted.path is not None else _bound(listener)
        self._serving = Serving(
            listener, self._answer, what=f"metrics at {self.address}", thread="metrics", client_s=_CLIENT_S
        )
        self._serving.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Serve no more, without a long wait for a request under way; idempotent."""
        self._serving.close(_JOIN_S)

    def wait(self) -> None:
        """Wait until somebody closes it (a signal, in the main thread)."""
        self._serving.wait()

    def _answer(self, connection: socket.socket, client: Any) -> None:
        if self._handler is None:
            self._handler = _handler(registry(self._collect, process=self._process), self._state)
        self._handler(connection, client, self)


def registry(collect: Collect, *, process: bool = False) -> CollectorRegistry:
    """Make a registry of its own (not the global one) that asks `collect` each time."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    made = CollectorRegistry()
    made.register(_Collector(collect))
    if process:
        ProcessCollector(namespace="p4reduce", registry=made)
    return made


class _Collector:
    """Collector for a registry, which calls `collect`."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering it does not collect."""
        return ()


def _handler(metrics: CollectorRegistry, state: State | None) -> Any:
    """Make a request handler for `metrics` and `state`."""
    from prometheus_client import MetricsHandler

    class Handler(MetricsHandler):
        registry = metrics

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            try:
                if path == STATE_PATH and state is not None:
                    self._tell(json.dumps(state()).encode())
                elif path in _PATHS:
                    super().do_GET()
                else:
                    self.send_error(404, "metrics are at /metrics")
            except MetricsError as error:
                self.send_error(503, str(error))

        def _tell(self, text: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler


def _bound(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host=host, port=port)
