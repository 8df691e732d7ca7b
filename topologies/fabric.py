"""A cluster: switches, hosts, a management network, a controller; all in one network namespace.

The cluster's namespace holds the switches, the controller and the switches' ends of the links, the hosts have
Mininet's own. Several clusters run side by side; a cluster leaves nothing behind.
"""

from __future__ import annotations

import atexit
import contextlib
import getpass
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from mininet.link import Link
from mininet.log import setLogLevel
from mininet.net import Mininet

from controller.security.files import VARIABLE as TLS_VARIABLE
from controller.security.files import TlsFiles
from controller.security.places import operator_directory, switch_directory
from topologies import cleanup, disk, fault_wires, namespaces, processes, state
from topologies.controlling import controller_start, log_of, wait_for_controller
from topologies.errors import TopologyError
from topologies.faults import ClusterFaults
from topologies.layout import CONTROLLER_IP, MANAGEMENT, HostPlan, LinkPlan, SwitchPlan, mac
from topologies.links import FabricIntf, LinkShape, require_netem
from topologies.machines import image
from topologies.machines.fleet import Fleet
from topologies.namespaces import run, run_inside
from topologies.network import FabricNet
from topologies.options import FabricOptions
from topologies.processes import ProcessId, end
from topologies.starting import last_words
from topologies.state import ClusterState, HostKind, HostState, LinkState, SwitchState
from topologies.switches import (
    TARGETS,
    P4RuntimeSwitch,
    SwitchSettings,
    start_all,
)

CONTROLLER_PORT: Final = 50051
_BRIDGE: Final = "mgmt0"

Progress = Callable[[str], None]
Self = TypeVar("Self", bound="Fabric")


