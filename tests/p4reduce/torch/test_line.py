"""The order of calls, while the job is joined and after."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")

from host_agent.errors import CommunicatorError, UsageError, WorkerLostError
from p4reduce.torch.line import Line


class Joined:
    """A stand-in for a communicator, with as much as calls and the end take."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)


def ended(value: int) -> Any:
    future: Future[int] = Future()
    future.set_result(value)
    return lambda communicator: future


def test_calls_keep_their_order_where_one_has_to_wait() -> None:
    ready, order = threading.Event(), list[int]()

    def call(number: int) -> Any:
        def made(communicator: Any) -> Any:
            order.append(number)
            return ended(number)(communicator)

        return made

    line = Line("0", lambda timeout_s: Joined(), timeout_s=30.0)  # type: ignore[arg-type, return-value]
    futures = [line.call(call(0)), line.call(call(1), ready.wait), line.call(call(2))]  # type: ignore[arg-type]
    assert futures[0].result(10) == 0
    assert order == [0]
    ready.set()
    assert [future.result(10) for future in futures] == [0, 1, 2]
    assert order == [0, 1, 2]


def test_who_destroys_a_group_that_joins_does_not_wait_for_it() -> None:
    joined, freed = Joined(), threading.Event()

    def join(timeout_s: float) -> Any:
        freed.wait(60)
        return joined

    line = Line("1", join, timeout_s=1800.0)
    waiting = line.call(ended(1))
    line.end("was destroyed", lambda communicator: None)
    with pytest.raises(UsageError, match="process group 1 was destroyed"):
        waiting.result(10)
    freed.set()
    for _ in range(1000):
        if joined.aborted:
            break
        threading.Event().wait(0.01)
    assert joined.aborted == ["process group 1 was destroyed"]


def test_joining_ends_where_the_others_come_no_more() -> None:
    """A rank of the group has died before its first collective, as the default group's job knows."""
    error, joined, freed = WorkerLostError("rank 1 (h2) has died", rank=1), Joined(), threading.Event()
    found: list[CommunicatorError] = []

    def join(timeout_s: float) -> Any:
        freed.wait(60)
        return joined

    line = Line("1", join, timeout_s=1800.0, lost=lambda: found[0] if found else None)
    waiting = line.call(ended(1))
    found.append(error)
    assert waiting.exception(30) is error
    with pytest.raises(UsageError, match=r"process group 1 could not join: rank 1 \(h2\) has died"):
        line.call(ended(2))
    freed.set()
    for _ in range(1000):
        if joined.aborted:
            break
        threading.Event().wait(0.01)
    assert "could not join" in joined.aborted[0]  # who has joined meanwhile is not left alone
