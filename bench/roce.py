"""Linux's own RoCE v2 stack: through the switch, and between the same machines directly bridged.

    sudo .venv/bin/python -m bench.roce --json results.json      (after `make roce-image`)

Two machines (`p4reduce up rack --host-kind roce`) do in turns, round by round: `ib_send_bw` and a ring
all-reduce with the switch's ports in a Linux bridge (the switch is stopped meanwhile), both through the
switch, and an all-reduce that the switch sums. Goodput of an all-reduce is tensor bytes over time
(nccl-tests' algbw). The machines are emulated in software: what carries over is the ratio of the rows.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.table import Table

from bench import command
from controller.api.admin import AdminClient
from controller.config import Target
from p4reduce.workloads.allreduce import Request, measure, require_right
from p4reduce.workloads.team import Team
from topologies import launch
from topologies.fabric import Fabric
from topologies.namespaces import run
from topologies.rack import RackOptions

_BRIDGE: Final = "direct0"
_SEND_BW: Final = ("ib_send_bw", "-d", "rxe0", "-x", "1", "-F")
_RATE = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)", re.MULTILINE)


@contextlib.contextmanager
def bridged(rack: Fabric) -> Iterator[None]:
    """Stop the switch and put its ports into a bridge: a cable between the machines."""
    (switch,) = rack.state.switches
    run("ip", "link", "add", _BRIDGE, "type", "bridge")
    try:
        switch.process.signal(signal.SIGSTOP)
        for interface in switch.interfaces.values():
            run("ip", "link", "set", interface, "master", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")
        yield
    finally:
        try:
            run("ip", "link", "delete", _BRIDGE)
        finally:
            switch.process.signal(signal.SIGCONT)
    # It now forwards what it saw of that, which receivers know already.
    with AdminClient(f"unix:{rack.state.control_socket}") as admin:
        before, now = -1, 0
        while now != before:
            time.sleep(0.2)
            before, now = now, sum(port.received.packets for port in admin.ports())


def send_bw(rack: Fabric, *, size: int, count: int) -> float:
    """Run `ib_send_bw` from h2 to h1; return MB/s (10^6 bytes)."""
    options = [*_SEND_BW, "-s", str(size), "-n", str(count)]
    server = launch.start(
        rack.state, rack.state.host("h1"), options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    started = [server]
    try:
        for _ in range(10):  # refused until the server listens
            client = launch.start(
                rack.state,
                rack.state.host("h2"),
                [*options, rack.state.host("h1").ip],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            started.append(client)
            report, _ = client.communicate(timeout=120)
            if client.returncode == 0:
                break
            time.sleep(1.0)
    finally:
        launch.stop(rack.state, started)
    found = _RATE.search(report)
    if found is None:
        raise SystemExit(f"ib_send_bw failed: {report}")
    return float(found[4]) * 2**20 / 1e6  # its MB are 2^20 bytes


def all_reduce(team: Team, request: Request) -> float:
    """Run one all-reduce; return tensor bytes over its time, in MB/s."""
    outcome = measure(team, request)
    require_right(outcome, f"{request.bytes} bytes, {request.strategy}")
    return request.bytes / outcome.timing.median_s / 1e6


def compare(target: Target, *, path_mtu: int, rounds: int, size: int) -> list[dict[str, Any]]:
    """Return the figures of all columns on one rack."""
    options = RackOptions(
        name=f"bench-{os.getpid()}", hosts=2, switch=target, path_mtu=path_mtu, host_kinds=("roce", "roce")
    )
    ring, summed = (Request(bytes=size, strategy=strategy, seed=3) for strategy in ("ring", "in-network"))
    figures: dict[tuple[str, str], list[float]] = {}
    with Fabric(options) as rack, Team(rack.state, 2) as ringing, Team(rack.state, 2) as summing:
        with AdminClient(f"unix:{rack.state.control_socket}") as admin:
            admin.create_job("ring", world_size=2, mode="ring")  # its barriers need no switch either
        for team, job, mode in ((ringing, "ring", "ring"), (summing, "sums", "in_network")):
            (joined, *_) = team.join(job)
            if (joined["mode"], joined["transport"]) != (mode, "verbs"):
                raise SystemExit(f"not what is to be measured: {joined}")

        def turn(path: str, what: str, measured: Callable[[], float]) -> None:
            figures.setdefault((path, what), []).append(measured())

        for _ in range(rounds):
            with bridged(rack):
                turn("bridge", "ib_send_bw", lambda: send_bw(rack, size=65536, count=200))
                turn("bridge", "ring all-reduce", lambda: all_reduce(ringing, ring))
            turn("switch", "ib_send_bw", lambda: send_bw(rack, size=65536, count=200))
            turn("switch", "ring all-reduce", lambda: all_reduce(ringing, ring))
            turn("switch", "in-network all-reduce", lambda: all_reduce(summing, summed))
        for team in (ringing, summing):
            team.do("leave")
    return [
        {
            "switch": target.value,
            "path_mtu": path_mtu,
            "path": path,
            "what": what,
            "rounds": rounds,
            "median_mb_s": statistics.median(values),
            "min_mb_s": min(values),
            "max_mb_s": max(values),
        }
        for (path, what), values in figures.items()
    ]


def show(figures: Sequence[dict[str, Any]]) -> Table:
    """Return a table for a terminal."""
    return command.table(
        "rdma_rxe, two machines",
        ("switch", "path MTU", "path", "what"),
        ("median MB/s", "min", "max"),
        (
            (
                row["switch"] if row["path"] == "switch" else "(stopped)",
                *(str(row["path_mtu"]), row["path"], row["what"]),
                *(f"{row[name]:.2f}" for name in ("median_mb_s", "min_mb_s", "max_mb_s")),
            )
            for row in figures
        ),
    )


def main() -> None:
    """Run the benchmark on each switch that is here."""
    parser = command.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path-mtu", type=int, default=1024)
    parser.add_argument("--bytes", type=int, default=4_000_000, help="tensor of the all-reduces")
    arguments = parser.parse_args()
    console = command.console(180)
    figures: list[dict[str, Any]] = []
    for target in command.targets(console):
        with console.status(target.value):
            figures += compare(
                target, path_mtu=arguments.path_mtu, rounds=arguments.rounds, size=arguments.bytes
            )
    console.print(show(figures))
    command.write(arguments.json, {"figures": figures})


if __name__ == "__main__":
    main()
