"""Links that go through a process, so that faults are possible with any switch: --fault-wires.

host ── h1-eth0 ═ w-h1-eth0 ── soft_switch.wires ── w-s1-eth1 ═ s1-eth1 ── switch      (═: a veth pair)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mininet.link import Link

from soft_switch import fault_control
from topologies.errors import TopologyError
from topologies.links import OFFLOADS, LinkShape, keep_order
from topologies.namespaces import run
from topologies.packet_faults import WIRES
from topologies.processes import wait_until
from topologies.starting import Start, last_words
from topologies.state import WiresState
from topologies.switches import faults_socket
from topologies.wires import wire_end

_TIMEOUT_S: Final = 120.0  # the engine may have to be compiled


class WiredLink(Link):  # type: ignore[misc]
    """Two veth pairs, whose inner ends are in our namespace and wait for a wire between them."""

    @classmethod
    def makeIntfPair(
        cls,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: Any = None,
        node2: Any = None,
        deleteIntfs: bool = True,
    ) -> None:
        """Make the pair of interfaces of a link, for Mininet."""
        for name, address, node in ((intfname1, addr1, node1), (intfname2, addr2, node2)):
            own = ["address", address] if address else []
            there = ["netns", str(node.pid)] if node.inNamespace else []
            run("ip", "link", "add", wire_end(name), "type", "veth", "peer", "name", name, *own, *there)


@dataclass(frozen=True)
class Wire:
    """A link's two interfaces, of which the first is at a host or leaf."""

    link: str
    interfaces: tuple[str, str]


def shape_ends(wire: Wire, shape: LinkShape, *, pid: int) -> None:
    """Let the wire's own interfaces carry whatever the link does; `pid` is in their namespace."""
    for interface in map(wire_end, wire.interfaces):
        run("ip", "link", "set", "dev", interface, "mtu", str(shape.mtu), "txqueuelen", "4096", "up")
        run("ethtool", "-K", interface, *(word for offload in OFFLOADS for word in (offload, "off")))
        keep_order(pid, interface)


def start(directory: Path, wires: Sequence[Wire]) -> WiresState:
    """Start the process of all wires of a cluster. Raise TopologyError if it does not come up."""
    socket = faults_socket(directory, WIRES)
    command = [sys.executable, "-m", "soft_switch.wires", "--faults", f"unix:{socket}"]
    for wire in wires:
        command += ["--wire", ":".join(map(wire_end, wire.interfaces))]
    log = directory / "wires.log"
    begin = Start.of(command, directory=directory, log=log)
    process = begin.start()

    def answers() -> bool:
        try:
            fault_control.ask(socket, {"do": "list"})
        except OSError:
            return not process.alive()
        return True

    if not wait_until(answers, timeout_s=_TIMEOUT_S) or not process.alive():
        raise TopologyError(f"the wires do not come up: {last_words(log)}")
    return WiresState(
        process=process,
        start=begin,
        links={wire.link: 2 * number for number, wire in enumerate(wires)},
    )
