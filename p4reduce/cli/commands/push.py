"""`p4reduce push`: the P4 program into switches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from controller.config import read_config
from controller.security.files import tls_for_switches
from controller.switches.pipeline import Program, push_to
from p4reduce.cli import output
from p4reduce.cli.commands.job import client
from p4reduce.cli.options import ClusterOption, JsonFlag, P4InfoFile, ProgramFile
from p4reduce.cli.output import Column, Row, named

SWITCHES = (
    Column("name", "switch"),
    Column("address", "P4Runtime"),
    Column("device_id", "device", right=True),
    Column("target", "target"),
    Column("state", "state"),
    Column("program_sha256", "program", lambda digest: digest[:12]),
)


def push(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[CLUSTER|HOST:PORT]", help="A cluster, or any running P4Runtime switch."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="End jobs that run there; take over from another controller.")
    ] = False,
    device_id: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="P4Runtime device id, with HOST:PORT.")
    ] = 1,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A controller's configuration: its routes too, with HOST:PORT."),
    ] = None,
    program: ProgramFile = None,
    p4info: P4InfoFile = None,
    cluster: ClusterOption = None,
    json: JsonFlag = False,
) -> None:
    """Load the P4 program and its configuration, read it back and compare."""
    if (program is None) != (p4info is None):
        raise typer.BadParameter("a program of your own is two files: give --program and --p4info")
    if target is not None and ":" in target:
        own = None if program is None or p4info is None else Program.read(program, p4info)
        rows = [_push_to(target, device_id=device_id, force=force, config=config, program=own)]
    elif program is not None:
        raise typer.BadParameter(
            "a cluster's controller would take a program of your own away again: name a switch (HOST:PORT), "
            "or bring a cluster up with it ('p4reduce up rack --program FILE.json --p4info FILE.txtpb')"
        )
    else:
        with client(target or cluster) as admin:
            rows = [switch_row(switch) for switch in admin.push(force=force)]
    output.show_rows(rows, SWITCHES, title="Pushed, read back and equal", as_json=json)


def switch_row(switch: object) -> Row:
    """Return a SwitchInfo as JSON has it."""
    return named(switch, "name", "address", "device_id", "target", "connected", "state", "program_sha256")


def _push_to(
    address: str, *, device_id: int, force: bool, config: Path | None, program: Program | None
) -> Row:
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise typer.BadParameter(f"{address!r} is no HOST:PORT with a port from 1 to 65535")
    known = None if config is None else read_config(config)
    result = asyncio.run(
        push_to(
            address,
            device_id=device_id,
            force=force,
            config=known,
            program=program,
            tls=tls_for_switches(),
        )
    )
    return {
        "name": "",
        "address": address,
        "device_id": device_id,
        "target": "",
        "connected": True,
        "state": f"connected; {result.replaced} ran there before",
        "replaced": result.replaced,
        "entries": result.entries,
        "program_sha256": result.program_sha256,
    }
