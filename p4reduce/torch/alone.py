"""A group of one rank: it has no job, and each collective returns its input."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


class Alone:
    """A Communicator of one rank: the part of its interface that a group uses."""

    def all_reduce(self, array: Any, *args: Any, async_op: bool, **kwargs: Any) -> Future[Any]:
        return _done(array)

    reduce = broadcast = all_gather = reduce_scatter = all_reduce

    def barrier(self, *, async_op: bool) -> Future[Any]:
        return _done(None)

    def leave(self, *, timeout_s: float = 0.0) -> None:
        """Do nothing: no other rank waits."""

    def abort(self, reason: str) -> None:
        """Do nothing: no other rank hears the reason."""


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
