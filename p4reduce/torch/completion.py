"""Work beside the caller's thread: callbacks of futures, Ctrl-C while PyTorch waits in C++, and the exit.

A process has one of each.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 (registers its own exit, before which ours has to run)
import itertools
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakValueDictionary

_SETTLE_S: Final = 0.2  # after Ctrl-C: whoever waits in Python is woken by it alone
_JOIN_S: Final = 5.0
_BLOCKED_S: Final = 0.01  # in a callback, while others wait to run


class Closable(Protocol):
    """A group that is told of Ctrl-C and of the interpreter's exit."""

    def may_wait(self) -> bool: ...

    def abort(self, reason: str) -> None: ...

    def at_exit(self) -> None: ...


class Completer:
    """A thread that runs the given callbacks in order, and one more where a callback takes long.

    A callback may wait for a second collective (DDP's PowerSGD hook does), whose future needs a thread too.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset it: a forked process has none of its parent's threads, not even one that holds the lock."""
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = self._begun = 0
        self._closed = False

    @property
    def threads(self) -> int:
        """Number of threads that it has started, with the one that looks after them."""
        return len(self._threads)

    def put(self, job: Callable[[], None]) -> None:
        """Have `job` run, which must not raise."""
        with self._changed:
            self._jobs.append(job)
            if not self._threads:
                self._start(self._run)
                self._start(self._look_after)
            self._changed.notify_all()

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="p4reduce-futures", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs or self._closed)
                self._idle -= 1
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                self._begun += 1
            job()
            del job

    def _look_after(self) -> None:
        with self._changed:
            while not self._closed:
                self._changed.wait_for(lambda: self._closed or (self._jobs and not self._idle))
                begun = self._begun
                self._changed.wait_for(lambda: self._closed, _BLOCKED_S)
                if self._jobs and not self._idle and self._begun == begun:
                    self._start(self._run)

    def close(self) -> None:
        """Let the threads end: one that is cut off in C++ at the interpreter's end aborts the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = self._threads
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)


completer: Final = Completer()
_open: Final[WeakValueDictionary[int, Closable]] = WeakValueDictionary()
_numbers: Final = itertools.count()
_watching = False


def watch(group: Closable) -> None:
    """Tell `group` of the interpreter's exit, and of a Ctrl-C that comes while somebody may wait."""
    global _watching
    _open[next(_numbers)] = group
    if _watching or threading.current_thread() is not threading.main_thread():
        return
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)
    before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    if before != -1:  # somebody else's, asyncio's perhaps: it stays theirs
        signal.set_wakeup_fd(before)
        return
    _watching = True
    threading.Thread(
        target=_watch_signals, args=(ours, pythons), name="p4reduce-interrupts", daemon=True
    ).start()


def _leave_to_parent() -> None:
    """Drop the parent's groups and its socket for signals in a forked process: the parent would hear ours."""
    completer.forget()
    _open.clear()
    if _watching:
        with suppress(ValueError):  # it was forked by another thread than the main one
            signal.set_wakeup_fd(-1)


def _watch_signals(ours: socket.socket, pythons: socket.socket) -> None:
    """Abort groups on Ctrl-C. Python itself handles it only when C++ returns, which waits for other ranks.

    A script that handles Ctrl-C by itself goes on.
    """
    while True:
        heard = signal.SIGINT in ours.recv(64) and pythons.fileno() != -1
        if heard and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            time.sleep(_SETTLE_S)
            for group in list(_open.values()):
                if group.may_wait():
                    group.abort("interrupted (Ctrl-C)")


def close_all() -> None:
    """Close all groups at the interpreter's exit, the newest first on all ranks: leaving waits for others."""
    try:
        for group in reversed(list(_open.values())):
            group.at_exit()
    finally:
        completer.close()


# The agent's queue is a ThreadPoolExecutor, whose thread is waited for before `atexit` has its turn: a
# collective in which the others have no part any more would be waited for for ever.
getattr(threading, "_register_atexit", atexit.register)(close_all)
os.register_at_fork(after_in_child=_leave_to_parent)
