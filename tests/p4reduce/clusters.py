"""Real clusters for tests: the command line in a process, and what a cluster may leave behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from topologies import namespaces, state
from topologies.machines.fleet import BOOT_TIMEOUT_S
from topologies.processes import ProcessId, wait_until
from topologies.state import ClusterState

UP_TIMEOUT_S = 120.0
MACHINES_UP_TIMEOUT_S = UP_TIMEOUT_S + BOOT_TIMEOUT_S  # so that what does not boot says so itself
P4REDUCE = (sys.executable, "-m", "p4reduce")

# Of hosts, switches, machines and the management network. What other tests make has other names.
_CLUSTERS = re.compile(r"(w-)?[hlsm]\d+(-(eth\d+|mgmt))?|mgmt\d+")


def p4reduce(*arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which comes within `timeout_s` (None: that of bringing its hosts up)."""
    usual_s = MACHINES_UP_TIMEOUT_S if "--host-kind" in arguments else UP_TIMEOUT_S
    return subprocess.run(
        [*P4REDUCE, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=usual_s if timeout_s is None else timeout_s,
        cwd="/",
        check=False,
    )


def must(*arguments: str, timeout_s: float | None = None) -> str:
    """Run a command, which has to succeed, and return what it printed."""
    done = p4reduce(*arguments, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command meanwhile, and kill it at the end if it still runs.

    It hears SIGINT also where the tests run in a shell's background, which ignores it.
    """
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *P4REDUCE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready(name: str) -> ClusterState:
    """Wait until a cluster is up."""

    def is_ready() -> bool:
        found = state.load(name)
        return found is not None and found.ready

    assert wait_until(is_ready, timeout_s=UP_TIMEOUT_S), f"{name} does not come up"
    found = state.load(name)
    assert found is not None
    return found


@dataclass(frozen=True)
class Traces:
    """Processes, directory and namespace of a running cluster; they must be gone later."""

    cluster: ClusterState
    processes: tuple[ProcessId, ...]

    @classmethod
    def of(cls, cluster: ClusterState) -> Traces:
        """Collect the processes in the cluster's namespaces, and those that its state records."""
        inside = namespaces.inhabitants(namespaces.NETNS_DIRECTORY / cluster.namespace)
        for host in cluster.hosts:
            inside += namespaces.inhabitants(Path(f"/proc/{host.process.pid}/ns/net"))
        found = {*inside, cluster.owner, *(host.process for host in cluster.hosts)}
        found |= {switch.process for switch in cluster.switches}
        if cluster.controller_process is not None:
            found.add(cluster.controller_process)
        assert len(found) >= 3 + len(cluster.hosts)
        return cls(cluster, tuple(found))

    def left(self) -> list[str]:
        """Return what is still there."""
        processes = [str(process) for process in self.processes if process.alive()]
        directory = [str(self.cluster.directory)] if self.cluster.directory.exists() else []
        namespace = [self.cluster.namespace] if namespaces.exists(self.cluster.namespace) else []
        return [*processes, *directory, *namespace]


def clusters_interfaces() -> set[str]:
    """Return interfaces beside the machine's own that clusters make: none must ever be there."""
    return {name for name in os.listdir("/sys/class/net") if _CLUSTERS.fullmatch(name)}
