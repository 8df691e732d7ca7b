"""Collectives in the network and by ring, and whether what AUTO takes is the faster way.

    sudo .venv/bin/python -m bench.collectives --rounds 3 --json FILE

float32 and bfloat16 over links of 100 Mbit/s and without a rate, 2, 4 and 8 workers, path MTU 4096; both ways
in turns. Beside the times is what `plan.cheaper` says, which AUTO goes by, and how much longer that takes
than the faster way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import numpy as np
from rich.table import Table

from bench import command
from host_agent.collectives.plan import Strategy, cheaper
from host_agent.communicator import Communicator
from host_agent.quantisation import BFLOAT16
from host_agent.wire.aggregation import Kind
from topologies.fabric import Fabric
from topologies.rack import RackOptions

Row = dict[str, Any]
WAYS: Final = (Strategy.IN_NETWORK, Strategy.RING)
DTYPES: Final = {"float32": np.dtype(np.float32), "bfloat16": BFLOAT16}
CALLS: Final = [
    *((Kind.ALL_REDUCE, nbytes) for nbytes in (1024, 1 << 16, 1 << 20, 1 << 23)),
    *((Kind.BROADCAST, nbytes) for nbytes in (1024, 1 << 20)),
    *((Kind.ALL_GATHER, nbytes) for nbytes in (256, 1 << 12, 1 << 15, 1 << 18, 1 << 20)),
    *((Kind.REDUCE_SCATTER, nbytes) for nbytes in (1024, 1 << 15, 1 << 18, 1 << 20, 1 << 23)),
]


def measure(communicator: Communicator, rounds: int) -> dict[str, float]:
    """Return the seconds of each call each way, by `_name`: the median of some, after one warm-up."""
    found = {}
    for dtype, (kind, nbytes) in product(DTYPES, CALLS):
        array = np.ones(nbytes // DTYPES[dtype].itemsize, DTYPES[dtype])
        seconds: dict[Strategy, list[float]] = {way: [] for way in WAYS}
        repeat = max(1, min(20, (1 << 20) // nbytes))
        for number in range(rounds + 1):
            for way in WAYS:
                communicator.barrier()
                began = time.perf_counter()
                for _ in range(repeat):
                    getattr(communicator, kind.name.lower())(array, strategy=way)
                if number:
                    seconds[way].append((time.perf_counter() - began) / repeat)
        for way in WAYS:
            found[_name(dtype, kind, nbytes, way)] = statistics.median(seconds[way])
    return found


def _name(dtype: str, kind: Kind, nbytes: int, way: Strategy) -> str:
    return f"{dtype} {kind.name} {nbytes} {way.value}"


def rows(workers: int, rate_mbit: float | None, rounds: int) -> Iterator[Row]:
    """Yield the rows of a rack of its own, with the slowest worker's times."""
    options = RackOptions(name=f"bench-{os.getpid()}", hosts=workers, path_mtu=4096, rate_mbit=rate_mbit)
    with Fabric(options) as rack:
        found = command.on_hosts(rack.state, "--rounds", str(rounds), "--join", rack.state.controller)
    for dtype, (kind, nbytes) in product(DTYPES, CALLS):
        times = {way: max(one[_name(dtype, kind, nbytes, way)] for one in found) for way in WAYS}
        chosen = cheaper(kind, nbytes, workers, scaled=kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER))
        yield {
            "rate_mbit": rate_mbit,
            "workers": workers,
            "dtype": dtype,
            "collective": kind.name.lower(),
            "bytes": nbytes,
            "in_network_s": times[Strategy.IN_NETWORK],
            "ring_s": times[Strategy.RING],
            "auto": chosen.value,
            "longer_than_the_faster": times[chosen] / min(times.values()),
        }


def show(found: list[Row]) -> Table:
    """Return a table for a terminal."""
    return command.table(
        "Collectives both ways",
        ("link", "workers", "dtype", "collective"),
        ("bytes", "in-network", "ring", "AUTO", "longer"),
        (
            (
                f"{row['rate_mbit']:g} Mbit/s" if row["rate_mbit"] else "no rate",
                *(str(row["workers"]), row["dtype"], row["collective"], f"{row['bytes']:,}"),
                *(f"{row[way] * 1e3:.2f} ms" for way in ("in_network_s", "ring_s")),
                row["auto"],
                f"{row['longer_than_the_faster']:.2f}",
            )
            for row in found
        ),
    )


def main() -> None:
    """Run all, show and write them; with --join, be a worker of the benchmark."""
    parser = command.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way runs")
    parser.add_argument("--join", metavar="CONTROLLER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.join:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        with Communicator.join(arguments.join, job="both-ways", rank=rank, world_size=size) as joined:
            print(json.dumps(measure(joined, arguments.rounds)))
        return
    found = [
        row
        for rate_mbit in (100.0, None)
        for workers in (2, 4, 8)
        for row in rows(workers, rate_mbit, arguments.rounds)
    ]
    command.console(140).print(show(found))
    command.write(arguments.json, {"rows": found})


if __name__ == "__main__":
    main()
