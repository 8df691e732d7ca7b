"""Executors for `--workers`: this process, processes of its own, or a running Dask scheduler's workers."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from p4reduce.workloads.errors import WorkloadError

MAX_PROCESSES: Final = 256
_CONNECT_S: Final = 15
_OURS: Final = "p4reduce"
_SAY: Final = "say how many processes (2), or where a Dask scheduler is (dask://127.0.0.1:8786)"
_HELD_BACK: Final = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def require_workers(text: str) -> None:
    """Raise WorkloadError if `executor_of` cannot know what is meant, or lacks what it needs."""
    if text.startswith("dask://"):
        if re.fullmatch(r"dask://[^\s/]+:\d+", text) is None:
            raise WorkloadError(f"{text!r} is no scheduler's address: {_SAY}")
        _dask()
    elif re.fullmatch(r"\d{1,3}", text, re.ASCII) is None or not 1 <= int(text) <= MAX_PROCESSES:
        raise WorkloadError(f"{text!r} workers: {_SAY}, at most {MAX_PROCESSES}")


@contextmanager
def executor_of(text: str) -> Iterator[Executor | None]:
    """Yield an executor for `N` processes or the scheduler at `dask://HOST:PORT`; for `1` None: this process.

    Leaving the block ends what still runs in the processes. Raise WorkloadError if they or the scheduler end
    earlier.
    """
    require_workers(text)
    if text == "1":
        yield None
        return
    dask = text.startswith("dask://")
    try:
        with _client(text.removeprefix("dask://")) if dask else _processes(int(text)) as made:
            yield made
    except BrokenExecutor as error:
        raise WorkloadError(
            "a process that simulated was killed, maybe for want of memory: take fewer --workers"
        ) from error
    except CancelledError as error:
        raise WorkloadError(f"the scheduler at {text} has ended, or forgot what it was asked for") from error


@contextmanager
def _processes(number: int) -> Iterator[Executor]:
    """Yield an executor whose processes live until the block is left.

    However this process ends, their pipe closes then, and they end too.
    """
    reader, writer = os.pipe()
    # Signals are held back while others are made, which would take them as this process does.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        made = ProcessPoolExecutor(
            number, multiprocessing.get_context("fork"), initializer=_begin, initargs=(reader, writer)
        )
        for _ in range(number):
            made.submit(int)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield made
    finally:
        os.close(writer)
        os.close(reader)
        made.shutdown(cancel_futures=True)


def _begin(reader: int, writer: int) -> None:
    """Ignore Ctrl-C, which is for the process that gathers, and let other signals end this process at once.

    A Python handler runs only when Python does: never, if the signal comes just before it begins to wait.
    """
    os.close(writer)
    threading.Thread(target=_end_with, args=(reader,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)


def _end_with(reader: int) -> None:
    os.read(reader, 1)
    os._exit(1)


@contextmanager
def _client(address: str) -> Iterator[Executor]:
    dask = _dask()
    try:
        client = dask.Client(f"tcp://{address}", timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise WorkloadError(
            f"no Dask scheduler answers at {address}: start one with 'dask scheduler'"
        ) from error
    with client:
        _require_the_same(client, address)
        try:
            yield client.get_executor()
        except dask.KilledWorker as error:
            raise WorkloadError(
                f"workers of the scheduler at {address} were killed, maybe for want of memory: {error}"
            ) from error


def _require_the_same(client: Any, address: str) -> None:
    """Raise WorkloadError unless the scheduler and its workers have this version of p4reduce.

    A task that they cannot unpickle would be waited for without end.
    """
    try:
        there = {client.run_on_scheduler(version, _OURS), *client.run(version, _OURS).values()}
    except PackageNotFoundError as error:
        raise WorkloadError(
            f"the scheduler at {address}, or a worker of it, has no p4reduce: install it there, too"
        ) from error
    if others := there - {version(_OURS)}:
        raise WorkloadError(
            f"the scheduler at {address}, or a worker of it, has p4reduce {', '.join(sorted(others))}: "
            f"install {version(_OURS)} there, as here"
        )


def _dask() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise WorkloadError(
            "dask:// needs Dask, which is not installed: pip install 'p4reduce[dask]', or take processes "
            "(--workers 2)"
        ) from error
    return distributed
