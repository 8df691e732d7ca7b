"""Faults on a running cluster, from any process: on its links, of its processes, of its controller's disk.

The cluster's directory records what outlasts the process that injects it: the packet faults, the paused
workers, the switches that were killed on purpose. So the cluster's owner does not take these for accidents,
and 'p4reduce down' ends what was started again.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from soft_switch import fault_control
from soft_switch.errors import FaultError
from topologies import disk, namespaces, state, wires
from topologies.controlling import wait_for_controller
from topologies.errors import TopologyError
from topologies.packet_faults import WIRES, PacketFault, Place, places
from topologies.processes import ProcessId, terminate, wait_until
from topologies.starting import last_words
from topologies.state import ClusterState, SwitchState
from topologies.switches import START_TIMEOUT_S, accepts, faults_socket
from topologies.workers import find_worker

__all__ = ["ClusterFaults", "PacketFault"]

_RECORD: Final = "faults.json"
_PATIENCE_S: Final = 10.0


class ClusterFaults:
    """Faults that can be injected into a running cluster. Raises TopologyError for those that cannot."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    # Packets

    def add(self, fault: PacketFault) -> int:
        """Begin a fault and return its number. On an error it is at none of its places."""
        with self._changing() as cluster, self._record(cluster) as record:
            by_switch = _by_switch(places(cluster, fault))
            number = record["next"]
            added: list[str] = []
            try:
                for at, chosen in by_switch.items():
                    if _was_killed(cluster, at):
                        continue  # it gets it when it is restarted
                    added.append(at)
                    _add(cluster, at, chosen, fault, number)
            except TopologyError:
                for at in added:
                    with contextlib.suppress(TopologyError):
                        _ask(cluster, at, {"do": "clear", "number": number})
                raise
            record["next"] = number + 1
            record["faults"][str(number)] = fault.encode()
            return int(number)

    def faults(self) -> list[tuple[int, PacketFault, int]]:
        """Return every packet fault: its number, the fault, how many packets it has struck so far.

        A switch that does not answer, because it is killed or paused, is not counted; one that was restarted
        counts anew.
        """
        with self._changing() as cluster, self._record(cluster) as record:
            struck: dict[int, int] = {}
            for at in _tellable(cluster):
                with contextlib.suppress(TopologyError):
                    for rule in _ask(cluster, at, {"do": "list"}):
                        struck[rule["number"]] = struck.get(rule["number"], 0) + rule["struck"]
            return [
                (int(number), PacketFault.decode(raw), struck.get(int(number), 0))
                for number, raw in record["faults"].items()
            ]

    def clear(self, number: int | None = None) -> None:
        """End a fault, or all packet faults. Packets that are held back go on when they are due."""
        with self._changing() as cluster, self._record(cluster) as record:
            known = record["faults"]
            if number is not None and str(number) not in known:
                there = f"there are {', '.join(known)}" if known else "there is none"
                raise TopologyError(f"cluster {cluster.name} has no packet fault {number}, {there}")
            chosen = list(known) if number is None else [str(number)]
            for one in chosen:
                for at in _by_switch(places(cluster, PacketFault.decode(known[one]))):
                    if _was_killed(cluster, at):
                        continue
                    with contextlib.suppress(_UnknownFaultError):
                        _ask(cluster, at, {"do": "clear", "number": int(one)})
                del known[one]

    # Links

    def set_link(self, name: str, *, up: bool) -> None:
        """Take a host's link (h1, or h1:s1), or one between switches (l1:s2), down, or up again."""
        with self._changing() as cluster:
            if host := cluster.host_link(name):
                wires.set_host_link(cluster, cluster.host(host), up=up)
            elif ":" in name:
                wires.set_link(cluster, cluster.link(name), up=up)
            else:
                known = [host.name for host in cluster.hosts] + [link.name for link in cluster.links]
                raise TopologyError(f"cluster {cluster.name} has no link {name!r}: it has {', '.join(known)}")

    # Workers

    def kill_worker(self, job: str, rank: int) -> None:
        """End a worker without a word (SIGKILL)."""
        process = self._worker(job, rank)
        process.signal(signal.SIGKILL)
        _until(lambda: not process.alive(), f"rank {rank} of job {job} does not end")
        self._forget_paused(job, rank)

    def pause_worker(self, job: str, rank: int) -> None:
        """Stop a worker where it is (SIGSTOP)."""
        process = self._worker(job, rank)
        with self._changing() as cluster, self._record(cluster) as record:
            record["paused"][_key(job, rank)] = asdict(process)
        _pause(process)

    def resume_worker(self, job: str, rank: int) -> None:
        """Let a paused worker go on (SIGCONT)."""
        process = self._paused(job, rank)
        if process is None:
            raise TopologyError(f"rank {rank} of job {job!r} is not paused")
        process.signal(signal.SIGCONT)
        self._forget_paused(job, rank)

    # Switches

    def kill_switch(self, name: str) -> None:
        """End a switch without a word (SIGKILL). Its links stay as they are."""
        with self._changing() as cluster:
            cluster = _change_switch(cluster, name, killed=True)
            _kill([cluster.switch(name).process])

    def restart_switch(self, name: str) -> None:
        """Start a switch again, with empty registers and no program; packet faults at it begin again.

        Return when it takes P4Runtime connections: the controller finds it and gives it its program.
        """
        with self._changing() as cluster:
            switch = cluster.switch(name)
            if switch.start is None:
                raise TopologyError(
                    f"cluster {cluster.name} was brought up by a version that kept no start of {name}"
                )
            cluster = _change_switch(cluster, name, killed=True)
            _kill([switch.process])
            process = switch.start.start(namespace=cluster.namespace)
            cluster = _change_switch(cluster, name, process=process, killed=False)
            with _inside(cluster):
                _wait_for_switch(cluster.switch(name))
            with self._record(cluster) as record:
                for number, raw in record["faults"].items():
                    fault = PacketFault.decode(raw)
                    chosen = _by_switch(places(cluster, fault)).get(name, [])
                    if chosen:
                        _add(cluster, name, chosen, fault, int(number))

    def pause_switch(self, name: str) -> None:
        """Stop a switch where it is (SIGSTOP)."""
        _pause(_running(self._now().switch(name).process, f"switch {name}"))

    def resume_switch(self, name: str) -> None:
        """Let a paused switch go on (SIGCONT)."""
        _resume(self._now().switch(name).process, f"switch {name}")

    # The controller

    def kill_controller(self) -> None:
        """End the controller without a word (SIGKILL)."""
        with self._changing() as cluster:
            process = _controller(cluster)
            state.update(cluster, lambda now: replace(now, controller_killed=True))
            _kill([process])

    def restart_controller(self) -> None:
        """Start the controller again, on the database that it left; kill it first if it runs."""
        with self._changing() as cluster:
            start = cluster.controller_start
            if start is None:
                raise TopologyError(f"cluster {cluster.name} was brought up by a version that kept no start")
            state.update(cluster, lambda now: replace(now, controller_killed=True))
            _kill([_controller(cluster)])
            process = start.start(namespace=cluster.namespace)
            cluster = state.update(
                cluster, lambda now: replace(now, controller_process=process, controller_killed=False)
            )
            with _inside(cluster):
                wait_for_controller(cluster, process)

    def pause_controller(self) -> None:
        """Stop the controller where it is (SIGSTOP)."""
        _pause(_running(_controller(self._now()), "the controller"))

    def resume_controller(self) -> None:
        """Let a paused controller go on (SIGCONT)."""
        _resume(_controller(self._now()), "the controller")

    # The disk under its database

    def fill_disk(self) -> int:
        """Fill the disk with the controller's database, and return the number of bytes written."""
        return disk.fill(self._now().directory)

    def free_disk(self) -> None:
        """Free the filled space."""
        disk.free(self._now().directory)

    # What all this needs

    def _now(self) -> ClusterState:
        now = state.load(self._cluster.name)
        if now is None or now.owner != self._cluster.owner:
            raise TopologyError(f"cluster {self._cluster.name} is gone")
        return now

    @contextlib.contextmanager
    def _changing(self) -> Iterator[ClusterState]:
        """Yield the cluster's state, which nobody else changes meanwhile."""
        with state.exclusive(self._cluster):
            yield self._now()

    @contextlib.contextmanager
    def _record(self, cluster: ClusterState) -> Iterator[dict[str, Any]]:
        """Yield the record of faults; save it, unless there is an error."""
        path = cluster.directory / _RECORD
        try:
            record = json.loads(path.read_text())
        except FileNotFoundError:
            record = {"next": 1, "faults": {}, "paused": {}}
        before = json.dumps(record)
        yield record
        if (text := json.dumps(record)) != before:
            scratch = path.with_suffix(".new")
            scratch.write_text(text)
            scratch.replace(path)

    def _worker(self, job: str, rank: int) -> ProcessId:
        return self._paused(job, rank) or find_worker(self._now(), job, rank)

    def _paused(self, job: str, rank: int) -> ProcessId | None:
        with self._changing() as cluster, self._record(cluster) as record:
            raw = record["paused"].get(_key(job, rank))
        process = None if raw is None else ProcessId(**raw)
        return process if process is not None and process.alive() else None

    def _forget_paused(self, job: str, rank: int) -> None:
        with self._changing() as cluster, self._record(cluster) as record:
            record["paused"].pop(_key(job, rank), None)


