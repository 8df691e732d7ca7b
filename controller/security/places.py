"""A directory with the certificates of a whole cluster, one directory in it for each machine that gets some.

    authority/             stays where it is: with its keys, anybody can be made a member
    controller/            serves workers and operators      controller/switches/       talks to switches
    switches/s1/           serves P4Runtime
    workers/h1/            joins jobs, and nothing else
    operators/admin/       all but joining                   operators/admin/switches/  talks to switches

There are two authorities, because simple_switch_grpc lets everybody program it whom its authority has
certified: that of the switches certifies no worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

AUTHORITY: Final = "authority"
CONTROLLER: Final = "controller"


def worker_directory(root: Path, host: str) -> Path:
    """What a worker on that host has P4REDUCE_TLS_DIR set to."""
    return root / "workers" / host


def operator_directory(root: Path, name: str) -> Path:
    """What an operator has P4REDUCE_TLS_DIR set to."""
    return root / "operators" / name


def switch_directory(root: Path, name: str) -> Path:
    """A switch's."""
    return root / "switches" / name
