"""A sweep for a terminal: a table for each model or size, and the conclusions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p4reduce.scale import findings
from p4reduce.scale.sweep import Outcome
from p4reduce.workloads.reporting.quantities import rate, seconds, share, times
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.names import IN_NETWORK

_BASES = (names.FLAT_RING, IN_NETWORK)  # what others are compared with, if it is there


def tables(outcomes: Sequence[Outcome]) -> RenderableType:
    """Make the tables and sentences; each says that nothing in it was measured."""
    parts: list[RenderableType] = []
    for subject in findings.by_subject(outcomes):
        parts.append(_table(subject))
        parts += [Text(f"  {sentence}") for sentence in findings.winners(subject)]
    said = findings.threshold(outcomes)
    if said is not None:
        parts.append(Text(said))
    parts += [Text(f"Careful: {caution}") for caution in findings.cautions(outcomes)]
    return Group(*parts)


def _table(subject: Sequence[Outcome]) -> Table:
    first = subject[0]
    fabric, iterations = first.cell.fabric, first.waiting_s is not None
    chosen = [one.cell.strategy for one in subject]
    base = next((strategy for strategy in _BASES if strategy in chosen), None)
    title = (
        f"{findings.name_of(first.cell)}, simulated: {fabric.gpus_per_host} GPUs a machine, "
        f"{rate(fabric.rate / 1e6)}, k = {fabric.shape.k:g}"
    )
    table = Table(title=Text(title), title_justify="left", min_width=70)
    for heading, right in (
        ("GPUs", True),
        ("strategy", False),
        ("iteration" if iterations else "sum", True),
        ("formula", True),
        ("waiting" if iterations else "busbw", True),
    ):
        table.add_column(heading, justify="right" if right else "left")
    if base is not None:
        table.add_column(f"against {base}", justify="right")
    for group in findings.by_gpus(subject):
        for number, one in enumerate(group):
            cells = [
                str(one.cell.fabric.gpus) if number == 0 else "",
                one.cell.strategy,
                seconds(one.seconds),
                seconds(one.formula_s),
                _used(one),
            ]
            if base is not None:
                ratio = findings.over(group, base, one)
                cells.append("" if ratio is None else f"{times(ratio)}×")
            table.add_row(*(Text(cell) for cell in cells), end_section=number == len(group) - 1)
    return table


def _used(one: Outcome) -> str:
    """Format an iteration's share of waiting for sums, or a sum's bus bandwidth."""
    if one.waiting_s is not None:
        return share(one.waiting_s / one.seconds if one.seconds else 0.0)
    return rate((one.bus_gbit_s or 0.0) * 1e3)
