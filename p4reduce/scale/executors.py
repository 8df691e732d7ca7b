"""What runs the cells of a sweep: this process, some of its own, or an engine that runs already."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from p4reduce.workloads.errors import WorkloadError

MAX_PROCESSES: Final = 256
_CONNECT_S: Final = 15
_SAY: Final = "say how many processes (2), or where a Dask scheduler is (dask://127.0.0.1:8786)"


def require_workers(text: str) -> None:
    """WorkloadError where `executor_of` cannot know what is meant, or lacks what it needs."""
    if text.startswith("dask://"):
        if re.fullmatch(r"dask://[^\s/]+:\d+", text) is None:
            raise WorkloadError(f"{text!r} is no scheduler's address: {_SAY}")
        _dask()
    elif re.fullmatch(r"\d{1,3}", text, re.ASCII) is None or not 1 <= int(text) <= MAX_PROCESSES:
        raise WorkloadError(f"{text!r} workers: {_SAY}, at most {MAX_PROCESSES}")


@contextmanager
def executor_of(text: str) -> Iterator[Executor | None]:
    """`1`: None, for this process; `N`: so many processes; `dask://HOST:PORT`: that scheduler's workers."""
    require_workers(text)
    if text.startswith("dask://"):
        with _client(text.removeprefix("dask://")) as client:
            yield client.get_executor()
    elif int(text) == 1:
        yield None
    else:
        with ProcessPoolExecutor(int(text), initializer=_leave_interrupts_to_us) as processes:
            yield processes


def _leave_interrupts_to_us() -> None:
    """Ctrl-C reaches all processes of a terminal; the one that waits for the others ends the sweep."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        client = _dask().Client(f"tcp://{address}", timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise WorkloadError(
            f"no Dask scheduler answers at {address}: start one with 'dask scheduler'"
        ) from error
    with client:
        yield client


def _dask() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise WorkloadError(
            "dask:// needs Dask, which is not installed: pip install 'p4reduce[dask]', or take processes "
            "(--workers 2)"
        ) from error
    return distributed
