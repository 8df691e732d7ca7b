"""A collective under way as PyTorch's `Work`, with futures and callbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from host_agent.errors import CollectiveTimeoutError, CommunicatorError
from p4reduce.torch.completion import completer
from p4reduce.torch.transfer import Transfer

NO_TIMEOUT = timedelta(0)  # as PyTorch writes it


class Work(dist.Work):  # type: ignore[misc]
    """A collective under way: `futures`, after which `finish` leaves the result in `outputs`.

    `abort`: called with a reason where a wait is interrupted (Ctrl-C) or times out; when it returns, nothing
    uses the tensors any more. Results are there before callbacks run, in a thread of their own. On a GPU,
    results are valid for work that is issued after `wait`, as in PyTorch.
    """

    def __init__(
        self,
        futures: Sequence[Future[Any]],
        outputs: list[torch.Tensor],
        *,
        what: str,
        abort: Callable[[str], None],
        finish: Callable[[list[Any]], None] | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        super().__init__()
        self._what, self._abort, self._outputs, self._finish = what, abort, outputs, finish
        self._transfer = transfer or Transfer(None)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: BaseException | None = None
        # What PyTorch's Future.set_exception leaves in one is taken for tensors by DDP's C++ code, which
        # crashes. An error that a callback raises is an error there, too.
        self._base: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        waited = self._futures = list(futures)
        self._left = len(waited)
        for future in waited:
            future.add_done_callback(self._one_more)
        if not waited:
            self._end()

    def _one_more(self, future: Future[Any]) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._end()

    def _end(self) -> None:
        """Finish the collective. Callbacks run elsewhere: the agent's thread has other collectives to do."""
        try:
            with torch.no_grad():
                results = [future.result() for future in self._futures]
                if self._finish is not None:
                    self._finish(results)
                self._transfer.end()
        except BaseException as error:  # noqa: BLE001 (whoever waits raises it)
            self._error = error
        self._futures, self._finish = [], None
        with self._lock:
            self._over.set()
            base = self._base
        if base is not None:
            completer.put(lambda: self._complete(base))

    def _complete(self, base: torch.futures.Future[None]) -> None:
        with self._transfer.telling():
            base.set_result(None)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the result is there. Raise the collective's error, or CollectiveTimeoutError."""
        seconds = timeout.total_seconds()
        try:
            over = self._over.wait(seconds if seconds > 0 else None)
        except BaseException as error:  # Ctrl-C: it ends for all, as nobody can take it back
            self._abort(f"{self._what}: interrupted by {type(error).__name__}")
            raise
        if not over:
            reason = f"{self._what}: not over after {seconds:g} s, which wait() was given"
            self._abort(reason)
            raise CollectiveTimeoutError(reason)
        if self._error is not None:
            if isinstance(self._error, CommunicatorError):  # its sentence says it all; frames inside do not
                raise self._error.with_traceback(None) from None
            raise self._error.with_traceback(None)
        self._transfer.follow()
        return True

    def is_completed(self) -> bool:
        """Tell whether it is over, with or without an error."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Tell whether it is over without an error."""
        return self._over.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error that it failed with, if any."""
        return self._error

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors; it raises a RuntimeError with the text of the work's error."""
        with self._lock:
            if self._future is None:
                self._base = torch.futures.Future(devices=self._transfer.devices or None)
                self._future = self._base.then(self._tensors)
                over, base = self._over.is_set(), self._base
            else:
                return self._future
        if over:
            self._complete(base)
        return self._future

    def _tensors(self, _: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error.with_traceback(None)  # PyTorch puts all of it into the text
        return self._outputs

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that it fills."""
        return self._outputs

    def synchronize(self) -> None:
        """Wait as `wait` does, without a time-out."""
        self.wait()
