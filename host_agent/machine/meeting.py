"""The workers of one machine meet over a Unix socket, share memory, and notice at once who dies.

Local rank 0 listens on an abstract address, which no file stands for and which ends with its process. The
others connect and bring their memory, as a file descriptor; 0 gives everybody all of it. The connections stay
open: one that breaks without a farewell is a process that died, and 0 tells the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from host_agent.errors import (
    CommunicatorError,
    JobEndedError,
    JobRefusedError,
    MismatchError,
    WorkerLostError,
)

_MESSAGE_BYTES: Final = 4096
_REASON_CHARACTERS: Final = 2000
_AGAIN_S: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Who:
    """A worker: its place in the machine and in the job, and what all of the machine have to agree on."""

    local_rank: int
    local_size: int
    rank: int
    world_size: int
    settings: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank}, local rank {self.local_rank} of {self.local_size}"


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
        self._tell({"left": self.who.local_rank, "collectives": collectives})

    def close(self) -> None:
        """Part from the others, whom that does not harm: they have what they need, or have failed."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.send(b'{"parts": true}')
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
        said = {"failed": str(error)[:_REASON_CHARACTERS], "kind": type(error).__name__, "rank": rank}
        self._tell(said, told_by=told_by)
        for callback in callbacks:
            callback(error)

    def _tell(self, said: dict[str, Any], *, told_by: int | None = None) -> None:
        text = json.dumps(said).encode()
        for rank, peer in self._peers.items():
            if rank != told_by:
                with contextlib.suppress(OSError):
                    peer.send(text)

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    if not self._hear(key.data, key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)

    def _hear(self, rank: int, peer: socket.socket) -> bool:
        """Whether more may come from there."""
        try:
            said = peer.recv(_MESSAGE_BYTES)
        except OSError:
            said = b""
        if not said:
            if rank not in self._parted:
                who = self.who
                global_rank = who.rank - who.local_rank + rank
                machine = f"machine {who.rank // who.local_size} ({socket.gethostname()}, rank {global_rank})"
                reason = f"GPU {rank} of {machine} died"
                self._fail(WorkerLostError(reason, rank=global_rank), told_by=rank)
            return False
        message = json.loads(said)
        if "parts" in message:
            self._parted.add(rank)
        elif "left" in message:
            self.left[message["left"]] = message["collectives"]
            self._tell(message, told_by=rank)  # by 0, to whom others have no connection
        elif "failed" in message:
            self._fail(_error(message), told_by=rank)
        return True


def _error(message: dict[str, Any]) -> CommunicatorError:
    """Another worker's, as we raise it: of its own troubles, that it is lost to us."""
    if message["kind"] == MismatchError.__name__:
        return MismatchError(message["failed"])
    kind = JobEndedError if message["kind"] == JobEndedError.__name__ else WorkerLostError
    return kind(message["failed"], rank=message["rank"])


def meet(name: str, who: Who, *, region_bytes: int, timeout_s: float) -> Meeting:
    """Meet the others of this machine under `name`, which stands for the job.

    Each worker gives `region_bytes` of memory, which all may read and write, zeros at first. Only processes
    of one user and one network namespace meet. JobRefusedError if the others do not come, or do not fit.
    """
    deadline = time.monotonic() + timeout_s
    digest = hashlib.sha256(f"{os.getuid()}\n{name}".encode()).hexdigest()[:32]
    address = f"\0p4reduce-{digest}"
    own = _region(region_bytes)
    try:
        invite = _host if who.local_rank == 0 else _visit
        files, peers = invite(address, who, own, deadline)
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


