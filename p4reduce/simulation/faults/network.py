"""The links of a cluster, and the owners of the queue pairs that frames are for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from ipaddress import IPv4Address
from typing import TypeAlias

from controller.api.messages import Ready
from controller.config import HostConfig
from host_agent.transport import TransportConfig
from p4reduce.simulation.faults.job import JobRun
from p4reduce.simulation.faults.links import StrikesOfLink, Wire
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.scene import Receiver, Scene
from p4reduce.simulation.faults.schedule import Rates, Strike
from p4reduce.simulation.invariant import InvariantError

_TO_BACKUP = 0xAC000000 - 0x0A000000  # 10.x.y.z: 172.x.y.z
_STRAGGLERS_NS = 2 * NS  # how long a packet may be under way
Pair: TypeAlias = "tuple[bytes, bytes]"  # a queue pair's address and number, as in frames


class Network:
    """The links of a cluster. `wires` by name, "h1>l1"; `strikes`: the packet faults until now."""

    def __init__(self, scene: Scene, nodes: Mapping[str, SwitchNode]) -> None:
        self.scene = scene
        self.wires: dict[str, Wire] = {}
        self.strikes: list[Strike] = []
        self.backup = BackupNetwork(self)
        self.forgot_numbers = False  # the controller has lost what it knew of those that were in use
        self._receivers: dict[Pair, Receiver] = {}
        self._used: dict[Pair, tuple[JobRun, int, int]] = {}  # generation, and who sends to it
        self._qpns = 0x800000
        self._lay_wires(nodes)

    def _lay_wires(self, nodes: Mapping[str, SwitchNode]) -> None:
        schedule, config = self.scene.schedule, self.scene.config
        listed: dict[str, dict[int, list[Strike]]] = {}
        for strike in schedule.strikes or ():
            listed.setdefault(strike.link, {}).setdefault(strike.frame, []).append(strike)

        def lay(a: str, b: str, rates: Rates, port: int | IPv4Address) -> Wire:
            """Lay a wire to `b`: to a switch's port, or to a host with that address."""
            name = f"{a}>{b}"
            mine = None if schedule.strikes is None else listed.get(name, {})
            wire = self.wires[name] = self.scene.new_wire(
                self.scene.clock,
                StrikesOfLink(name, rates, schedule.seed, mine, self.strikes),
                partial(nodes[b].arrive, port)
                if isinstance(port, int)
                else partial(self._arrive, port.packed),
                delay_ns=self.scene.latency(f"delay/{name}", 2_000, 30_000),
                gap_ns=self.scene.latency(f"gap/{name}", 0, 2_000),
            )
            return wire

        for host in config.hosts:
            lay(host.name, host.switch, schedule.host_rates, host.port)
            nodes[host.switch].out[host.port] = lay(host.switch, host.name, schedule.host_rates, host.ip)
        for link in config.links:
            nodes[link.a].out[link.a_port] = lay(link.a, link.b, schedule.uplink_rates, link.b_port)
            nodes[link.b].out[link.b_port] = lay(link.b, link.a, schedule.uplink_rates, link.a_port)

    def calm(self) -> None:
        """Make links do nothing to frames any more."""
        for wire in self.wires.values():
            wire.faults.quiet = True

    def is_calm(self) -> bool:
        """Return whether links do nothing to frames."""
        return all(wire.faults.quiet for wire in self.wires.values())

    def both_ways(self, a: str, b: str) -> tuple[Wire, Wire]:
        """Return both directions of a link."""
        return self.wires[f"{a}>{b}"], self.wires[f"{b}>{a}"]

    def from_host(self, host: HostConfig) -> Wire:
        """Return the wire from a host to its switch."""
        return self.wires[f"{host.name}>{host.switch}"]

    def _arrive(self, address: bytes, frame: bytes) -> None:
        receiver = self._receivers.get((address, frame[47:50]))
        if receiver is not None:
            receiver.receive(frame)

    # Queue pairs.

    def fresh_qpn(self) -> int:
        """Return the number of a queue pair that nobody has had."""
        self._qpns += 2
        return self._qpns

    def open(self, receiver: Receiver, job: JobRun, config: TransportConfig, ready: Ready) -> None:
        """Give frames for these queue pairs to that receiver."""
        for qpn, sender in (
            (config.qpn_in, ready.predecessor.rank),
            (config.qpn_out, ready.successor.rank),
        ):
            pair = config.ip.packed, qpn.to_bytes(3, "big")
            self._receivers[pair] = receiver
            self._check_number(pair, receiver, config.generation)
            self._used[pair] = job, config.generation, sender
        if self.scene.observer is not None:
            self.scene.observer.opened(receiver, config)

    def _check_number(self, pair: Pair, receiver: Receiver, generation: int) -> None:
        """Require that no number is given again to which an earlier owner's peer may still send."""
        job, before, sender = self._used.get(pair, (None, generation, 0))
        if job is None or before == generation or self.forgot_numbers:
            return
        stopped_ns = job.generations[before].stopped_ns(sender)
        if stopped_ns is None or self.scene.clock.now_ns < stopped_ns + _STRAGGLERS_NS:
            raise InvariantError(
                f"{receiver} has QP {int.from_bytes(pair[1], 'big'):#x}, to which rank {sender} of "
                f"{job.name} may still send in generation {before}"
            )

    def close(self, receiver: Receiver, config: TransportConfig) -> None:
        """Give frames for these queue pairs to nobody any more."""
        for qpn in (config.qpn_in, config.qpn_out):
            pair = config.ip.packed, qpn.to_bytes(3, "big")
            if self._receivers.get(pair) is receiver:
                del self._receivers[pair]

    def deliver(self, frame: bytes) -> None:
        """Give a frame to the receiver it is for, wherever that is."""
        self._arrive(frame[30:34], frame)


class BackupNetwork:
    """A network apart from the switches', on which nothing is lost."""

    def __init__(self, network: Network) -> None:
        scene = network.scene
        nothing = StrikesOfLink("backup", Rates(), scene.schedule.seed, None, network.strikes)
        delay_ns = scene.latency("backup", 50_000, 500_000)
        self._wire = scene.new_wire(scene.clock, nothing, network.deliver, delay_ns=delay_ns, gap_ns=0)

    @staticmethod
    def interface_of(host: HostConfig) -> tuple[str, IPv4Address]:
        """Return the MAC and the address of a host's interface on it."""
        return "02:00:ac" + host.mac[8:], host.ip + _TO_BACKUP

    def send(self, frame: bytes) -> None:
        """Send a frame to the receiver it is for."""
        self._wire.send(frame)
