"""A cluster that runs on in a process of its own, which runs this module."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

from p4reduce.cli import output
from p4reduce.cli.failing import Signalled, ending_on_signals, guarded
from topologies import state
from topologies.errors import TopologyError
from topologies.fabric import Fabric
from topologies.options import FabricOptions

_ERROR = "p4reduce: "


def start_detached(options: FabricOptions, *, progress: Callable[[str], None]) -> None:
    """Start a cluster and wait until it is ready. Raise TopologyError with its complaint if it fails."""
    files = {name: getattr(options, name) for name in ("program", "p4info", "pcap")}
    whole = {name: path.absolute() for name, path in files.items() if path is not None}
    process = subprocess.Popen(
        [sys.executable, "-m", "p4reduce.cli.detached"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",  # `python -m` looks for modules where it starts
        env={**os.environ, "P4REDUCE_STATE_DIR": str(state.root())},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    complaint = ""
    try:
        with process.stdin as stdin:
            stdin.write(pickle.dumps(replace(options, **whole)))
        for line in map(bytes.decode, process.stderr):  # until it is ready and lets go of stderr, or ends
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


def _run() -> None:
    """Run the cluster in this process until a signal ends it."""
    options: FabricOptions = pickle.load(sys.stdin.buffer)
    with ending_on_signals(), Fabric(options, progress=output.note):
        null = os.open(os.devnull, os.O_WRONLY)  # tells whoever waits that the cluster is ready
        os.dup2(null, sys.stderr.fileno())
        os.close(null)
        while True:
            signal.pause()


if __name__ == "__main__":
    try:
        sys.exit(guarded(_run, debug=False))
    except Signalled as end:
        sys.exit(end.exit_code)
