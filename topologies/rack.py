"""One rack: N hosts on one switch, a management network, a controller; all in one network namespace.

The cluster's namespace holds the switch, the controller and the switch's ends of the links, the hosts have
Mininet's own. Several racks run side by side; a rack leaves nothing behind.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

from mininet.link import Link
from mininet.log import setLogLevel
from mininet.net import Mininet

from topologies import cleanup, namespaces, state
from topologies.errors import TopologyError
from topologies.links import FabricIntf, LinkShape, require_netem
from topologies.namespaces import run, run_inside
from topologies.processes import ProcessId, terminate, wait_until
from topologies.state import ClusterState, HostState, SwitchState
from topologies.switches import TARGETS, P4RuntimeSwitch, SwitchSettings, SwitchTarget, accepts, require_bmv2

FABRIC: Final = IPv4Network("10.0.0.0/24")
MANAGEMENT: Final = IPv4Network("172.31.0.0/16")
CONTROLLER_IP: Final = MANAGEMENT[-2]  # 172.31.255.254
CONTROLLER_PORT: Final = 50051
P4RUNTIME_PORT: Final = 9559
MIN_HOSTS, MAX_HOSTS = 2, 32
PATH_MTUS: Final = (256, 512, 1024, 2048, 4096)
_CONTROLLER_TIMEOUT_S: Final = 180.0  # the embedded switch compiles the program at the first push
_BRIDGE: Final = "mgmt0"

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RackOptions:
    """What a rack is to be. `switch_loss` is the embedded switch's own, on every port, both ways."""

    name: str
    hosts: int
    switch: SwitchTarget = SwitchTarget.EMBEDDED
    path_mtu: int = 1024
    rate_mbit: float | None = None
    delay_ms: float = 0.0
    loss: float = 0.0
    switch_loss: float = 0.0
    pcap: Path | None = None

    def validate(self) -> None:
        """TopologyError for what cannot be."""
        if not MIN_HOSTS <= self.hosts <= MAX_HOSTS:
            raise TopologyError(f"a rack has {MIN_HOSTS} to {MAX_HOSTS} hosts, not {self.hosts}")
        if self.path_mtu not in PATH_MTUS:
            raise TopologyError(
                f"path MTU {self.path_mtu} is none of RoCE's: {', '.join(map(str, PATH_MTUS))}"
            )
        for what, value in (("loss", self.loss), ("switch loss", self.switch_loss)):
            if not 0 <= value < 1:
                raise TopologyError(f"a {what} of {value:g} is no probability below 1")
        if self.delay_ms < 0:
            raise TopologyError(f"a delay of {self.delay_ms:g} ms is negative")
        if self.pcap is not None and not self.pcap.is_dir():
            raise TopologyError(f"there is no directory {self.pcap} for captures: make it first")
        if self.switch is SwitchTarget.BMV2:
            require_bmv2()


