"""A cluster on paper."""

from __future__ import annotations

import os
from typing import Any

from topologies.processes import ProcessId
from topologies.state import ClusterState, HostState, SwitchState

GONE = ProcessId(pid=1, started=1)  # pid 1 runs, but did not start then


def myself() -> ProcessId:
    """This process."""
    return ProcessId.of(os.getpid())


def cluster_state(name: str, **changes: Any) -> ClusterState:
    """A rack of two hosts that this process owns; nothing of it runs."""
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
    """Host number `index`."""
    return HostState(
        name=f"h{index}",
        ip=f"10.0.0.{index}",
        mac=f"02:00:00:00:00:{index:02x}",
        port=index,
        interface=f"h{index}-eth0",
        management_ip=f"172.31.0.{index}",
        process=process,
    )
