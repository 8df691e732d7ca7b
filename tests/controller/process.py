"""The controller as a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.controller.running_switch import HOSTS, free_port

_START_S = 60.0


class Process:
    """One `python -m controller`."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.unix = f"unix:{directory / 'c.sock'}"
        self.log = directory / "log"
        (directory / "config.json").write_text(json.dumps(config))

    def spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "controller"),
                    *("--config", str(self.directory / "config.json")),
                    *("--db", str(self.directory / "c.db")),
                    *("--listen", self.address, "--listen", self.unix),
                ],
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        self.process = self.spawn()
        deadline = time.monotonic() + _START_S
        host, _, port = self.address.rpartition(":")
        while time.monotonic() < deadline and self.process.poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((host, int(port)), 1.0),
                socket.socket(socket.AF_UNIX) as unix,
            ):
                unix.connect(self.unix.removeprefix("unix:"))
                return
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(15)


def config_of(address: str, **more: Any) -> dict[str, Any]:
    return {
        "switches": [{"name": "s1", "device_id": 1, "address": address}],
        "hosts": [{"name": h.name, "ip": str(h.ip), "mac": h.mac, "port": h.port} for h in HOSTS],
        **more,
    }
