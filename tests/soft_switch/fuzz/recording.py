"""Writes to a data plane's tables, as C++ that does the same to another instance of the program."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from soft_switch import native_api
from soft_switch.dataplane import DataPlane

# Calls that say nothing about entries, or that the harness makes itself.
LIFE = (
    "create destroy host process passes set_program attach detach stats start stop next_event close_events"
    " globals collected free inject fault_add fault_remove fault_report fault_struck set_wires"
)
UNRECORDED = {f"{prefix}_{name}" for prefix in ("engine", "p4") for name in LIFE.split()}


class Recording:
    """The calls so far, as statements on `engine` and `program`."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def add(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Add a call; one whose arguments are addresses of unknown size only reads."""
        try:
            texts = [_argument(value) for value in arguments[1:]]
        except TypeError:
            return
        subject = "program" if name.startswith("p4_") else "engine"
        self.statements.append(f"{name}({', '.join([subject, *texts])});")

    def text(self) -> str:
        """Return the statements."""
        return "\n".join(self.statements) + "\n"


def _argument(value: Any) -> str:
    if value is None:
        return "nullptr"
    if isinstance(value, bool | int | float):
        return repr(float(value)) if isinstance(value, float) else f"{int(value)}" + _suffix(int(value))
    if isinstance(value, bytes):
        return _buffer(value + b"\0")
    if isinstance(value, ctypes.Array | ctypes.Structure):
        return _buffer(bytes(value))
    if isinstance(value, ctypes._SimpleCData):
        return _argument(value.value)
    raise TypeError(type(value))


def _suffix(value: int) -> str:
    return "ull" if value >= 0 else "ll"


def _buffer(content: bytes) -> str:
    return f"Buffer{{{', '.join(map(str, content))}}}"


class _Recorder:
    """A library whose calls are recorded."""

    def __init__(self, library: ctypes.CDLL, recording: Recording) -> None:
        self._library, self._recording = library, recording

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name in UNRECORDED:
            return function

        def call(*arguments: Any) -> Any:
            result = function(*arguments)
            self._recording.add(name, arguments)
            return result

        return call


@contextmanager
def recorded(program: bytes, *, cpu_port: int | None = None) -> Iterator[tuple[DataPlane, Recording]]:
    """Yield a data plane with a program, and the recorder of what is done to it."""
    recording = Recording()
    engine, library = native_api.engine_library, native_api.program_library

    def wrap(make: Callable[..., ctypes.CDLL]) -> Callable[..., Any]:
        return lambda *arguments: _Recorder(make(*arguments), recording)

    native_api.engine_library = wrap(engine)  # type: ignore[assignment]
    native_api.program_library = wrap(library)
    try:
        plane = DataPlane(cpu_port=cpu_port)
        try:
            plane.load(program)
            yield plane, recording
        finally:
            plane.close()
    finally:
        native_api.engine_library, native_api.program_library = engine, library
