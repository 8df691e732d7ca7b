"""Tables for people."""

from __future__ import annotations

import shlex
import statistics
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p4reduce.workloads.counters import MEANING, SENT_AGAIN
from p4reduce.workloads.demo import Report

_MIN_WIDTH = 70  # titles wrap at a table's width
_KINDS = {"in the network": "in_network", "ring": "ring"}
_WAYS = ("bytes_up", "bytes_down")
_COUNTERS = {
    "aggregated": "packets added up by the switches",
    "completed": "sums completed",
    "duplicate": "duplicates dropped by the switches",
    "replayed": "sums sent again",
    "retransmissions": "packets resent by the hosts",
}


def demo_tables(report: Report) -> RenderableType:
    """Make the tables of the demo's results."""
    return Group(_training(report), _race(report), _counters(report.counters), Text(_verdict(report)))


def allreduce_table(result: dict[str, Any]) -> RenderableType:
    """Make the table of one all-reduce, or of one of each kind."""
    timings = {name: result[key] for name, key in _KINDS.items() if result[key] is not None}
    size = next(iter(timings.values()))["bytes"]
    table = _table(
        f"all-reduce of {_bytes(size)} {result['dtype']}, {result['op']}, "
        f"{result['workers']} workers, {result['strategy']} ({result['switch']})"
    )
    for name, timing in timings.items():
        behind = f", {name}" if len(timings) > 1 else ""
        table.add_row(f"time (median){behind}", _seconds(timing["median_s"]))
        table.add_row(f"goodput per worker{behind}", f"{timing['goodput_mbit_s']:.1f} Mbit/s")
        table.add_row(f"sent by each host{behind}", _bytes(timing["bytes_sent_per_host"]))
    if result["ratio"] is not None:
        table.add_row("the ring takes", f"{result['ratio']:.2f} times as long")
    if result.get("by_ring_meanwhile"):
        table.add_row(
            "in-network, but around the ring meanwhile",
            f"{result['by_ring_meanwhile']} sums ({result.get('ring_reason') or 'a tensor held Inf or NaN'})",
        )
    if result["lost"]:
        table.add_row("workers left", f"{result['workers_left']} (without {', '.join(result['lost'])})")
    table.add_row("all ranks bitwise equal", _yes(result["ranks_bitwise_equal"]))
    if result["verified"] is not None:
        worst = max(result["checks"], key=lambda check: float(check["largest_error"]))
        table.add_row(
            "right",
            "equal to NumPy's"
            if all(check["exact"] for check in result["checks"])
            else f"off by {worst['largest_error']:.3g} at most (bound {worst['bound']:.3g})",
        )
    uplinks = [_uplinks(result["links"], size)] if result["links"] else []
    return Group(table, *uplinks, _counters(result["counters"]))


def sweep_table(result: dict[str, Any]) -> RenderableType:
    """Make the table of a sweep over sizes, in nccl-tests' columns; bandwidths in 10^6 bytes a second."""
    table = Table(
        title=f"all-reduce, {result['dtype']}, {result['op']}, {result['workers']} workers "
        f"({result['switch']}), median of {result['repeat']}",
        title_justify="left",
        min_width=_MIN_WIDTH,
    )
    for heading in ("bytes", "count", "time", "algbw MB/s", "busbw MB/s", "wrong"):
        table.add_column(heading, justify="right")
    table.add_column("by")
    for row in result["sweep"]:
        table.add_row(
            f"{row['bytes']:,}",
            f"{row['count']:,}",
            _seconds(row["time_us"] / 1e6),
            f"{row['algbw_mb_s']:.2f}",
            f"{row['busbw_mb_s']:.2f}",
            "N/A" if row["wrong"] is None else str(row["wrong"]),
            row["strategy"],
        )
    return Group(table, Text("busbw = algbw · 2(N−1)/N: what a ring would have each link carry."))


