"""A group of one rank: it has no job, and what it sums is what it gives."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


class Alone:
    """As much of a Communicator as a group takes."""

    def all_reduce_async(self, array: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        return _done(array)

    reduce_async = broadcast_async = all_gather_async = reduce_scatter_async = all_reduce_async

    def barrier_async(self) -> Future[Any]:
        return _done(None)

    def leave(self, *, timeout_s: float = 0.0) -> None:
        """Nobody waits."""

    def abort(self, reason: str) -> None:
        """Nobody hears it."""


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
