"""The disk under a controller's database: a small one of its own, that can be filled.

A tmpfs on a directory of the cluster's. Where nothing can be mounted, the directory is a plain one, and is
never filled.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from topologies.errors import TopologyError, UnsupportedError
from topologies.namespaces import run

NAME: Final = "database"
_FILE: Final = "controller.db"
SIZE_MIB: Final = 32
_FILLER: Final = "filler"
_BLOCK: Final = bytes(1 << 16)


def directory(cluster: Path) -> Path:
    """Return the disk with the database of the cluster that has that directory."""
    return cluster / NAME


def database(cluster: Path) -> Path:
    """Return the database's file."""
    return directory(cluster) / _FILE


def mount(cluster: Path) -> str:
    """Make the disk; return why it is a plain directory, or "" if it is a disk of its own."""
    path = directory(cluster)
    path.mkdir(mode=0o700)
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=0700,nosuid,nodev", "p4reduce", str(path))
    except TopologyError as error:
        return str(error)
    return ""


def unmount(cluster: Path) -> None:
    """Take the disk away, if it is there, even if a process has a file open on it."""
    path = directory(cluster)
    if is_mounted(path):
        run("umount", "--lazy", str(path))


def is_mounted(path: Path) -> bool:
    """Tell whether that is a disk of its own."""
    return not path.is_symlink() and os.path.ismount(path)


def fill(cluster: Path) -> int:
    """Fill the disk to the last byte, and return the number of bytes written.

    Raise UnsupportedError if it is no disk of its own.
    """
    path = directory(cluster)
    if not is_mounted(path):
        raise UnsupportedError(
            f"the controller's database is in {path}, which is no disk of its own: "
            "mounting a tmpfs there failed when the cluster came up"
        )
    block, written = _BLOCK, 0
    with (path / _FILLER).open("ab", buffering=0) as filler:
        while block:
            try:
                written += filler.write(block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise TopologyError(f"cannot fill {path}: {error.strerror}") from error
                block = block[: len(block) // 2]
    return written


def free(cluster: Path) -> None:
    """Free the filled space."""
    with contextlib.suppress(FileNotFoundError):
        (directory(cluster) / _FILLER).unlink()