def recorded(cluster: ClusterState) -> list[tuple[int, PacketFault]]:
    """Return the recorded packet faults, without waiting for others who change them."""
    try:
        known = json.loads((cluster.directory / _RECORD).read_text())["faults"]
        return [(int(number), PacketFault.decode(raw)) for number, raw in known.items()]
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or another version's
        return []


class _UnknownFaultError(TopologyError):
    """Refusal by a switch: it was restarted meanwhile, for instance."""


def _by_switch(found: Iterable[Place]) -> dict[str, list[Place]]:
    result: dict[str, list[Place]] = {}
    for place in found:
        result.setdefault(place.at, []).append(place)
    return result


def _add(cluster: ClusterState, at: str, chosen: list[Place], fault: PacketFault, number: int) -> None:
    for place in chosen:
        _ask(
            cluster,
            at,
            {
                "do": "add",
                "number": number,
                "places": [{"port": place.port, "direction": place.direction}],
                "fault": fault.at(place).encode(),
            },
        )


def _ask(cluster: ClusterState, at: str, request: Mapping[str, Any]) -> Any:
    try:
        return fault_control.ask(faults_socket(cluster.directory, at), request)
    except FaultError as error:
        raise _UnknownFaultError(str(error)) from error
    except OSError as error:
        who = "the wires do" if at == WIRES else f"switch {at} does"
        raise TopologyError(f"{who} not answer about faults ({error}): was it paused?") from error


