"""Requests of workers that join."""

from __future__ import annotations

from controller.api.messages import Join, Worker
from host_agent.netinfo import Interface
from p4reduce.simulation.rack import configs

CONFIG = configs(4, path_mtu=1024)[1]


INTERFACE = Interface(name="nosuchif0", mac=CONFIG.mac, ip=CONFIG.ip, mtu=1500)


def request(world_size: int = 4) -> Join:
    return Join(
        job="train",
        world_size=world_size,
        worker=Worker(
            rank=1 if world_size > 1 else 0,
            mac=CONFIG.mac,
            ip=CONFIG.ip,
            qpn_out=CONFIG.qpn_out,
            psn_out=CONFIG.psn_out,
            qpn_in=CONFIG.qpn_in,
            hostname="h2",
        ),
        path_mtu_max=1024,
    )
