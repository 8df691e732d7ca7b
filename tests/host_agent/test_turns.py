"""The order of calls, also where an interrupt strikes between any two lines."""

from __future__ import annotations

import itertools
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from host_agent.errors import CommunicatorClosedError, UsageError
from host_agent.turns import Turns


@dataclass(frozen=True)
class Call:
    what: str = "a call"


class User:
    """Numbers calls, and ends as a communicator does when one was interrupted."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.ran: list[int] = []
        self.cancelled: list[int] = []
        self.failure: BaseException | None = None
        self.goes = threading.Event()
        self.turns: Turns[Call] = Turns(
            "turns", admit=self.admit, perform=self.perform, fail=self.fail, cancelled=self.cancelled.append
        )

    def admit(self, call: Call) -> int:
        if self.failure is not None:
            raise CommunicatorClosedError("it has failed")
        return next(self.numbers)

    def perform(self, call: Call, number: int) -> int:
        if self.failure is not None:
            raise CommunicatorClosedError("it has failed")
        if call.what == "waits":
            assert self.goes.wait(20)
        self.ran.append(number)
        return number

    def fail(self, error: BaseException) -> None:
        self.failure = error
        self.turns.stop()


def test_calls_run_in_the_order_in_which_they_were_made() -> None:
    user = User()
    futures = [user.turns.later(Call("waits")), user.turns.later(Call())]
    with ThreadPoolExecutor() as pool:
        now = pool.submit(user.turns.now, Call())
        while next(iter([user.turns._places])) < 3:
            pass
        futures.append(user.turns.later(Call()))
        assert not now.done()
        user.goes.set()
        assert [now.result(20), *(future.result(20) for future in futures)] == [2, 0, 1, 3]
    assert user.ran == [0, 1, 2, 3]
    user.turns.close()


def test_what_is_cancelled_holds_nobody_up() -> None:
    user = User()
    first, second = user.turns.later(Call("waits")), user.turns.later(Call())
    assert second.cancel()
    user.goes.set()
    assert user.turns.now(Call()) == 2
    assert (first.result(20), user.cancelled, user.ran) == (0, [1], [0, 2])
    user.turns.close()


def test_a_callback_may_not_wait_for_its_own_queue() -> None:
    user, seen = User(), list[Any]()

    def call_again(_: object) -> None:
        with pytest.raises(UsageError, match="in a future's callback"):
            user.turns.now(Call())
        seen.append(user.turns.later(Call()))

    future = user.turns.later(Call("waits"))
    future.add_done_callback(call_again)
    user.goes.set()
    future.result(20)
    user.turns.close()
    assert seen[0].result(20) == 1


def test_an_interrupt_at_any_moment_leaves_nothing_locked() -> None:
    """Check that another thread's call then runs, or hears that the job has failed; no number is lost."""
    random = Random(1)
    for _ in range(150):
        user = User()
        interrupt(user, random.random() * 0.002)
        with ThreadPoolExecutor() as pool:
            after = pool.submit(user.turns.now, Call())
            error = after.exception(20)
        if user.failure is None:
            assert error is None
            user.turns.close()
            assert user.ran == list(range(len(user.ran)))
        else:
            assert isinstance(error, CommunicatorClosedError)


def interrupt(user: User, after_s: float) -> None:
    """Make calls until Ctrl-C comes, which Python forgets if it comes in a callback of its own."""
    main, pressed = threading.main_thread().ident or 0, threading.Event()

    def press() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        pressed.set()

    presses = threading.Timer(after_s, press)
    try:
        presses.start()
        while not pressed.is_set():
            user.turns.now(Call())
        pressed.wait()
    except KeyboardInterrupt:
        presses.join()


def test_calls_of_other_threads_are_over_when_they_are() -> None:
    user = User()
    assert user.turns.are_over(timeout_s=0)
    with ThreadPoolExecutor() as pool:
        now = pool.submit(user.turns.now, Call("waits"))
        while not user.turns._places:
            pass
        assert not user.turns.are_over(timeout_s=0.01)
        user.goes.set()
        assert user.turns.are_over(timeout_s=20)
        assert now.result(20) == 0
    user.turns.close()
