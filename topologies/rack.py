"""One rack: N hosts on one switch, a management network, a controller; all in one network namespace.

The cluster's namespace holds the switch, the controller and the switch's ends of the links, the hosts have
Mininet's own. Several racks run side by side; a rack leaves nothing behind.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

from mininet.link import Link
from mininet.log import setLogLevel
from mininet.net import Mininet

from topologies import cleanup, namespaces, state
from topologies.controlling import ControllerProcess
from topologies.errors import TopologyError
from topologies.links import FabricIntf, LinkShape, require_netem
from topologies.machines import image, machine
from topologies.machines.fleet import Fleet
from topologies.namespaces import run, run_inside
from topologies.processes import ProcessId
from topologies.state import ClusterState, HostKind, HostState, SwitchState
from topologies.switches import TARGETS, P4RuntimeSwitch, SwitchSettings, SwitchTarget, require_bmv2

FABRIC: Final = IPv4Network("10.0.0.0/24")
MANAGEMENT: Final = IPv4Network("172.31.0.0/16")
CONTROLLER_IP: Final = MANAGEMENT[-2]  # 172.31.255.254
CONTROLLER_PORT: Final = 50051
P4RUNTIME_PORT: Final = 9559
MIN_HOSTS, MAX_HOSTS = 2, 32
PATH_MTUS: Final = (256, 512, 1024, 2048, 4096)
_BRIDGE: Final = "mgmt0"

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RackOptions:
    """What a rack is to be. `switch_loss` is the embedded switch's own, on every port, both ways.

    `host_kinds` has the kind of each host ("emulated", "roce"); empty: all are emulated. What is in
    `controller_options` goes into the controller's configuration.
    """

    name: str
    hosts: int
    switch: SwitchTarget = SwitchTarget.EMBEDDED
    path_mtu: int = 1024
    rate_mbit: float | None = None
    delay_ms: float = 0.0
    loss: float = 0.0
    switch_loss: float = 0.0
    pcap: Path | None = None
    host_kinds: tuple[str, ...] = ()
    controller_options: dict[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> list[HostKind]:
        """The kind of each host."""
        return [HostKind(kind) for kind in self.host_kinds] or [HostKind.EMULATED] * self.hosts

    @property
    def link_shape(self) -> LinkShape:
        """What each link of the fabric carries."""
        return LinkShape(
            path_mtu=self.path_mtu, rate_mbit=self.rate_mbit, delay_ms=self.delay_ms, loss=self.loss
        )

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
        self._validate_kinds()
        if self.switch is SwitchTarget.BMV2:
            require_bmv2()

    def _validate_kinds(self) -> None:
        known = [kind.value for kind in HostKind]
        for kind in self.host_kinds:
            if kind not in known:
                raise TopologyError(f"{kind!r} is no kind of host, there are {', '.join(known)}")
        if len(self.host_kinds) not in (0, self.hosts):
            raise TopologyError(f"{len(self.host_kinds)} kinds of host do not fit {self.hosts} hosts")
        if HostKind.ROCE in self.kinds:
            machine.require_programs()
            image.require()


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
        self._controller: ControllerProcess | None = None
        self._fleet: Fleet | None = None
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
        self._start_machines()
        self._progress(f"switch {switch.name} ({options.switch.value})")
        switch.start()
        self._record_switch(switch)
        self._progress("controller, P4 program")
        self._start_controller()
        if self._fleet is not None:
            self._fleet.wait()
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
        """TopologyError where the switch, the controller or a machine has died."""
        if self._controller is not None:
            self._controller.check()
        for switch in self.net.switches if self.net is not None else ():
            if switch.process_ended():
                raise TopologyError(f"switch {switch.name} has ended: {switch.last_words()}")
        if self._fleet is not None:
            self._fleet.check()

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
        cleanup.remove_leftover(directory)
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
        kind = options.kinds[index - 1]
        emulated = kind is HostKind.EMULATED  # a machine has its addresses itself
        name, interface = f"h{index}", f"h{index}-eth0"
        ip, mac = FABRIC[index], _mac(kind=0, index=index)
        management = MANAGEMENT[index]
        host = net.addHost(name, ip=f"{ip}/{FABRIC.prefixlen}" if emulated else None)
        entry = HostState(
            name=name,
            ip=str(ip),
            mac=mac,
            port=index,
            interface=interface,
            management_ip=str(management),
            process=ProcessId.of(host.pid),
            kind=kind,
        )
        self._state = self.state.with_(hosts=[*self.state.hosts, entry])
        run_inside(host.pid, "sh", "-c", _NO_IPV6)
        net.addLink(
            *(host, switch),
            port1=0,
            port2=index,
            addr1=mac if emulated else _mac(kind=2, index=index),
            addr2=_mac(kind=1, index=index),
            shape=options.link_shape,
        )
        outer, inner = f"m{index}", f"h{index}-mgmt"
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(host.pid))
        run("ip", "link", "set", outer, "master", _BRIDGE, "up")
        if emulated:
            run_inside(host.pid, "ip", "address", "add", f"{management}/{MANAGEMENT.prefixlen}", "dev", inner)
        run_inside(host.pid, "ip", "link", "set", inner, "up")

    def _neighbours(self) -> None:
        """Static ARP: the switch answers none."""
        hosts = self.state.hosts
        for host in hosts:
            if host.kind is not HostKind.EMULATED:
                continue
            entries = [
                f"neigh replace {peer.ip} lladdr {peer.mac} dev {host.interface} nud permanent"
                for peer in hosts
                if peer is not host
            ]
            run_inside(host.process.pid, "ip", "-batch", "-", stdin="\n".join(entries))

    def _start_machines(self) -> None:
        if HostKind.ROCE in self.options.kinds:
            self._fleet = Fleet(image.require(), progress=self._progress)
            self._state = self._fleet.start(
                self.state, fabric=FABRIC, management=MANAGEMENT, mtu=self.options.link_shape.mtu
            )

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
        self._controller = ControllerProcess(self.state, self.options.controller_options)
        self._state = self.state.with_(controller_process=self._controller.process_id)
        self._controller.wait()

    def _stop_nodes(self) -> None:
        if self._controller is not None:
            self._controller.stop()
        if self._fleet is not None:
            self._fleet.stop()
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


# Nothing but what a worker sends may appear on a link; a kernel may have no IPv6.
_NO_IPV6: Final = (
    "for f in /proc/sys/net/ipv6/conf/all/disable_ipv6 /proc/sys/net/ipv6/conf/default/disable_ipv6; "
    "do [ ! -e $f ] || echo 1 > $f; done"
)


def _disable_ipv6() -> None:
    run("sh", "-c", _NO_IPV6)


def _mac(*, kind: int, index: int) -> str:
    """A locally administered address: kind 0 are hosts, 1 switch ports, 2 links of machines."""
    return f"02:{kind:02x}:00:00:00:{index:02x}"


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the process, and what it starts, are ignored until this is over.

    A mask would not do: it is one thread's, and another's signal interrupts the main thread as well.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
