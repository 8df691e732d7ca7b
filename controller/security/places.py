"""The directory of a cluster's certificates, with a directory for each machine that gets some.

    authority/             never copy it: its keys make anybody a member
    controller/            serves workers and operators      controller/switches/       talks to switches
    switches/s1/           serves P4Runtime
    workers/h1/            joins jobs, and nothing else
    operators/admin/       all but joining                   operators/admin/switches/  talks to switches

There are two authorities: simple_switch_grpc lets anybody program it whom its authority has certified, so the
switches' authority certifies no worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

AUTHORITY: Final = "authority"
CONTROLLER: Final = "controller"


def worker_directory(root: Path, host: str) -> Path:
    """Return the P4REDUCE_TLS_DIR of a worker on that host."""
    return root / "workers" / host


def operator_directory(root: Path, name: str) -> Path:
    """Return the P4REDUCE_TLS_DIR of an operator."""
    return root / "operators" / name


def switch_directory(root: Path, name: str) -> Path:
    """Return the directory of a switch."""
    return root / "switches" / name
