"""Arrival of the workers of one machine: local rank 0 is the host, the others visit it.

Each brings its memory, as a file descriptor; the host gives everybody all of it. The host turns away visitors
that do not speak as workers do. If workers differ, it refuses all of them, with the same sentence.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import selectors
import socket
import time
from dataclasses import asdict
from typing import Final

from host_agent.errors import JobRefusedError
from host_agent.forks import not_for_children
from host_agent.machine.messages import (
    MESSAGE_BYTES,
    BadMessageError,
    Hello,
    Message,
    Refused,
    Welcome,
    Who,
    decoded,
    encoded,
)
from host_agent.machine.place import AGAIN_S, Place, user_of

_LOG = logging.getLogger(__name__)
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Arrived = tuple[list[int], dict[int, socket.socket]]  # everybody's memory; connections by local rank


def make_region(size: int) -> int:
    """Make memory to be shared, zeros at first; nobody can make it smaller under its readers."""
    file = os.memfd_create("p4reduce", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file


def require_region(file: int, size: int) -> None:
    """Raise JobRefusedError if a descriptor is not memory of that size for good."""
    try:
        is_sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # another kind of file
        is_sealed = False
    if not is_sealed or os.fstat(file).st_size != size:
        raise JobRefusedError(
            "the workers of this machine share memory of different sizes or kinds: update all of them"
        )


class _Guests:
    """The workers that have come to local rank 0, which is one of them."""

    def __init__(self, who: Who, own: int) -> None:
        self._who = who
        self._files = {0: os.dup(own)}
        self._peers: dict[int, socket.socket] = {}
        self._strangers: set[socket.socket] = set()  # which have said nothing yet

    @property
    def missing(self) -> list[int]:
        """The local ranks that have not come."""
        return [rank for rank in range(self._who.local_size) if rank not in self._files]

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """Return the connection of the next visitor; None if it belongs to another user or has gone."""
        try:
            peer = not_for_children(listener.accept()[0])
        except OSError:  # it has gone again
            return None
        if (user := user_of(peer)) != os.geteuid():
            _LOG.warning("%s: a process of user %d is turned away", self._who, user)
            peer.close()
            return None
        peer.setblocking(False)
        self._strangers.add(peer)
        return peer

    def hear(self, peer: socket.socket) -> bool:
        """Take in a visitor's Hello; return whether it may say more. JobRefusedError if it does not fit."""
        for rank, guest in self._peers.items():
            if guest is peer:  # guests say nothing before they are welcome: it died, and may come again
                peer.close()
                os.close(self._files.pop(rank))
                del self._peers[rank]
                return False
        self._strangers.discard(peer)
        files: list[int] = []
        try:
            said = _received(peer, files, 1)
            if not isinstance(said, Hello) or len(files) != 1:
                raise BadMessageError("something else than a worker says first")
            if wrong := self._difference(said):
                raise JobRefusedError(f"the workers of this machine cannot work together: {wrong}")
            self._files[said.local_rank], self._peers[said.local_rank] = files.pop(), peer
            return True
        except (OSError, EOFError):  # it died meanwhile
            peer.close()
        except BadMessageError as error:
            _LOG.warning("%s: a process that said %s is turned away", self._who, error)
            _refuse(peer, f"local rank 0 does not understand: {error}")
        except JobRefusedError as error:
            _refuse(peer, str(error))
            raise
        finally:
            for file in files:
                os.close(file)
        return False

    def welcome(self) -> Arrived:
        """Give everybody all memory. A death meanwhile is noticed when all have met."""
        ordered = [self._files[rank] for rank in range(self._who.local_size)]
        for peer in self._peers.values():
            peer.setblocking(True)
            with contextlib.suppress(OSError):
                socket.send_fds(peer, [encoded(Welcome())], ordered)
        for stranger in self._strangers:
            stranger.close()
        return ordered, self._peers

    def dismiss(self, why: BaseException) -> None:
        """Send all visitors away with the reason."""
        for peer in (*self._peers.values(), *self._strangers):
            _refuse(peer, str(why) or repr(why))
        for file in self._files.values():
            os.close(file)

    def _difference(self, hello: Hello) -> str:
        """Say why a worker cannot be one of these; return "" if it can."""
        mine = asdict(Hello.of(self._who))
        for name, value in asdict(hello).items():
            if name != "local_rank" and mine[name] != value:
                return f"{name.replace('_', ' ')} is {mine[name]!r} at local rank 0 and {value!r} at another"
        if hello.local_rank >= self._who.local_size:
            return f"{hello.local_rank} is no local rank of {self._who.local_size}"
        return f"local rank {hello.local_rank} is there already" if hello.local_rank in self._files else ""


