"""Tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workloads.demo import Report

_MIN_WIDTH = 70  # titles wrap at a table's width
_COUNTERS = {
    "aggregated": "packets added up by the switch",
    "completed": "sums completed",
    "duplicate": "duplicates dropped by the switch",
    "replayed": "sums sent again",
    "retransmissions": "packets resent by the hosts",
}


def demo_tables(report: Report) -> RenderableType:
    """What the demo found out."""
    return Group(_training(report), _race(report), _counters(report.counters), Text(_verdict(report)))


def allreduce_table(result: dict[str, Any]) -> RenderableType:
    """One all-reduce."""
    timing = result["in_network"] or result["ring"]
    table = _table(
        f"all-reduce of {_bytes(timing['bytes'])} {result['dtype']}, {result['op']}, "
        f"{result['workers']} workers, {result['strategy']} ({result['switch']})"
    )
    table.add_row("time (median)", _seconds(timing["median_s"]))
    table.add_row("goodput per worker", f"{timing['goodput_mbit_s']:.1f} Mbit/s")
    table.add_row("sent by each host", _bytes(timing["bytes_sent_per_host"]))
    table.add_row("all ranks bitwise equal", _yes(result["ranks_bitwise_equal"]))
    if result["verified"] is not None:
        check = result["checks"][0]
        table.add_row(
            "right",
            "equal to NumPy's"
            if check["exact"]
            else f"off by {check['largest_error']:.3g} at most (bound {check['bound']:.3g})",
        )
    return Group(table, _counters(result["counters"]))


def _training(report: Report) -> Table:
    training = report.training
    reference = training.reference
    # Ring all-reduce sends 2(N-1)/N of the tensor; headers come on top.
    ring = 2 * (report.workers - 1) / report.workers * training.bytes
    table = _table(
        f"Digits, {report.workers} workers, {training.steps} steps, gradients summed by the "
        f"{report.switch} switch"
    )
    table.add_row("accuracy", f"{training.accuracy:.2%}")
    table.add_row("accuracy, one process on the full batch", f"{reference.accuracy:.2%}")
    table.add_row(
        "gradient sums against the full batch's",
        f"within the bound: {_yes(reference.within_bound)} (largest error {reference.worst_share:.1%} of it)",
    )
    table.add_row("parameters apart at the end", f"{reference.parameter_distance:.1e} of the largest")
    table.add_row("all-reduce of a step (median)", _seconds(training.step_s))
    table.add_row(
        "sent by each host in a step",
        f"{_bytes(training.bytes_sent_per_host)} for {_bytes(training.bytes)} of gradient "
        f"(ring: {_bytes(ring)} and headers)",
    )
    table.add_row("all ranks bitwise equal", _yes(report.equal))
    table.add_row("sums of integers equal NumPy's", _yes(bool(report.integers.exact)))
    return table


def _race(report: Report) -> Table:
    title = f"All-reduce of {_bytes(report.ring.timing.bytes)} float32 over {report.rate_mbit:g} Mbit/s links"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in ("time (median)", "goodput per worker", "sent by each host"):
        table.add_column(heading, justify="right")
    for name, outcome in (("in the switch", report.in_network), ("ring", report.ring)):
        timing = outcome.timing
        table.add_row(
            name,
            _seconds(timing.median_s),
            f"{timing.goodput_mbit_s:.1f} Mbit/s",
            _bytes(timing.bytes_sent_per_host),
        )
    return table


def _counters(counters: dict[str, int]) -> Table:
    table = _table("Counted")
    for name, text in _COUNTERS.items():
        table.add_row(text, f"{counters.get(name, 0):,}")
    for name, value in counters.items():
        if name not in _COUNTERS and value:
            table.add_row(name.replace("_", " "), f"{value:,}")
    return table


def _verdict(report: Report) -> str:
    bound = 2 * (report.workers - 1) / report.workers
    return f"The ring takes {report.ratio:.2f} times as long (2(N-1)/N = {bound:.2f})."


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, min_width=_MIN_WIDTH)
    table.add_column()
    table.add_column(justify="right")
    return table


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def _bytes(value: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:g} B"
