"""Two observations of the facts, some tenths of a second apart. Anything may be missing, dead or stopped.

One observation asks all its questions at once, each with a time limit. A missing answer is a fact, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from controller.api.admin import AdminClient
from controller.api.errors import ControllerError, TimedOutError
from p4reduce.doctor import counting, machine, probing
from p4reduce.doctor.facts import Ends, Facts, Observation, Said, Sample
from p4reduce.doctor.silence import silent_hosts
from p4reduce.live import reading
from topologies import disk, faults, state, wires
from topologies.errors import TopologyError
from topologies.state import ClusterState

T = TypeVar("T")
INTERVAL_S: Final = 0.6
CONTROLLER_S: Final = 1.5  # a controller that waits for a switch answers late
_SAMPLES: Final = 6
_STUCK_S: Final = 2.2  # two of the longest retransmission timeouts of a worker


def gather(
    cluster: ClusterState,
    *,
    interval_s: float = INTERVAL_S,
    admin: Callable[[str], Any] = lambda target: AdminClient(target, timeout_s=CONTROLLER_S),
    interfaces: Callable[[ClusterState], Mapping[str, Any]] = wires.interfaces,
) -> Facts:
    """Gather the facts about a cluster, which runs or was killed. The other parameters are for tests."""
    started = time.monotonic()
    client = admin(f"unix:{cluster.control_socket}")
    try:
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="doctor") as pool:
            return _Observer(cluster, client, pool, interfaces).facts(interval_s, started)
    finally:
        client.close()


class _Observer:
    """Maker of the two observations, who asks in between what is asked only once."""

    def __init__(
        self,
        cluster: ClusterState,
        admin: Any,
        pool: ThreadPoolExecutor,
        interfaces: Callable[[ClusterState], Mapping[str, Any]],
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._pool = pool
        self._interfaces = interfaces

    def facts(self, interval_s: float, started: float) -> Facts:
        """Gather all facts."""
        cluster, ask = self._cluster, self._pool.submit
        before = self._observe()
        heard = before.jobs.value is not None
        probes = ask(probing.probe, cluster)
        samples = [self._samples(interval_s)] if before.ports.value is not None else []
        if samples and counting.is_suspicious(samples[0]):
            samples.append(self._samples(interval_s))
        time.sleep(max(0.0, before.at + interval_s - time.monotonic()))
        once = {name: ask(self._said, name) for name in ("slots", "flows", "plan") if heard}
        now = self._observe()
        if _is_stuck(before, now):
            time.sleep(max(0.0, before.at + _STUCK_S - time.monotonic()))
            now = self._observe()
        echoes, management = probes.result()
        echo_turns = 1
        if silent_hosts(cluster, now, echoes):
            echoes, management = probing.probe(cluster, patience_s=probing.LONG_PATIENCE_S)
            echo_turns, now = 2, self._observe()
        return Facts(
            cluster=cluster,
            before=before,
            now=now,
            **{name: future.result() for name, future in once.items()},
            samples=samples,
            echoes=echoes,
            echo_turns=echo_turns,
            management=management,
            disk=machine.disk(_database(cluster, now)),
            last_words=_last_words(cluster),
            rules=_rules(cluster),
            left_behind=_left_behind(cluster),
            asked_s=time.monotonic() - started,
        )

    def _observe(self) -> Observation:
        cluster, ask = self._cluster, self._pool.submit
        at = time.monotonic()
        workers = ask(machine.workers, cluster)
        losses = ask(machine.losses, cluster)
        methods = {"jobs": "list_jobs", **{name: name for name in ("status", "counters", "ports", "links")}}
        said = {name: ask(self._said, method) for name, method in methods.items()}
        try:
            lines = reading.lines(cluster, self._interfaces(cluster))
        except (TopologyError, KeyError):  # the namespace, or an interface in it, is gone
            lines = {}
        return Observation(
            at=at,
            processes=machine.processes(cluster),
            workers=workers.result(),
            **{name: future.result() for name, future in said.items()},
            lines=lines,
            losses=losses.result(),
        )

    def _said(self, method: str) -> Said[Any]:
        try:
            return Said(getattr(self._admin, method)(), "")
        except TimedOutError as error:
            return Said(None, str(error), is_late=True)
        except ControllerError as error:
            return Said(None, str(error))

    def _samples(self, interval_s: float) -> list[Sample]:
        """Count frames at both ends of the hosts' links several times within `interval_s`."""
        found: list[Sample] = []
        began = time.monotonic()
        for number in range(_SAMPLES):
            hosts = machine.host_ends(self._cluster)
            said = self._said("ports")
            again = machine.host_ends(self._cluster)
            if said.value is None:
                break
            switches = {
                port.host: Ends(up=port.received.packets, down=port.sent.packets)
                for port in said.value
                if port.host
            }
            found.append(Sample(hosts=hosts, switches=switches, hosts_again=again))
            time.sleep(max(0.0, began + (number + 1) * interval_s / _SAMPLES - time.monotonic()))
        return found


def _database(cluster: ClusterState, now: Observation) -> str:
    """Return the path that the controller gives; if it does not answer, the one it was started with."""
    told = now.status.value.database if now.status.value is not None else ""
    return told or str(disk.database(cluster.directory))


def _last_words(cluster: ClusterState) -> dict[str, str]:
    logs = {f"switch {switch.name}": Path(switch.log) for switch in cluster.switches}
    logs["controller"] = cluster.directory / "controller.log"
    return {name: machine.last_words(path) for name, path in logs.items()}


def _rules(cluster: ClusterState) -> list[str]:
    """Describe the packet faults that somebody injects."""
    return [f"#{number} {fault}" for number, fault in faults.recorded(cluster)]


def _is_stuck(before: Observation, now: Observation) -> bool:
    """Return whether a worker sends the same again and again while all processes and links are well.

    Too few packets pass in a short time then: the second observation has to come later.
    """
    earlier = {(w.job, w.rank): w.status for w in before.workers if w.status is not None}
    if not all(worker.process.is_well for worker in now.workers):
        return False
    if not all(process.is_well for name, process in now.processes.items() if name.startswith("switch ")):
        return False
    if not all(line.is_up for line in now.lines.values()):
        return False
    return any(
        worker.status is not None
        and worker.status.timeouts_in_a_row > 1
        and (worker.job, worker.rank) in earlier
        and earlier[worker.job, worker.rank].position == worker.status.position
        for worker in now.workers
    )


def _left_behind(cluster: ClusterState) -> list[str]:
    try:
        return [
            other.name for other in state.all_clusters() if not other.alive() and other.name != cluster.name
        ]
    except TopologyError:  # a state file is damaged, which is not this cluster's
        return []
