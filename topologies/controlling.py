"""A cluster's controller: its process in the cluster's namespace, and its configuration."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from controller.security.files import SWITCHES, TlsFiles
from controller.security.places import CONTROLLER
from topologies import disk
from topologies.errors import TopologyError
from topologies.layout import HostPlan, Layout, LinkPlan
from topologies.processes import ProcessId, wait_until
from topologies.starting import Start, last_words
from topologies.state import ClusterState, HostState, LinkState
from topologies.switches import accepts

_TIMEOUT_S: Final = 180.0  # the embedded switch compiles the program at the first push


def controller_start(cluster: ClusterState, options: Mapping[str, Any]) -> Start:
    """Write the configuration of a cluster's controller, with `options`, and return how to start it."""
    config = cluster.directory / "controller.json"
    config.write_text(json.dumps({**controller_config(cluster), **options}, indent=1))
    return Start.of(
        [
            *(sys.executable, "-m", "controller"),
            *("--config", str(config)),
            *("--db", str(disk.database(cluster.directory))),
            *("--listen", cluster.controller),
            *("--listen", f"unix:{cluster.control_socket}"),
            *("--metrics", f"unix:{cluster.metrics / 'controller.sock'}"),
        ],
        directory=cluster.directory,
        log=log_of(cluster),
    )


def log_of(cluster: ClusterState) -> Path:
    """Return the controller's log."""
    return cluster.directory / "controller.log"


def wait_for_controller(cluster: ClusterState, process: ProcessId) -> None:
    """Wait until it serves agents, seen from the cluster's namespace, and others. Raise TopologyError."""
    host, _, port = cluster.controller.rpartition(":")

    def ended() -> bool:
        return not process.alive()

    def serves() -> bool:
        return accepts(host, int(port)) and _listens(cluster.control_socket)

    served = wait_until(lambda: ended() or serves(), timeout_s=_TIMEOUT_S)
    if not served or ended():
        raise TopologyError(f"the controller does not start: {last_words(log_of(cluster))}")


def _listens(path: str) -> bool:
    """Tell whether somebody listens at a Unix socket; one that was killed leaves its file behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def controller_config(cluster: ClusterState) -> dict[str, Any]:
    """Return the controller's configuration for a cluster."""
    switches = [(switch.name, switch.device_id, switch.address) for switch in cluster.switches]
    network = _network(switches, cluster.hosts, cluster.links, target=cluster.target)
    return {**network, "path_mtu": cluster.path_mtu, **(_tls(cluster.certificates) if cluster.tls else {})}


def _tls(certificates: Path) -> dict[str, Any]:
    def paths(directory: Path) -> dict[str, str]:
        return {name: str(path) for name, path in asdict(TlsFiles.of(directory)).items()}

    controller = certificates / CONTROLLER
    return {"tls": paths(controller), "switch_tls": paths(controller / SWITCHES)}


def config_on_paper(layout: Layout, *, target: str, path_mtu: int) -> dict[str, Any]:
    """Return the controller's configuration for a fabric that is not running."""
    switches = [(switch.name, switch.device_id, layout.address(switch)) for switch in layout.switches]
    return {**_network(switches, layout.hosts, layout.links, target=target), "path_mtu": path_mtu}


def _network(
    switches: Iterable[tuple[str, int, str]],
    hosts: Iterable[HostPlan | HostState],
    links: Iterable[LinkPlan | LinkState],
    *,
    target: str,
) -> dict[str, Any]:
    network: dict[str, Any] = {
        "switches": [
            {"name": name, "device_id": device_id, "address": address, "target": target}
            for name, device_id, address in switches
        ],
        "hosts": [
            {"name": h.name, "ip": str(h.ip), "mac": h.mac, "switch": h.switch, "port": h.port} for h in hosts
        ],
    }
    between = [{"a": link.a, "a_port": link.a_port, "b": link.b, "b_port": link.b_port} for link in links]
    return {**network, "links": between} if between else network
