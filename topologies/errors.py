"""What can go wrong with a cluster: what was wrong, where, and what to do."""

from __future__ import annotations


class TopologyError(Exception):
    """A cluster cannot be brought up, found, or used as asked."""


class UnsupportedError(TopologyError):
    """This machine's kernel or programs cannot do what was asked for."""


class CommandError(TopologyError):
    """A host cannot run a command; `exit_code` as shells have it."""

    def __init__(self, text: str, *, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code
