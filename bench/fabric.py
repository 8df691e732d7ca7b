"""Several racks and several jobs: what the uplinks carry, how messages are spread, what a straggler costs.

    sudo .venv/bin/python -m bench.fabric --json results.json

Embedded switch, links of 100 Mbit/s, path MTU 4096, float32. `uplinks`: 8 workers in two racks, in the
network and by ring on the same connections, in turns; bytes of whole frames on each rack's uplinks beside the
tensor's. `spread`: the same in the network over two spines, a job's messages all by one of them, or in turns.
`stragglers`: a job of 4 workers alone; beside another job on the same hosts; beside one of which a worker is
always late.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from rich.table import Table

from bench import command
from controller.api.admin import AdminClient
from p4reduce.workloads.allreduce import Request, measure, require_right
from p4reduce.workloads.team import Team
from topologies.fabric import Fabric
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions
from topologies.state import ClusterState

RATE_MBIT: Final = 100.0
PATH_MTU: Final = 4096
LATE_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One row: times in seconds over the rounds; bytes on each uplink as a multiple of the tensor's."""

    part: str
    what: str
    workers: int
    bytes: int
    rounds: int
    median_s: float
    min_s: float
    max_s: float
    retransmissions: int = 0
    up: dict[str, float] = field(default_factory=dict)
    down: dict[str, float] = field(default_factory=dict)


class Series:
    """Measurements of one row, round by round."""

    def __init__(self, part: str, what: str, team: Team, request: Request) -> None:
        self.part, self.what, self.team, self.request = part, what, team, request
        self.seconds: list[float] = []
        self.retransmissions = 0
        self.up: dict[str, list[int]] = {}
        self.down: dict[str, list[int]] = {}

    def once(self, cluster: ClusterState) -> None:
        """Run one timed all-reduce, and note what the uplinks carried meanwhile."""
        before = carried(cluster)
        outcome = measure(self.team, self.request)
        require_right(outcome, self.what)
        for name, (up, down) in carried(cluster).items():
            self.up.setdefault(name, []).append(up - before[name][0])
            self.down.setdefault(name, []).append(down - before[name][1])
        self.seconds.append(outcome.timing.median_s)
        self.retransmissions += outcome.retransmissions

    def figure(self) -> Figure:
        """Return the row of the measurements."""
        return Figure(
            part=self.part,
            what=self.what,
            workers=self.team.size,
            bytes=self.request.bytes,
            rounds=len(self.seconds),
            median_s=statistics.median(self.seconds),
            min_s=min(self.seconds),
            max_s=max(self.seconds),
            retransmissions=self.retransmissions,
            up={name: statistics.median(values) / self.request.bytes for name, values in self.up.items()},
            down={name: statistics.median(values) / self.request.bytes for name, values in self.down.items()},
        )


def carried(cluster: ClusterState) -> dict[str, tuple[int, int]]:
    """Return the bytes that each leaf's uplinks carried up and down, all together."""
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        links = admin.links()
    sums: dict[str, tuple[int, int]] = {}
    for link in links:
        up, down = sums.get(link.a, (0, 0))
        sums[link.a] = (up + link.a_to_b.bytes, down + link.b_to_a.bytes)
    return sums


@contextlib.contextmanager
def joined(team: Team, job: str) -> Iterator[None]:
    """Keep the team in a job that the switches sum."""
    answer = team.join(job)[0]
    if answer["mode"] != "in_network":
        raise SystemExit(f"the switches take no part: {answer['mode_reason']}")
    yield
    team.do("leave")


@contextlib.contextmanager
def two_racks(spines: int, spread: str) -> Iterator[tuple[ClusterState, Team]]:
    """Build two racks with eight workers in a job."""
    options = SpineLeafOptions(
        name=f"bench-{os.getpid()}",
        spines=spines,
        leaves=2,
        hosts=8,
        path_mtu=PATH_MTU,
        rate_mbit=RATE_MBIT,
        controller_options={"spread": spread},
    )
    with Fabric(options) as fabric, Team(fabric.state, 8) as team, joined(team, "bench"):
        yield fabric.state, team


