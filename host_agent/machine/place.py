"""The place where the workers of one machine meet: a Unix socket in a directory that only their user enters.

The directory is `p4reduce` under `$XDG_RUNTIME_DIR` where that is the user's, else `p4reduce-UID` under the
temporary directory. It is opened once, found to be a directory of this user that nobody else may enter, and
used through its descriptor: no name on the way to it can be exchanged later. The process that answers there
has to be of this user, too.

A socket's name is a hash of the job's name and of the network namespace: hosts that are namespaces of one
machine share their files, and do not meet. A process that is killed leaves its socket behind. Nobody listens
on it any more, so the next process replaces it, under a lock on the directory that ends with the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from host_agent.errors import JobRefusedError

RUNTIME: Final = "XDG_RUNTIME_DIR"
AGAIN_S: Final = 0.02
_PROBE_S: Final = 1.0
_NAMESPACE: Final = "/proc/thread-self/ns/net"
_CREDENTIALS: Final = "3i"  # struct ucred of unix(7): process, user, group


class Place:
    """The socket on which a job's local rank 0 listens on this machine. JobRefusedError if there is none."""

    def __init__(self, name: str) -> None:
        try:
            namespace = os.stat(_NAMESPACE)
        except OSError as error:
            raise JobRefusedError(
                f"the workers of this machine cannot meet, as its network namespace is not known: {error}"
            ) from error
        what = f"{os.geteuid()}\n{namespace.st_dev}\n{namespace.st_ino}\n{name}"
        self._name = hashlib.sha256(what.encode(errors="surrogateescape")).hexdigest()[:32]
        self.directory = _directory()
        self._at = _opened(self.directory)
        # A short way, as the paths of Unix sockets have 107 bytes at most.
        self._address = f"/proc/self/fd/{self._at}/{self._name}"

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._at)

    def __str__(self) -> str:
        return str(self.directory / self._name)

    def listen(self, listener: socket.socket, backlog: int, deadline: float) -> None:
        """Listen there, once an earlier job of the same name has met. JobRefusedError."""
        while True:
            try:
                if self._listens(listener, backlog):
                    return
            except OSError as error:
                raise JobRefusedError(
                    f"the workers of this machine cannot meet at {self}: {error}"
                ) from error
            if time.monotonic() >= deadline:
                raise JobRefusedError(
                    f"this machine's workers cannot meet at {self}: others of a job of the same name are "
                    "still meeting"
                )
            time.sleep(AGAIN_S)

    def connect(self, visitor: socket.socket) -> None:
        """Connect to the listener. OSError if there is none; JobRefusedError if it is another user's."""
        visitor.connect(self._address)
        if (user := user_of(visitor)) != os.geteuid():
            raise JobRefusedError(
                f"the workers of this machine cannot meet at {self}: user {user} listens there, and this "
                f"worker's is {os.geteuid()}. All workers of a machine have to be of one user"
            )

    def remove(self) -> None:
        """Remove the socket on which this process listens."""
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._at)

    def _listens(self, listener: socket.socket, backlog: int) -> bool:
        """Try to listen; return False if another process listens, or looks whether one does."""
        try:
            fcntl.flock(self._at, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            if self._is_taken():
                return False
            self.remove()
            listener.bind(self._address)
            listener.listen(backlog)
            return True
        finally:
            fcntl.flock(self._at, fcntl.LOCK_UN)

    def _is_taken(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.settimeout(_PROBE_S)
            try:
                probe.connect(self._address)
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except (BlockingIOError, TimeoutError):  # more wait there than it takes in
                return True
            return True


def user_of(peer: socket.socket) -> int:
    """Return the user of the process at the other end, as the kernel noted it at listen or connect."""
    size = struct.calcsize(_CREDENTIALS)
    return int(struct.unpack(_CREDENTIALS, peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def _directory() -> Path:
    """Return the directory's path; it need not exist yet."""
    runtime = os.environ.get(RUNTIME, "")
    if runtime.startswith("/"):
        with suppress(OSError):
            # After `sudo` the variable may name another user's.
            if os.stat(runtime).st_uid == os.geteuid() and os.access(runtime, os.W_OK | os.X_OK):
                return Path(runtime, "p4reduce")
    return Path(tempfile.gettempdir(), f"p4reduce-{os.geteuid()}")


def _opened(directory: Path) -> int:
    """Return a descriptor of the directory, made if need be. JobRefusedError if it is not private."""
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        wrong = "it is a symbolic link" if directory.is_symlink() else error.strerror or str(error)
        raise _not_private(directory, wrong) from error
    status = os.fstat(at)
    if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return at
    os.close(at)
    if status.st_uid != os.geteuid():
        raise _not_private(directory, f"it belongs to user {status.st_uid}")
    raise _not_private(directory, f"others may enter it (its mode is {stat.S_IMODE(status.st_mode):o})")


def _not_private(directory: Path, wrong: str) -> JobRefusedError:
    return JobRefusedError(
        f"the workers of this machine cannot meet in {directory}: {wrong}. Remove it, or set {RUNTIME} to a "
        f"directory of user {os.geteuid()}, the same for all workers of the machine"
    )
