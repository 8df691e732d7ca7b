"""Gain of training from sums in the network, simulated: iterations by link rate, and rings by size.

    .venv/bin/python -m bench.scale --json scale.json --table scale.md --figure docs/scale.svg

Nothing here is measured. `iterations`: eight machines with a GPU each, all bundled models, links of 1 to 100
Gbit/s, with DDP's overlap and without; how many times as long an iteration takes with the ring. `sums`: 32 to
1,024 GPUs, one or eight a machine, by size of the tensor; the flat ring over the sum in the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final

from rich.table import Table

from bench import command, drawing
from bench.drawing import Axis, Panel
from p4reduce.scale.fabric import Fabric
from p4reduce.scale.sweep import Cell, Outcome, run, run_all
from p4reduce.workloads.hierarchy import speedup_of_iteration
from p4reduce.workloads.reporting.quantities import seconds, size
from p4reduce.workloads.strategies.names import FLAT_RING, HIERARCHICAL, IN_NETWORK
from p4reduce.workloads.traffic.tables import MODELS, bundled

MACHINES: Final = 8
RATES_GBIT: Final = (1, 2.5, 5, 10, 25, 50, 100)
CLAIMS: Final = {"alexnet": 1.7, "bert-base": 1.5}  # speed-ups that papers have
SIZES: Final = (64_000, 1_000_000, 16_000_000, 244_000_000)
GPUS: Final = (32, 64, 128, 256, 512, 1024)
ALPHA_S: Final = 3e-6
K: Final = 12.0
_CLOSE: Final = 1e-4
_PANEL: Final = (430.0, 340.0)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """An iteration. `share`: of the ring's sums in it if nothing overlaps; `formula`: S of that share."""

    model: str
    rate_gbit: float
    overlap: bool
    share: float
    ring_s: float
    in_network_s: float
    formula: float

    @property
    def speedup(self) -> float:
        return self.ring_s / self.in_network_s


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The fastest links on which a model has a speed-up; None: it has none at any rate."""

    model: str
    speedup: float
    overlap: bool
    up_to_gbit: float | None
    share: float | None


@dataclass(frozen=True, kw_only=True)
class Summed:
    """A sum on so many GPUs: the flat ring beside the network, by planes where a machine has several."""

    gpus: int
    gpus_per_host: int
    bytes: int
    ring_s: float
    in_network_s: float

    @property
    def ratio(self) -> float:
        return self.ring_s / self.in_network_s


def machines(rate_gbit: float) -> Fabric:
    """Return eight machines in a rack, with a GPU each."""
    rate = rate_gbit * 1e9
    return Fabric(hosts=MACHINES, rate=rate, intra_rate=rate, uplink_rate=rate)


def iterations(executor: Executor | None) -> list[Trained]:
    """Return the iterations of all models and rates, with overlap and without."""
    found: list[Trained] = []
    cells = [cell for model in MODELS for rate in RATES_GBIT for cell in _trained_cells(model, rate)]
    outcomes = iter(run_all(cells, executor))
    for model in MODELS:
        for rate in RATES_GBIT:
            found += _trained(model, rate, [next(outcomes) for _ in range(4)])
    return found


def _trained_cells(model: str, rate_gbit: float) -> list[Cell]:
    return [
        Cell(what=bundled(model), strategy=strategy, fabric=machines(rate_gbit), overlap=overlap)
        for overlap in (False, True)
        for strategy in (FLAT_RING, IN_NETWORK)
    ]


def _trained(model: str, rate_gbit: float, outcomes: Sequence[Outcome]) -> list[Trained]:
    alone = outcomes[0]
    share = (alone.summing_s or 0.0) / alone.seconds
    return [
        Trained(
            model=model,
            rate_gbit=rate_gbit,
            overlap=ring.cell.overlap,
            share=share,
            ring_s=ring.seconds,
            in_network_s=in_network.seconds,
            formula=speedup_of_iteration(share, MACHINES),
        )
        for ring, in_network in (outcomes[:2], outcomes[2:])
    ]


def claims() -> Iterator[Claim]:
    """Yield for each claim the fastest links on which it holds, found by halving."""
    for model, speedup in CLAIMS.items():
        for overlap in (False, True):

            def at(rate: float, model: str = model, overlap: bool = overlap) -> Trained:
                found = _trained(model, rate, [run(cell) for cell in _trained_cells(model, rate)])
                return found[overlap]

            held = [rate for rate in RATES_GBIT if at(rate).speedup >= speedup]
            if not held:
                yield Claim(model=model, speedup=speedup, overlap=overlap, up_to_gbit=None, share=None)
                continue
            low = max(held)
            high = min((rate for rate in RATES_GBIT if rate > low), default=low)
            while high - low > _CLOSE * low:
                middle = (low + high) / 2
                low, high = (middle, high) if at(middle).speedup >= speedup else (low, middle)
            yield Claim(model=model, speedup=speedup, overlap=overlap, up_to_gbit=low, share=at(low).share)


def sums(executor: Executor | None) -> list[Summed]:
    """Return sums of all sizes and numbers of GPUs, one and eight a machine."""
    given = [(per_host, bytes_, gpus) for per_host in (1, 8) for bytes_ in SIZES for gpus in GPUS]
    rate = 100e9
    cells = []
    for per_host, bytes_, gpus in given:
        fabric = Fabric(
            hosts=gpus // per_host, gpus_per_host=per_host, rate=rate, intra_rate=K * rate,
            uplink_rate=4 * rate, alpha_s=ALPHA_S,
        )  # fmt: skip
        cells += [Cell(what=bytes_, strategy=one, fabric=fabric) for one in (FLAT_RING, HIERARCHICAL)]
    outcomes = run_all(cells, executor)
    return [
        Summed(
            gpus=gpus, gpus_per_host=per_host, bytes=bytes_,
            ring_s=outcomes[2 * place].seconds, in_network_s=outcomes[2 * place + 1].seconds,
        )
        for place, (per_host, bytes_, gpus) in enumerate(given)
    ]  # fmt: skip


def sentence(claim: Claim) -> str:
    """Return the outcome of a claim in words."""
    how = "with overlap" if claim.overlap else "without overlap"
    said = f"{claim.model}, simulated, {how}: {claim.speedup:g} times as fast"
    if claim.up_to_gbit is None or claim.share is None:
        return f"{said} at none of these rates"
    if claim.up_to_gbit >= RATES_GBIT[-1]:
        return f"{said} or more at all these rates"
    return f"{said} or more on links of up to {claim.up_to_gbit:.3g} Gbit/s, where f is {claim.share:.2f}"


def markdown(trained: Sequence[Trained], summed: Sequence[Summed], found: Sequence[Claim]) -> str:
    """Return the tables for the page."""
    iterations_ = []
    for model in MODELS:
        cells = []
        for rate in RATES_GBIT:
            off, on = (one for one in trained if one.model == model and one.rate_gbit == rate)
            cells.append(f"{off.share:.2f}: {off.speedup:.2f} / {on.speedup:.2f}")
        iterations_.append([model, *cells])
    ratios = [
        [
            str(per_host),
            size(bytes_),
            *(f"{one.ratio:.3g}" for one in summed if _place(one) == (per_host, bytes_)),
        ]
        for per_host in (1, 8)
        for bytes_ in SIZES
    ]
    lines = [
        *command.markdown(["model"], [f"{rate:g}" for rate in RATES_GBIT], iterations_),
        *("", *(f"- {sentence(claim)}" for claim in found), ""),
        *command.markdown(["GPUs a machine", "tensor"], [f"{gpus:,}" for gpus in GPUS], ratios),
    ]
    return "\n".join(lines) + "\n"


def _place(one: Summed) -> tuple[int, int]:
    return one.gpus_per_host, one.bytes


def show(trained: Sequence[Trained]) -> Table:
    """Return the iterations as a table for a terminal."""
    return command.table(
        "Iterations of training, simulated: eight machines, a GPU each",
        ("model", "overlap"),
        ("Gbit/s", "f", "ring", "in network", "times", "S(f)"),
        (
            (
                *(one.model, "yes" if one.overlap else "no", f"{one.rate_gbit:g}", f"{one.share:.2f}"),
                *(seconds(one.ring_s), seconds(one.in_network_s)),
                *(f"{one.speedup:.2f}", f"{one.formula:.2f}"),
            )
            for one in trained
        ),
    )


def figure(trained: Sequence[Trained], summed: Sequence[Summed]) -> str:
    """Draw S(f) with its points; then ring over in-network by the number of GPUs."""
    colours, sizes = (
        drawing.coloured(one.model for one in trained),
        list(dict.fromkeys(o.bytes for o in summed)),
    )
    panels = [_gains(trained, colours)]
    for column, per_host in enumerate(dict.fromkeys(one.gpus_per_host for one in summed), start=1):
        own = [one for one in summed if one.gpus_per_host == per_host]
        panels.append(_ratios(own, drawing.coloured(map(size, sizes)), column=column))
    title = "Simulated: what in-network sums give training, and rings over sums in the network"
    return drawing.figure(title, panels, colours, drawing.coloured(map(size, sizes)))


def _gains(trained: Sequence[Trained], colours: dict[str, str]) -> Panel:
    panel = Panel(
        f"Simulated: an iteration on {MACHINES} machines, times as fast",
        Axis(
            "f, the share of the ring's sums in an iteration",
            {tick / 10: f"{tick / 10:g}" for tick in range(0, 11, 2)},
        ),
        Axis("", {tick / 10: f"{tick / 10:.1f}" for tick in range(10, 20, 2)}, (0.9, 1.9)),
        size=_PANEL,
    )
    shares = [step / 40 for step in range(41)]
    panel.line([(share, speedup_of_iteration(share, MACHINES)) for share in shares], "#8b949e")
    panel.write("S(f)", 0.5, speedup_of_iteration(0.5, MACHINES), above=10)
    for model, claim in CLAIMS.items():
        panel.line([(0, claim), (1, claim)], colours[model], kind="line dashed")
        panel.write(f"{claim:g} ({model})", 0.01, claim, above=5, anchor="start")
    for one in trained:
        how = (
            {"class_": "hollow", "stroke": colours[one.model]}
            if one.overlap
            else {"fill": colours[one.model]}
        )
        panel.dots([(one.share, one.speedup)], **how)
    panel.write("full: nothing overlaps; hollow: as DDP", 1, 0.93, anchor="end")
    return panel


def _ratios(summed: Sequence[Summed], colours: dict[str, str], *, column: int) -> Panel:
    gpus, per_host = sorted({one.gpus for one in summed}), summed[0].gpus_per_host
    top = max(1, math.ceil(math.log10(max(one.ratio for one in summed))))
    machine = "one GPU a machine" if per_host == 1 else f"{per_host} GPUs a machine"
    panel = Panel(
        f"Simulated: flat ring over in-network, {machine}",
        Axis("GPUs", {float(place): f"{many:,}" for place, many in enumerate(gpus)}),
        Axis("", {10.0**n: f"{10**n}" for n in range(top + 1)}, by=math.log10),
        size=_PANEL,
        column=column,
    )
    for bytes_ in dict.fromkeys(one.bytes for one in summed):
        own = sorted((one for one in summed if one.bytes == bytes_), key=lambda one: one.gpus)
        points = [(float(gpus.index(one.gpus)), one.ratio) for one in own]
        panel.line(points, colours[size(bytes_)])
        panel.dots(points, fill=colours[size(bytes_)])
    return panel


def main() -> None:
    """Run the simulations, show their results and write them."""
    arguments = command.parser(__doc__, draws=True).parse_args()
    console = command.console(100)
    with console.status("simulating"), ProcessPoolExecutor(2) as processes:
        trained, summed = iterations(processes), sums(processes)
        found = list(claims())
    console.print(show(trained))
    for claim in found:
        console.print(sentence(claim))
    command.write(
        arguments.json,
        {
            "simulated": "flow",
            "iterations": [asdict(one) | {"speedup": one.speedup} for one in trained],
            "claims": [asdict(one) for one in found],
            "sums": [asdict(one) | {"ratio": one.ratio} for one in summed],
        },
    )
    command.write_text(arguments.table, lambda: markdown(trained, summed, found))
    command.write_text(arguments.figure, lambda: figure(trained, summed))


if __name__ == "__main__":
    main()