def host(place: Place, who: Who, own: int, deadline: float) -> Arrived:
    """Wait, as local rank 0, for the others, and give all of them everybody's memory. JobRefusedError."""
    guests = _Guests(who, own)
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
            selectors.DefaultSelector() as selector,
        ):
            not_for_children(listener).setblocking(False)
            place.listen(listener, who.local_size, deadline)
            try:
                selector.register(listener, selectors.EVENT_READ)
                while missing := guests.missing:
                    if (left := deadline - time.monotonic()) <= 0:
                        raise JobRefusedError(
                            f"{who}: local rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of "
                            f"this machine did not come in time to {place}"
                        )
                    for key, _ in selector.select(left):
                        come = key.fileobj
                        if come is listener:
                            if (peer := guests.accept(listener)) is not None:
                                selector.register(peer, selectors.EVENT_READ)
                        elif isinstance(come, socket.socket):
                            selector.unregister(come)
                            if guests.hear(come):
                                selector.register(come, selectors.EVENT_READ)
            finally:
                place.remove()
        return guests.welcome()
    except BaseException as error:
        guests.dismiss(error)
        raise


def visit(place: Place, who: Who, own: int, deadline: float) -> Arrived:
    """Bring our memory to local rank 0, and take everybody's (all other ranks). JobRefusedError."""
    while True:
        peer = not_for_children(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        files: list[int] = []
        try:
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            place.connect(peer)
            socket.send_fds(peer, [encoded(Hello.of(who))], [own])
            said = _received(peer, files, who.local_size)
            if isinstance(said, Refused):
                raise JobRefusedError(said.why)
            is_ours = len(files) == who.local_size and os.path.sameopenfile(files[who.local_rank], own)
            if not isinstance(said, Welcome) or not is_ours:
                raise BadMessageError(f"{type(said).__name__.lower()!r} with {len(files)} files")
            peer.settimeout(None)
            return files, {0: peer}
        except BaseException as error:
            peer.close()
            for file in files:
                os.close(file)
            if isinstance(error, BadMessageError):
                raise JobRefusedError(
                    f"{who}: what listens at {place} is not local rank 0 of a job of this version: it said "
                    f"{error}"
                ) from error
            if not isinstance(error, OSError | EOFError):
                raise
            # Nobody listens, or it was the end of an earlier job of the same name, or local rank 0 died.
            if time.monotonic() >= deadline:
                raise JobRefusedError(
                    f"{who}: local rank 0 of this machine, or another of its workers, did not come in time "
                    f"to {place}"
                ) from error
        time.sleep(AGAIN_S)


def _received(peer: socket.socket, files: list[int], most: int) -> Message:
    """Return the next message; its descriptors are put into `files`. OSError, EOFError, BadMessageError."""
    packet, received, flags, _ = socket.recv_fds(peer, MESSAGE_BYTES, most, socket.MSG_CMSG_CLOEXEC)
    files += received
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise BadMessageError(f"more than {MESSAGE_BYTES} bytes or {most} files")
    if not packet:
        raise EOFError
    return decoded(packet)


def _refuse(peer: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        peer.send(encoded(Refused(why)), socket.MSG_DONTWAIT)
    peer.close()
