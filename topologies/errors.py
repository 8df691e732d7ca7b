"""Errors about clusters: each says what was wrong, where, and what to do."""

from __future__ import annotations


class TopologyError(Exception):
    """Error about a cluster that cannot be brought up, found, or used as asked."""


class UnsupportedError(TopologyError):
    """Error about a machine whose kernel or programs cannot do what was asked for."""


class CommandError(TopologyError):
    """Error about a command that a host cannot run; `exit_code` as shells have it."""

    def __init__(self, text: str, *, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code
