"""Gloo on a host's link to the switch, where its traffic is ours, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SOCKET_INTERFACE: Final = "GLOO_SOCKET_IFNAME"


@contextmanager
def on_the_data_interface() -> Iterator[None]:
    """Let Gloo groups that are made meanwhile take the data interface."""
    before = dict(os.environ)
    os.environ[SOCKET_INTERFACE] = os.environ["DATA_INTERFACE"]
    try:
        yield
    finally:
        os.environ.pop(SOCKET_INTERFACE)
        os.environ.update({name: before[name] for name in before.keys() & {SOCKET_INTERFACE}})
