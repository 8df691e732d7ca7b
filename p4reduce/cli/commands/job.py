"""`p4reduce job`: jobs at the running cluster's controller."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from controller.api.errors import NotFoundError
from controller.api.messages import MAX_PLANES
from p4reduce.cli import output
from p4reduce.cli.controlling import ClusterAdmin
from p4reduce.cli.loading import group
from p4reduce.cli.options import ClusterOption, JsonFlag, Selective
from p4reduce.cli.output import Column, Row, named
from p4reduce.doctor import words
from topologies import state
from topologies.errors import TopologyError

app = group(no_args_is_help=True, help="Jobs at the controller: create, list, show, delete, clear.")

Name = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]


class JobMode(str, Enum):
    """The way in which a job's sums are to be made."""

    AUTO = "auto"
    IN_NETWORK = "in-network"
    RING = "ring"


_PHASES = [name.lower() for name, _ in pb.Phase.items()]  # in the order in which they come
_MODES = {JobMode.AUTO: pb.MODE_UNSPECIFIED, JobMode.IN_NETWORK: pb.IN_NETWORK, JobMode.RING: pb.RING}


def _if_any(value: int | str | None) -> str:
    """Return a value in words; empty if it is not known before all workers have joined."""
    return str(value or "")


JOBS = (
    Column("name", "job"),
    Column("phase", "phase"),
    Column("workers", "workers", lambda workers: str(len(workers)), right=True),
    Column("world_size", "of", right=True),
    Column("tenant", "tenant", spare=3),
    Column("mode", "sums by"),
    Column("places", "on", lambda places: " ".join(dict.fromkeys(place["switch"] for place in places))),
    Column("waitlisted", "queue", lambda entry: "" if entry is None else str(entry["position"]), right=True),
    Column("generation", "generation", _if_any, right=True, spare=2),
    Column("path_mtu", "path MTU", _if_any, right=True, spare=6),
    Column("window", "window", _if_any, right=True, spare=5),
    Column("slots", "slots", _if_any, right=True, spare=4),
)
PLACES = (
    Column("switch", "switch"),
    Column("role", "role"),
    Column("first_slot", "first slot", right=True),
    Column("slots", "slots", right=True),
    Column("ranks", "ranks", lambda ranks: " ".join(map(str, ranks))),
)
WORKERS = (
    Column("rank", "rank", right=True),
    Column("host", "host"),
    Column("ip", "IP"),
    Column("switch", "switch", spare=1),
    Column("port", "port", right=True, spare=2),
    Column("qpn_out", "QP out", hex, right=True, spare=3),
    Column("qpn_in", "QP in", hex, right=True, spare=4),
    Column("connected", "connected", lambda yes: "yes" if yes else "no"),
    Column("heard_s_ago", "heard", lambda seconds: f"{seconds:.1f} s ago", right=True),
)
PLANES = (
    Column("name", "plane"),
    *(column for column in JOBS if column.key not in ("name", "tenant", "path_mtu", "waitlisted")),
)
GPUS = (
    WORKERS[0],
    Column("machine", "machine", right=True),
    Column("local_rank", "GPU", right=True),
    *WORKERS[1:],
)