def _tellable(cluster: ClusterState) -> list[str]:
    """Return the switches, or the wires, that can be asked about faults now."""
    if cluster.wires is not None:
        return [WIRES]
    return [
        switch.name for switch in cluster.leaves() if switch.process.alive() and not switch.process.paused()
    ]


def _was_killed(cluster: ClusterState, at: str) -> bool:
    return at != WIRES and cluster.switch(at).killed


def _change_switch(cluster: ClusterState, name: str, **changes: Any) -> ClusterState:
    cluster.switch(name)

    def change(now: ClusterState) -> ClusterState:
        switches = [replace(one, **changes) if one.name == name else one for one in now.switches]
        return replace(now, switches=switches)

    return state.update(cluster, change)


def _controller(cluster: ClusterState) -> ProcessId:
    if cluster.controller_process is None:
        raise TopologyError(f"cluster {cluster.name} has no controller yet")
    return cluster.controller_process


def _running(process: ProcessId, who: str) -> ProcessId:
    if not process.alive():
        raise TopologyError(f"{who} is not running")
    return process


def _kill(processes: list[ProcessId]) -> None:
    for process in processes:
        process.signal(signal.SIGKILL)
    terminate(processes)  # waits for their ends


def _pause(process: ProcessId) -> None:
    process.signal(signal.SIGSTOP)
    _until(lambda: process.paused() or not process.alive(), f"process {process.pid} does not stop")


def _resume(process: ProcessId, who: str) -> None:
    if not _running(process, who).paused():
        raise TopologyError(f"{who} is not paused")
    process.signal(signal.SIGCONT)


def _until(true: Any, otherwise: str) -> None:
    if not wait_until(true, timeout_s=_PATIENCE_S):
        raise TopologyError(otherwise)


@contextlib.contextmanager
def _inside(cluster: ClusterState) -> Iterator[None]:
    with namespaces.entered(namespaces.NETNS_DIRECTORY / cluster.namespace):
        yield


def _wait_for_switch(switch: SwitchState) -> None:
    host, _, port = switch.address.rpartition(":")
    process = switch.process
    served = wait_until(lambda: not process.alive() or accepts(host, int(port)), timeout_s=START_TIMEOUT_S)
    if not served or not process.alive():
        raise TopologyError(f"switch {switch.name} does not start: {last_words(Path(switch.log))}")


def _key(job: str, rank: int) -> str:
    return f"{rank} {job}"
