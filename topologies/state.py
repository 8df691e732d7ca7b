"""State of a cluster for other processes: /run/p4reduce/<cluster>/cluster.json."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from controller.plain import read
from controller.security.files import VARIABLE as TLS_VARIABLE
from controller.security.places import worker_directory
from topologies.errors import TopologyError
from topologies.layout import Role
from topologies.processes import ProcessId
from topologies.starting import Start

STATE_FILE: Final = "cluster.json"
METRICS: Final = "metrics"
CERTIFICATES: Final = "certificates"
OPERATOR: Final = "admin"  # who has a certificate to look after the cluster with
LOCK: Final = "lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class HostKind(str, Enum):
    """Kind of host: a network namespace, or a machine with Linux's own RoCE v2 stack."""

    EMULATED = "emulated"
    ROCE = "roce"


@dataclass(frozen=True, kw_only=True)
class HostState:
    """A host: its fabric address, the switch and port it is on, and the process that holds its namespace.

    `machine`: the QEMU process of a RoCE host. `qdiscs`: tc's arguments for both ends of its link.
    """

    name: str
    ip: str
    mac: str
    port: int
    interface: str
    management_ip: str
    process: ProcessId
    switch: str = "s1"
    kind: HostKind = HostKind.EMULATED
    machine: ProcessId | None = None
    qdiscs: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SwitchState:
    """A switch: its P4Runtime address (inside the cluster's namespace), its ports' interfaces.

    `start` starts it again; `killed`: it was ended on purpose.
    """

    name: str
    device_id: int
    target: str
    address: str
    interfaces: dict[int, str]
    log: str
    process: ProcessId
    role: Role = Role.LEAF
    start: Start | None = None
    killed: bool = False


_Named = TypeVar("_Named", HostState, SwitchState)


@dataclass(frozen=True, kw_only=True)
class WiresState:
    """The process of the wires of all links, with which faults are possible with any switch.

    `links`, by link: the port at its host, or at its leaf; the port at the other end is the next.
    """

    process: ProcessId
    start: Start
    links: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class LinkState:
    """A link between the leaf `a` and the spine `b`; its interfaces are in the cluster's namespace.

    `qdiscs`: tc's arguments for both ends.
    """

    a: str
    a_port: int
    a_interface: str
    b: str
    b_port: int
    b_interface: str
    qdiscs: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name, as "l1:s2"."""
        return f"{self.a}:{self.b}"


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """A cluster; `owner` runs it, `session` is where that was called, by the user `started_by`.

    `controller` is host:port for agents, `control_socket` for others. There is none if switches run a
    `program` of the user's own (p4c's JSON).

    `rate_mbit`: of the hosts' links; `uplink_rate_mbit`: of those between switches; `intra_rate_mbit`: of the
    channel into each GPU of a host (None: as fast as memory is). `controller_start` starts the controller
    again; `controller_killed`: it was ended on purpose.
    """

    name: str
    namespace: str
    owner: ProcessId
    topology: str
    target: str
    path_mtu: int
    rate_mbit: float | None
    controller: str
    control_socket: str
    session: ProcessId | None = None
    started_by: str = ""
    uplink_rate_mbit: float | None = None
    gpus_per_host: int = 1
    intra_rate_mbit: float | None = None
    tls: bool = False
    program: str = ""
    ready: bool = False
    controller_process: ProcessId | None = None
    controller_start: Start | None = None
    controller_killed: bool = False
    wires: WiresState | None = None
    hosts: list[HostState] = field(default_factory=list)
    switches: list[SwitchState] = field(default_factory=list)
    links: list[LinkState] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """Directory of its files."""
        return directory_of(self.name)

    @property
    def workers(self) -> Path:
        """Directory with a file for each process that was started in a host."""
        return self.directory / "workers"

    @property
    def certificates(self) -> Path:
        """Directory of the certificates of all its machines, if it has TLS."""
        return self.directory / CERTIFICATES

    def environment_of(self, host: HostState) -> dict[str, str]:
        """Return the environment variables about the cluster for processes in a host."""
        if not self.tls:
            return {}
        return {TLS_VARIABLE: str(worker_directory(self.certificates, host.name))}

    @property
    def metrics(self) -> Path:
        """Directory with a Unix socket for each process that serves Prometheus metrics."""
        return self.directory / METRICS

    def switch(self, name: str) -> SwitchState:
        """Return a switch by name. Raise TopologyError that names those there are."""
        return self._known("switch", self.switches, name)

    def host(self, name: str) -> HostState:
        """Return a host by name. Raise TopologyError that names those there are."""
        return self._known("host", self.hosts, name)

    def _known(self, what: str, there: list[_Named], name: str) -> _Named:
        for one in there:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in there)
        raise TopologyError(f"cluster {self.name} has no {what} {name!r}, it has {names}")

    def host_link(self, name: str) -> str:
        """Return the host with that link, as h1, h1:s1 or s1:h1; empty if it is no host's."""
        for host in self.hosts:
            if name in (host.name, f"{host.name}:{host.switch}", f"{host.switch}:{host.name}"):
                return host.name
        return ""

    def link(self, name: str) -> LinkState:
        """Return the link of two switches, as l1:s2 or s2:l1. Raise TopologyError that names all."""
        for link in self.links:
            if name in (link.name, f"{link.b}:{link.a}"):
                return link
        if not self.links:
            raise TopologyError(f"cluster {self.name} has no links between switches: it is a rack")
        names = ", ".join(link.name for link in self.links)
        raise TopologyError(f"cluster {self.name} has no link {name!r}, it has {names}")

    def hosts_of(self, switch: str) -> list[HostState]:
        """Return the hosts on a switch."""
        return [host for host in self.hosts if host.switch == switch]

    def leaves(self) -> list[SwitchState]:
        """Return the switches that have hosts."""
        return [switch for switch in self.switches if switch.role is Role.LEAF]

    def alive(self) -> bool:
        """Tell whether the process that runs it is alive."""
        return self.owner.alive()

    def save(self) -> None:
        """Write the state, in one step."""
        path = self.directory / STATE_FILE
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(self), indent=1))
        scratch.replace(path)

    def with_(self, **changes: Any) -> ClusterState:
        """Save a changed copy, and return it."""
        changed = replace(self, **changes)
        changed.save()
        return changed


