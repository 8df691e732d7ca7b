"""A group of one rank: it has no job, and what it sums is what it gives."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


class Alone:
    """As much of a Communicator as a group takes."""

    def all_reduce(self, array: Any, *args: Any, async_op: bool, **kwargs: Any) -> Future[Any]:
        return _done(array)

    reduce = broadcast = all_gather = reduce_scatter = all_reduce

    def barrier(self, *, async_op: bool) -> Future[Any]:
        return _done(None)

    def leave(self, *, timeout_s: float = 0.0) -> None:
        """Nobody waits."""

    def abort(self, reason: str) -> None:
        """Nobody hears it."""


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