def uplinks(rounds: int, size: int) -> Iterator[Figure]:
    """Measure the network and the ring, in turns."""
    for spines in (1, 2):
        with two_racks(spines, "jobs") as (cluster, team):
            series = [
                Series("uplinks", f"{strategy}, {spines} spine{'s'[: spines - 1]}", team, request)
                for strategy in ("in-network", "ring")
                for request in [Request(bytes=size, strategy=strategy, seed=5)]
            ]
            for _ in range(rounds):
                for one in series:
                    one.once(cluster)
            yield from (one.figure() for one in series)


def spread(rounds: int, size: int) -> Iterator[Figure]:
    """Measure one fabric after the other: an idle one would still take some of the machine."""
    for how in ("jobs", "messages"):
        with two_racks(2, how) as (cluster, team):
            series = Series("spread", f"by {how}", team, Request(bytes=size, seed=5))
            for _ in range(rounds):
                series.once(cluster)
            yield series.figure()


def stragglers(rounds: int, size: int) -> Iterator[Figure]:
    """Measure in turns: alone, beside another job, beside one with a straggler."""
    options = RackOptions(name=f"bench-{os.getpid()}", hosts=4, path_mtu=PATH_MTU, rate_mbit=RATE_MBIT)
    with (
        Fabric(options) as rack,
        Team(rack.state, 4) as team,
        Team(rack.state, 4) as other,
        joined(team, "bench"),
        joined(other, "other"),
    ):
        request = Request(bytes=size, seed=5)
        series = {
            what: Series("stragglers", what, team, request)
            for what in ("alone", "beside", "beside a straggler")
        }
        for _ in range(rounds):
            series["alone"].once(rack.state)
            with working(other, size, late_s=0.0):
                series["beside"].once(rack.state)
            with working(other, size, late_s=LATE_S):
                series["beside a straggler"].once(rack.state)
        yield from (one.figure() for one in series.values())


@contextlib.contextmanager
def working(team: Team, size: int, *, late_s: float) -> Iterator[None]:
    """Let the team reduce over and over; its last rank starts `late_s` after the others each time."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            late = [{"late_s": late_s if rank == team.size - 1 else 0.0} for rank in range(team.size)]
            team.do("all_reduce", per_rank=late, elements=size // 16, dtype="float32", seed=9)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def show(figures: Sequence[Figure]) -> Table:
    """Return a table for a terminal."""
    return command.table(
        "Several racks, several jobs",
        ("part", "what", "workers", "bytes"),
        ("median", "min", "max", "resent", "up, of the tensor", "down, of the tensor"),
        (
            (
                *(row.part, row.what, str(row.workers), f"{row.bytes:,}"),
                *(f"{value * 1e3:.0f} ms" for value in (row.median_s, row.min_s, row.max_s)),
                str(row.retransmissions),
                *(
                    ", ".join(f"{name} {value:.3f}" for name, value in way.items())
                    for way in (row.up, row.down)
                ),
            )
            for row in figures
        ),
    )


def main() -> None:
    """Run the parts asked for."""
    parts: dict[str, Callable[[int, int], Iterator[Figure]]] = {
        "uplinks": uplinks,
        "spread": spread,
        "stragglers": stragglers,
    }
    parser = command.parser(__doc__)
    command.add_parts(parser, parts)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=16_000_000, help="of a tensor")
    arguments = parser.parse_args()
    console = command.console(180)
    figures: list[Figure] = []
    for name in arguments.parts:
        with console.status(name):
            figures += parts[name](arguments.rounds, arguments.bytes)
    console.print(show(figures))
    command.write(arguments.json, {"figures": [asdict(row) for row in figures]})


if __name__ == "__main__":
    main()
