"""p4runtime-shell on a running switch.

Release 0.0.6 pins protobuf below 3.21 and p4runtime 1.4.1, so it gets a virtual environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller.security.files import SWITCHES, TlsFiles
from controller.security.places import operator_directory
from soft_switch.build import user_cache
from topologies.errors import TopologyError
from topologies.namespaces import NETNS_DIRECTORY
from topologies.processes import end
from topologies.state import OPERATOR, ClusterState, SwitchState

# pkg_resources, which its dependencies import, left setuptools with release 82.
_REQUIREMENTS: Final = ("p4runtime-shell==0.0.6", "setuptools<81")
_COMPLETE: Final = "complete"
_PROCESS: Final = Path(__file__).with_name("p4runtime_shell_process.py")
# Run by its path, it would import the modules beside it before the user's.
_RUN_PROCESS: Final = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


def environment(*, progress: Callable[[str], None] = lambda text: None) -> Path:
    """Return the interpreter of the shell's environment; make that on first use."""
    home = _home()
    python = home / "bin" / "python"
    if (home / _COMPLETE).exists():
        return python
    progress("installing p4runtime-shell, once")
    shutil.rmtree(home, ignore_errors=True)  # half made
    home.parent.mkdir(parents=True, exist_ok=True)
    _must(sys.executable, "-m", "venv", str(home))
    # The pure Python protobuf that the shell pins has wheels for every interpreter.
    _must(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_REQUIREMENTS)
    (home / _COMPLETE).touch()
    return python


def run(
    python: Path,
    cluster: ClusterState,
    switch: SwitchState,
    *,
    election_id: int | None,
    script: str | None = None,
) -> int:
    """Open the shell in the cluster's namespace, on this terminal. Return its exit code.

    With `script` it runs that instead of asking for commands. Without an election id it takes a free one.
    """
    told = {"switch": switch.name, "wanted": election_id, "script": script}
    options = [
        *("--grpc-addr", switch.address),
        *("--device-id", str(switch.device_id)),
        *("--election-id", f"0,{election_id or 1}"),
    ]
    if cluster.tls:
        files = TlsFiles.of(operator_directory(cluster.certificates, OPERATOR) / SWITCHES)
        options += ["--ssl", "--cacert", str(files.ca), "--cert", str(files.cert)]
        options += ["--private-key", str(files.key)]
    inside = ["nsenter", f"--net={NETNS_DIRECTORY / cluster.namespace}", "--"]
    shell = subprocess.Popen(
        [*inside, str(python), "-c", _RUN_PROCESS, str(_PROCESS), json.dumps(told), *options],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
    )
    # Ctrl-C is for the line that is typed in there.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        return shell.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        end([shell])


def _home() -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return user_cache() / f"p4runtime-shell-0.0.6-python{version}"


def _must(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise TopologyError(
            f"p4runtime-shell cannot be installed: {' / '.join(lines[-3:])} (it comes from Python's package "
            "index: check the network, and that python3-venv is installed)"
        )
