"""A cluster on paper."""

from __future__ import annotations

import os
from typing import Any

from topologies import layout
from topologies.layout import Layout, Role
from topologies.processes import ProcessId
from topologies.state import ClusterState, HostState, LinkState, SwitchState

GONE = ProcessId(pid=1, started=1)  # pid 1 runs, but did not start then


def myself() -> ProcessId:
    """Return this process's identity."""
    return ProcessId.of(os.getpid())


def cluster_state(name: str, **changes: Any) -> ClusterState:
    """Return the state of a rack of two hosts that this process owns; nothing of it runs."""
    fields: dict[str, Any] = {
        "name": name,
        "namespace": f"p4r-test-{name}",
        "owner": myself(),
        "topology": "rack",
        "target": "embedded",
        "path_mtu": 1024,
        "rate_mbit": 100.0,
        "controller": "172.31.255.254:50051",
        "control_socket": f"/nowhere/{name}.sock",
        "ready": True,
        "hosts": [host_state(index) for index in (1, 2)],
        "switches": [
            SwitchState(
                name="s1",
                device_id=1,
                target="embedded",
                address="127.0.0.1:9559",
                interfaces={1: "s1-eth1", 2: "s1-eth2"},
                log="/nowhere/s1.log",
                process=GONE,
            )
        ],
    }
    return ClusterState(**{**fields, **changes})


def host_state(index: int, process: ProcessId = GONE) -> HostState:
    """Return the state of host number `index`."""
    return HostState(
        name=f"h{index}",
        ip=f"10.0.0.{index}",
        mac=f"02:00:00:00:00:{index:02x}",
        port=index,
        interface=f"h{index}-eth0",
        management_ip=f"172.31.0.{index}",
        process=process,
    )


def fabric_state(
    name: str, *, spines: int = 2, hosts: tuple[int, ...] = (2, 2), **changes: Any
) -> ClusterState:
    """Return the state of a spine-leaf fabric that this process owns; nothing of it runs."""
    plan = layout.spine_leaf(spines=spines, hosts=hosts)
    return cluster_state(
        name, **{"topology": "spine-leaf", "uplink_rate_mbit": 50.0, **states_of(plan), **changes}
    )


def states_of(plan: Layout) -> dict[str, Any]:
    """Return the fields that a ClusterState has of a fabric on paper."""
    return {
        "hosts": [
            HostState(
                name=host.name,
                ip=str(host.ip),
                mac=host.mac,
                switch=host.switch,
                port=host.port,
                interface=f"{host.name}-eth0",
                management_ip=str(host.management_ip),
                process=GONE,
            )
            for host in plan.hosts
        ],
        "switches": [
            SwitchState(
                name=switch.name,
                device_id=switch.device_id,
                target="embedded",
                address=plan.address(switch),
                interfaces={},
                log=f"/nowhere/{switch.name}.log",
                process=GONE,
                role=Role(switch.role),
            )
            for switch in plan.switches
        ],
        "links": [
            LinkState(
                a=link.a,
                a_port=link.a_port,
                a_interface=f"{link.a}-eth{link.a_port}",
                b=link.b,
                b_port=link.b_port,
                b_interface=f"{link.b}-eth{link.b_port}",
            )
            for link in plan.links
        ],
    }
