"""The tables' columns: headings, and values formatted for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from p4reduce.live.faults import Row, Severity
from p4reduce.live.view import View

UNKNOWN: Final = "–"
_BAR_CELLS: Final = 5
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_SEVERITIES: Final = {"error": "ERROR", "warning": "warning", "note": "note"}
_NAME_CELLS: Final = 18


@dataclass(frozen=True)
class Column:
    """A column: the key of a row's value, its heading and format; `of`: the key of the value's total."""

    key: str
    heading: str
    show: Callable[[Any], str] = str
    right: bool = False
    of: str = ""

    def cell(self, row: Row) -> str:
        """Format a row's value."""
        text = self.show(row[self.key])
        return f"{text}/{row[self.of]}" if self.of and row[self.of] else text


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: its name (in `View` and JSON), title, columns, and the text that is shown without rows.

    `key`: the columns that identify a row.
    """

    name: str
    title: str
    columns: Sequence[Column]
    key: Sequence[str]
    empty: str

    def rows(self, view: View) -> list[Row]:
        """Return the table's rows, in the order in which they are found."""
        found: list[Row] = getattr(view, self.name)
        return found

    def cells(self, row: Row) -> list[str]:
        """Format a row."""
        return [column.cell(row) for column in self.columns]

    def key_of(self, row: Row) -> str:
        """Return the key that identifies a row."""
        return "\0".join(str(row[name]) for name in self.key)