def run_tables(report: dict[str, Any]) -> RenderableType:
    """Make the tables of a cluster file's jobs."""
    jobs = Table(title=f"Jobs of {report['name']}", title_justify="left")
    for heading in ("job", "tenant", "workers", "sums by", "work"):
        jobs.add_column(heading)
    for heading in ("times", "median", "sent by each host"):
        jobs.add_column(heading, justify="right")
    jobs.add_column("every sum right")
    for job in report["jobs"]:
        for step in job["steps"]:
            jobs.add_row(
                *(job["name"], job["tenant"], _workers(job), _summed_by(job), _work(step)),
                str(len(step["iterations"])),
                _seconds(statistics.median(one["seconds"] for one in step["iterations"])),
                _sent(step),
                "not looked at" if "torch" in step else _yes(all(one["right"] for one in step["iterations"])),
            )
    parts: list[RenderableType] = [jobs]
    parts += [
        Text(f"job {job['name']} was summed by ring: {job['ring_reason']}")
        for job in report["jobs"]
        if job.get("ring_reason")
    ]
    if report["links"]:
        links = Table(
            title="Between the switches, all jobs together", title_justify="left", min_width=_MIN_WIDTH
        )
        links.add_column("link")
        links.add_column("up", justify="right")
        links.add_column("down", justify="right")
        for row in report["links"]:
            links.add_row(row["link"], *(_bytes(row[way]) for way in _WAYS))
        parts.append(links)
    return Group(*parts)


def _workers(job: dict[str, Any]) -> str:
    left = job.get("workers_left", job["workers"])
    return str(left) if left == job["workers"] else f"{left} of {job['workers']} left"


def _summed_by(job: dict[str, Any]) -> str:
    if "mode" in job:  # a script's, which tells no more
        return {"ring": "ring", "in-network": "switches"}.get(job["mode"], "it did not join")
    switched, ringed = job["collectives_in_network"], job["collectives_by_ring"]
    if switched and ringed:
        return f"switches ({switched}), ring ({ringed})"
    return "ring" if ringed else "switches"


def _sent(step: dict[str, Any]) -> str:
    """Format the bytes of the host that sent most; empty for training, where they are not counted."""
    counted = [one["bytes_sent_per_host"] for one in step["iterations"] if "bytes_sent_per_host" in one]
    return _bytes(max(counted)) if counted else ""


def _work(step: dict[str, Any]) -> str:
    if "train" in step:
        return f"training in {_type(step['train'])}, accuracy {step['accuracy']:.2%}"
    if "torch" in step:
        return shlex.join(step["torch"]["script"])
    asked = step["all_reduce"]
    return f"{_bytes(asked['bytes'])} {_type(asked)} {asked['op']}"


def _type(asked: dict[str, Any]) -> str:
    halved = asked["wire"] == "16bit" and asked["dtype"] == "float32" and asked.get("strategy") != "ring"
    return str(asked["dtype"]) + (" over 16 bits" if halved else "")


def _uplinks(links: dict[str, list[dict[str, Any]]], size: int) -> Table:
    """Make the table of bytes on each link between switches, and of each leaf's total, in tensors too."""
    table = Table(
        title="Between the switches, each time (all packets, headers included)", title_justify="left"
    )
    table.add_column("link")
    names = {name: key for name, key in _KINDS.items() if key in links}
    for name in names:
        table.add_column(f"up, {name}", justify="right")
        table.add_column(f"down, {name}", justify="right")
    rows = {key: {row["link"]: row for row in links[key]} for key in names.values()}
    some = next(iter(links.values()))
    for leaf in dict.fromkeys(row["leaf"] for row in some):
        own = [row["link"] for row in some if row["leaf"] == leaf]
        for link in own:
            cells = [_bytes(rows[key][link][way]) for key in names.values() for way in _WAYS]
            table.add_row(link, *cells)
        sums = [sum(rows[key][link][way] for link in own) for key in names.values() for way in _WAYS]
        shown = [f"{_bytes(value)} ({value / size:.2f} tensors)" for value in sums]
        table.add_row(f"{leaf}, all", *shown, end_section=True)
    return table


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
            meaning = f": {MEANING[name]}" if name in MEANING else ""
            table.add_row(f"{name.replace('_', ' ')}{meaning}", f"{value:,}")
    if counters.get("retransmissions"):
        table.caption, table.caption_justify = f"{SENT_AGAIN}.", "left"
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
