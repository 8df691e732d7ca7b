"""Questions to this machine: processes, interfaces, workers' sockets, disks, logs. Each has a time limit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from controller.config import Target
from controller.telemetry import client
from controller.telemetry.address import STATE_PATH, Address, MetricsError
from host_agent.metrics import SOCKETS, WHOSE
from p4reduce.doctor.facts import Disk, Ends, Losses, Process, ProcessState, Worker, WorkerStatus
from topologies.processes import ProcessId
from topologies.state import ClusterState, HostKind

WORKER_S: Final = 1.5
_AT_ONCE: Final = 16
_TICKS_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_STATES: Final = {
    "R": ProcessState.RUNS,
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "D": ProcessState.STUCK,
    "Z": ProcessState.GONE,
    "X": ProcessState.GONE,
}
_TAIL_BYTES: Final = 16384
_TAIL_LINES: Final = 3
_LOST: Final = "p4reduce_switch_port_lost_packets"
_UP: Final = "p4reduce_switch_port_up"


def process(known: ProcessId) -> Process:
    """Return a process's state (field 3 of /proc/PID/stat) and CPU time (fields 14 and 15; proc(5))."""
    try:
        text = Path(f"/proc/{known.pid}/stat").read_text()
    except OSError:
        return Process(known.pid, ProcessState.GONE)
    fields = text[text.rindex(")") + 2 :].split()
    if int(fields[22 - 3]) != known.started:
        return Process(known.pid, ProcessState.GONE)
    cpu_s = (int(fields[14 - 3]) + int(fields[15 - 3])) * _TICKS_S
    return Process(known.pid, _STATES.get(fields[0], ProcessState.SLEEPS), cpu_s)


def processes(cluster: ClusterState) -> dict[str, Process]:
    """Return the processes of a cluster."""
    found = {"owner": process(cluster.owner)}
    if cluster.controller_process is not None:
        found["controller"] = process(cluster.controller_process)
    if cluster.wires is not None:
        found["wires"] = process(cluster.wires.process)
    for switch in cluster.switches:
        found[f"switch {switch.name}"] = process(switch.process)
    for host in cluster.hosts:
        found[f"host {host.name}"] = process(host.process)
        if host.machine is not None:
            found[f"machine {host.name}"] = process(host.machine)
    return found


def workers(cluster: ClusterState) -> list[Worker]:
    """Return the workers that tell their status in this cluster, or have told it and were killed."""
    paths = sorted(cluster.metrics.glob(SOCKETS.replace(".sock", WHOSE)))
    if not paths:
        return []
    hosts = _namespaces(cluster)
    with ThreadPoolExecutor(min(_AT_ONCE, len(paths))) as pool:
        found = list(pool.map(lambda path: _worker(path, hosts), paths))
    return [worker for worker in found if worker is not None]


def _worker(path: Path, hosts: Mapping[int, str]) -> Worker | None:
    """Ask a worker for its status; None if it has just ended as it should."""
    try:
        whose = json.loads(path.read_text())
        known = ProcessId(whose["pid"], whose["started"])
        job, rank, host = str(whose["job"]), int(whose["rank"]), hosts.get(whose["namespace"], "")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    state = process(known)
    if not state.is_well:
        return Worker(job=job, rank=rank, process=state, host=host, why=f"it is {state.state.value}")
    try:
        text = client.fetch(Address(path=path.with_suffix(".sock")), timeout_s=WORKER_S, path=STATE_PATH)
        status = WorkerStatus.of(json.loads(text))
    except (MetricsError, ValueError, KeyError, TypeError) as error:
        if not path.exists():
            return None
        return Worker(job=job, rank=rank, process=process(known), host=host, why=str(error))
    return Worker(job=status.job, rank=status.rank, process=state, host=host, status=status)


def _namespaces(cluster: ClusterState) -> dict[int, str]:
    """Map the inodes of the hosts' network namespaces to the hosts."""
    found = {}
    for host in cluster.hosts:
        try:
            found[os.stat(f"/proc/{host.process.pid}/ns/net").st_ino] = host.name
        except OSError:
            continue
    return found


def host_ends(cluster: ClusterState) -> dict[str, Ends]:
    """Return the frames that hosts have sent and received, as their own kernel counts (/proc/PID/net/dev)."""
    found = {}
    for host in cluster.hosts:
        if host.kind is not HostKind.EMULATED:
            continue
        try:
            text = Path(f"/proc/{host.process.pid}/net/dev").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, colon, counts = line.partition(":")
            if colon and name.strip() == host.interface:
                words = counts.split()
                found[host.name] = Ends(up=int(words[9]), down=int(words[1]))
    return found


def losses(cluster: ClusterState, timeout_s: float = 5.0) -> dict[tuple[str, int], Losses]:
    """Return the packets that the ports of embedded switches counted as lost, by switch and port.

    A busy machine may take more than a second to answer. A switch that answers too late is left out.
    """
    chosen = [s.name for s in cluster.switches if s.target == Target.EMBEDDED.value]
    found: dict[tuple[str, int], Losses] = {}
    if not chosen:
        return found

    def ask(name: str) -> str:
        path = cluster.metrics / f"switch-{name}.sock"
        try:
            return client.fetch(Address(path=path), timeout_s=timeout_s)
        except MetricsError:
            return ""

    with ThreadPoolExecutor(min(_AT_ONCE, len(chosen))) as pool:
        for name, text in zip(chosen, pool.map(ask, chosen), strict=True):
            found.update({(name, port): lost for port, lost in _losses(text).items()})
    return found


def _losses(text: str) -> dict[int, Losses]:
    from prometheus_client.parser import text_string_to_metric_families

    counts: dict[int, dict[str, int]] = {}
    ports: set[int] = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.name in (_LOST, _UP) else ():
            port = int(sample.labels["port"])
            if family.name == _UP:
                ports.add(port)
            else:
                name = f"{sample.labels['direction']}.{sample.labels['reason']}"
                counts.setdefault(port, {})[name] = int(sample.value)
    return {port: counts.get(port, {}) for port in ports}


def disk(path: str) -> Disk | None:
    """Return the free space of the file system under `path`; None if it cannot be known."""
    try:
        found = os.statvfs(path if Path(path).exists() else Path(path).parent)
    except OSError:
        return None
    free_inodes = found.f_favail if found.f_files else 1  # some file systems have no such limit
    return Disk(path=path, free_bytes=found.f_bavail * found.f_frsize, free_inodes=free_inodes)


def last_words(path: Path) -> str:
    """Return the last lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return " / ".join(_without_traces(text.strip().splitlines())[-_TAIL_LINES:])


def _without_traces(lines: Iterable[str]) -> list[str]:
    """Drop indented lines: of a traceback, the first and last lines stay."""
    return [line for line in lines if line and not line.startswith((" ", "\t"))]
