"""Real switches without interfaces, as processes of a test session, and a job's entries to write to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar

from controller.api.messages import Mode
from controller.config import HostConfig, SwitchConfig, Target
from controller.entries import Entry
from controller.fabric.flows import Ring, leaf_entries
from controller.fabric.routes import rack_entries
from controller.jobs.specs import Member, Plan
from controller.slots.allocator import Region
from p4src import CPU_PORT

DEVICE_ID = 1
START_S = 30.0
_LOOP = asyncio.new_event_loop()
_T = TypeVar("_T")
HOSTS = tuple(
    HostConfig(
        name=f"h{n}", ip=IPv4Address(f"10.0.0.{n}"), mac=f"02:00:00:00:00:{n:02x}", switch="s1", port=n
    )
    for n in range(1, 5)
)


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Run it on the event loop that all tests share: grpc.aio logs errors about loops that are closed."""
    return _LOOP.run_until_complete(main)


def free_port() -> int:
    """Return a TCP port that was free a moment ago, outside the kernel's range for outgoing connections."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class RunningSwitch:
    """A switch process that waits for a program at a fixed address."""

    def __init__(self, target: Target, directory: Path) -> None:
        self.target = target
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> SwitchConfig:
        return SwitchConfig(name="s1", device_id=DEVICE_ID, address=self.address, target=self.target)

    @property
    def base(self) -> list[Entry]:
        return rack_entries(self.config, HOSTS)

    def start(self) -> None:
        """Start, and wait until it listens."""
        own = ["--grpc-server-addr", self.address, "--cpu-port", str(CPU_PORT)]
        common = ["--no-p4", "--device-id", str(DEVICE_ID)]
        if self.target is Target.BMV2:
            notifications = f"ipc://{self._directory}/notifications.ipc"
            executable = shutil.which("simple_switch_grpc") or "simple_switch_grpc"
            common += ["-L", "off", "--notifications-addr", notifications, "--thrift-port", str(free_port())]
            command = [executable, *common, "--", *own]
        else:
            command = [sys.executable, "-m", "soft_switch", *common, *own]
        log = self._directory / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self._directory)
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command} did not start: {log.read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it at once, as a crash would: its program and entries are gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ensure_runs(self) -> None:
        """Start it if the test before left it dead."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def restart(self) -> None:
        self.stop()
        self.start()


def job(number: int = 0, *, ranks: int = 3, generation: int = 1) -> list[Entry]:
    """Return the entries of a job of the first hosts, in the order to write them."""
    members = [
        Member(
            rank=rank,
            mac=HOSTS[rank].mac,
            ip=HOSTS[rank].ip,
            qpn_out=0x100 + 64 * number + 2 * rank,
            psn_out=7,
            qpn_in=0x101 + 64 * number + 2 * rank,
            rnr_nak=rank == 1,
        )
        for rank in range(ranks)
    ]
    plan = Plan(
        job_id=number + 1,
        generation=generation,
        window=4,
        message_packets=4,
        path_mtu=1024,
        mode=Mode.IN_NETWORK,
    )
    ring = Ring(members, {rank: HOSTS[rank].port for rank in range(ranks)}, DEVICE_ID)
    return leaf_entries(
        ring, plan, Region(number, number * plan.slots, plan.slots), check_icrc=True, rnr_timer=24
    )