def count(value: float | None) -> str:
    """Format a count: 1234567 as 1.2M."""
    if value is None:
        return UNKNOWN
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            scale = {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{value / scale:.1f}{unit}" if value / scale < 100 else f"{value / scale:.0f}{unit}"
    return f"{value:.0f}"


def per_s(value: float | None) -> str:
    """Format a rate: 0.4, 12, 1.2M."""
    if value is not None and 0 < value < 10:
        return f"{value:.1f}"
    return count(value)


def mbit(value: float | None) -> str:
    """Format Mbit/s."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def part(value: float | None) -> str:
    """Format a share of a link's rate: 97% and a bar."""
    if value is None:
        return UNKNOWN
    return f"{value:4.0%} {bar(value)}"


def shortened(name: str) -> str:
    """Cut the middle out of a long name; its end may be what distinguishes it from others."""
    if len(name) <= _NAME_CELLS:
        return name
    half = (_NAME_CELLS - 1) // 2
    return f"{name[: _NAME_CELLS - 1 - half]}…{name[-half:]}"


def bar(value: float) -> str:
    """Draw 0 to 1 as a bar of `_BAR_CELLS` cells."""
    eighths = round(min(1.0, max(0.0, value)) * _BAR_CELLS * 8)
    whole, rest = divmod(eighths, 8)
    text = "█" * whole + (_EIGHTHS[rest] if rest else "")
    return text.ljust(_BAR_CELLS)


def _or_unknown(value: Any) -> str:
    return UNKNOWN if value is None else str(value)


def _or_nothing(value: Any) -> str:
    return str(value or "")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _connected(yes: bool | None) -> str:
    return "" if yes is None else "yes" if yes else "NO"


JOBS: Final = Table(
    name="jobs",
    title="Jobs",
    key=("job",),
    empty="no jobs: they come when workers join ('p4reduce allreduce', 'p4reduce demo', your own)",
    columns=(
        Column("job", "job", lambda name: shortened(name)),
        Column("state", "state"),
        Column("sums_by", "sums by"),
        Column("workers", "workers", right=True, of="world_size"),
        Column("slots_open", "slots", _or_unknown, right=True, of="slots"),
        Column("mbit_s_per_worker", "Mbit/s", mbit, right=True),
        Column("retransmissions_s", "resent/s", per_s, right=True),
        Column("tenant", "tenant"),
        Column("retransmissions", "resent", count, right=True),
        Column("queue", "queue", _or_nothing, right=True),
        Column("why", "why", _or_nothing),
    ),
)
FLOWS: Final = Table(
    name="flows",
    title="Flows",
    key=("job", "rank", "switch"),
    empty="no flows: no job is summed by the switches now",
    columns=(
        Column("job", "job", lambda name: shortened(name)),
        Column("rank", "rank", right=True),
        Column("host", "host"),
        Column("switch", "switch"),
        Column("role", "role"),
        Column("mbit_s", "Mbit/s", mbit, right=True),
        Column("packets_s", "packets/s", per_s, right=True),
        Column("packets_again_s", "again/s", per_s, right=True),
        Column("dropped_s", "dropped/s", per_s, right=True),
        Column("packets", "packets", count, right=True),
        Column("packets_again", "again", count, right=True),
        Column("dropped", "dropped", count, right=True),
    ),
)
LINKS: Final = Table(
    name="links",
    title="Links (up: away from the host, or to the spine)",
    key=("link",),
    empty="no links",
    columns=(
        Column("link", "link"),
        Column("state", "state"),
        Column("up_mbit_s", "up Mbit/s", mbit, right=True),
        Column("up_utilisation", "of rate", part),
        Column("down_mbit_s", "down Mbit/s", mbit, right=True),
        Column("down_utilisation", "of rate", part),
        Column("rate_mbit", "rate", lambda rate: "none" if rate is None else f"{rate:g}", right=True),
        Column("up_packets_s", "up pkt/s", per_s, right=True),
        Column("down_packets_s", "down pkt/s", per_s, right=True),
    ),
)
SWITCHES: Final = Table(
    name="switches",
    title="Switches",
    key=("switch",),
    empty="no switches",
    columns=(
        Column("switch", "switch"),
        Column("role", "role"),
        Column("target", "target"),
        Column("jobs", "jobs", right=True),
        Column("slots_open", "open", _or_unknown, right=True),
        Column("slots_allocated", "allocated", right=True, of="slots"),
        Column("packets_s", "packets/s", per_s, right=True),
        Column("dropped_s", "dropped/s", per_s, right=True),
        Column("dropped", "dropped", count, right=True),
        Column("state", "state"),
    ),
)
HOSTS: Final = Table(
    name="hosts",
    title="Hosts",
    key=("host",),
    empty="no hosts",
    columns=(
        Column("host", "host"),
        Column("switch", "switch"),
        Column("sent_mbit_s", "sends Mbit/s", mbit, right=True),
        Column("retransmissions_s", "resent/s", per_s, right=True),
        Column("retransmissions", "resent", count, right=True),
        Column("timeouts", "timeouts", count, right=True),
        Column("naks", "NAKs", count, right=True),
        Column("connected", "connected", _connected),
        Column("heard_s_ago", "heard", _seconds, right=True),
        Column("workers", "workers", " ".join),
        Column("collectives", "collectives", count, right=True),
        Column("ip", "IP"),
    ),
)
FAULTS: Final = Table(
    name="faults",
    title="Faults",
    key=("what", "where"),
    empty="no faults",
    columns=(
        Column("severity", "", lambda value: _SEVERITIES[value]),
        Column("what", "what"),
        Column("where", "where"),
        Column("per_s", "per s", lambda value: "" if value is None else per_s(value), right=True),
        Column("total", "total", lambda value: "" if value is None else count(value), right=True),
        Column("explanation", "meaning"),
    ),
)
TABLES: Final = (JOBS, FLOWS, LINKS, SWITCHES, HOSTS, FAULTS)


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a key that makes a column's values comparable: numbers, then texts, then unknown values."""
    if value is None:
        return 2, 0
    if isinstance(value, (int, float)):
        return 0, value
    return 1, str(value)


def sorted_rows(table: Table, rows: Sequence[Row], column: Column | None, *, descending: bool) -> list[Row]:
    """Sort by a column's values, unknown ones last; without a column, keep the order of the rows."""
    if column is None:
        return list(rows)
    if column is table.columns[0] and table is FAULTS:
        return sorted(rows, key=lambda row: Severity[row["severity"].upper()], reverse=descending)
    known = [row for row in rows if row[column.key] is not None]
    unknown = [row for row in rows if row[column.key] is None]
    return [*sorted(known, key=lambda row: sort_key(row[column.key]), reverse=descending), *unknown]


def headline(view: View) -> str:
    """Describe the cluster in a line."""
    cluster = view.cluster
    rate = "" if cluster["rate_mbit"] is None else f", {cluster['rate_mbit']:g} Mbit/s"
    switches = f"{cluster['leaves']} leaves {cluster['spines']} spines" if cluster["spines"] else "rack"
    return (
        f"{cluster['name']}: {switches}, {cluster['hosts']} hosts, {cluster['target']}, "
        f"path MTU {cluster['path_mtu']}{rate}"
    )


def second_line(view: View) -> str:
    """Describe in a line what goes on in the cluster."""
    cluster = view.cluster
    errors = sum(row["severity"] == "error" for row in view.faults)
    going_on = sum(bool(row["per_s"]) for row in view.faults)
    asked = cluster["slots_asked_s_ago"]
    open_slots = [row["slots_open"] for row in view.switches if row["slots_open"] is not None]
    slots = f"slots {cluster['slots_allocated']} of {cluster['slots']}"
    if open_slots:
        slots += f", {sum(open_slots)} open {asked:.0f} s ago"
    state = _plural(errors, "ERROR") if errors else "no errors"
    counting = f", {going_on} counting" if going_on else ""
    jobs = f"{_plural(cluster['live_jobs'], 'job')}, {_plural(cluster['workers'], 'worker')}"
    return f"{state}{counting}; {jobs}; {slots}"


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def frame(view: View) -> str:
    """Format all tables as plain text, for pipes and simple terminals."""
    parts = [f"{headline(view)}\n{second_line(view)}"]
    parts += [f"{table.title}\n{_lines(table, table.rows(view))}" for table in TABLES]
    if view.remarks:
        parts.append("\n".join(view.remarks))
    return "\n\n".join(parts)


def _lines(table: Table, rows: Sequence[Row]) -> str:
    if not rows:
        return f"  {table.empty}"
    cells = [[column.heading for column in table.columns], *(table.cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(table.columns))]
    lines = []
    for line in cells:
        words = [
            word.rjust(width) if column.right else word.ljust(width)
            for word, width, column in zip(line, widths, table.columns, strict=True)
        ]
        lines.append("  " + "  ".join(words).rstrip())
    return "\n".join(lines)
