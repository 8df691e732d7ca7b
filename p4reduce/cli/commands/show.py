"""`p4reduce show`: what the running cluster's switches hold and count."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from p4reduce.cli import output
from p4reduce.cli.commands.job import client
from p4reduce.cli.loading import group
from p4reduce.cli.options import ClusterOption, JsonFlag
from p4reduce.cli.output import Column, Row, named
from p4reduce.workloads.counters import AGAIN, MEANING, SENT_AGAIN
from topologies import state, wires

app = group(no_args_is_help=True, help="What the switches hold: flows, slots, counters, ports, links.")

_NO_JOB = " (only jobs that run have any; 'p4reduce show ports' has what went through so far)"
JobOption = Annotated[str, typer.Option("--job", metavar="JOB", help="Only this job's.")]

FLOWS = (
    Column("job", "job"),
    Column("rank", "rank", right=True),
    Column("switch", "switch"),
    Column("index", "flow", right=True, spare=4),
    Column("ingress_port", "from port", right=True, spare=3),
    Column("src_ip", "from"),
    Column("egress_port", "to port", right=True, spare=2),
    Column("dst_ip", "to"),
    Column("dest_qp", "QP", hex, right=True, spare=1),
    Column("first_psn", "first PSN", right=True, spare=5),
    Column("on_switch", "on the switch", lambda yes: "yes" if yes else "NO"),
)
SLOTS = (
    Column("switch", "switch"),
    Column("role", "role", spare=5),
    Column("index", "slot", right=True),
    Column("job", "job"),
    Column("tenant", "tenant", spare=3),
    Column("generation", "generation", right=True, spare=2),
    Column("message", "message", right=True),
    Column("state", "state"),
    Column("bitmap", "bitmap", spare=6),
    Column("ranks", "contributed", lambda ranks: span(ranks)),
    Column("missing", "missing", lambda ranks: span(ranks)),
    Column("age_s", "age", lambda seconds: f"{seconds:.3f} s", right=True),
    Column("bytes", "bytes", right=True, spare=4),
)
PORTS = (
    Column("switch", "switch"),
    Column("port", "port", right=True),
    Column("host", "host"),
    Column("ip", "IP"),
    Column("peer", "peer", spare=1),
    Column("received_packets", "received", right=True),
    Column("received_bytes", "received bytes", right=True, spare=3),
    Column("sent_packets", "sent", right=True),
    Column("sent_bytes", "sent bytes", right=True, spare=2),
    Column("drops", "dropped", lambda drops: _reasons(drops)),
)
LINKS = (
    Column("link", "link"),
    Column("a_port", "port", right=True, spare=2),
    Column("b_port", "port", right=True, spare=1),
    Column("is_up", "link is", lambda up: "up" if up else "DOWN"),
    Column("state", "controller says"),
    Column("a_to_b_packets", "up, packets", right=True),
    Column("a_to_b_bytes", "bytes", right=True, spare=4),
    Column("b_to_a_packets", "down, packets", right=True),
    Column("b_to_a_bytes", "bytes", right=True, spare=3),
)


@app.command("flows")
def flows(job: JobOption = "", cluster: ClusterOption = None, json: JsonFlag = False) -> None:
    """Show the RoCE connections that the switches aggregate."""
    with client(cluster) as admin:
        rows = [flow_row(flow) for flow in admin.flows(job)]
    output.show_rows(rows, FLOWS, title="Flows", as_json=json, hint=_NO_JOB)


@app.command("slots")
def slots(
    job: JobOption = "",
    unused: Annotated[bool, typer.Option("--all", help="Unused slots too.")] = False,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """Show the aggregators: whose each is, which message it holds, who has contributed, for how long."""
    with client(cluster) as admin:
        rows = [slot_row(slot) for slot in admin.slots(job, all=unused)]
    output.show_rows(rows, SLOTS, title="Slots", as_json=json, hint=_NO_JOB)


@app.command("counters")
def counters(job: JobOption = "", cluster: ClusterOption = None, json: JsonFlag = False) -> None:
    """Show the counters of each flow: what the switches did with its packets."""
    with client(cluster) as admin:
        rows = [counters_row(flow) for flow in admin.counters(job)]
    counted = _counted(rows)
    output.show_rows(
        rows,
        _counter_columns(counted),
        title="Packets",
        as_json=json,
        hint=_NO_JOB,
        instead=lambda: map(_counter_words, rows),
    )
    if not json:
        for name in counted:
            output.say(f"{name.replace('_', ' ')}: {MEANING.get(name, 'see docs/p4-program.md')}")
        if any(name in counted for name in AGAIN):
            output.say(f"{SENT_AGAIN}: that is no fault by itself")


@app.command("ports")
def ports(cluster: ClusterOption = None, json: JsonFlag = False) -> None:
    """Show the switches' ports, who is behind them, and what went through."""
    with client(cluster) as admin:
        rows = [port_row(port) for port in admin.ports()]
    output.show_rows(rows, PORTS, title="Ports", as_json=json)


