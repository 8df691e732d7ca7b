"""Removal of what a cluster left: processes by recorded pid and start time, its namespace, its files."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from typing import Final

from topologies import disk, namespaces
from topologies.errors import TopologyError
from topologies.launch import recorded
from topologies.processes import ProcessId, terminate, wait_until
from topologies.state import STATE_FILE, ClusterState, all_clusters, load

_OWNER_GRACE_S: Final = 20.0
# What a cluster keeps in its directory.
_OWN_FILE: Final = re.compile(
    r"cluster\.new|lock|workers|metrics|machines|certificates|database|faults(-\w+)?\.(json|new|sock)"
    r"|wires\.log|controller\.(json|log|db(-\w+)?|sock)|ssh_\w+(\.pub)?|[hls]\d+\.\w+"
)


def remove(state: ClusterState) -> None:
    """End everything of a cluster whose owner is gone (or is calling), and remove its traces."""
    state = _newest(state)
    terminate(processes(state))
    namespaces.delete(state.namespace)  # and with it its veths and the bridge
    _remove_files(state.directory)


def remove_leftover(directory: Path) -> None:
    """Remove a cluster's directory that has no state. Raise TopologyError if it has other files.

    Whatever $P4REDUCE_STATE_DIR names: a directory of somebody else's is never emptied.
    """
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise TopologyError(f"{directory} is no directory: remove it, or give the cluster another name")
    strange = [path for path in _files(directory) if not _OWN_FILE.fullmatch(path.name)]
    if strange:
        raise TopologyError(
            f"{strange[0]} is no cluster's: remove {directory}, or give the cluster another name"
        )
    _remove_files(directory)


def _remove_files(directory: Path) -> None:
    """Remove a cluster's files, the state last.

    So if we are killed meanwhile, the cluster is still known, and removed next time.
    """
    disk.unmount(directory)
    for path in sorted(_files(directory), key=lambda path: path.name == STATE_FILE):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def _files(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _newest(state: ClusterState) -> ClusterState:
    """Return the state as recorded by now: somebody may have started something again."""
    now = load(state.name)
    return now if now is not None and now.owner == state.owner else state


def end_workers(state: ClusterState) -> None:
    """End the processes in a cluster's hosts."""
    found = list(recorded(state.workers))
    for host in state.hosts:
        if host.process.alive():
            others = namespaces.inhabitants(Path(f"/proc/{host.process.pid}/ns/net"))
            found += [process for process in others if process != host.process]
    terminate(found)


def take_down(state: ClusterState) -> None:
    """Ask a running cluster's owner to end; then remove whatever is still there."""
    if state.alive():
        state.owner.signal(signal.SIGTERM)
        if not wait_until(lambda: not state.owner.alive(), timeout_s=_OWNER_GRACE_S):
            state.owner.signal(signal.SIGKILL)
    remove(state)


def remove_dead() -> list[str]:
    """Remove every cluster whose owner is gone. Return their names."""
    dead = [state for state in all_clusters() if not state.alive()]
    for state in dead:
        remove(state)
    return [state.name for state in dead]


def processes(state: ClusterState) -> list[ProcessId]:
    """Return all processes that a cluster started, and those that users started in its namespaces."""
    found = list(recorded(state.workers))
    found += [host.process for host in state.hosts]
    found += [host.machine for host in state.hosts if host.machine is not None]
    found += [switch.process for switch in state.switches]
    if state.wires is not None:
        found.append(state.wires.process)
    if state.controller_process is not None:
        found.append(state.controller_process)
    for host in state.hosts:
        if host.process.alive():  # so that its pid still means its namespace
            found += namespaces.inhabitants(Path(f"/proc/{host.process.pid}/ns/net"))
    found += namespaces.inhabitants(namespaces.NETNS_DIRECTORY / state.namespace)
    return list(dict.fromkeys(found))
