"""Work that PyTorch waits for: futures, callbacks, errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
# ruff: noqa: E402 (what is imported here needs PyTorch)

from host_agent.errors import CollectiveTimeoutError, WorkerLostError
from p4reduce.torch.completion import Completer
from p4reduce.torch.work import Work


def work_of(*futures: Future[Any], outputs: Any = None, finish: Any = None) -> tuple[Work, list[str]]:
    aborted: list[str] = []
    outputs = [torch.zeros(2)] if outputs is None else outputs
    return Work(futures, outputs, what="all_reduce", abort=aborted.append, finish=finish), aborted


def lost() -> WorkerLostError:
    return WorkerLostError("rank 1 (h2) has died")


def test_it_is_over_when_all_are_and_the_result_is_there_before_callbacks_run() -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    output = torch.zeros(2)
    work, _ = work_of(
        first, second, outputs=[output], finish=lambda results: output.copy_(torch.tensor(results))
    )
    seen = work.get_future().then(lambda future: future.value()[0].clone())
    first.set_result(3)
    assert not work.is_completed()
    second.set_result(4)
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert seen.wait().tolist() == [3, 4]
    assert work.get_future() is work.get_future()
    assert work.get_future().wait() == [output]
    assert work.result() == [output]


def test_a_result_is_put_in_place_once() -> None:
    """Check that it is, also where another thread ends the collective while this one begins to listen."""
    filling, made = threading.Event(), threading.Event()
    filled: list[str] = []

    class Quick(Future[int]):
        def add_done_callback(self, callback: Any) -> None:
            super().add_done_callback(callback)
            threading.Thread(target=self.set_result, args=(7,), name="agent").start()
            assert filling.wait(10)

    def finish(_: list[int]) -> None:
        filled.append(threading.current_thread().name)
        filling.set()
        if filled[-1] == "agent":
            made.wait(10)

    work, _ = work_of(Quick(), finish=finish)
    made.set()
    assert work.wait()
    assert filled == ["agent"]


def test_a_future_that_is_asked_for_afterwards_is_complete() -> None:
    work, _ = work_of()
    assert work.wait()
    assert len(work.get_future().wait()) == 1


def test_who_waits_raises_our_error_and_futures_our_text() -> None:
    future: Future[int] = Future()
    work, _ = work_of(future)
    asked = work.get_future()
    called = threading.Event()
    asked.add_done_callback(lambda _: called.set())
    error = lost()
    future.set_exception(error)
    with pytest.raises(WorkerLostError) as raised:
        work.wait()
    assert raised.value is error
    assert work.exception() is error
    assert not work.is_success()
    with pytest.raises(RuntimeError, match=r"WorkerLostError: rank 1 \(h2\) has died"):
        asked.wait()
    assert called.wait(10)


def test_an_error_in_a_future_is_one_to_pytorchs_c_code() -> None:
    """DDP waits so, and takes what it finds for tensors."""
    future: Future[int] = Future()
    work, _ = work_of(future)
    collected = torch.futures.collect_all([work.get_future()])
    future.set_exception(lost())
    with pytest.raises(RuntimeError, match="has died"):
        collected.wait()


def test_what_finish_raises_is_raised_where_one_waits() -> None:
    def finish(results: list[Any]) -> None:
        raise ValueError("of another shape")

    work, _ = work_of(finish=finish)
    with pytest.raises(ValueError, match="of another shape"):
        work.wait()


def test_a_callback_may_wait_for_another_collective() -> None:
    """Check that it may, as DDP's PowerSGD hook does."""
    first: Future[int] = Future()
    second: Future[int] = Future()
    one, _ = work_of(first)
    two, _ = work_of(second)
    started = threading.Event()

    def nested(_: Any) -> int:
        started.set()
        two.get_future().wait()
        return 5

    result = one.get_future().then(nested)
    first.set_result(0)
    assert started.wait(10)
    second.set_result(0)
    assert result.wait() == 5


def test_after_its_own_time_out_nothing_uses_the_tensors() -> None:
    work, aborted = work_of(Future())
    with pytest.raises(CollectiveTimeoutError, match=r"all_reduce: not over after 0.01 s"):
        work.wait(timedelta(seconds=0.01))
    assert aborted == ["all_reduce: not over after 0.01 s, which wait() was given"]


def test_an_interrupt_ends_it_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    work, aborted = work_of(Future())

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr(work, "_over", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    assert aborted == ["all_reduce: interrupted by KeyboardInterrupt"]


def test_one_that_nobody_holds_fills_its_tensors() -> None:
    future: Future[int] = Future()
    output = torch.zeros(1)
    asked = work_of(future, outputs=[output], finish=lambda _: output.fill_(7))[0].get_future()
    gc.collect()
    future.set_result(0)
    assert asked.wait()[0].item() == 7


SIGNALS = """
import os, signal, sys, time
from p4reduce.torch import completion

class Group:
    told = []
    def may_wait(self): return True
    def abort(self, reason): self.told.append(reason)
    def at_exit(self): pass

group = Group()
completion.watch(group)

def interrupt(pid):
    try:
        os.kill(pid, signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        time.sleep(1)
    return len(group.told)

child = os.fork()
if child == 0:
    interrupt(os.getpid())
    os._exit(0)
os.waitpid(child, 0)
time.sleep(1)
said = [len(group.told)]
signal.signal(signal.SIGINT, lambda *_: None)
said.append(interrupt(os.getpid()))
signal.signal(signal.SIGINT, signal.default_int_handler)
said.append(interrupt(os.getpid()))
print(said)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_job_where_it_would_end_the_script() -> None:
    """Check that it does not where the script handles it, or where a forked process alone gets it."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "[0, 0, 1]\n", done.stderr


EXIT = """
from p4reduce.torch import completion

class Group:
    def __init__(self, number): self.number = number
    def may_wait(self): return False
    def abort(self, reason): pass
    def at_exit(self): print(self.number, end=" ")

groups = [Group(number) for number in range(20)]
for group in groups:
    completion.watch(group)
"""


@pytest.mark.slow
def test_at_exit_groups_are_left_in_one_order_on_all_ranks() -> None:
    """Ranks that leave two groups in another order each wait for each other."""
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == [str(number) for number in reversed(range(20))], done.stderr


def test_a_completer_takes_one_thread_until_a_callback_blocks() -> None:
    completer = Completer()
    order: list[int] = []
    for number in range(50):
        completer.put(lambda number=number: order.append(number))  # type: ignore[misc]
    blocked, free, last = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        free.wait(30)

    completer.put(block)
    assert blocked.wait(10)
    completer.put(last.set)
    assert last.wait(10)
    free.set()
    assert order == sorted(order)
    assert completer.threads == 3
    completer.close()
