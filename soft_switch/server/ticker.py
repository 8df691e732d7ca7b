"""One thread that calls back when something is due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

LOG = logging.getLogger(__name__)

MIN_PERIOD_S = 0.01  # what becomes due in between is done together
MAX_PERIOD_S = 86400.0  # a longer one could be more than the system can wait


class Ticker:
    """A thread that calls `tick` after `delay_ns` nanoseconds, again and again; None: not before `wake`."""

    def __init__(self, tick: Callable[[], None], delay_ns: Callable[[], int | None]) -> None:
        self._tick = tick
        self._delay_ns = delay_ns
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="p4runtime ticker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; nothing is called any more afterwards."""
        self._stopped.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Look again: what is due, or when, may have changed."""
        self._woken.set()

    def _run(self) -> None:
        while not self._stopped.wait(MIN_PERIOD_S):
            try:
                delay = self._delay_ns()
                if delay is None or delay > 0:
                    self._woken.wait(None if delay is None else min(delay / 1e9, MAX_PERIOD_S))
                self._woken.clear()
                self._tick()
            except Exception:  # the thread has to live on
                LOG.exception("a notification failed")
