"""A fabric on paper: which switches, hosts and links there are, and every address and port number.

A rack is one switch, s1, with hosts h1.. on its ports 1... A spine-leaf fabric has leaves l1.. and spines
s1.., each leaf with an uplink to each spine:

    hosts on ports 1..n of their leaf      leaf port 100 + j is spine j      spine port i is leaf i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from controller.config import MAX_LEAVES, MAX_SPINES
from p4src import MAX_RANKS
from topologies.errors import TopologyError

RACK_NETWORK: Final = IPv4Network("10.0.0.0/24")
FABRIC_NETWORK: Final = IPv4Network("10.0.0.0/16")  # 10.0.<leaf>.<i>, all on-link: neighbours are static
MANAGEMENT: Final = IPv4Network("172.31.0.0/16")
CONTROLLER_IP: Final = MANAGEMENT[-2]  # 172.31.255.254

P4RUNTIME_PORT: Final = 9559  # of the first switch; the others follow

MIN_HOSTS, MAX_HOSTS = 2, 64
MAX_HOSTS_A_LEAF: Final = MAX_RANKS
FIRST_SPINE_ID: Final = 101
FIRST_UPLINK_PORT: Final = 101


class Role(str, Enum):
    """Role of a switch. The switch of a rack is a leaf."""

    LEAF = "leaf"
    SPINE = "spine"


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """A host: number `index` (from 1) of the fabric, on `port` of `switch`."""

    index: int
    ip: IPv4Address
    switch: str
    port: int

    @property
    def name(self) -> str:
        """Name: h1, h2, ..."""
        return f"h{self.index}"

    @property
    def mac(self) -> str:
        """MAC of its end of the fabric link."""
        return mac(kind=0, index=self.index)

    @property
    def management_ip(self) -> IPv4Address:
        """Address in the management network."""
        return MANAGEMENT[self.index]


@dataclass(frozen=True, kw_only=True)
class SwitchPlan:
    """A switch."""

    name: str
    device_id: int
    role: Role = Role.LEAF


@dataclass(frozen=True, kw_only=True)
class LinkPlan:
    """A link between the leaf `a` and the spine `b`."""

    a: str
    a_port: int
    b: str
    b_port: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A whole fabric; `network` is the network that every host takes to be on its link."""

    network: IPv4Network
    switches: tuple[SwitchPlan, ...]
    hosts: tuple[HostPlan, ...]
    links: tuple[LinkPlan, ...] = field(default=())

    def address(self, switch: SwitchPlan) -> str:
        """Return the address where a switch serves P4Runtime, in the cluster's namespace."""
        return f"127.0.0.1:{P4RUNTIME_PORT + self.switches.index(switch)}"


def rack(hosts: int) -> Layout:
    """Lay out `hosts` hosts (2 to 32) on one switch."""
    if not MIN_HOSTS <= hosts <= MAX_HOSTS_A_LEAF:
        raise TopologyError(f"a rack has {MIN_HOSTS} to {MAX_HOSTS_A_LEAF} hosts, not {hosts}")
    return Layout(
        network=RACK_NETWORK,
        switches=(SwitchPlan(name="s1", device_id=1),),
        hosts=tuple(
            HostPlan(index=index, ip=RACK_NETWORK[index], switch="s1", port=index)
            for index in range(1, hosts + 1)
        ),
    )


def spine_leaf(*, spines: int, hosts: Sequence[int]) -> Layout:
    """Lay out `spines` spines, and a leaf for each number in `hosts`, with so many hosts.

    Hosts are numbered leaf by leaf.
    """
    _check(spines=spines, hosts=hosts)
    leaves = [SwitchPlan(name=f"l{i}", device_id=i) for i in range(1, len(hosts) + 1)]
    tops = [
        SwitchPlan(name=f"s{j}", device_id=FIRST_SPINE_ID + j - 1, role=Role.SPINE)
        for j in range(1, spines + 1)
    ]
    plans: list[HostPlan] = []
    for leaf, count in zip(leaves, hosts, strict=True):
        for port in range(1, count + 1):
            address = FABRIC_NETWORK[(leaf.device_id << 8) + port]
            plans.append(HostPlan(index=len(plans) + 1, ip=address, switch=leaf.name, port=port))
    links = [
        LinkPlan(a=leaf.name, a_port=FIRST_UPLINK_PORT + j, b=spine.name, b_port=leaf.device_id)
        for leaf in leaves
        for j, spine in enumerate(tops)
    ]
    return Layout(network=FABRIC_NETWORK, switches=(*leaves, *tops), hosts=tuple(plans), links=tuple(links))


def spread(hosts: int, leaves: int) -> tuple[int, ...]:
    """Spread hosts over leaves as evenly as possible, more on the first ones: 10 over 4 are 3, 3, 2, 2."""
    if not 1 <= leaves <= MAX_LEAVES:
        raise TopologyError(f"a spine-leaf fabric has 1 to {MAX_LEAVES} leaves, not {leaves}")
    share, more = divmod(hosts, leaves)
    return tuple(share + (leaf < more) for leaf in range(leaves))


def mac(*, kind: int, index: int, device: int = 0) -> str:
    """Return a locally administered address: kind 0 for hosts, 1 for switch ports, 2 for machines' links."""
    return f"02:{kind:02x}:00:00:{device:02x}:{index:02x}"


def _check(*, spines: int, hosts: Sequence[int]) -> None:
    if not 1 <= spines <= MAX_SPINES:
        raise TopologyError(f"a spine-leaf fabric has 1 to {MAX_SPINES} spines, not {spines}")
    if not 1 <= len(hosts) <= MAX_LEAVES:
        raise TopologyError(f"a spine-leaf fabric has 1 to {MAX_LEAVES} leaves, not {len(hosts)}")
    if not MIN_HOSTS <= sum(hosts) <= MAX_HOSTS:
        raise TopologyError(f"a spine-leaf fabric has {MIN_HOSTS} to {MAX_HOSTS} hosts, not {sum(hosts)}")
    for leaf, count in enumerate(hosts, start=1):
        if not 1 <= count <= MAX_HOSTS_A_LEAF:
            raise TopologyError(f"leaf l{leaf} has 1 to {MAX_HOSTS_A_LEAF} hosts, not {count}")
