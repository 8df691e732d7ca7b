"""`p4reduce certs`: the certificates that TLS between controller, switches, workers and operators takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

from p4reduce.cli import output
from p4reduce.cli.loading import group
from p4reduce.cli.options import JsonFlag
from p4reduce.cli.output import Column, Row
from p4reduce.doctor import words

app = group(no_args_is_help=True, help="Certificates for TLS: make, show.")

_Names = list[str] | None
_DAY_S = 86400

COLUMNS = (
    Column("path", "certificate"),
    Column("owner", "of"),
    Column("names", "for", lambda names: " ".join(names)),
    Column("issuer", "signed by"),
    Column("ends", "ends"),
    Column("days_left", "days left", lambda days: f"{days:.0f}" if days >= 0 else "expired", right=True),
)


@app.command("make")
def make(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where they go, and where authorities are.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A controller's configuration: for all its switches and hosts."),
    ] = None,
    controller: Annotated[
        _Names,
        typer.Option(
            metavar="ADDRESS", help="An address or name that the controller is reached by; repeat it."
        ),
    ] = None,
    switch: Annotated[
        _Names,
        typer.Option(metavar="NAME[=ADDRESS]", help="A switch, by its name in the configuration; repeat it."),
    ] = None,
    worker: Annotated[
        _Names, typer.Option(metavar="HOST", help="A host, by its name in the configuration; repeat it.")
    ] = None,
    operator: Annotated[_Names, typer.Option(metavar="NAME", help="Who runs the cluster; repeat it.")] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are good for.")] = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace those that are there already.")] = False,
) -> None:
    """Make certificates and keys; the authorities that sign them are made the first time, and kept."""
    from controller.security import certificates

    switches = _switches(switch or ())
    workers = list(worker or ())
    if config is not None:
        from controller.config import read_config

        known = read_config(config)
        for one in known.switches:
            switches.setdefault(one.name, []).append(one.address.rpartition(":")[0].strip("[]"))
        workers += [host.name for host in known.hosts if host.name not in workers]
    wanted = certificates.Wanted(
        controller=list(controller or ()), switches=switches, workers=workers, operators=list(operator or ())
    )
    if not (wanted.controller or switches or workers or wanted.operators):
        raise typer.BadParameter("say for whom: --controller, --switch, --worker, --operator, or --config")
    made = certificates.make(directory, wanted, force=force, days=days)
    output.say(
        f"in {directory}, good for {words.count(days, 'day')}: {words.count(len(made), 'certificate')}; "
        f"'p4reduce certs show {directory}'"
    )


@app.command("show")
def show(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are.")], json: JsonFlag = False
) -> None:
    """Show the certificates in a directory: for whom, by which authority, and when they end."""
    from controller.security import certificates

    now = datetime.now(timezone.utc)
    rows = [_row(shown, directory, now) for shown in certificates.show(directory)]
    output.show_rows(rows, COLUMNS, title="Certificates", as_json=json)


def _row(shown: Any, directory: Path, now: datetime) -> Row:
    return {
        "path": str(shown.path.relative_to(directory)),
        "owner": shown.owner,
        "names": list(shown.names),
        "issuer": shown.issuer,
        "begins": shown.begins.isoformat(),
        "ends": shown.ends.isoformat(timespec="minutes"),
        "days_left": (shown.ends - now).total_seconds() / _DAY_S,
    }


def _switches(given: Sequence[str]) -> dict[str, list[str]]:
    """Return the addresses of each switch."""
    found: dict[str, list[str]] = {}
    for word in given:
        name, _, address = word.partition("=")
        found.setdefault(name, []).extend([address] if address else [])
    return found
