"""Sockets that a thread serves, one connection at a time; Unix sockets by path."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

UNIX: Final = "unix:"
_LONGEST_PATH: Final = 107  # sun_path of unix(7), without its final zero
_PROBE_S: Final = 1.0
_LOG = logging.getLogger(__name__)


class Serving:
    """A thread that, from `start` to `close`, calls `serve(connection, client)` for each connection.

    A client that says nothing for `client_s` is left; errors there end its connection only. `what`, in
    words: "metrics at unix:/path".
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket, Any], None],
        *,
        what: str,
        thread: str,
        client_s: float,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._what = what
        self._client_s = client_s
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"p4reduce-{thread}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """True if it is to end."""
        return self._closed

    def close(self, join_s: float | None = None) -> None:
        """Serve no more; idempotent. Wait for a connection under way, `join_s` at most."""
        if self._closed:
            return
        self._closed = True
        if self._listener.family == socket.AF_UNIX:
            Path(self._listener.getsockname()).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread; close alone would not
        self._thread.join(join_s)
        self._listener.close()

    def wait(self) -> None:
        """Wait until somebody closes it (a signal, in the main thread)."""
        while self._thread.is_alive():
            self._thread.join(_PROBE_S)

    def _run(self) -> None:
        while True:
            try:
                connection, client = self._listener.accept()
            except OSError:
                if not self._closed:
                    _LOG.exception("%s are not served any more", self._what)
                return
            with connection:
                connection.settimeout(self._client_s)
                try:
                    self._serve(connection, client)
                except OSError as error:  # the client went away
                    _LOG.debug("%s: %s", self._what, error)
                except Exception:  # noqa: BLE001 (a defect there must not end the thread)
                    _LOG.exception("%s: a request failed", self._what)


def unix_path(text: str) -> Path:
    """Return the path of unix:/PATH. Raise ValueError that says what is wrong with it."""
    path = Path(text.removeprefix(UNIX))
    if not text.startswith(UNIX):
        raise ValueError("say unix:/PATH")
    if not path.is_absolute():
        raise ValueError("the path of a Unix socket begins with /")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ValueError(f"the path of a Unix socket has at most {_LONGEST_PATH} bytes")
    return path


def listen_at(path: Path, *, mode: int | None = None) -> socket.socket:
    """Return a Unix socket that listens there, in place of an abandoned one. Raise OSError."""
    _remove_abandoned(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if mode is not None:
            os.fchmod(listener.fileno(), mode)  # before anybody can see it
        listener.bind(str(path))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def connected(path: Path, timeout_s: float) -> socket.socket:
    """Connect to the listener there. Raise OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _remove_abandoned(path: Path) -> None:
    """Remove the socket of a process that was killed."""
    if path.is_socket():
        try:
            connected(path, _PROBE_S).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