@app.command("create")
def create(
    name: Name,
    world_size: Annotated[int, typer.Option("--world-size", "-n", min=1, help="Workers that will join.")],
    mode: Annotated[
        JobMode, typer.Option(help="auto: in the network if possible, else ring.")
    ] = JobMode.AUTO,
    path_mtu: Annotated[int | None, typer.Option(help="Path MTU in bytes (default: the cluster's).")] = None,
    window: Annotated[int | None, typer.Option(help="Messages in flight: 1, 2, 4 or 8.")] = None,
    message_packets: Annotated[int | None, typer.Option(help="Packets a message: a power of two.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose quota its slots count against.")] = "",
    elastic: Annotated[bool, typer.Option("--elastic", help="Goes on without workers that die.")] = False,
    min_workers: Annotated[
        int, typer.Option(min=0, help="With --elastic: ends when fewer are left (default: 1).")
    ] = 0,
    selective: Selective = None,
    gpus_per_host: Annotated[
        int, typer.Option(min=1, max=MAX_PLANES, help="Workers on each machine, of --world-size altogether.")
    ] = 1,
    token: Annotated[
        str, typer.Option(help="Join token that workers have to bring (others here see it: --token-file).")
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The join token is in this file; -: on stdin.")
    ] = None,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """Create a job before its workers join (joining alone does it too, with the cluster's settings)."""
    with client(cluster) as admin:
        job = admin.create_job(
            name,
            world_size,
            mode="" if mode is JobMode.AUTO else mode.value,
            path_mtu=path_mtu,
            window=window,
            message_packets=message_packets,
            tenant=tenant,
            elastic=elastic,
            min_workers=min_workers,
            selective=selective,
            join_token=token if token_file is None else _token_in(token_file),
            gpus_per_host=gpus_per_host,
        )
    _show(known_row(job), as_json=json)


def _token_in(path: Path) -> str:
    try:
        return (sys.stdin.read() if str(path) == "-" else path.read_text()).strip()
    except OSError as error:
        raise TopologyError(f"cannot read {path}: {error.strerror}") from error


@app.command("list")
def list_(cluster: ClusterOption = None, json: JsonFlag = False) -> None:
    """List all jobs, ended ones too; the planes of machines with several GPUs take one line."""
    with client(cluster) as admin:
        rows = job_rows(admin.list_jobs(), switches=_switches(cluster))
    output.show_rows(rows, JOBS, title="Jobs", as_json=json)
    if not json:
        for row in rows:
            if row["ended"]:
                output.say_line(f"{row['name']} has ended: {row['ended']}")


@app.command("show")
def show(name: Name, cluster: ClusterOption = None, json: JsonFlag = False) -> None:
    """Show one job and its workers, and the planes of machines with several GPUs; NAME/g is GPU g's plane."""
    with client(cluster) as admin:
        job = admin.show_job(name)
    _show(known_row(job, switches=_switches(cluster)), as_json=json)


@app.command("delete")
def delete(name: Name, cluster: ClusterOption = None) -> None:
    """End a job if it runs (its workers are told), free its slots, and forget it."""
    with client(cluster) as admin:
        admin.delete_job(name)
    output.say(f"job {name}: deleted")


@app.command("clear")
def clear(cluster: ClusterOption = None) -> None:
    """Forget all jobs that have ended."""
    cleared = []
    with client(cluster) as admin:
        for job in admin.list_jobs():
            name = job.spec.name
            if job.phase != pb.ENDED:
                continue
            with suppress(NotFoundError):
                if admin.show_job(name).phase == pb.ENDED:  # workers may have begun it anew meanwhile
                    admin.delete_job(name)
                    cleared.append(name)
    count = words.count(len(cleared), "job")
    output.say(
        f"{count} forgotten: {', '.join(cleared)}" if cleared else "no job has ended: nothing to forget"
    )


def client(cluster: str | None) -> AdminClient:
    """Return a client of the running cluster's controller."""
    return ClusterAdmin(state.controlled(cluster))


def _switches(cluster: str | None) -> dict[str, str]:
    """Return the switch that each host is on."""
    return {host.name: host.switch for host in state.running(cluster).hosts}


def job_rows(jobs: Iterable[Any], *, switches: Mapping[str, str] = MappingProxyType({})) -> list[Row]:
    """Return jobs by name; the planes of a gang are one row, in the place of the first."""
    rows: dict[str, list[Row]] = {}
    for job in jobs:
        name = job.spec.gang.name if job.spec.HasField("gang") else job.spec.name
        rows.setdefault(name, []).append(job_row(job, switches=switches))
    return [gang_row(planes) if planes[0]["gang"] else planes[0] for planes in rows.values()]


def known_row(job: Any, *, switches: Mapping[str, str] = MappingProxyType({})) -> Row:
    """Return the row of a job, of a plane, or of a gang with its planes."""
    if not job.planes:
        return job_row(job, switches=switches)
    return gang_row([job_row(plane, switches=switches) for plane in job.planes])


def gang_row(planes: list[Row]) -> Row:
    """Return planes that have begun as one row, with workers by their ranks among those of all machines.

    Its phase is that of the plane that is furthest behind.
    """
    planes = sorted(planes, key=lambda row: row["gang"]["plane"])
    first, gang = planes[0], planes[0]["gang"]
    behind = min(planes, key=lambda row: _PHASES.index(row["phase"]))
    failed = [row for row in planes if row["ended"] not in (None, "all workers have left")]
    over = behind["phase"] == "ended"
    workers = [
        {**worker, "rank": worker["machine"] * gang["planes"] + worker["local_rank"]}
        for row in planes
        for worker in row["workers"]
    ]
    return {
        **first,
        "name": gang["name"],
        "phase": behind["phase"] if over or len(planes) == gang["planes"] else "joining",
        "world_size": first["world_size"] * gang["planes"],
        "job_id": 0,
        "generation": 0,
        "slots": sum(row["slots"] for row in planes),
        "places": [place for row in planes for place in row["places"]],
        "ring": [],
        "renewals": max(row["renewals"] for row in planes),
        "renewing": any(row["renewing"] for row in planes),
        "awaited": sorted({rank for row in planes for rank in row["awaited"]}),
        "ended": (failed or [first])[0]["ended"] if over else None,
        "workers": sorted(workers, key=lambda worker: worker["rank"]),
        "gang": {"name": gang["name"], "plane": None, "planes": gang["planes"]},
        "planes": planes,
    }


def job_row(job: Any, *, switches: Mapping[str, str] = MappingProxyType({})) -> Row:
    """Return a JobInfo as JSON has it; `switches` has the switch that each host is on."""
    asked = job.spec
    gang = named(asked.gang, "name", "plane", "planes") if asked.HasField("gang") else None
    places = [
        {**named(place, "switch", "role", "first_slot", "slots"), "ranks": list(place.ranks)}
        for place in job.places
    ]
    queued = named(job.waitlisted, "position", "reason", "waiting_s") if job.HasField("waitlisted") else None
    return {
        "name": asked.name,
        "phase": pb.Phase.Name(job.phase).lower(),
        "explicit": job.explicit,
        "world_size": asked.world_size,
        "tenant": asked.tenant or "default",
        "mode": _mode(job.mode or asked.mode),
        "mode_reason": job.mode_reason,
        **named(job, "job_id", "generation", "window", "message_packets", "path_mtu"),
        "slots": sum(place["slots"] for place in places),
        "places": places,
        "ring": list(job.ring),
        "waitlisted": queued,
        "selective": _selective(job, asked),
        **named(asked, "elastic", "min_workers"),
        **named(job, "renewals", "renewal_reason", "renewing"),
        "awaited": list(job.awaited),
        "ended": job.ended.reason if job.HasField("ended") else None,
        "workers": [_worker_row(worker, switches, gang) for worker in job.workers],
        "gang": gang,
        "planes": [],
    }


def _selective(job: Any, asked: Any) -> bool | None:
    """Return what the workers have agreed on, or else what was asked for; None if it is not decided yet."""
    if job.generation:
        return bool(job.selective)
    return bool(asked.selective) if asked.HasField("selective") else None


def _worker_row(info: Any, switches: Mapping[str, str], gang: Row | None) -> Row:
    worker = info.worker
    return {
        "rank": worker.rank,
        "host": info.host,
        **named(worker, "hostname", "ip", "mac"),
        "switch": switches.get(info.host, ""),
        "port": info.port,
        **named(worker, "qpn_out", "psn_out", "qpn_in"),
        **named(info, "connected", "heard_s_ago"),
        "machine": None if gang is None else worker.rank,
        "local_rank": None if gang is None else gang["plane"],
    }


def _mode(mode: int) -> str:
    return next(name.value for name, value in _MODES.items() if value == mode)


def _show(job: Row, *, as_json: bool) -> None:
    if as_json:
        output.say_json(job)
        return
    output.show_rows([job], JOBS, title=f"Job {job['name']}", as_json=False)
    if job["ended"]:
        output.say(f"it has ended: {job['ended']}")
    if job["planes"]:
        output.show_rows(job["planes"], PLANES, title="Planes, one for each GPU of a machine", as_json=False)
    if job["mode_reason"]:
        output.say(f"sums are not made in the network: {job['mode_reason']}")
    if job["selective"]:
        output.say("lost packets alone are sent again (selective retransmission)")
    elif job["selective"] is not None:
        output.say("lost packets are sent again with all behind them (go-back-N)")
    if job["renewing"]:
        output.say(f"is about to go on under a new generation: {job['renewal_reason']}")
    elif job["renewal_reason"]:
        times = words.count(job["renewals"], "time")
        begun = f"went on under a new generation {times}, the last because " if job["renewals"] else ""
        output.say(f"{begun}{job['renewal_reason']}")
    if job["awaited"]:
        of = "machine" if job["gang"] else "rank"
        output.say(f"the controller waits for {words.ranks(job['awaited'], of)}")
    if job["waitlisted"] is not None:
        entry = job["waitlisted"]
        output.say(
            f"number {entry['position']} in the queue for {entry['waiting_s']:.0f} s: {entry['reason']}"
        )
    if job["places"]:
        output.show_rows(job["places"], PLACES, title="Slots", as_json=False)
    if job["workers"]:
        columns = WORKERS if job["gang"] is None else GPUS
        output.show_rows(job["workers"], columns, title="Workers", as_json=False)
