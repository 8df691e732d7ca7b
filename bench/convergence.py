"""Training with gradients in 16 bits on the wire against float32: test accuracy by epoch, over several seeds.

    .venv/bin/python -m bench.convergence --json FILE --figure docs/convergence.svg --table FILE

8 workers' data-parallel gradient descent with momentum on handwritten digits, in one process and without a
network: `bench.convergence_training` says how gradients are summed. Two trainings are plain: the network of
`p4reduce.workloads.digits`, and a convolutional one in PyTorch; where that is not installed, it is left out.
Two are made so that what a sum loses matters. From a seed, every way to sum gets the same first parameters,
and the same samples in the same order. A way is *within the spread* where its mean over all seeds is not
farther from that of the first way in its training than the standard deviation of that one's seeds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich.table import Table

from bench import command, drawing
from bench.accuracy_rows import power_of_ten
from bench.convergence_training import BATCH, SETTINGS, WORKERS, Setting, Trained, train
from p4reduce.workloads.strategies.gloo import gloo_missing


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to sum in one setting: `accuracy` by seed and epoch.

    `apart`, by seed: the distance of its last parameters from those of the setting's first way, as a share of
    their norm.
    """

    setting: str
    way: str
    accuracy: list[list[float]]
    apart: list[float]

    @property
    def mean(self) -> list[float]:
        """The means of all seeds, by epoch."""
        return [statistics.mean(epoch) for epoch in zip(*self.accuracy, strict=True)]

    @property
    def spread(self) -> list[float]:
        """The standard deviations of the seeds, by epoch."""
        return [statistics.stdev(epoch) for epoch in zip(*self.accuracy, strict=True)]

    @property
    def last(self) -> list[float]:
        """The accuracy after the last epoch, by seed."""
        return [epochs[-1] for epochs in self.accuracy]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A row against its setting's first: the difference of the last means, and epochs within the spread."""

    difference: float
    within: bool
    epochs_within: int
    epochs: int


def verdict(row: Row, first: Row) -> Verdict:
    """Judge whether the means differ by no more than the standard deviation of `first`."""
    differences = [mean - wanted for mean, wanted in zip(row.mean, first.mean, strict=True)]
    within = [abs(difference) <= spread for difference, spread in zip(differences, first.spread, strict=True)]
    return Verdict(
        difference=differences[-1], within=within[-1], epochs_within=sum(within), epochs=len(within)
    )


def judged(rows: Sequence[Row]) -> Iterator[tuple[Row, Verdict | None]]:
    """Yield each row with its verdict; the first of a setting has none."""
    firsts: dict[str, Row] = {}
    for row in rows:
        first = firsts.setdefault(row.setting, row)
        yield row, None if row is first else verdict(row, first)


def possible(settings: Sequence[Setting]) -> tuple[list[Setting], list[str]]:
    """Return the settings whose libraries are here, and a sentence for each other one."""
    missing = gloo_missing()
    skipped = [f"{one.name} is left out: {missing}" for one in settings if one.torch and missing]
    return [one for one in settings if not (one.torch and missing)], skipped


def measure(settings: Sequence[Setting], *, seeds: int, epochs: int | None) -> Iterator[Row]:
    """Run all trainings, one after the other, and yield their rows."""
    for setting in settings:
        first: list[Trained] = []
        for way in setting.ways:
            runs = [train(setting, way, seed=seed, epochs=epochs) for seed in range(seeds)]
            first = first or runs
            yield Row(
                setting=setting.name,
                way=way,
                accuracy=[run.accuracy for run in runs],
                apart=[_apart(run, other) for run, other in zip(runs, first, strict=True)],
            )


def _apart(one: Trained, other: Trained) -> float:
    distance = np.linalg.norm(one.parameters - other.parameters)
    return float(distance / np.linalg.norm(other.parameters))


def cells(row: Row, found: Verdict | None) -> list[str]:
    """Return the cells of a row in tables."""
    return [
        row.setting,
        row.way,
        f"{row.mean[-1] * 100:.2f} %",
        f"{row.spread[-1] * 100:.2f}",
        f"{min(row.last) * 100:.1f} to {max(row.last) * 100:.1f}",
        f"{found.difference * 100:+.2f}" if found else "",
        ("yes" if found.within else "no") if found else "",
        f"{found.epochs_within} of {found.epochs}" if found else "",
        power_of_ten(statistics.median(row.apart), digits=0) if found else "",
    ]


