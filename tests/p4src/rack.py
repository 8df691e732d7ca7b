"""The compiled program on the embedded data plane, with a job's entries as the controller installs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4reduce.oracle.state import Job, Route
from soft_switch.dataplane import DataPlane, Exact, Lpm, Match

JSON = Path(__file__).parents[2] / "p4src" / "build" / "p4reduce.json"
COUNTER_NAMES = {
    **{
        name: f"SwitchIngress.slots.{name}"
        for name in ("aggregated", "completed", "duplicate", "replayed", "stale", "mismatch", "not_ready")
    },
    **{name: f"SwitchIngress.{name}" for name in ("bad_icrc", "unplaced", "passed")},
    **{name: f"SwitchIngress.membership.{name}" for name in ("foreign", "acks")},
}
MAX_RANKS = 32


def mac(value: bytes) -> int:
    return int.from_bytes(value, "big")


class CompiledRack:
    """One data plane; jobs and routes come and go, so that a test module compiles the program once."""

    def __init__(self) -> None:
        self.plane = DataPlane(cpu_port=255)
        self.plane.load(JSON.read_bytes())
        self.handles: list[tuple[str, int]] = []
        self.before: dict[str, npt.NDArray[np.uint64]] = {}

    def insert(self, table: str, match: Sequence[Match], action: str, params: Sequence[int]) -> None:
        handle = self.plane.insert(table, match, priority=0, action=action, params=params)
        self.handles.append((table, handle))

    def reset(
        self, jobs: Iterable[Job], routes: Mapping[IPv4Address, Route], *, check_icrc: bool = True
    ) -> None:
        """Replace routes and jobs; registers keep what they hold, as in a running switch."""
        for table, handle in self.handles:
            self.plane.delete(table, handle)
        self.handles.clear()
        self.before = {name: self.plane.counter_read_all(full) for name, full in COUNTER_NAMES.items()}
        for ip, route in routes.items():
            self.name_host(route.port, int(ip))
            self.insert(
                "SwitchIngress.forward.route",
                [Lpm(int(ip), 32)],
                "SwitchIngress.forward.next_hop",
                [route.port, mac(route.src_mac), mac(route.dst_mac)],
            )
        for position, job in enumerate(jobs):
            self.install(job, position, check_icrc=check_icrc)

    def name_host(self, port: int, ip: int) -> None:
        """Write the entry that says which host is behind that port."""
        self.insert("SwitchIngress.edges.port", [Exact(port)], "SwitchIngress.edges.host_port", [ip])

    def install(self, job: Job, position: int, *, check_icrc: bool) -> None:
        group = position + 1
        self.plane.multicast_set(group, [(flow.dst_port, flow.rank + 1) for flow in job.flows])
        region = position * 2 * job.window * job.packets
        for flow in job.flows:
            index = position * MAX_RANKS + flow.rank
            self.insert(
                "SwitchEgress.emit.emit",
                [Exact(group), Exact(flow.rank + 1)],
                "SwitchEgress.emit.to_flow",
                [
                    flow.rank,
                    8 * flow.rank,
                    mac(flow.src_mac),
                    mac(flow.dst_mac),
                    int(flow.src_ip),
                    int(flow.dst_ip),
                    0xC000,
                    flow.dst_qp,
                ],
            )
            self.insert(
                "SwitchIngress.membership.flow",
                [Exact(flow.port), Exact(int(flow.src_ip)), Exact(int(flow.dst_ip)), Exact(flow.dst_qp)],
                "SwitchIngress.membership.data_flow",
                [
                    index,
                    job.job,
                    job.generation,
                    flow.rank,
                    1 << flow.rank,
                    (1 << len(job.flows)) - 1,
                    region,
                    2 * job.window - 1,
                    job.packets.bit_length() - 1,
                    8 * flow.rank,
                    group,
                    int(check_icrc),
                    flow.first_psn,
                    flow.src_qp,
                    flow.rnr_syndrome,
                    0,  # two_level
                    0,  # exit_psn_shift
                ],
            )
            self.insert(
                "SwitchIngress.membership.flow",
                [Exact(flow.dst_port), Exact(int(flow.dst_ip)), Exact(int(flow.src_ip)), Exact(flow.src_qp)],
                "SwitchIngress.membership.ack_flow",
                [index, job.generation, int(flow.rnr_syndrome != 0), flow.first_psn],
            )
            for ip, qp in ((flow.dst_ip, flow.dst_qp), (flow.src_ip, flow.src_qp)):
                self.insert(
                    "SwitchIngress.membership.member_qp",
                    [Exact(int(ip)), Exact(qp)],
                    "SwitchIngress.membership.not_from_its_peer",
                    [index],
                )

    def counted(self, job: Job, position: int = 0) -> dict[str, int]:
        """Return packets counted for the job, by reason."""
        first = position * MAX_RANKS
        return {
            name: int(
                (self.plane.counter_read_all(full) - self.before[name])[
                    first : first + len(job.flows), 0
                ].sum()
            )
            for name, full in COUNTER_NAMES.items()
        }