def _host(address: str, who: Who, own: int, deadline: float) -> tuple[list[int], dict[int, socket.socket]]:
    """Local rank 0: wait for the others, give all of them everybody's memory."""
    files = {0: os.dup(own)}
    peers: dict[int, socket.socket] = {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            _bind(listener, address, deadline)
            listener.listen(who.local_size)
            while len(files) < who.local_size:
                missing = [rank for rank in range(who.local_size) if rank not in files]
                listener.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    raise JobRefusedError(
                        f"{who}: local rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of "
                        "this machine did not come in time"
                    ) from None
                _let_in(peer, who, files, peers, deadline)
        ordered = [files[rank] for rank in range(who.local_size)]
        for peer in peers.values():
            socket.send_fds(peer, [b'{"welcome": true}'], ordered)
            peer.settimeout(None)
    except BaseException:
        for peer in peers.values():
            peer.close()
        for file in files.values():
            os.close(file)
        raise
    return ordered, peers


def _let_in(
    peer: socket.socket, who: Who, files: dict[int, int], peers: dict[int, socket.socket], deadline: float
) -> None:
    """Take one worker in; JobRefusedError, here and there, if it cannot be one of these."""
    uid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    if uid != os.getuid():
        peer.close()
        return
    peer.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        said, received, _, _ = socket.recv_fds(peer, _MESSAGE_BYTES, 1)
    except OSError:
        peer.close()
        return
    if not said or len(received) != 1:  # it died meanwhile
        for file in received:
            os.close(file)
        peer.close()
        return
    hello = json.loads(said)
    rank = hello.pop("local_rank")
    wrong = _difference(who, hello) or (f"local rank {rank} is there already" if rank in files else "")
    if not 0 <= rank < who.local_size:
        wrong = wrong or f"{rank} is no local rank of {who.local_size}"
    if wrong:
        os.close(received[0])
        with contextlib.suppress(OSError):
            peer.send(json.dumps({"refused": wrong}).encode())
        peer.close()
        raise JobRefusedError(f"the workers of this machine cannot work together: {wrong}")
    files[rank], peers[rank] = received[0], peer


def _difference(who: Who, hello: dict[str, Any]) -> str:
    mine = {"local_size": who.local_size, "world_size": who.world_size, "settings": who.settings}
    mine["machine"] = who.rank // who.local_size
    for name, value in mine.items():
        if hello.get(name) != value:
            return f"{name.replace('_', ' ')} is {value!r} at local rank 0 and {hello.get(name)!r} at another"
    return ""


def _visit(address: str, who: Who, own: int, deadline: float) -> tuple[list[int], dict[int, socket.socket]]:
    """All others: bring our memory to local rank 0, and take everybody's."""
    hello = {
        "local_rank": who.local_rank,
        "local_size": who.local_size,
        "world_size": who.world_size,
        "settings": who.settings,
        "machine": who.rank // who.local_size,
    }
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            peer.connect(address)
            socket.send_fds(peer, [json.dumps(hello).encode()], [own])
            said, files, _, _ = socket.recv_fds(peer, _MESSAGE_BYTES, who.local_size)
        except OSError as error:
            peer.close()
            if time.monotonic() >= deadline:
                raise JobRefusedError(
                    f"{who}: local rank 0 of this machine, or another of its workers, did not come in time"
                ) from error
            time.sleep(_AGAIN_S)
            continue
        message = json.loads(said) if said else {}
        if "refused" in message or len(files) == who.local_size:
            break
        peer.close()  # it was the end of a job of the same name, or local rank 0 has failed
        for file in files:
            os.close(file)
        if time.monotonic() >= deadline:
            raise JobRefusedError(f"{who}: local rank 0 of this machine gave up")
        time.sleep(_AGAIN_S)
    if "refused" in message:
        peer.close()
        raise JobRefusedError(f"the workers of this machine cannot work together: {message['refused']}")
    peer.settimeout(None)
    return files, {0: peer}


def _bind(listener: socket.socket, address: str, deadline: float) -> None:
    """An earlier job of the same name may be about to end."""
    while True:
        try:
            listener.bind(address)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise JobRefusedError(
                    "this machine's workers cannot meet: others of a job of the same name are still meeting"
                ) from error
            time.sleep(_AGAIN_S)
        else:
            return


def _region(size: int) -> int:
    file = os.memfd_create("p4reduce", os.MFD_CLOEXEC)
    os.ftruncate(file, size)
    return file


def _mapped(file: int, size: int) -> NDArray[np.uint8]:
    if os.fstat(file).st_size != size:
        raise JobRefusedError(
            "the workers of this machine share memory of different sizes: update all of them"
        )
    return np.frombuffer(mmap.mmap(file, size), np.uint8)
