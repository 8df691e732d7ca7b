"""Processes of a cluster that anybody can start again: how they were started is recorded."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from topologies.errors import TopologyError
from topologies.namespaces import NETNS_DIRECTORY
from topologies.processes import ProcessId

# What the programs look at; the rest of an environment is nobody's business.
_VARIABLES: Final = ("PATH", "HOME", "LANG", "TMPDIR", "CXX", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_CHILDREN: Final[list[subprocess.Popen[bytes]]] = []  # until they end: somebody has to take their exit codes
_PREFIXES: Final = ("PYTHON", "XDG_", "P4REDUCE_", "SOFT_SWITCH_", "LC_", "GRPC_")


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start of a process: its command line, directory, log and environment."""

    command: list[str]
    directory: str
    log: str
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, command: Sequence[str], *, directory: Path, log: Path) -> Start:
        """Make the start of a command in our environment, as far as its programs look at that."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in _VARIABLES or name.startswith(_PREFIXES)
        }
        return cls(command=list(command), directory=str(directory), log=str(log), environment=environment)

    def start(self, *, namespace: str | None = None) -> ProcessId:
        """Start the process for others to end. Raise TopologyError if it ends at once."""
        process = self.launch(namespace=namespace)
        _CHILDREN[:] = [child for child in (*_CHILDREN, process) if child.poll() is None]
        try:
            return ProcessId.of(process.pid)
        except ProcessLookupError as error:
            raise TopologyError(f"it ended at once: {last_words(Path(self.log))}") from error

    def launch(self, *, namespace: str | None = None) -> subprocess.Popen[bytes]:
        """Start the process, in a session of its own; append to its log.

        It runs in our namespace or a named one.
        """
        enter = [] if namespace is None else ["nsenter", f"--net={NETNS_DIRECTORY / namespace}", "--"]
        with Path(self.log).open("ab") as log:
            return subprocess.Popen(
                [*enter, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,  # `python -m` looks for modules where it starts
                env=self.environment,
                start_new_session=True,
            )


def last_words(log: Path) -> str:
    """Return the end of a log."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return " / ".join(lines[-3:]) or f"it wrote nothing to {log}"
