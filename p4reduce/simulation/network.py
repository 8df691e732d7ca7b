"""A spine-leaf fabric as a controller is told about it."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address

from controller.config import Config, HostConfig, LinkConfig, Spread, SwitchConfig

FIRST_UPLINK = 100  # uplink to spine j: port 100 + j
FIRST_SPINE_ID = 100


def fabric_config(spines: int, hosts: Sequence[int], spread: Spread = Spread.MESSAGES) -> Config:
    """Return the configuration of a fabric with a link from every leaf to every spine.

    `hosts`: how many there are behind each leaf.
    """
    leaves = range(1, len(hosts) + 1)
    switches = [SwitchConfig(name=f"l{i}", device_id=i, address=f"unix:l{i}") for i in leaves]
    switches += [
        SwitchConfig(name=f"s{j}", device_id=FIRST_SPINE_ID + j, address=f"unix:s{j}")
        for j in range(1, spines + 1)
    ]
    behind = [
        HostConfig(
            name=f"h{leaf}-{port}",
            ip=IPv4Address(f"10.0.{leaf}.{port}"),
            mac=f"02:00:0a:00:{leaf:02x}:{port:02x}",
            switch=f"l{leaf}",
            port=port,
        )
        for leaf, count in zip(leaves, hosts, strict=True)
        for port in range(1, count + 1)
    ]
    links = [
        LinkConfig(a=f"l{leaf}", a_port=FIRST_UPLINK + spine, b=f"s{spine}", b_port=leaf)
        for leaf in leaves
        for spine in range(1, spines + 1)
    ]
    return Config(switches=tuple(switches), hosts=tuple(behind), links=tuple(links), spread=spread)
