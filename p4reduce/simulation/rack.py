"""Workers of one rack without a controller: their connections, and their job and routes for a switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from typing import Any

from host_agent.transport import Predecessor, Successor, TransportConfig
from host_agent.wire.headers import parse_mac
from p4reduce.oracle.state import Flow, Job, Route

GENERATION = 7
JOB = 3


def ip_of(rank: int) -> IPv4Address:
    return IPv4Address("10.1.0.1") + rank


def mac_of(rank: int) -> str:
    return f"02:00:00:00:01:{rank + 1:02x}"


def configs(
    world_size: int,
    *,
    window: int = 4,
    packets: int = 4,
    path_mtu: int = 256,
    psns: list[int] | None = None,
    ring: Sequence[int] = (),
    **extra: Any,
) -> list[TransportConfig]:
    """Return everybody's connections, by rank.

    `psns`: the first PSN of each rank's QP_out; `ring`: the ranks in the order of the ring.
    """
    psns = psns or [0x1000 * (rank + 1) for rank in range(world_size)]
    order = list(ring) or list(range(world_size))

    def config(rank: int) -> TransportConfig:
        place = order.index(rank)
        ahead, behind = order[(place + 1) % world_size], order[place - 1]
        return TransportConfig(
            mac=mac_of(rank),
            ip=ip_of(rank),
            qpn_out=0x100 + rank,
            psn_out=psns[rank],
            qpn_in=0x200 + rank,
            successor=Successor(mac=mac_of(ahead), ip=ip_of(ahead), qpn_in=0x200 + ahead),
            predecessor=Predecessor(
                mac=mac_of(behind),
                ip=ip_of(behind),
                qpn_out=0x100 + behind,
                psn_out=psns[behind],
                rank=behind,
            ),
            path_mtu=path_mtu,
            window=window,
            message_packets=packets,
            job_id=JOB,
            generation=GENERATION,
            rank=rank,
            world_size=world_size,
            **extra,
        )

    return [config(rank) for rank in range(world_size)]


def job_of(workers: list[TransportConfig], rnr: Callable[[int], int] = lambda rank: 0) -> Job:
    """Return the job as a controller would install it: rank r sits on port r + 1.

    `rnr`: the syndrome of the RNR NAKs that a rank wants, 0 if it wants none.
    """
    ports = {c.ip: c.rank + 1 for c in workers}
    flows = tuple(
        Flow(
            rank=c.rank,
            port=c.rank + 1,
            src_mac=parse_mac(c.mac),
            src_ip=c.ip,
            src_qp=c.qpn_out,
            dst_port=ports[c.successor.ip],
            dst_mac=parse_mac(c.successor.mac),
            dst_ip=c.successor.ip,
            dst_qp=c.successor.qpn_in,
            first_psn=c.psn_out,
            rnr_syndrome=rnr(c.rank),
        )
        for c in workers
    )
    first = workers[0]
    return Job(first.job_id, first.generation, first.window, first.message_packets, flows)


def routes_of(workers: list[TransportConfig]) -> dict[IPv4Address, Route]:
    """Return the route to every worker, as a controller would install it."""
    switch_mac = parse_mac("02:00:00:00:ff:01")
    return {c.ip: Route(port=c.rank + 1, src_mac=switch_mac, dst_mac=parse_mac(c.mac)) for c in workers}
