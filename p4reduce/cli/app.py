"""The `p4reduce` command: its groups, and where every error ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from p4reduce.cli.failing import Signalled, guarded
from p4reduce.cli.loading import LazyGroup, Place, group


def _at(module: str, name: str, *examples: str, **context_settings: Any) -> Place:
    return Place(f"p4reduce.cli.commands.{module}", name, context_settings or None, examples)


class Commands(LazyGroup):
    """All commands, in the order of `--help`: functions, and groups (`app`), with examples of their use."""

    places = {  # noqa: RUF012 (a ClassVar above)
        "demo": _at("demo", "demo", "p4reduce demo --workers 4 --bytes 32M"),
        "down": _at("down", "down", "p4reduce down", "p4reduce down lab", "p4reduce down --all"),
        "run": _at(
            "headless", "run", "p4reduce run examples/spine-leaf-shared-leaf.yaml --results results.json"
        ),
        "compare": _at(
            "compare",
            "compare",
            "p4reduce compare rack --hosts 4 --rate 100mbit --bytes 8M",
            "p4reduce compare rack --hosts 4 --gpus-per-host 4 --intra-rate 400mbit",
            "p4reduce compare spine-leaf --hosts 8 --strategies in-network,ring",
        ),
        "report": _at("report", "report", "p4reduce report run.json --html run.html"),
        "push": _at(
            "push",
            "push",
            "p4reduce push",
            "p4reduce push 127.0.0.1:9559 --program mine.json --p4info mine.txtpb",
        ),
        "shell": _at("shell", "shell", "p4reduce shell s1", "p4reduce shell s1 -c 'print(tables)'"),
        # Options behind the host's name are the command's own.
        "exec": _at(
            "execute",
            "execute",
            "p4reduce exec h1 -- ping -c 3 10.0.0.2",
            "p4reduce exec h2 -- python3 worker.py --rank 1",
            ignore_unknown_options=True,
            allow_interspersed_args=False,
        ),
        "top": _at("top", "top", "p4reduce top", "p4reduce top --once --json"),
        "doctor": _at("doctor", "doctor", "p4reduce doctor", "p4reduce doctor --json"),
        "metrics": _at("metrics", "metrics", "p4reduce metrics", "p4reduce metrics --listen 127.0.0.1:9464"),
        "allreduce": _at(
            "allreduce",
            "allreduce",
            "p4reduce allreduce -b 1K -e 64M -f 2",
            "p4reduce allreduce --bytes 8M --dtype bfloat16 --verify",
        ),
        "replay": _at(
            "replay",
            "replay",
            "p4reduce replay resnet-50 rack --hosts 4 --rate 1gbit --report r.html",
            "p4reduce replay capture.pcap rack --hosts 4",
        ),
        "torch": _at(
            "torch",
            "torch",
            "p4reduce torch rack --hosts 4 -- train.py --epochs 1",
            "p4reduce torch rack --hosts 4 --rate 100mbit --compare gloo -- train.py",
        ),
        "scale": _at(
            "scale",
            "scale",
            "p4reduce scale --model bert-base --gpus 32,64,128 --gpus-per-host 8 \\",
            "      --rate 100gbit --intra-rate 1200gbit",
        ),
        "simulate-faults": _at(
            "simulate_faults",
            "simulate_faults",
            "p4reduce simulate-faults --seeds 1..1000",
            "p4reduce simulate-faults --seed 7 --page seed-7.html",
            "p4reduce simulate-faults --exhaustive pair",
        ),
        "plan": _at("desired", "plan", "p4reduce plan wanted.yaml", "p4reduce plan"),
        "apply": _at("desired", "apply", "p4reduce apply wanted.yaml"),
        "rollback": _at("desired", "rollback", "p4reduce rollback", "p4reduce rollback 2"),
        "revisions": _at("desired", "revisions", "p4reduce revisions", "p4reduce revisions 2"),
        "up": _at(
            "up",
            "app",
            "p4reduce up rack --hosts 4 --rate 100mbit",
            "p4reduce up spine-leaf --spines 2 --leaves 2 --hosts 8 --detach",
        ),
        "job": _at("job", "app", "p4reduce job create train --world-size 4", "p4reduce job list"),
        "show": _at("show", "app", "p4reduce show slots --job train", "p4reduce show links"),
        "certs": _at("certs", "app", "p4reduce certs make certs", "p4reduce certs show certs"),
        "link": _at("link", "app", "p4reduce link down l1:s2", "p4reduce link up l1:s2"),
        "fault": _at(
            "fault",
            "app",
            "p4reduce fault packets h1 loss --probability 0.01 --seed 7",
            "p4reduce fault switch restart s1",
        ),
    }


app = group(
    cls=Commands,
    help="All-reduce inside the network: a P4 switch adds up the gradients of RoCE v2 workers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_DEBUG = "--debug"


def _version(asked: bool) -> None:
    if asked:
        import hashlib
        import importlib.metadata

        import p4src

        program = hashlib.sha256(p4src.JSON_PATH.read_bytes()).hexdigest()[:12]
        typer.echo(f"p4reduce {importlib.metadata.version('p4reduce')} (P4 program {program})")
        raise typer.Exit


@app.callback()
def options(
    debug: bool = typer.Option(False, _DEBUG, help="Show the traceback of an error."),
    version: bool = typer.Option(
        False,
        "--version",
        callback=_version,
        is_eager=True,
        help="Show the version, and the hash of the P4 program.",
    ),
) -> None:
    """Take the options of every command."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line (without the program's name); return its exit code. `--debug` may stand anywhere."""
    words = [word for word in arguments if word != _DEBUG]
    debug = len(words) < len(arguments)
    try:
        return guarded(lambda: app(args=words, prog_name="p4reduce"), debug=debug)
    except Signalled as end:
        return end.exit_code


def main() -> None:
    """Run the console script."""
    sys.exit(run(sys.argv[1:]))
