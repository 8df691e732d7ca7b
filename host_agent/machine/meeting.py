"""The workers of one machine meet over a Unix socket, share memory, and notice at once who dies.

Local rank 0 listens in a directory that only their user enters (`place.py`). The others connect and bring
their memory, as a file descriptor; 0 gives everybody all of it (`arriving.py`). The connections stay open:
one that breaks without a farewell is a process that died, and 0 tells the others. A worker that says what
no worker says (`messages.py`) has failed.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from host_agent.errors import CommunicatorError, JobEndedError, MismatchError, WorkerLostError
from host_agent.machine.arriving import host, make_region, require_region, visit
from host_agent.machine.messages import (
    MESSAGE_BYTES,
    BadMessageError,
    Failed,
    Left,
    Message,
    Parts,
    Who,
    decoded,
    encoded,
)
from host_agent.machine.place import Place

__all__ = ["Meeting", "Who", "meet"]
_LOG = logging.getLogger(__name__)


class Meeting:
    """A worker among those of its machine. `regions`: each one's memory, by local rank, shared by all.

    `failure`: why they cannot go on together; it never goes away again. `left`: who, by local rank, has left
    its job after so many collectives, and takes no more steps than it had taken then.
    """

    def __init__(self, who: Who, regions: list[NDArray[np.uint8]], peers: dict[int, socket.socket]) -> None:
        self.who = who
        self.regions = regions
        self.failure: CommunicatorError | None = None
        self.left: dict[int, int] = {}
        self._peers = peers  # by local rank: of 0 all others, of others 0 alone
        self._parted: set[int] = set()
        self._closing = False
        self._callbacks: list[Callable[[CommunicatorError], None]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._watch, name=f"p4reduce-machine{who.local_rank}", daemon=True
        )
        self._thread.start()

    def on_failure(self, callback: Callable[[CommunicatorError], None]) -> None:
        """Call `callback` once, from any thread, when another worker of the machine died or failed."""
        with self._lock:
            failure = self.failure
            if failure is None:
                self._callbacks.append(callback)
        if failure is not None:
            callback(failure)

    def fail(self, error: CommunicatorError | str) -> None:
        """Tell the others that this worker cannot go on. Idempotent."""
        self._fail(error if isinstance(error, CommunicatorError) else WorkerLostError(error), told_by=None)

    def leave(self, collectives: int) -> None:
        """Tell the others that this worker has called so many collectives, and calls no more."""
        self._tell(Left(self.who.local_rank, collectives))

    def close(self) -> None:
        """Part from the others, which does them no harm: they have what they need, or have failed."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        for peer in self._peers.values():
            self._send(peer, Parts())
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()
        for peer in self._peers.values():
            peer.close()

    def _fail(self, error: CommunicatorError, *, told_by: int | None) -> None:
        with self._lock:
            if self.failure is not None or self._closing:
                return
            self.failure = error
            callbacks, self._callbacks = self._callbacks, []
        rank = error.rank if isinstance(error, JobEndedError) else None
        self._tell(Failed(str(error), type(error).__name__, rank), told_by=told_by)
        for callback in callbacks:
            try:
                callback(error)
            except Exception:  # noqa: BLE001 (a user's, which must not keep the others from hearing it)
                _LOG.exception("%s: a callback failed", self.who)

    def _tell(self, said: Message, *, told_by: int | None = None) -> None:
        for rank, peer in self._peers.items():
            if rank != told_by:
                self._send(peer, said)

    def _send(self, peer: socket.socket, said: Message) -> None:
        """Say it, unless the peer is gone, or has stopped and has hundreds of messages to read."""
        with contextlib.suppress(OSError):
            peer.send(encoded(said), socket.MSG_DONTWAIT)

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    if not self._hear(key.data, key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)

    def _hear(self, rank: int, peer: socket.socket) -> bool:
        """Hear what comes from a peer; return whether more may come."""
        try:
            packet = peer.recv(MESSAGE_BYTES + 1)
        except OSError:
            packet = b""
        if not packet:
            if rank not in self._parted:
                self._lost(rank, "died")
            return False
        try:
            self._take(rank, decoded(packet))
        except BadMessageError as error:
            self._lost(rank, f"said what no worker says: {error}. Are all of one version?")
            return False
        return True

    def _take(self, rank: int, said: Message) -> None:
        """Take that worker's message. BadMessageError if it must not say this."""
        match said:
            case Parts():
                self._parted.add(rank)
            case Left(one, collectives):
                # By 0, to whom alone the others have connections, of any; by the others of themselves.
                if one >= self.who.local_size or (self.who.local_rank == 0 and one != rank):
                    raise BadMessageError(f"that GPU {one} has left")
                self.left[one] = collectives
                self._tell(said, told_by=rank)
            case Failed():
                self._fail(_error(said), told_by=rank)
            case _:
                raise BadMessageError(f"{type(said).__name__.lower()!r} after all have met")

    def _lost(self, rank: int, how: str) -> None:
        """Fail, and tell all others, the lost worker too, as it may not know."""
        who = self.who
        of_all = who.rank - who.local_rank + rank
        machine = f"machine {who.rank // who.local_size} ({socket.gethostname()}, rank {of_all})"
        self._fail(WorkerLostError(f"GPU {rank} of {machine} {how}", rank=of_all), told_by=None)


def _error(said: Failed) -> CommunicatorError:
    """Return the error that another worker told of; its own troubles count as the loss of that worker."""
    if said.kind == MismatchError.__name__:
        return MismatchError(said.reason)
    kind = JobEndedError if said.kind == JobEndedError.__name__ else WorkerLostError
    return kind(said.reason, rank=said.rank)


def meet(name: str, who: Who, *, region_bytes: int, timeout_s: float) -> Meeting:
    """Meet the others of this machine under `name`, which stands for the job.

    Each worker gives `region_bytes` of memory, which all may read and write, zeros at first. Only processes
    of one user and one network namespace meet, which see the same temporary or runtime directory (`Place`).
    JobRefusedError if the others do not come, or do not fit.
    """
    deadline = time.monotonic() + timeout_s
    own = make_region(region_bytes)
    try:
        with Place(name) as place:
            files, peers = (host if who.local_rank == 0 else visit)(place, who, own, deadline)
    finally:
        os.close(own)
    try:
        regions = [_mapped(file, region_bytes) for file in files]
    except BaseException:
        for peer in peers.values():
            peer.close()
        raise
    finally:
        for file in files:
            os.close(file)
    return Meeting(who, regions, peers)


def _mapped(file: int, size: int) -> NDArray[np.uint8]:
    require_region(file, size)
    return np.frombuffer(mmap.mmap(file, size), np.uint8)