@contextlib.contextmanager
def exclusive(cluster: ClusterState) -> Iterator[None]:
    """Keep all others that ask for this from changing the cluster, in this process or another."""
    try:
        lock = (cluster.directory / LOCK).open("w")
    except FileNotFoundError as error:
        raise TopologyError(f"cluster {cluster.name} is gone") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def update(cluster: ClusterState, change: Callable[[ClusterState], ClusterState]) -> ClusterState:
    """Change the present state, save and return it. The caller runs in `exclusive`."""
    current = load(cluster.name)
    if current is None or current.owner != cluster.owner:
        raise TopologyError(f"cluster {cluster.name} is gone")
    changed = change(current)
    changed.save()
    return changed


def root() -> Path:
    """Return the directory where clusters keep their state."""
    return Path(os.environ.get("P4REDUCE_STATE_DIR", "/run/p4reduce")).absolute()


def directory_of(name: str) -> Path:
    """Return the state directory of cluster `name`. Raise TopologyError if that is not a valid name."""
    if not _NAME.fullmatch(name):
        raise TopologyError(
            f"{name!r} is no cluster name: letters, digits, '-' and '_', at most 32, not starting with a dash"
        )
    return root() / name


def load(name: str) -> ClusterState | None:
    """Return the state of cluster `name`; None if there is none."""
    path = directory_of(name) / STATE_FILE
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise TopologyError(f"{path} is damaged ({error}): remove {path.parent}") from error
    try:
        decoded: ClusterState = read(ClusterState, raw)
        return decoded
    except (TypeError, KeyError, ValueError) as error:
        raise TopologyError(
            f"{path} is another version's ({error}): take that cluster down with the version that started it"
        ) from error


def all_clusters() -> list[ClusterState]:
    """Return every recorded cluster, running or left behind."""
    if not root().is_dir():
        return []
    names = sorted(entry.name for entry in root().iterdir() if _NAME.fullmatch(entry.name))
    return [state for name in names if (state := load(name)) is not None]


def require_root() -> None:
    """Raise TopologyError for anybody but root, who owns clusters' namespaces, processes and sockets."""
    if os.geteuid() != 0:
        raise TopologyError("clusters belong to root: run it again with sudo")


def running(name: str | None = None) -> ClusterState:
    """Return the running cluster `name`, or the only one.

    Raise TopologyError that says how to start or name one.
    """
    if name is not None:
        state = load(name)
        if state is not None and not state.alive():
            raise TopologyError(
                f"there is no running cluster {name!r}, it was killed: "
                f"'p4reduce down {name}' removes what is left of it"
            )
        if state is None:
            others = ", ".join(other.name for other in all_clusters() if other.alive())
            raise TopologyError(
                f"there is no running cluster {name!r}{f' (but {others})' if others else ''}: "
                f"start it with 'p4reduce up rack --cluster {name}'"
            )
        return _ready(state)
    alive = [state for state in all_clusters() if state.alive()]
    if not alive:
        raise TopologyError("there is no running cluster: start one with 'p4reduce up rack --hosts 4'")
    if len(alive) > 1:
        names = ", ".join(state.name for state in alive)
        raise TopologyError(f"more than one cluster is running ({names}): say which with --cluster NAME")
    return _ready(alive[0])


def controlled(name: str | None = None) -> ClusterState:
    """Return a cluster as `running`. Raise TopologyError if it was brought up without a controller."""
    found = running(name)
    if found.program:
        raise TopologyError(
            f"cluster {found.name} runs {found.program} and no controller, which this needs: there are "
            f"'p4reduce shell', 'exec' and 'mininet' for it; without --program, 'up' brings one up"
        )
    return found


def _ready(state: ClusterState) -> ClusterState:
    require_root()
    if not state.ready:
        raise TopologyError(f"cluster {state.name} is still coming up: try again in a moment")
    return state
