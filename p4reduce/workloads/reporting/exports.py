"""A run as CSV and JSON, for spreadsheets and programs.

One CSV file has a row for each strategy. A directory has a file for each table, with a row for each
observation (columns: `LAYOUT`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from p4reduce.workloads.bounds import ring_to_in_network
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.reporting import reading
from p4reduce.workloads.reporting.verdict import verdict
from p4reduce.workloads.run_file import Result, Run

Row = tuple[Any, ...]

STRATEGIES: Final = (
    "strategy",
    "workers",
    "bytes",
    "dtype",
    "median_s",
    "min_s",
    "max_s",
    "goodput_mbit_s",
    "link_bound_s",
    "fraction_of_link_bound",
    "speedup_over_ring",
    "exposed_s",
    "busiest_link",
    "busiest_way",
    "busiest_bytes",
    "retransmissions",
    "verified",
)
LAYOUT: Final = {
    "strategies.csv": STRATEGIES,
    "times.csv": ("strategy", "round", "seconds"),
    "links.csv": ("strategy", "link", "up_bytes", "down_bytes"),
    "timeline.csv": ("strategy", "rank", "iteration", "kind", "what", "start_s", "end_s"),
    "samples.csv": ("strategy", "at_s", "link", "up_bytes", "down_bytes"),
    "slots.csv": ("strategy", "at_s", "open", "allocated"),
}


def summary(run: Run) -> dict[str, Any]:
    """Return the verdict, the bounds, a row for each strategy, and the run itself."""
    found = verdict(reading.checked(run))
    return {
        "format": "p4reduce-report/1",
        "pays": found.pays.value,
        "headline": found.headline,
        "reasons": list(found.reasons),
        "cautions": list(found.cautions),
        "textbook_bound": ring_to_in_network(reading.workers(run)),
        "rate_bound": reading.rate_bound(run),
        "strategies": [dict(zip(STRATEGIES, row, strict=True)) for row in _strategies(run)],
        "run": run.as_json(),
    }


def csv_text(run: Run) -> str:
    """Return CSV with a row for each strategy."""
    stream = io.StringIO()
    _put(stream, STRATEGIES, _strategies(reading.checked(run)))
    return stream.getvalue()


def write_tables(run: Run, directory: Path) -> None:
    """Write every table of LAYOUT, also empty ones. WorkloadError if a file cannot be written."""
    reading.checked(run)
    makers = (_strategies, _times, _links, _timeline, _samples, _slots)
    for (name, heading), maker in zip(LAYOUT.items(), makers, strict=True):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with (directory / name).open("w", newline="", encoding="utf-8") as stream:
                _put(stream, heading, maker(run))
        except OSError as error:
            raise WorkloadError(f"cannot write {directory / name}: {error.strerror}") from error


def _put(stream: TextIO, heading: Iterable[str], rows: Iterable[Row]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)


def _strategies(run: Run) -> Iterator[Row]:
    for result in run.results:
        yield (
            *(result.strategy, result.workers, result.bytes, run.dtype),
            *(result.median_s, result.min_s, result.max_s),
            *(result.goodput_mbit_s, result.link_bound_s, result.fraction_of_link_bound),
            *(reading.speedup(run, result), result.exposed_s),
            *_busiest(result),
            *(result.retransmissions, result.verified),
        )


def _busiest(result: Result) -> Row:
    most = reading.busiest(result.bytes_per_link)
    return (None, None, None) if most is None else (most.link, most.way, most.bytes)


def _times(run: Run) -> Iterator[Row]:
    for result in run.results:
        for place, seconds in enumerate(result.seconds):
            yield (result.strategy, place, seconds)


def _links(run: Run) -> Iterator[Row]:
    for result in run.results:
        for link, moved in result.bytes_per_link.items():
            yield (result.strategy, link, moved.up, moved.down)


def _timeline(run: Run) -> Iterator[Row]:
    for strategy, spans in run.timelines.items():
        for span in spans:
            yield (strategy, span.rank, span.iteration, span.kind, span.what, span.start_s, span.end_s)


def _samples(run: Run) -> Iterator[Row]:
    for strategy, samples in run.samples.items():
        for sample in samples:
            for link, moved in sample.links.items():
                yield (strategy, sample.at_s, link, moved.up, moved.down)


def _slots(run: Run) -> Iterator[Row]:
    for strategy, samples in run.samples.items():
        for sample in samples:
            yield (strategy, sample.at_s, sample.slots_open, sample.slots_allocated)
