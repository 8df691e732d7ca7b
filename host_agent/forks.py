"""Connections that a forked child must not keep: they tell others that this process lives.

A peer hears of a death when the last descriptor of a connection is closed. A forked child, such as a data
loader, has copies of all of them, and would delay the news for as long as it lives. So children close them.
A child that calls another program has none of them anyway.
"""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

Socket = TypeVar("Socket", bound=socket.socket)
Peer = str | tuple[IPv4Address | IPv6Address, int]  # the path of a Unix socket, or an address and a port

_UNIX: Final = "unix:"
_DESCRIPTORS: Final = "/proc/self/fd"
_SOCKETS: Final[WeakSet[socket.socket]] = WeakSet()
_PEERS: Final[WeakKeyDictionary[object, frozenset[Peer]]] = WeakKeyDictionary()


def not_for_children(mine: Socket) -> Socket:
    """Close this socket in every child that is forked from now on, and return it."""
    _SOCKETS.add(mine)
    return mine


def connections_not_for_children(owner: object, target: str) -> None:
    """Close this process's connections to the server address `target` in children, while `owner` lives.

    Meant for sockets that belong to a library, such as gRPC. A name is looked up now, which may take a while.
    """
    _PEERS[owner] = frozenset(_peers_at(target))


def _peers_at(target: str) -> set[Peer]:
    """Return the addresses of a gRPC target, as sockets have them."""
    if target.startswith(_UNIX):
        return {"/" + target.removeprefix(_UNIX).lstrip("/")}
    host, _, port = target.rpartition("/")[2].rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:  # gRPC will say so
        return set()
    return {_internet(name) for *_, name in found}


def _internet(name: tuple[object, ...]) -> Peer:
    """Return the address in a socket's name; an IPv4 address stays one if the socket is of IPv6."""
    address = ip_address(str(name[0]).partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, int(str(name[1]))


def _close_in_child() -> None:
    for mine in list(_SOCKETS):
        mine.close()  # this process's descriptor only: the connection stays as it is
    _SOCKETS.clear()
    if peers := {peer for of_one in _PEERS.values() for peer in of_one}:
        for descriptor in map(int, os.listdir(_DESCRIPTORS)):
            if _peer_of(descriptor) in peers:
                _exchange(descriptor)
    _PEERS.clear()


def _peer_of(descriptor: int) -> Peer | None:
    """Return the other end of a connection; None if the descriptor is not a connection."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            return _internet(connection.getpeername())
        return str(connection.getpeername()) if connection.family == socket.AF_UNIX else None
    except OSError:  # it listens, or is not connected
        return None
    finally:
        connection.detach()


def _exchange(descriptor: int) -> None:
    """Close a descriptor but keep its number taken: the library may close that number once more."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_close_in_child)
