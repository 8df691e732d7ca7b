"""A worker's connection on a network interface: the native thread that runs an endpoint."""

from __future__ import annotations

import ctypes
from functools import partial

from host_agent.transport import native
from host_agent.transport.config import TransportConfig
from host_agent.transport.errors import TransportError
from host_agent.transport.link import NativeLink


class RcDriver(NativeLink):
    """A link that runs one endpoint on `interface` (needs CAP_NET_RAW)."""

    def __init__(self, config: TransportConfig, interface: str) -> None:
        super().__init__(config)
        self.interface = interface

    def start(self) -> None:
        """Open the sockets and start the thread. TransportError names the interface and the reason."""
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        with self._lock:
            if self._connection is not None:
                return
            handle = self._lib.p4r_driver_new(
                native.native_config(self.config), self.interface.encode(), error, len(error)
            )
            if not handle:
                raise TransportError(
                    f"cannot start RoCE v2 on interface {self.interface}: {error.value.decode()}"
                )
            self._attach(handle, partial(self._lib.p4r_driver_stop, handle), self._lib.p4r_link_free)
