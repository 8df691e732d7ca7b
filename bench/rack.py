"""All-reduce in one rack: the embedded switch beside BMv2. The network beside the ring is 'p4reduce compare'.

    sudo .venv/bin/python -m bench.rack --json results.json

Two parts. `throughput`: links without a rate, 4 workers, path MTU 1024 and 4096; goodput per worker is tensor
bits over time (nccl-tests' algbw), packets per second are those that the switch received. `latency`: 1 KB.
Cases run in turns, round by round; medians and spreads are over the rounds. BMv2 is left out, and named as
left out, where it is not installed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rich.table import Table

from bench import command
from controller.api.admin import AdminClient
from controller.config import Target
from p4reduce.workloads.allreduce import Request, measure, require_right
from p4reduce.workloads.team import Team
from topologies.fabric import Fabric
from topologies.rack import RackOptions
from topologies.state import ClusterState

LATENCY_BYTES: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One row: times in seconds over all rounds, the slowest worker's each time."""

    part: str
    switch: str
    strategy: str
    workers: int
    path_mtu: int
    bytes: int
    rounds: int
    median_s: float
    min_s: float
    max_s: float
    goodput_mbit_s: float
    packets_per_s: float | None = None
    retransmissions: int = 0


class Bench:
    """One cluster with a team that has joined a job; asked again and again."""

    def __init__(self, cluster: ClusterState, team: Team) -> None:
        self.cluster = cluster
        self.team = team
        self.seconds: dict[Request, list[float]] = {}
        self.packets: dict[Request, list[int]] = {}
        self.retransmissions: dict[Request, int] = {}

    def once(self, request: Request) -> None:
        """Run one timed all-reduce."""
        before = self._received()
        outcome = measure(self.team, request)
        require_right(outcome, f"{request.bytes} bytes, {request.strategy}")
        self.seconds.setdefault(request, []).append(outcome.timing.median_s)
        self.packets.setdefault(request, []).append(self._received() - before)
        self.retransmissions[request] = self.retransmissions.get(request, 0) + outcome.retransmissions

    def figure(self, part: str, request: Request) -> Figure:
        """Return the row of the measurements so far."""
        seconds = self.seconds[request]
        median = statistics.median(seconds)
        return Figure(
            part=part,
            switch=self.cluster.target,
            strategy=request.strategy,
            workers=self.team.size,
            path_mtu=self.cluster.path_mtu,
            bytes=request.bytes,
            rounds=len(seconds),
            median_s=median,
            min_s=min(seconds),
            max_s=max(seconds),
            goodput_mbit_s=request.bytes * 8 / median / 1e6,
            packets_per_s=statistics.median(self.packets[request]) / median,
            retransmissions=self.retransmissions[request],
        )

    def _received(self) -> int:
        with AdminClient(f"unix:{self.cluster.control_socket}") as admin:
            return sum(port.received.packets for port in admin.ports())


@contextlib.contextmanager
def bench_on(target: Target, *, hosts: int, path_mtu: int) -> Iterator[Bench]:
    """Build a rack with a team in it."""
    options = RackOptions(
        name=f"bench-{os.getpid()}-{target.value}",
        hosts=hosts,
        switch=target,
        path_mtu=path_mtu,
    )
    with Fabric(options) as rack, Team(rack.state, hosts) as team:
        joined = team.join("bench")[0]
        if joined["mode"] != "in_network":
            raise SystemExit(f"the switch takes no part: {joined['mode_reason']}")
        yield Bench(rack.state, team)
        team.do("leave")


def throughput(targets: Sequence[Target], rounds: int, size: int) -> Iterator[Figure]:
    """Measure goodput and packets per second on links without a rate."""
    for path_mtu in (1024, 4096):
        # One rack after the other: an idle one would still take some of the machine.
        for target in targets:
            # A sixteenth on BMv2, so that it comes to an end.
            request = Request(bytes=size if target is Target.EMBEDDED else size // 64 * 4, seed=3)
            with bench_on(target, hosts=4, path_mtu=path_mtu) as bench:
                measure(bench.team, request)  # warm up
                for _ in range(rounds):
                    bench.once(request)
                yield bench.figure("throughput", request)


def latency(targets: Sequence[Target], rounds: int) -> Iterator[Figure]:
    """Measure 1 KB of float32 and of int32 (which needs no agreement on a scale), on links without a rate."""
    for target in targets:
        with bench_on(target, hosts=4, path_mtu=1024) as bench:
            for dtype in ("float32", "int32"):
                request = Request(bytes=LATENCY_BYTES, dtype=dtype, seed=7)
                for _ in range(20 * rounds):
                    bench.once(request)
                yield bench.figure(f"latency {dtype}", request)


def show(figures: Sequence[Figure]) -> Table:
    """Return a table for a terminal."""
    return command.table(
        "All-reduce in one rack",
        ("part", "switch", "strategy", "workers", "path MTU", "bytes"),
        ("median", "min", "max", "Mbit/s per worker", "packets/s", "resent"),
        (
            (
                *(row.part, row.switch, row.strategy, str(row.workers), str(row.path_mtu), f"{row.bytes:,}"),
                *(f"{value * 1e3:.2f} ms" for value in (row.median_s, row.min_s, row.max_s)),
                f"{row.goodput_mbit_s:.1f}",
                f"{row.packets_per_s:,.0f}" if row.packets_per_s else "",
                str(row.retransmissions),
            )
            for row in figures
        ),
    )


def main() -> None:
    """Run the parts asked for."""
    parser = command.parser(__doc__)
    command.add_parts(parser, ("throughput", "latency"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--bytes", type=int, default=32_000_000, help="tensor of the throughput part; a sixteenth on BMv2"
    )
    arguments = parser.parse_args()
    console = command.console(180)
    targets = command.targets(console)
    parts = {
        "throughput": lambda: throughput(targets, arguments.rounds, arguments.bytes),
        "latency": lambda: latency(targets, arguments.rounds),
    }
    figures: list[Figure] = []
    for name in arguments.parts:
        with console.status(name):
            figures += parts[name]()
    console.print(show(figures))
    command.write(arguments.json, {"figures": [asdict(row) for row in figures]})


if __name__ == "__main__":
    main()
