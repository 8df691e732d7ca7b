"""A run for a terminal: its strategies, and the verdict on in-network aggregation."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from p4reduce.workloads.reporting import reading
from p4reduce.workloads.reporting.heading import subject
from p4reduce.workloads.reporting.quantities import count, rate, seconds, share, size, spread, times
from p4reduce.workloads.reporting.reading import name_of
from p4reduce.workloads.reporting.verdict import verdict
from p4reduce.workloads.run_file import Result, Run

_MIN_WIDTH = 70  # titles wrap at a table's width
_ROOMY = 115
_LESS_NEEDED = ("goodput", "busiest link", "sent again")  # the JSON has them, and the page


def run_tables(run: Run) -> RenderableType:
    """Make the table of strategies, the verdict with its reasons, and notes on what did not run."""
    reading.checked(run)
    found = verdict(run)
    sentences = [Text(found.headline, style="bold"), *(Text(f"  {text}") for text in found.reasons)]
    cautions = [Text(f"  Careful: {text}") for text in found.cautions]
    skipped = [Text(f"{name_of(strategy)} did not run: {why}") for strategy, why in run.skipped.items()]
    return Group(_Strategies(run), *sentences, *cautions, *skipped)


class _Strategies:
    """The table of strategies, with fewer columns if there is little room."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        run = self._run
        replayed = any(result.exposed_s is not None for result in run.results)
        rows = [_cells(run, result, replayed=replayed) for result in run.results]
        left_out = _LESS_NEEDED if options.max_width < _ROOMY else ()
        # Text, as names may have what Rich takes for markup.
        table = Table(
            title=Text(subject(run)), title_justify="left", min_width=min(_MIN_WIDTH, options.max_width)
        )
        for heading in rows[0]:
            if heading not in left_out:
                table.add_column(heading, justify="left" if heading == "strategy" else "right")
        for row in rows:
            table.add_row(*(Text(cell) for heading, cell in row.items() if heading not in left_out))
        yield table


def _cells(run: Run, result: Result, *, replayed: bool) -> dict[str, str]:
    ratio, most = reading.speedup(run, result), reading.busiest(result.bytes_per_link)
    fraction, exposed = result.fraction_of_link_bound, result.exposed_s
    inside = result.bytes_inside
    return {
        "strategy": name_of(result.strategy),
        "median": seconds(result.median_s),
        "least to most": spread(result.min_s, result.max_s),
        "goodput": rate(result.goodput_mbit_s),
        "of link bound": "" if fraction is None else share(fraction),
        "against ring": "" if ratio is None else f"{times(ratio)}×",
        **({"by formula": _formula(run, result)} if run.topology.gpus_per_host > 1 and not replayed else {}),
        **({"waiting": "" if exposed is None else seconds(exposed)} if replayed else {}),
        **({} if inside is None else {"inside a host": size(inside)}),
        "busiest link": "" if most is None else f"{size(most.bytes)}, {most.link} {most.way}",
        "sent again": "" if result.retransmissions is None else count(result.retransmissions),
    }


def _formula(run: Run, result: Result) -> str:
    bound = reading.rate_bound(run, result)
    return "" if bound is None else f"{times(bound)}×"
