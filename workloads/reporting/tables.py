"""A run for a terminal: its strategies, and what they say about in-network aggregation."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workloads.reporting import reading
from workloads.reporting.heading import subject
from workloads.reporting.quantities import count, rate, seconds, share, size, spread, times
from workloads.reporting.reading import name_of
from workloads.reporting.verdict import verdict
from workloads.run_file import Result, Run

_MIN_WIDTH = 70  # titles wrap at a table's width


def run_tables(run: Run) -> RenderableType:
    """Strategies, the verdict with its reasons, and what did not run."""
    reading.checked(run)
    found = verdict(run)
    # Text, as names may have what Rich takes for markup.
    table = Table(title=Text(subject(run)), title_justify="left", min_width=_MIN_WIDTH)
    table.add_column("strategy")
    replayed = any(result.exposed_s is not None for result in run.results)
    for heading in ("median", "least to most", "goodput", "of link bound", "against ring"):
        table.add_column(heading, justify="right")
    if replayed:
        table.add_column("waiting", justify="right")
    for heading in ("busiest link", "sent again"):
        table.add_column(heading, justify="right")
    for result in run.results:
        table.add_row(*(Text(cell) for cell in _cells(run, result, replayed=replayed)))
    sentences = [Text(found.headline, style="bold"), *(Text(f"  {text}") for text in found.reasons)]
    cautions = [Text(f"  Careful: {text}") for text in found.cautions]
    skipped = [Text(f"{name_of(strategy)} did not run: {why}") for strategy, why in run.skipped.items()]
    return Group(table, *sentences, *cautions, *skipped)


def _cells(run: Run, result: Result, *, replayed: bool) -> list[str]:
    ratio, most = reading.speedup(run, result), reading.busiest(result.bytes_per_link)
    fraction, exposed = result.fraction_of_link_bound, result.exposed_s
    return [
        name_of(result.strategy),
        seconds(result.median_s),
        spread(result.min_s, result.max_s),
        rate(result.goodput_mbit_s),
        "" if fraction is None else share(fraction),
        "" if ratio is None else f"{times(ratio)}×",
        *([] if not replayed else ["" if exposed is None else seconds(exposed)]),
        "" if most is None else f"{size(most.bytes)}, {most.link} {most.way}",
        "" if result.retransmissions is None else count(result.retransmissions),
    ]
