"""A cluster that runs on in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from topologies import state
from topologies.errors import TopologyError
from topologies.options import FabricOptions
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions

_ERROR = "p4reduce: "


def start_detached(options: FabricOptions, *, progress: Callable[[str], None]) -> None:
    """Start it and wait until it is ready. TopologyError with what it complained about."""
    process = subprocess.Popen(
        [sys.executable, "-m", "p4reduce", "up", *_arguments(options), "--hold"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",  # `python -m` looks for modules where it starts
        env={**os.environ, "P4REDUCE_STATE_DIR": str(state.root())},
        start_new_session=True,
    )
    complaint = ""
    try:
        for line in process.stderr or ():  # until it is ready and lets go of stderr, or ends
            if line.startswith(_ERROR):
                complaint = line.removeprefix(_ERROR).strip()
            else:
                progress(f"bringing up cluster {options.name}: {line.strip()}")
    except BaseException:
        process.terminate()
        process.wait()
        raise
    cluster = state.load(options.name)
    if complaint or cluster is None or not cluster.ready:
        process.wait()
        raise TopologyError(
            complaint or f"cluster {options.name} ended while it came up (exit code {process.returncode})"
        )


def let_go() -> None:
    """In that process: tell whoever waits that the cluster is ready."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())
    os.close(null)


def _arguments(options: FabricOptions) -> list[str]:
    arguments = [
        options.topology,
        *("--cluster", options.name),
        *("--switch", options.switch.value),
        *("--mtu", str(options.path_mtu)),
        *("--rate", _rate(options.rate_mbit)),
        *("--delay-ms", repr(options.delay_ms)),
        *("--loss", repr(options.loss)),
        *("--switch-loss", repr(options.switch_loss)),
        *("--host-kind", ",".join(kind.value for kind in options.kinds)),
        *("--controller-options", json.dumps(options.controller_options)),
    ]
    if options.gpus_per_host > 1:
        arguments += ["--gpus-per-host", str(options.gpus_per_host)]
        arguments += ["--intra-rate", _rate(options.intra_rate_mbit)]
    if options.program is not None and options.p4info is not None:
        arguments += [
            "--program",
            str(options.program.absolute()),
            "--p4info",
            str(options.p4info.absolute()),
        ]
    if options.tls:
        arguments.append("--tls")
    if isinstance(options, RackOptions):
        arguments += ["--hosts", str(options.hosts)]
    if isinstance(options, SpineLeafOptions):
        arguments += [
            *("--spines", str(options.spines)),
            *("--leaves", str(options.leaves)),
            *("--hosts", ",".join(map(str, options.hosts_per_leaf))),
            *("--uplink-rate", _rate(options.uplink_shape.rate_mbit)),
        ]
    arguments += ["--fault-wires"] if options.fault_wires else []
    return arguments if options.pcap is None else [*arguments, "--pcap", str(options.pcap)]


def _rate(mbit: float | None) -> str:
    return "none" if mbit is None else f"{mbit!r}mbit"
