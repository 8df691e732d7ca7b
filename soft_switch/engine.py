"""The native engine of a data plane, compiled in the background where it was not built with the package."""

from __future__ import annotations

import contextlib
import ctypes
import threading

from soft_switch import native_api as api
from soft_switch.build import check, engine_is_built
from soft_switch.errors import ProgramError


class Engine:
    """An engine that is there when it is first needed, so that a program can be translated meanwhile."""

    def __init__(self, cpu_port: int, drop_port: int, seed: int, priority_queues: int) -> None:
        """ProgramError where nothing can be compiled."""
        self._settings = cpu_port, drop_port, seed
        self._priority_queues = priority_queues
        self._making = threading.Lock()
        self._handle: int | None = None
        self._closed = False
        self._error: ProgramError | None = None
        check()
        if engine_is_built():
            self._make()
        else:
            threading.Thread(target=self._prepare, name="soft_switch engine", daemon=True).start()

    @property
    def library(self) -> ctypes.CDLL:
        """The engine's functions."""
        return api.engine_library()

    @property
    def handle(self) -> int:
        """The engine; RuntimeError when it is gone."""
        handle = self._handle or self._make()
        if handle is None:
            raise RuntimeError("the data plane is closed")
        return handle

    @property
    def is_gone(self) -> bool:
        """Whether somebody took the engine."""
        return self._closed

    def exists(self) -> bool:
        """Make it, unless it is gone; False: it is, or it cannot be compiled."""
        with contextlib.suppress(ProgramError):
            return self._make() is not None
        return False

    def take(self) -> int | None:
        """The engine, for the last time: who gets it destroys it. None: it is gone, or was never needed."""
        with self._making:
            handle, self._handle, self._closed = self._handle, None, True
            return handle

    def _make(self) -> int | None:
        with self._making:
            if self._handle is None and not self._closed:
                if self._error is not None:
                    raise self._error
                try:
                    library = self.library
                except ProgramError as error:
                    self._error = error
                    raise
                handle: int = library.engine_create(*self._settings)
                library.engine_set_priority_queues(handle, self._priority_queues)
                self._handle = handle
            return self._handle

    def _prepare(self) -> None:
        self.exists()  # what is wrong is raised again where the engine is used