class Rack:
    """A running rack, as a context manager. The calling thread is in its namespace while it runs."""

    def __init__(self, options: RackOptions, *, progress: Progress = lambda text: None) -> None:
        options.validate()
        if os.geteuid() != 0:
            raise TopologyError("network namespaces need root: run it again with sudo")
        self.options = options
        self.net: Mininet | None = None
        self._progress = progress
        self._state: ClusterState | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._inside = contextlib.ExitStack()
        self._home: Path | None = None

    @property
    def state(self) -> ClusterState:
        """What others read about it."""
        if self._state is None:
            raise TopologyError("the rack is not up")
        return self._state

    def __enter__(self) -> Rack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Bring everything up. On an error, `stop` removes what is there."""
        options = self.options
        self._claim()
        self._progress("network namespace")
        self._home = self._inside.enter_context(
            namespaces.entered(namespaces.NETNS_DIRECTORY / self.state.namespace)
        )
        if options.delay_ms or options.loss:
            require_netem()
        _disable_ipv6()
        setLogLevel("warning")
        Mininet.inited = True  # else it changes the machine's sysctls, which a namespace does not have
        self.net = Mininet(build=False, controller=None, link=Link, intf=FabricIntf)
        self._management_bridge()
        switch = self._switch()
        for index in range(1, options.hosts + 1):
            self._progress(f"host h{index}")
            self._host(index, switch)
        self._neighbours()
        self.net.build()
        self._progress(f"switch {switch.name} ({options.switch.value})")
        switch.start()
        self._record_switch(switch)
        self._progress("controller, P4 program")
        self._start_controller()
        self._state = self.state.with_(ready=True)

    def stop(self) -> None:
        """Take everything down; idempotent. Signals wait meanwhile."""
        if self._state is None:
            return
        with _undisturbed():
            cluster, self._state = self._state, None
            atexit.unregister(self.stop)
            try:
                cleanup.end_workers(cluster)
                self._stop_nodes()
            finally:
                self._inside.close()
                cleanup.remove(cluster)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """The calling thread is back in the namespace that the rack was started from, for a while."""
        if self._home is None:
            raise TopologyError("the rack is not up")
        with namespaces.entered(self._home):
            yield

    def check(self) -> None:
        """TopologyError where the switch or the controller has died."""
        if self._controller is not None and self._controller.poll() is not None:
            raise TopologyError(f"the controller has ended: {self._controller_last_words()}")
        for switch in self.net.switches if self.net is not None else ():
            if switch.process_ended():
                raise TopologyError(f"switch {switch.name} has ended: {switch.last_words()}")

    def _claim(self) -> None:
        name, options = self.options.name, self.options
        directory = state.directory_of(name)
        old = state.load(name)
        if old is not None:
            if old.alive():
                raise TopologyError(
                    f"cluster {name} is running already: take it down with 'p4reduce down --cluster {name}', "
                    "or give the new one another name with --cluster"
                )
            cleanup.remove(old)
        namespace = f"p4r-{name}"
        namespaces.delete(namespace)  # nobody's: its state is gone
        directory.mkdir(parents=True, exist_ok=True)
        self._state = ClusterState(
            name=name,
            namespace=namespace,
            owner=ProcessId.of(os.getpid()),
            topology="rack",
            target=options.switch.value,
            path_mtu=options.path_mtu,
            rate_mbit=options.rate_mbit,
            controller=f"{CONTROLLER_IP}:{CONTROLLER_PORT}",
            control_socket=str(directory / "controller.sock"),
        )
        self._state.save()
        atexit.register(self.stop)
        namespaces.create(namespace)

    def _management_bridge(self) -> None:
        run("ip", "link", "add", _BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{CONTROLLER_IP}/{MANAGEMENT.prefixlen}", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")

    def _switch(self) -> P4RuntimeSwitch:
        options = self.options
        ports = range(1, options.hosts + 1)
        losses = [(port, way, options.switch_loss) for port in ports for way in ("in", "out")]
        settings = SwitchSettings(
            device_id=1,
            address=f"127.0.0.1:{P4RUNTIME_PORT}",
            directory=self.state.directory,
            pcap=options.pcap,
            losses=losses if options.switch_loss else [],
        )
        switch: P4RuntimeSwitch = self._network().addSwitch(
            "s1", cls=TARGETS[options.switch], settings=settings
        )
        return switch

    def _host(self, index: int, switch: P4RuntimeSwitch) -> None:
        """Host number `index`, its link to the switch port of that number, its management link."""
        options, net = self.options, self._network()
        name, interface = f"h{index}", f"h{index}-eth0"
        ip, mac = FABRIC[index], _mac(kind=0, index=index)
        management = MANAGEMENT[index]
        host = net.addHost(name, ip=f"{ip}/{FABRIC.prefixlen}")
        entry = HostState(
            name=name,
            ip=str(ip),
            mac=mac,
            port=index,
            interface=interface,
            management_ip=str(management),
            process=ProcessId.of(host.pid),
        )
        self._state = self.state.with_(hosts=[*self.state.hosts, entry])
        run_inside(host.pid, "sh", "-c", _NO_IPV6)
        shape = LinkShape(
            path_mtu=options.path_mtu,
            rate_mbit=options.rate_mbit,
            delay_ms=options.delay_ms,
            loss=options.loss,
        )
        net.addLink(
            host, switch, port1=0, port2=index, addr1=mac, addr2=_mac(kind=1, index=index), shape=shape
        )
        outer, inner = f"m{index}", f"h{index}-mgmt"
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(host.pid))
        run("ip", "link", "set", outer, "master", _BRIDGE, "up")
        run_inside(host.pid, "ip", "address", "add", f"{management}/{MANAGEMENT.prefixlen}", "dev", inner)
        run_inside(host.pid, "ip", "link", "set", inner, "up")

    def _neighbours(self) -> None:
        """Static ARP: the switch answers none."""
        hosts = self.state.hosts
        for host in hosts:
            entries = [
                f"neigh replace {peer.ip} lladdr {peer.mac} dev {host.interface} nud permanent"
                for peer in hosts
                if peer is not host
            ]
            run_inside(host.process.pid, "ip", "-batch", "-", stdin="\n".join(entries))

    def _record_switch(self, switch: P4RuntimeSwitch) -> None:
        if switch.process is None:
            raise TopologyError(f"switch {switch.name} was not started")
        entry = SwitchState(
            name=switch.name,
            device_id=switch.settings.device_id,
            target=switch.target.value,
            address=switch.settings.address,
            interfaces=switch.interfaces(),
            log=str(switch.log),
            process=ProcessId.of(switch.process.pid),
        )
        self._state = self.state.with_(switches=[*self.state.switches, entry])

    def _start_controller(self) -> None:
        cluster = self.state
        config = cluster.directory / "controller.json"
        config.write_text(json.dumps(controller_config(cluster), indent=1))
        with self._controller_log.open("ab") as log:
            self._controller = subprocess.Popen(
                [
                    *(sys.executable, "-m", "controller"),
                    *("--config", str(config)),
                    *("--db", str(cluster.directory / "controller.db")),
                    *("--listen", cluster.controller),
                    *("--listen", f"unix:{cluster.control_socket}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cluster.directory,  # `python -m` looks for modules where it starts
                start_new_session=True,
            )
        controller = self._controller
        self._state = cluster.with_(controller_process=ProcessId.of(controller.pid))
        served = wait_until(
            lambda: controller.poll() is not None or accepts(str(CONTROLLER_IP), CONTROLLER_PORT),
            timeout_s=_CONTROLLER_TIMEOUT_S,
        )
        if not served or controller.poll() is not None:
            raise TopologyError(f"the controller does not start: {self._controller_last_words()}")

    @property
    def _controller_log(self) -> Path:
        return self.state.directory / "controller.log"

    def _controller_last_words(self) -> str:
        lines = self._controller_log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "it wrote nothing to its log"

    def _stop_nodes(self) -> None:
        if self._controller is not None and self._controller.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                terminate([ProcessId.of(self._controller.pid)])
        if self._controller is not None:
            self._controller.wait()
        if self.net is not None:
            for switch in self.net.switches:
                switch.stop(deleteIntfs=False)
                switch.terminate()
            for host in self.net.hosts:
                host.terminate()  # its veth goes with its namespace

    def _network(self) -> Mininet:
        if self.net is None:
            raise TopologyError("the rack is not up")
        return self.net


def controller_config(cluster: ClusterState) -> dict[str, Any]:
    """What the controller has to know about a cluster."""
    return {
        "switches": [
            {
                "name": switch.name,
                "device_id": switch.device_id,
                "address": switch.address,
                "target": switch.target,
            }
            for switch in cluster.switches
        ],
        "hosts": [
            {"name": host.name, "ip": host.ip, "mac": host.mac, "port": host.port} for host in cluster.hosts
        ],
        "path_mtu": cluster.path_mtu,
    }


# Nothing but what a worker sends may appear on a link; a kernel may have no IPv6.
_NO_IPV6: Final = (
    "for f in /proc/sys/net/ipv6/conf/all/disable_ipv6 /proc/sys/net/ipv6/conf/default/disable_ipv6; "
    "do [ ! -e $f ] || echo 1 > $f; done"
)


def _disable_ipv6() -> None:
    run("sh", "-c", _NO_IPV6)


def _mac(*, kind: int, index: int) -> str:
    """A locally administered address: hosts are of kind 0, switch ports of kind 1."""
    return f"02:{kind:02x}:00:00:00:{index:02x}"


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the process wait until this is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
