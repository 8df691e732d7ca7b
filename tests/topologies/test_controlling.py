"""A controller that serves, told from one that was killed."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

from topologies.controlling import _listens


def test_a_socket_that_a_killed_process_left_behind_serves_nobody() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "control"))
        assert not _listens(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(path)
            server.listen()
            assert _listens(path)
        assert Path(path).exists()
        assert not _listens(path)