_HEADINGS = (
    "training",
    "gradients",
    "accuracy",
    "std. dev.",
    "lowest to highest",
    "difference",
    "within the spread",
    "epochs within",
    "parameters apart",
)


def show(rows: Sequence[Row]) -> Table:
    """Return a table for a terminal."""
    title = f"Test accuracy after the last epoch, {WORKERS} workers"
    return command.table(title, _HEADINGS[:2], _HEADINGS[2:], (cells(*one) for one in judged(rows)))


def markdown(rows: Sequence[Row]) -> str:
    """Return the same table for docs/accuracy.md."""
    lines = command.markdown(_HEADINGS[:2], _HEADINGS[2:], (cells(*one) for one in judged(rows)))
    return "\n".join(lines) + "\n"


def figure(rows: Sequence[Row]) -> str:
    """Draw the test error by epoch, logarithmic: a panel for each training, a line for each way in its band.

    A band is a standard deviation wide. Later lines are thinner, so that lines on each other are all seen.
    """
    colours = drawing.coloured(row.way for row in rows)
    ticks = {share: f"{share * 100:g} %" for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)}
    wrong = drawing.Axis("test samples named wrong", ticks, by=math.log)
    panels = []
    for number, setting in enumerate(dict.fromkeys(row.setting for row in rows)):
        own = [row for row in rows if row.setting == setting]
        epochs = range(1, len(own[0].mean) + 1)
        shown = {float(epoch): str(epoch) for epoch in epochs if epoch in (1, epochs[-1]) or epoch % 5 == 0}
        panel = drawing.Panel(
            setting,
            drawing.Axis("epoch", shown, (1, max(2, epochs[-1]))),
            wrong,
            size=(400.0, 290.0),
            column=number % 2,
            row=number // 2,
        )
        for row in own:
            upper, lower = (
                [
                    (float(epoch), 1 - mean - sign * spread)
                    for epoch, mean, spread in zip(epochs, row.mean, row.spread, strict=True)
                ]
                for sign in (1, -1)
            )
            panel.area([*upper, *reversed(lower)], colours[row.way])
        for place, row in enumerate(own):
            means = [(float(epoch), 1 - mean) for epoch, mean in zip(epochs, row.mean, strict=True)]
            panel.line(means, colours[row.way], style=f"stroke-width:{10 - 2 * place}")
        panels.append(panel)
    title = "Test error of trainings by epoch, for several ways to sum gradients"
    return drawing.figure(title, panels, colours)


def main() -> None:
    """Run the benchmark, show its results and write them."""
    parser = command.parser(__doc__, draws=True)
    parser.add_argument("--seeds", type=int, default=8, help="how often each is trained, from 2 on")
    parser.add_argument("--epochs", type=int, help="of each training, in place of its own number")
    parser.add_argument("--settings", default=",".join(one.name for one in SETTINGS), help="comma-separated")
    arguments = parser.parse_args()
    names, known = arguments.settings.split(","), [one.name for one in SETTINGS]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--settings: {', '.join(unknown)}: there are {', '.join(known)}")
    if arguments.seeds < 2:
        parser.error("--seeds: a spread takes two or more")
    if arguments.epochs is not None and arguments.epochs < 1:
        parser.error("--epochs: one or more")
    console = command.console(160)
    settings, skipped = possible([one for one in SETTINGS if one.name in names])
    for why in skipped:
        console.print(why)
    began = time.monotonic()
    rows = list(measure(settings, seeds=arguments.seeds, epochs=arguments.epochs))
    console.print(show(rows))
    found = {
        "seconds": time.monotonic() - began,
        "workers": WORKERS,
        "batch": BATCH,
        "seeds": arguments.seeds,
        "left_out": skipped,
        "rows": [
            {**asdict(row), "mean": row.mean, "spread": row.spread, "verdict": one and asdict(one)}
            for row, one in judged(rows)
        ],
    }
    command.write(arguments.json, found)
    command.write_text(arguments.table, lambda: markdown(rows))
    if rows:
        command.write_text(arguments.figure, lambda: figure(rows))


if __name__ == "__main__":
    main()