class Fabric:
    """A running fabric, as a context manager. The calling thread is in its namespace while it runs."""

    def __init__(self, options: FabricOptions, *, progress: Progress = lambda text: None) -> None:
        options.validate()
        if os.geteuid() != 0:
            raise TopologyError("network namespaces need root: run it again with sudo")
        self.options = options
        self.layout = options.layout()
        self.net: Mininet | None = None
        self._progress = progress
        self._state: ClusterState | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._fleet: Fleet | None = None
        self._wires: list[fault_wires.Wire] = []
        self._inside = contextlib.ExitStack()
        self._home: Path | None = None

    @property
    def state(self) -> ClusterState:
        """The recorded state, which others read and may have changed: restarted processes have new ids."""
        if self._state is None:
            raise TopologyError(f"the {self.options.topology} is not up")
        now = state.load(self._state.name)
        return now if now is not None and now.owner == self._state.owner else self._state

    @property
    def faults(self) -> ClusterFaults:
        """Faults that can be injected, from here as from anywhere."""
        return ClusterFaults(self.state)

    def __enter__(self: Self) -> Self:
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
        if options.tls:
            self._progress("certificates")
            self._certify()
        self._own_disk()
        self._progress("network namespace")
        self._home = self._inside.enter_context(
            namespaces.entered(namespaces.NETNS_DIRECTORY / self.state.namespace)
        )
        if options.delay_ms or options.loss:
            require_netem()
        run("sh", "-c", _NO_IPV6)
        setLogLevel("warning")
        Mininet.inited = True  # else it changes the machine's sysctls, which a namespace does not have
        self.net = FabricNet(build=False, controller=None, link=Link, intf=FabricIntf)
        self._management_bridge()
        for number, switch in enumerate(self.layout.switches):
            self._switch(number, switch)
        for host in self.layout.hosts:
            self._progress(f"host {host.name}")
            self._host(host)
        for link in self.layout.links:
            self._progress(f"link {link.a}:{link.b}")
            self._link(link)
        self.net.build()
        self._neighbours()  # Mininet takes interfaces down and up, which forgets them
        if self._wires:
            self._progress("wires")
            self._state = self.state.with_(wires=fault_wires.start(self.state.directory, self._wires))
        self._start_machines()
        self._start_switches()
        if options.program is None or options.p4info is None:
            self._progress("controller, P4 program")
            self._start_controller()
        else:
            self._progress(f"P4 program {options.program.name}")
            self._load(options.program, options.p4info)
        if self._fleet is not None:
            self._fleet.wait()
        self._state = self.state.with_(ready=True)

    def stop(self) -> None:
        """Take everything down; idempotent. Signals wait meanwhile."""
        if self._state is None:
            return
        with _undisturbed():
            cluster, self._state = self.state, None
            atexit.unregister(self.stop)
            try:
                cleanup.end_workers(cluster)
                self._stop_nodes()
            finally:
                self._inside.close()
                cleanup.remove(cluster)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Put the calling thread back in the namespace that the fabric was started from, for a while."""
        if self._home is None:
            raise TopologyError(f"the {self.options.topology} is not up")
        with namespaces.entered(self._home):
            yield

    def check(self) -> None:
        """Raise TopologyError if a switch, the controller or a machine has died by itself."""
        if self._state is None:
            return
        found = self.state
        process = found.controller_process
        if process is not None and not found.controller_killed and not process.alive():
            raise TopologyError(f"the controller has ended: {last_words(log_of(found))}")
        for switch in found.switches:
            if not switch.killed and not switch.process.alive():
                raise TopologyError(f"switch {switch.name} has ended: {last_words(Path(switch.log))}")
        if found.wires is not None and not found.wires.process.alive():
            raise TopologyError(f"the wires have ended: {last_words(Path(found.wires.start.log))}")
        if self._fleet is not None:
            self._fleet.check()

    def _claim(self) -> None:
        name, options = self.options.name, self.options
        directory = state.directory_of(name)
        old = state.load(name)
        if old is not None:
            if old.alive():
                raise TopologyError(
                    f"cluster {name} is running already: take it down with 'p4reduce down {name}', "
                    "or give the new one another name with --cluster"
                )
            cleanup.remove(old)
        cleanup.remove_leftover(directory)
        namespace = f"p4r-{name}"
        namespaces.delete(namespace)  # nobody's: its state is gone
        directory.mkdir(parents=True, exist_ok=True)
        (directory / state.METRICS).mkdir()
        if options.pcap is not None:
            _make(options.pcap)
        self._state = ClusterState(
            name=name,
            namespace=namespace,
            owner=ProcessId.of(os.getpid()),
            session=processes.session(),
            started_by=os.environ.get("SUDO_USER", getpass.getuser()),
            topology=options.topology,
            target=options.switch.value,
            path_mtu=options.path_mtu,
            rate_mbit=options.rate_mbit,
            uplink_rate_mbit=options.uplink_shape.rate_mbit if self.layout.links else None,
            gpus_per_host=options.gpus_per_host,
            intra_rate_mbit=options.intra_rate_mbit,
            controller=f"{CONTROLLER_IP}:{CONTROLLER_PORT}",
            control_socket=str(directory / "controller.sock"),
            tls=options.tls,
        )
        self._state.save()
        atexit.register(self.stop)
        namespaces.create(namespace)

    def _certify(self) -> None:
        from controller.security import certificates  # cryptography, which others need not wait for

        layout = self.layout
        wanted = certificates.Wanted(
            controller=[str(CONTROLLER_IP)],
            switches={plan.name: [layout.address(plan).rpartition(":")[0]] for plan in layout.switches},
            workers=[plan.name for plan in layout.hosts],
            operators=[state.OPERATOR],
        )
        certificates.make(self.state.certificates, wanted)

    def _own_disk(self) -> None:
        why = disk.mount(self.state.directory)
        if why:
            self._progress(f"the controller's database has no disk of its own, so none can be filled: {why}")

    def _management_bridge(self) -> None:
        run("ip", "link", "add", _BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{CONTROLLER_IP}/{MANAGEMENT.prefixlen}", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")

    def _switch(self, number: int, plan: SwitchPlan) -> None:
        options = self.options
        settings = SwitchSettings(
            device_id=plan.device_id,
            address=self.layout.address(plan),
            directory=self.state.directory,
            number=number,
            role=plan.role,
            pcap=options.pcap,
            loss=options.switch_loss,
            tls=TlsFiles.of(switch_directory(self.state.certificates, plan.name)) if options.tls else None,
        )
        self._network().addSwitch(plan.name, cls=TARGETS[options.switch], settings=settings)

    def _host(self, plan: HostPlan) -> None:
        """Make a host, its link to its switch, and its management link."""
        options, net = self.options, self._network()
        kind = options.kinds[plan.index - 1]
        emulated = kind is HostKind.EMULATED  # a machine has its addresses itself
        name, interface = plan.name, f"{plan.name}-eth0"
        host = net.addHost(name, ip=f"{plan.ip}/{self.layout.network.prefixlen}" if emulated else None)
        entry = HostState(
            name=name,
            ip=str(plan.ip),
            mac=plan.mac,
            switch=plan.switch,
            port=plan.port,
            interface=interface,
            management_ip=str(plan.management_ip),
            process=ProcessId.of(host.pid),
            kind=kind,
            qdiscs=options.link_shape.qdiscs(),
        )
        self._state = self.state.with_(hosts=[*self.state.hosts, entry])
        run_inside(host.pid, "sh", "-c", _NO_IPV6)
        switch = self._node(plan.switch)
        made = net.addLink(
            *(host, switch),
            cls=fault_wires.WiredLink if options.fault_wires else Link,
            port1=0,
            port2=plan.port,
            addr1=plan.mac if emulated else mac(kind=2, index=plan.index),
            addr2=mac(kind=1, index=plan.port, device=switch.settings.device_id),
            shape=options.link_shape,
        )
        self._wire(name, made, options.link_shape, pid=switch.pid)
        outer, inner = f"m{plan.index}", f"{name}-mgmt"
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(host.pid))
        run("ip", "link", "set", outer, "master", _BRIDGE, "up")
        if emulated:
            address = f"{plan.management_ip}/{MANAGEMENT.prefixlen}"
            run_inside(host.pid, "ip", "address", "add", address, "dev", inner)
        run_inside(host.pid, "ip", "link", "set", inner, "up")

    def _link(self, plan: LinkPlan) -> None:
        """Make a link between two switches."""
        a, b = self._node(plan.a), self._node(plan.b)
        made = self._network().addLink(
            *(a, b),
            cls=fault_wires.WiredLink if self.options.fault_wires else Link,
            port1=plan.a_port,
            port2=plan.b_port,
            addr1=mac(kind=1, index=plan.a_port, device=a.settings.device_id),
            addr2=mac(kind=1, index=plan.b_port, device=b.settings.device_id),
            shape=self.options.uplink_shape,
        )
        entry = LinkState(
            a=plan.a,
            a_port=plan.a_port,
            a_interface=made.intf1.name,
            b=plan.b,
            b_port=plan.b_port,
            b_interface=made.intf2.name,
            qdiscs=self.options.uplink_shape.qdiscs(),
        )
        self._state = self.state.with_(links=[*self.state.links, entry])
        self._wire(entry.name, made, self.options.uplink_shape, pid=a.pid)

    def _wire(self, name: str, made: Link, shape: LinkShape, *, pid: int) -> None:
        """Put a wire in the middle of a link, if there are to be any."""
        if self.options.fault_wires:
            wire = fault_wires.Wire(name, (made.intf1.name, made.intf2.name))
            fault_wires.shape_ends(wire, shape, pid=pid)
            self._wires.append(wire)

    def _neighbours(self) -> None:
        """Set static ARP: the switches answer none, and it does not cross them."""
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
                self.state,
                fabric=self.layout.network,
                management=MANAGEMENT,
                mtu=self.options.link_shape.mtu,
            )

    def _start_switches(self) -> None:
        nodes = [self._node(plan.name) for plan in self.layout.switches]
        start_all(nodes, progress=self._progress, started=self._record_switch)
        order = [plan.name for plan in self.layout.switches]
        self._state = self.state.with_(
            switches=sorted(self.state.switches, key=lambda switch: order.index(switch.name))
        )

    def _record_switch(self, node: P4RuntimeSwitch) -> None:
        self._state = self.state.with_(switches=[*self.state.switches, self._switch_state(node)])

    def _switch_state(self, node: P4RuntimeSwitch) -> SwitchState:
        if node.process is None:
            raise TopologyError(f"switch {node.name} was not started")
        return SwitchState(
            name=node.name,
            device_id=node.settings.device_id,
            target=node.target.value,
            address=node.settings.address,
            interfaces=node.interfaces(),
            log=str(node.log),
            process=ProcessId.of(node.process.pid),
            role=node.settings.role,
            start=node.starting(),
        )

    def _load(self, program: Path, p4info: Path) -> None:
        """Put the user's own program into all switches, from a process in the fabric's namespace."""
        cluster = self.state
        files = ["--program", str(program.absolute()), "--p4info", str(p4info.absolute())]
        tls = str(operator_directory(cluster.certificates, state.OPERATOR)) if cluster.tls else ""
        for switch in cluster.switches:
            words = ["-m", "controller.switches", switch.address, "--device-id", str(switch.device_id)]
            done = subprocess.run(
                [sys.executable, *words, *files],
                env={**os.environ, TLS_VARIABLE: tls},
                cwd="/",  # `python -m` looks for modules where it starts
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                raise TopologyError(f"switch {switch.name} does not take {program}: {why}")
        self._state = self.state.with_(program=str(program.absolute()))

    def _start_controller(self) -> None:
        start = controller_start(self.state, self.options.controller_options)
        self._controller = start.launch()
        process = ProcessId.of(self._controller.pid)
        self._state = self.state.with_(controller_process=process, controller_start=start)
        wait_for_controller(self.state, process)

    def _stop_nodes(self) -> None:
        if self._controller is not None:
            end([self._controller])
        if self._fleet is not None:
            self._fleet.stop()
        if self.net is not None:
            end(switch.process for switch in self.net.switches if switch.process is not None)
            for switch in self.net.switches:
                switch.stop(deleteIntfs=False)
                switch.terminate()
            for host in self.net.hosts:
                host.terminate()  # its veth goes with its namespace

    def _network(self) -> Mininet:
        if self.net is None:
            raise TopologyError(f"the {self.options.topology} is not up")
        return self.net

    def _node(self, name: str) -> P4RuntimeSwitch:
        node: P4RuntimeSwitch = self._network().get(name)
        return node


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TopologyError(f"captures cannot go into {directory}: {error.strerror}") from error


# Nothing but what a worker sends may appear on a link; a kernel may have no IPv6.
_NO_IPV6: Final = (
    "for f in /proc/sys/net/ipv6/conf/all/disable_ipv6 /proc/sys/net/ipv6/conf/default/disable_ipv6; "
    "do [ ! -e $f ] || echo 1 > $f; done"
)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals that would end the process, and what it starts, until this is over.

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
