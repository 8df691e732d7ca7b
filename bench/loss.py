"""Goodput against loss: in-network aggregation, the ring on the same transport, PyTorch's Gloo over TCP.

    sudo .venv/bin/python -m bench.loss --rounds 3 --json FILE --figure docs/loss.svg

One rack of 8 workers (--workers) for each loss, whose switch loses that share of all packets at every port,
in both directions: what goes from one host to another passes two such ports. Strategies run in turns, on
the same hosts and links, with fresh tensors each time. Each sum is compared with NumPy's, and its bits
between all ranks; one that is wrong, or not there in time, ends the benchmark with an error. Only Gloo may
be late: what its TCP connections do not carry in time is a row without a time, and rows of higher losses
leave it out. Gloo is left out where PyTorch is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import command, drawing
from p4reduce.workloads.compare import possible
from p4reduce.workloads.errors import VerificationError, WorkloadError
from p4reduce.workloads.strategies import names
from p4reduce.workloads.team import Team
from p4reduce.workloads.tensors import dtype_of
from topologies.fabric import Fabric
from topologies.rack import RackOptions

LOSSES: Final = (0.0, 0.0001, 0.001, 0.01, 0.05)
SELECTIVE: Final = "in-network-selective"
STRATEGIES: Final = (names.IN_NETWORK, SELECTIVE, names.RING, names.GLOO)
WORKERS: Final = 8
PATH_MTU: Final = 4096
RATES_MBIT: Final = (100.0, None)
DTYPE: Final = "float32"
_LIMIT_S: Final = 120.0  # for one sum
_BUDGET_S: Final = 12.0  # for a row: what is slower gets fewer rounds
_GLOO_LIMIT_S: Final = 60.0


class LateError(Exception):
    """A sum that is not there in time."""


@dataclass(kw_only=True)
class Row:
    """One strategy at one loss: `seconds` of each sum, the slowest worker's. No seconds: not done in time."""

    strategy: str
    loss: float
    rate_mbit: float | None
    bytes: int
    seconds: list[float] = field(default_factory=list)
    retransmissions: int = 0
    late: bool = False

    @property
    def median_s(self) -> float | None:
        """The median of all sums."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def goodput_mbit_s(self) -> float | None:
        """Tensor bits of a worker over time."""
        median = self.median_s
        return None if median is None else self.bytes * 8 / median / 1e6

    def as_json(self) -> dict[str, object]:
        """Return the row with the numbers that follow from it."""
        return {**asdict(self), "median_s": self.median_s, "goodput_mbit_s": self.goodput_mbit_s}


class SideBySide:
    """Workers of one rack, connected for all strategies."""

    def __init__(
        self, rack: Fabric, workers: int, strategies: Sequence[str], stack: contextlib.ExitStack
    ) -> None:
        self._rack, self._workers = rack, workers
        self._stack = stack
        self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-")))
        self._teams = {}
        plain = [strategy for strategy in strategies if strategy != SELECTIVE]
        self._teams.update(dict.fromkeys(plain, self._team("plain", plain, selective=False)))
        if SELECTIVE in strategies:
            self._teams[SELECTIVE] = self._team("selective", [names.IN_NETWORK], selective=True)

    def sum(self, strategy: str, *, elements: int, seed: int, limit_s: float) -> tuple[float, int]:
        """Run a sum of fresh tensors; return its seconds and resent packets (Gloo: segments). LateError."""
        team = self._teams[strategy]
        try:
            answers = team.do(
                "time_sums",
                per_rank=[{"verify": rank == 0} for rank in range(team.size)],
                strategy=names.IN_NETWORK if strategy == SELECTIVE else strategy,
                elements=elements,
                dtype=DTYPE,
                seed=seed,
                repeat=1,
                racks=team.racks,
                timeout_s=limit_s,
            )
        except WorkloadError as error:
            raise LateError(f"{strategy}: no sum within {limit_s:g} s: {error}") from error
        if len({digest for answer in answers for digest in answer["digests"]}) != 1:
            raise VerificationError(f"{strategy}: the workers' sums differ")
        check = answers[0]["check"]
        if not check["passed"]:
            raise VerificationError(
                f"{strategy}: a sum is off by {check['largest_error']:g}, the bound is {check['bound']:g}"
            )
        return max(answer["seconds"] for answer in answers), sum(a["retransmissions"] for a in answers)

    def leave(self, *, but: Sequence[str] = ()) -> None:
        """Leave the jobs; end the workers that still wait for a strategy in `but`."""
        for team in {id(team): team for team in self._teams.values()}.values():
            if any(self._teams.get(strategy) is team for strategy in but):
                team.terminate()
            else:
                team.do("leave")

    def _team(self, job: str, strategies: Sequence[str], **options: bool) -> Team:
        cluster = self._rack.state
        team = self._stack.enter_context(Team(cluster, self._workers))
        (answer, *_) = team.join(job, **options)
        if answer["mode"] != "in_network":
            raise WorkloadError(f"the switch takes no part: {answer['mode_reason']}")
        for strategy in strategies:
            team.do(
                "open",
                strategy=strategy,
                controller=cluster.controller,
                job=job,
                meeting_place=str(self._scratch / f"{job}-{strategy}"),
            )
        return team


@contextlib.contextmanager
def side_by_side(
    loss: float, rate_mbit: float | None, strategies: Sequence[str], *, workers: int
) -> Iterator[SideBySide]:
    """Build a rack of this loss with workers."""
    options = RackOptions(
        name=f"loss-{os.getpid()}",
        hosts=workers,
        path_mtu=PATH_MTU,
        rate_mbit=rate_mbit,
        switch_loss=loss,
    )
    with contextlib.ExitStack() as stack:
        yield SideBySide(stack.enter_context(Fabric(options)), workers, strategies, stack)


def rows_of(
    loss: float, rate_mbit: float | None, strategies: Sequence[str], *, workers: int, size: int, rounds: int
) -> list[Row]:
    """Return the rows of all strategies at one loss, run in turns after a warm-up."""
    rows = {s: Row(strategy=s, loss=loss, rate_mbit=rate_mbit, bytes=size) for s in strategies}
    elements = size // dtype_of(DTYPE).itemsize
    with side_by_side(loss, rate_mbit, strategies, workers=workers) as running:
        for number in range(rounds + 1):
            for strategy, row in rows.items():
                if row.late or sum(row.seconds) > _BUDGET_S:
                    continue
                limit_s = _GLOO_LIMIT_S if strategy == names.GLOO else _LIMIT_S
                try:
                    seconds, resent = running.sum(strategy, elements=elements, seed=number, limit_s=limit_s)
                except LateError:
                    if strategy != names.GLOO:
                        raise
                    row.late = True
                    continue
                if number or seconds > _BUDGET_S:  # the first one warms up, unless there is no time for more
                    row.seconds.append(seconds)
                    row.retransmissions += resent
        running.leave(but=[strategy for strategy, row in rows.items() if row.late])
    return list(rows.values())


def measure(arguments: argparse.Namespace, strategies: Sequence[str], console: Console) -> Iterator[Row]:
    """Yield all rows, rate by rate."""
    how = {"workers": arguments.workers, "size": arguments.bytes, "rounds": arguments.rounds}
    for rate in RATES_MBIT:
        going = list(strategies)
        for loss in arguments.losses:
            with console.status(f"{_rate(rate)}, loss {loss:.4%}"):
                rows = rows_of(loss, rate, going, **how)
            going = [row.strategy for row in rows if not row.late]
            yield from rows


def show(rows: Sequence[Row], workers: int) -> Table:
    """Return a table for a terminal."""
    return command.table(
        f"All-reduce under loss, {workers} workers, path MTU {PATH_MTU}",
        ("links", "loss", "strategy"),
        ("rounds", "median", "min", "max", "Mbit/s per worker", "resent"),
        map(_shown, rows),
    )


def _shown(row: Row) -> Sequence[str]:
    times = (row.median_s, min(row.seconds), max(row.seconds)) if row.seconds else (None,) * 3
    return (
        *(_rate(row.rate_mbit), f"{row.loss * 100:g} %", row.strategy, str(len(row.seconds))),
        *("late" if value is None else f"{value * 1e3:.0f} ms" for value in times),
        "" if row.goodput_mbit_s is None else f"{row.goodput_mbit_s:.1f}",
        str(row.retransmissions),
    )


def markdown(rows: Sequence[Row]) -> str:
    """Return goodput as a table for docs/loss.md: a column for each loss, resent packets in brackets."""
    losses = sorted({row.loss for row in rows})
    found = []
    for rate, strategy in dict.fromkeys((row.rate_mbit, row.strategy) for row in rows):
        own = {row.loss: row for row in rows if (row.rate_mbit, row.strategy) == (rate, strategy)}
        found.append([_rate(rate), strategy, *(_cell(own.get(loss)) for loss in losses)])
    headings = [f"{loss * 100:g} %" for loss in losses]
    return "\n".join(command.markdown(["links", "strategy"], headings, found)) + "\n"


def _cell(row: Row | None) -> str:
    if row is None or row.goodput_mbit_s is None:
        return "late"
    resent = row.retransmissions / len(row.seconds)
    return f"{row.goodput_mbit_s:.1f} ({resent:,.0f})"


def _rate(rate_mbit: float | None) -> str:
    return "no rate" if rate_mbit is None else f"{rate_mbit:g} Mbit/s"


def figure(rows: Sequence[Row]) -> str:
    """Draw goodput over loss, a panel for each link rate: losses evenly spaced, goodput logarithmic."""
    colours = drawing.coloured(row.strategy for row in rows)
    panels = []
    for column, rate in enumerate(dict.fromkeys(row.rate_mbit for row in rows)):
        own = sorted((row for row in rows if row.rate_mbit == rate), key=lambda row: row.loss)
        losses = sorted({row.loss for row in own})
        known = [row.goodput_mbit_s for row in own if row.goodput_mbit_s] or [1.0]
        low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
        panel = drawing.Panel(
            "links without a rate" if rate is None else f"links of {rate:g} Mbit/s",
            drawing.Axis(
                "loss at each port, both directions",
                {float(place): f"{loss * 100:g} %" for place, loss in enumerate(losses)},
            ),
            drawing.Axis(
                "Mbit/s per worker",
                {10.0**n: f"{10.0**n:g}" for n in range(low, max(high, low + 1) + 1)},
                by=math.log10,
            ),
            size=(380.0, 300.0),
            column=column,
        )
        for strategy, colour in colours.items():
            points = [
                (float(losses.index(row.loss)), row.goodput_mbit_s)
                for row in own
                if row.strategy == strategy and row.goodput_mbit_s
            ]
            panel.line(points, colour)
            panel.dots(points, fill=colour)
        panels.append(panel)
    return drawing.figure("Goodput of all-reduce against packet loss", panels, colours)


def main() -> None:
    """Run the benchmark, show its results and write them."""
    parser = command.parser(__doc__, draws=True)
    parser.add_argument("--rounds", type=int, default=3, help="how often each strategy runs at each loss")
    parser.add_argument("--workers", type=int, default=WORKERS, help="of the rack, 2 to 32")
    parser.add_argument("--bytes", type=int, default=4_000_000, help="of each worker's tensor")
    parser.add_argument(
        "--losses", type=lambda text: [float(word) for word in text.split(",")], default=LOSSES,
        help="probabilities, separated by commas",
    )  # fmt: skip
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="separated by commas")
    arguments = parser.parse_args()
    console = command.console(140)
    asked = [one for one in STRATEGIES if one in arguments.strategies.split(",")]
    strategies, skipped = possible(asked, asked=False)
    for why in skipped.values():
        console.print(why)
    rows = list(measure(arguments, strategies, console))
    console.print(show(rows, arguments.workers))
    found = {
        "workers": arguments.workers,
        "path_mtu": PATH_MTU,
        "dtype": DTYPE,
        "rows": [row.as_json() for row in rows],
    }
    command.write(arguments.json, found)
    command.write_text(arguments.table, lambda: markdown(rows))
    command.write_text(arguments.figure, lambda: figure(rows))


if __name__ == "__main__":
    main()
