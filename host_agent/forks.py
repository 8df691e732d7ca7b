"""Sockets that a forked child does not keep: they tell others that this process lives.

A peer hears of a death when the last descriptor of a connection is closed. A child that was forked, as a data
loader is, has copies of all of them, and would hold the news back for as long as it lives.
"""

from __future__ import annotations

import os
import socket
from typing import Final, TypeVar
from weakref import WeakSet

Socket = TypeVar("Socket", bound=socket.socket)

_KEPT_HERE: Final[WeakSet[socket.socket]] = WeakSet()


def not_for_children(mine: Socket) -> Socket:
    """Close this socket in every child that is forked from now on. Returns it."""
    _KEPT_HERE.add(mine)
    return mine


def _close_in_child() -> None:
    for mine in list(_KEPT_HERE):
        mine.close()  # this process's descriptor only: the connection stays as it is
    _KEPT_HERE.clear()


os.register_at_fork(after_in_child=_close_in_child)
