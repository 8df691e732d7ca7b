"""IEEE 754's default floating-point mode, for whatever rounds in Python.

The mode is a thread's, and new threads inherit it. PyTorch's `set_flush_denormal`, a library linked with
`-ffast-math` or `fesetround` change it on one worker and not on another, and NumPy computes in the mode that
it finds. Native code sets the default mode by itself (`native/float_mode.h`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from host_agent.transport.native import library


@contextmanager
def default_float_mode() -> Iterator[None]:
    """Round to nearest and keep subnormals in this thread; then set the mode that it had before.

    Also a decorator of functions. Never hold it across a `yield` of a collective's steps: other code would
    run in this mode, or the mode would end in another thread.
    """
    native = library()
    before = native.p4r_float_mode_enter()
    try:
        yield
    finally:
        native.p4r_float_mode_leave(before)
