"""The three files of one end of a TLS connection: its authority's certificate, its own, and its key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "P4REDUCE_TLS_DIR"  # of workers and operators
CA: Final = "ca.pem"
CERT: Final = "cert.pem"
KEY: Final = "key.pem"
SWITCHES: Final = "switches"  # the directory, beside those files, with which to talk to switches


class TlsError(Exception):
    """Error that TLS cannot be used as asked for; the message is one sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The contents of the files, as gRPC takes them, found to fit together."""

    ca: bytes | None
    cert: bytes
    key: bytes


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files: our certificate and its key, and the authority that must have certified the other side.

    Without `ca` a server accepts clients without certificates, and a client servers that this machine trusts.
    """

    cert: Path
    key: Path
    ca: Path | None = None

    @classmethod
    def of(cls, directory: Path | str) -> TlsFiles:
        """Return ca.pem, cert.pem and key.pem in a directory."""
        directory = Path(directory)
        return cls(ca=directory / CA, cert=directory / CERT, key=directory / KEY)

    @classmethod
    def from_environment(cls) -> TlsFiles | None:
        """Return the files in P4REDUCE_TLS_DIR; None if that is not set, or empty."""
        directory = os.environ.get(VARIABLE, "")
        return cls.of(directory) if directory else None


def tls_files(given: TlsFiles | Path | str | None) -> TlsFiles | None:
    """Return the files that a user gave: files, a directory, None for P4REDUCE_TLS_DIR, "" for no TLS."""
    if given is None:
        return TlsFiles.from_environment()
    if isinstance(given, TlsFiles):
        return given
    return TlsFiles.of(given) if str(given) else None


def tls_for_switches() -> TlsFiles | None:
    """Return an operator's files for switches, in P4REDUCE_TLS_DIR's directory `switches`."""
    directory = os.environ.get(VARIABLE, "")
    return TlsFiles.of(Path(directory) / SWITCHES) if directory else None


def read(path: Path) -> bytes:
    """Return the contents of one of the files. Raise TlsError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(
            f"cannot read {path}: {error.strerror}; 'p4reduce certs' makes the files that TLS needs"
        ) from error
