"""All machines of a cluster: they boot at once, while the rest of the cluster comes up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Final

from topologies.errors import TopologyError
from topologies.machines import access, network
from topologies.machines.image import Image
from topologies.machines.machine import Machine, MachineSettings, hint
from topologies.processes import end, wait_until
from topologies.state import ClusterState, HostKind, HostState

BOOT_TIMEOUT_S: Final = 180.0
_FABRIC, _MANAGEMENT = 0, 1

Progress = Callable[[str], None]


class Fleet:
    """The machines of a cluster's RoCE hosts; without such hosts, nothing."""

    def __init__(self, image: Image, *, progress: Progress) -> None:
        self._image = image
        self._progress = progress
        self._machines: list[Machine] = []
        self._started = 0.0

    def start(
        self, cluster: ClusterState, *, fabric: IPv4Network, management: IPv4Network, mtu: int
    ) -> ClusterState:
        """Start a machine in each RoCE host of `cluster`. Return the state with their processes, saved."""
        access.prepare(cluster.directory)
        self._started = time.monotonic()
        for place, host in enumerate(cluster.hosts):
            if host.kind is not HostKind.ROCE:
                continue
            self._progress(f"machine {host.name} starts")
            access.add(cluster.directory, host)
            settings = MachineSettings(
                host=host,
                prefix_length=fabric.prefixlen,
                management_prefix_length=management.prefixlen,
                mtu=mtu,
                neighbours=[(peer.ip, peer.mac) for peer in cluster.hosts if peer is not host],
                hosts={peer.name: peer.ip for peer in cluster.hosts},
            )
            machine = Machine(cluster, host)
            self._machines.append(machine)
            process = machine.start(self._image, settings, _ports(host, mtu=mtu))
            hosts = list(cluster.hosts)
            hosts[place] = replace(host, machine=process)
            cluster = cluster.with_(hosts=hosts)
            machine.go()
        return cluster

    def wait(self, *, timeout_s: float = BOOT_TIMEOUT_S) -> None:
        """Wait until all can be used. Raise TopologyError with a console's last lines if one cannot."""
        deadline = time.monotonic() + timeout_s
        try:
            self._until(Machine.booted, "boot", deadline, timeout_s=timeout_s)
            self._until(Machine.reachable, "connection", deadline, timeout_s=timeout_s)
        except TopologyError as error:
            raise TopologyError(f"{error}{hint(self._image)}") from error
        self._progress(f"machines are up after {time.monotonic() - self._started:.0f} s")

    def check(self) -> None:
        """Raise TopologyError if one has ended."""
        for machine in self._machines:
            machine.check()

    def stop(self) -> None:
        """End all machines."""
        end(process for machine in self._machines for process in machine.processes())

    def _until(
        self, condition: Callable[[Machine], bool], what: str, deadline: float, *, timeout_s: float
    ) -> None:
        waiting = list(self._machines)

        def all_are() -> bool:
            waiting[:] = [machine for machine in waiting if not condition(machine)]
            return not waiting

        if waiting:
            self._progress(f"{what} of machines {_names(waiting)}")
        if not wait_until(all_are, timeout_s=deadline - time.monotonic()):
            raise TopologyError(
                f"no {what} of machines {_names(waiting)} within {timeout_s:.0f} s; {waiting[0].host.name}: "
                f"{waiting[0].last_words()}"
            )


def _names(machines: Sequence[Machine]) -> str:
    return ", ".join(machine.host.name for machine in machines)


def _ports(host: HostState, *, mtu: int) -> list[network.Port]:
    """Attach the fabric's and the management network's ports, and return them in the machine's order."""
    management_mac = f"02:03:{host.mac[6:]}"
    return [
        network.attach(host, host.interface, place=_FABRIC, mac=host.mac, mtu=mtu),
        network.attach(host, f"{host.name}-mgmt", place=_MANAGEMENT, mac=management_mac, mtu=1500),
    ]