@app.command("links")
def links(cluster: ClusterOption = None, json: JsonFlag = False) -> None:
    """Show the links between switches: up or down, and what went over them each way."""
    running = state.running(cluster)
    with client(cluster) as admin:
        known = {(link.a, link.b): link for link in admin.links()}
    rows = [link_row(wire, known.get((wire.link.a, wire.link.b))) for wire in wires.wires(running)]
    output.show_rows(rows, LINKS, title="Links between switches", as_json=json, hint=" (this is a rack)")


def flow_row(flow: Any) -> Row:
    """Return a Flow as JSON has it."""
    return named(
        flow,
        *("job", "generation", "rank", "switch", "index", "ingress_port", "egress_port"),
        *("src_ip", "dst_ip", "dest_qp", "ack_qp", "first_psn", "on_switch"),
    )


def slot_row(slot: Any) -> Row:
    """Return a Slot as JSON has it. `bitmap` has a bit for each rank, on a spine too; rank 0 is lowest."""
    return {
        **named(slot, "switch", "role", "index", "job", "tenant", "generation", "message", "state"),
        **named(slot, "age_s", "bytes", "chunks", "flags"),
        "tenant": slot.tenant or "default",
        "bitmap": f"{sum(1 << rank for rank in slot.ranks):#x}",
        "ranks": list(slot.ranks),
        "missing": list(slot.missing),
    }


def counters_row(flow: Any) -> Row:
    """Return a flow's counters as JSON has them."""
    return {
        **named(flow, "job", "generation", "rank", "switch"),
        "counters": {name: named(value, "packets", "bytes") for name, value in sorted(flow.counters.items())},
    }


def port_row(port: Any) -> Row:
    """Return a Port as JSON has it."""
    row = named(port, "switch", "port", "host", "ip", "mac", "peer")
    for way in ("received", "sent", "no_route"):
        value = getattr(port, way)
        row |= {f"{way}_packets": value.packets, f"{way}_bytes": value.bytes}
    row["drops"] = {reason: value.packets for reason, value in sorted(port.drops.items())}
    return row


def _reasons(drops: dict[str, int]) -> str:
    """Return what was dropped and why, in words: spoofed 3, unnamed 5."""
    return ", ".join(f"{reason} {count}" for reason, count in drops.items() if count)


def link_row(wire: wires.Wire, known: Any | None) -> Row:
    """Return a link as JSON has it: its state in the kernel, and in the controller."""
    link = wire.link
    return {
        "link": link.name,
        **named(link, "a", "a_port", "b", "b_port"),
        "is_up": wire.is_up,
        "usable": None if known is None else known.up and "drained" not in known.state,
        "state": "" if known is None else known.state,
        "a_to_b_packets": wire.upward.packets,
        "a_to_b_bytes": wire.upward.bytes,
        "b_to_a_packets": wire.downward.packets,
        "b_to_a_bytes": wire.downward.bytes,
    }


def span(numbers: list[int]) -> str:
    """Return numbers in words: 0-3 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts)


def _counted(rows: list[Row]) -> list[str]:
    """Return the counters that counted anything."""
    return list(
        dict.fromkeys(name for row in rows for name, value in row["counters"].items() if value["packets"])
    )


def _counter_words(row: Row) -> str:
    """Return a flow's counters in a line."""
    counts = (
        f"{name.replace('_', ' ')} {value['packets']}"
        for name, value in row["counters"].items()
        if value["packets"]
    )
    return f"  job {row['job']}, rank {row['rank']} on {row['switch']}: {', '.join(counts) or 'nothing yet'}"


def _counter_columns(names: list[str]) -> list[Column]:
    return [
        Column("job", "job"),
        Column("rank", "rank", right=True),
        Column("switch", "switch"),
        *(Column("counters", name.replace("_", " "), partial(_packets, name), right=True) for name in names),
    ]


def _packets(name: str, values: dict[str, Any]) -> str:
    return str(values.get(name, {"packets": 0})["packets"])
