"""The native engine of a data plane."""

from __future__ import annotations

from soft_switch import native_api as api
from soft_switch.build import check


class Engine:
    """An engine until somebody takes it, and its functions."""

    def __init__(self, cpu_port: int, drop_port: int, seed: int, priority_queues: int) -> None:
        """Create the engine. ProgramError if nothing can be compiled."""
        check()
        self.library = api.engine_library()
        self._handle: int | None = self.library.engine_create(cpu_port, drop_port, seed, priority_queues)

    @property
    def handle(self) -> int:
        """The engine; RuntimeError when it is gone."""
        if self._handle is None:
            raise RuntimeError("the data plane is closed")
        return self._handle

    @property
    def is_gone(self) -> bool:
        """True once somebody took the engine."""
        return self._handle is None

    def take(self) -> int | None:
        """Return the engine for the last time: the caller destroys it. None: it is gone."""
        handle, self._handle = self._handle, None
        return handle
