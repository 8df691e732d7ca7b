"""In-network aggregation against the ring on the same connections and PyTorch's Gloo over TCP, in racks.

    sudo .venv/bin/python -m bench.compare --rounds 5 [--dtype bfloat16] --json FILE

Three things: 32,000,000 bytes over links of 100 Mbit/s with 4 and 8 workers; 1,024 bytes over the same;
64,000,000 bytes without rates, 4 workers. Path MTU 4096, the embedded switch, strategies in turns.
Gloo is left out, and named as left out, where PyTorch is not installed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console

from bench import command
from topologies.fabric import Fabric
from topologies.rack import RackOptions
from workloads.compare import Comparison, compare_on, new_run, possible
from workloads.reporting.tables import run_tables
from workloads.run_file import Run
from workloads.strategies import names
from workloads.tensors import DTYPES

STRATEGIES = (names.IN_NETWORK, names.RING, names.GLOO)


@dataclass(frozen=True, kw_only=True)
class Race:
    """What is run side by side; small tensors take many more rounds."""

    workers: int
    bytes: int
    dtype: str
    rate_mbit: float | None
    rounds: int
    strategies: tuple[str, ...] = STRATEGIES


def races(rounds: int, dtype: str) -> Iterator[Race]:
    """All of them."""
    for workers in (4, 8):
        yield Race(workers=workers, bytes=32_000_000, dtype=dtype, rate_mbit=100.0, rounds=rounds)
    for workers in (4, 8):
        yield Race(workers=workers, bytes=1024, dtype=dtype, rate_mbit=100.0, rounds=8 * rounds)
    yield Race(workers=4, bytes=64_000_000, dtype=dtype, rate_mbit=None, rounds=2 * rounds)


def run(race: Race, console: Console) -> Run:
    """One race on a rack of its own."""
    strategies, skipped = possible(race.strategies, asked=False)
    options = RackOptions(
        name=f"bench-{os.getpid()}", hosts=race.workers, path_mtu=4096, rate_mbit=race.rate_mbit
    )
    comparison = Comparison(bytes=race.bytes, strategies=strategies, rounds=race.rounds, dtype=race.dtype)
    with console.status("") as status, Fabric(options, progress=status.update) as rack:
        found = compare_on(rack.state, rack.state.hosts, comparison, progress=status.update)
        return new_run(
            rack.state,
            rack.state.hosts,
            kind="compare",
            dtype=comparison.dtype,
            command=" ".join(["python", "-m", "bench.compare", *sys.argv[1:]]),
            results=found.results,
            skipped=skipped,
        )


def main() -> None:
    """Run all, show and write them."""
    parser = command.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each strategy runs")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="the elements' type")
    arguments = parser.parse_args()
    console, found = command.console(140), []
    for race in races(arguments.rounds, arguments.dtype):
        found.append(run(race, console))
        console.print(run_tables(found[-1]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([one.as_json() for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
