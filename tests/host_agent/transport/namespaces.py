"""Two network namespaces joined by a veth pair, for tests of the driver. Needs root."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from p4reduce.simulation.rack import ip_of, mac_of

T = TypeVar("T")
CLONE_NEWNET = 0x40000000


def run(command: str) -> None:
    """Run one command without a shell; what it wrote is in the error."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")


@contextmanager
def veth_pair(*, mtu: int = 9000) -> Iterator[list[str]]:
    """Yield the namespaces' names; interface `roce0` in number i has the address of rank i."""
    names = [f"p4rt{os.getpid()}x{i}" for i in range(2)]
    _remove_those_of_killed_runs()
    try:
        for name in names:
            run(f"ip netns add {name}")
        run(f"ip link add roce0 netns {names[0]} type veth peer name roce0 netns {names[1]}")
        for rank, name in enumerate(names):
            run(f"ip -n {name} link set roce0 address {mac_of(rank)} mtu {mtu} up")
            run(f"ip -n {name} address add {ip_of(rank)}/24 dev roce0")
            # In order, as on a cable: all that arrives goes through one processor's queue.
            steering = "/sys/class/net/roce0/queues/rx-0/rps_cpus"
            subprocess.run(
                ["ip", "netns", "exec", name, "sh", "-c", f"[ ! -e {steering} ] || echo 1 > {steering}"],
                check=True,
            )
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _remove_those_of_killed_runs() -> None:
    """Delete namespaces whose names tell that the process that made them is gone."""
    for path in Path("/var/run/netns").glob("p4rt*x[01]"):
        made_by = path.name[len("p4rt") : -len("x0")]
        if made_by.isdigit() and not Path("/proc", made_by).exists():
            subprocess.run(["ip", "netns", "delete", path.name], capture_output=True, check=False)


def inside(name: str, action: Callable[[], T]) -> T:
    """Call `action` in a thread that is in the namespace: sockets it opens stay there."""

    def body() -> T:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/var/run/netns", name).open() as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {name}")
        return action()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(body).result()
