"""A played capture for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p4reduce.workloads.capture.result import CaptureResult, PairResult, Spread

_MIN_WIDTH = 70
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def capture_tables(result: CaptureResult) -> RenderableType:
    """Make the tables of what was played, between whom, and how well."""
    parts: list[RenderableType] = [_summary(result), _pairs(result)]
    parts += [Text(f"Left out: {count} packets, {reason}.") for reason, count in result.left_out.items()]
    parts += [Text(f"Note: {note}.") for note in result.notes]
    return Group(*parts)


def _summary(result: CaptureResult) -> Table:
    title = f"{result.file} on {result.cluster}, {_speed(result.speed)}"
    table = Table(title=title, title_justify="left", show_header=False, min_width=_MIN_WIDTH)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("packets played", f"{result.sent:,} of {result.file_packets:,} in the file")
    table.add_row("bytes of frames", f"{result.bytes:,}")
    table.add_row("arrived", f"{result.received:,}")
    table.add_row("lost, reordered, twice", f"{result.lost:,}, {result.reordered:,}, {result.duplicates:,}")
    if result.unseen or result.unexpected:
        table.add_row("not looked at, changed", f"{result.unseen:,}, {result.unexpected:,}")
    table.add_row("the capture takes", _time(result.capture_s))
    if result.expected_s is not None and result.speed != 1:
        table.add_row("at this speed", _time(result.expected_s))
    table.add_row("sent in", _time(result.sent_s))
    table.add_row("arrived in", _time(result.received_s))
    table.add_row("sent behind its time (p50, p99, max)", _spread(result.late))
    table.add_row("from sending to arrival (p50, p99, max)", _spread(result.transit))
    return table


def _pairs(result: CaptureResult) -> Table:
    table = Table(title="Who sent to whom", title_justify="left", min_width=_MIN_WIDTH)
    for heading in ("in the capture", "played by"):
        table.add_column(heading)
    for heading in ("packets", "bytes", "arrived", "lost", "reordered", "late p50", "late p99"):
        table.add_column(heading, justify="right")
    for pair in result.pairs:
        table.add_row(*_row(pair))
    return table


def _row(pair: PairResult) -> tuple[str, ...]:
    late = ("", "") if pair.late is None else (_time(pair.late.p50_s), _time(pair.late.p99_s))
    return (
        f"{pair.source} → {pair.destination}",
        f"{pair.from_host} → {pair.to_host}",
        *(f"{n:,}" for n in (pair.sent, pair.sent_bytes, pair.received, pair.lost, pair.reordered)),
        *late,
    )


def _speed(speed: float) -> str:
    if speed == 0:
        return "as fast as possible"
    return "at its own speed" if speed == 1 else f"{speed:g} times as fast"


def _spread(spread: Spread | None) -> str:
    return "–" if spread is None else ", ".join(map(_time, (spread.p50_s, spread.p99_s, spread.max_s)))


def _time(seconds: float) -> str:
    for unit, size in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.2g} µs"
