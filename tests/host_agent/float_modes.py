"""A thread's floating-point mode, set as libraries and their users set it."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_LIBM = ctypes.CDLL("libm.so.6")
# Where fenv_t has the mode, and what is set there: (offset, bits)
_X86: Final = {"flush": 0x8040, "up": 0x4000}  # MXCSR: FTZ and DAZ; rounding up
_ARM: Final = {"flush": 1 << 24, "up": 1 << 22}  # FPCR: FZ; rounding up
_PLACES: Final = {"x86_64": (28, _X86), "aarch64": (0, _ARM)}

MODES: Final = ("flush", "up")


@contextmanager
def float_mode(name: str) -> Iterator[None]:
    """Run with subnormals flushed to zero ("flush"), or results rounded up ("up"), in this thread alone."""
    offset, bits = _PLACES[platform.machine()]
    before, changed = (ctypes.create_string_buffer(64) for _ in range(2))
    _LIBM.fegetenv(before)
    ctypes.memmove(changed, before, len(before))
    word = ctypes.c_uint32.from_buffer(changed, offset)
    word.value |= bits[name]
    _LIBM.fesetenv(changed)
    try:
        yield
    finally:
        _LIBM.fesetenv(before)


class InMode:
    """An object whose methods run in a mode: one rank's endpoint among others in one thread."""

    def __init__(self, target: Any, name: str) -> None:
        self._target = target
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._target, attribute)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            with float_mode(self._name):
                return value(*arguments, **options)

        return call
