"""Compilation of C++ to shared libraries for this machine, which the user's cache keeps.

A library's name is a hash of everything that made it: source, headers, flags, compiler and processor.
It appears under its name only when complete, and processes that want the same one wait for the first.
Behind it in its file is its SHA-256 (which the loader ignores): a damaged file is made again, because
opening it could kill the process.

A program can be compiled twice: QUICK, to run at once, and OPTIMISED. Both have the same layout in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from soft_switch.errors import ProgramError

NATIVE = Path(__file__).parent / "native"
FLAGS = (
    "-std=c++17",
    "-march=native",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
    "-fno-plt",
    "-pthread",
    "-w",
)
COMPILE_TIMEOUT_S = 300.0
LOCK_POLL_S = 0.05
INTERRUPTION_POLL_S = 0.1
DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Tier:
    """A way to compile a program: flags, and the prefix of its libraries' names."""

    kind: str
    flags: tuple[str, ...]


OPTIMISED = Tier("program", ("-O3",))
QUICK = Tier("quick", ("-Og", "-fira-algorithm=priority"))
ENGINE = Tier("engine", ("-O2",))


class Stopped(ProgramError):
    """A compilation was stopped; nothing came of it."""

    def __init__(self) -> None:
        super().__init__("the compilation was stopped")


class Stop:
    """A request to stop, set by another thread or a signal's handler, at which compilations look."""

    requested = False

    def check(self) -> None:
        """Raise Stopped if it is requested."""
        if self.requested:
            raise Stopped


INTERRUPTION = Stop()  # all compilations of this process look at it


def user_cache() -> Path:
    """Return where this project keeps what can be made again: $XDG_CACHE_HOME/p4reduce, or ~/.cache/p4reduce.

    A relative path in the variable is ignored, as the XDG Base Directory Specification requires.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "p4reduce"


def cache_directory() -> Path:
    """Return where compiled programs are kept."""
    return user_cache() / "programs"


def build_program(source: str, tier: Tier = OPTIMISED, stop: Stop | None = None) -> Path:
    """Return the library made from generated source. ProgramError if it cannot be compiled.

    With `stop`, the compiler runs with low priority, and Stopped is raised when it is stopped.
    """
    return _build(source, tier, stop)


def find_program(source: str, tier: Tier = OPTIMISED) -> Path | None:
    """Return the library made from generated source, if it is in the cache."""
    library = _library(_compiler(), source, tier)
    return library if _intact(library) else None


def build_engine() -> Path:
    """Return the library that moves packets: the prebuilt one, or a new one if its sources differ."""
    return _prebuilt_engine() or _build((NATIVE / "engine.cpp").read_text(), ENGINE, None)


def check() -> None:
    """Raise ProgramError if nothing can be compiled, or there is no place to keep it."""
    _version(_compiler())
    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_keep(directory, error) from error


def _cannot_keep(directory: Path, error: OSError) -> ProgramError:
    return ProgramError(
        f"cannot keep compiled programs in {directory} ({error.strerror}): "
        "set XDG_CACHE_HOME to a directory that can be written"
    )


def engine_sources() -> str:
    """Return the SHA-256 of the sources of an engine built now, as setup.py computes it."""
    digest = hashlib.sha256()
    for path in sorted(NATIVE.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _prebuilt_engine() -> Path | None:
    path = NATIVE.parent / "_engine.so"
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError:  # not built, or for another machine
        return None
    library.engine_sources.restype = ctypes.c_char_p
    built_from: bytes = library.engine_sources()
    return path if built_from.decode() == engine_sources() else None


def _library(compiler: str, source: str, tier: Tier) -> Path:
    flags = " ".join((*FLAGS, *tier.flags))
    digest = hashlib.sha256()
    for part in (source, _headers(), flags, _version(compiler), _processor()):
        digest.update(part.encode())
        digest.update(b"\0")
    return cache_directory() / f"{tier.kind}-{digest.hexdigest()[:32]}.so"


def _build(source: str, tier: Tier, stop: Stop | None) -> Path:
    compiler = _compiler()
    library = _library(compiler, source, tier)
    if _intact(library):
        return library
    directory = library.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with library.with_suffix(".lock").open("w") as lock:
            _acquire(lock, stop)
            if not _intact(library):
                _compile(compiler, source, library, tier, stop)
    except OSError as error:
        raise _cannot_keep(directory, error) from error
    return library


def _check(stop: Stop | None) -> None:
    INTERRUPTION.check()
    if stop is not None:
        stop.check()


def _acquire(lock: IO[str], stop: Stop | None) -> None:
    while True:
        _check(stop)
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_POLL_S)


def _intact(library: Path) -> bool:
    return read_sealed(library) is not None


def read_sealed(path: Path) -> bytes | None:
    """Return a file's content without the digest behind it; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:  # it is not there, or making it says what is wrong
        return None
    body = memoryview(content)[:-DIGEST_BYTES]
    return bytes(body) if hashlib.sha256(body).digest() == content[-DIGEST_BYTES:] else None


def seal(content: bytes) -> bytes:
    """Return content with its digest behind it."""
    return content + hashlib.sha256(content).digest()


def _compile(compiler: str, source: str, library: Path, tier: Tier, stop: Stop | None) -> None:
    text = library.with_suffix(".cpp")
    with _scratch(library.with_suffix(".tmp")) as scratch:
        file, output = scratch / text.name, scratch / library.name
        file.write_text(source)
        command = [compiler, *FLAGS, *tier.flags, f"-I{NATIVE}", "-o", str(output), str(file)]
        code, errors = _run(command, stop)
        if code < 0:
            raise ProgramError(f"{compiler} was ended by signal {-code}: is there not enough memory?")
        if code != 0:
            if os.strerror(errno.ENOSPC) in errors:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            shutil.copy(file, text)
            raise ProgramError(
                f"{compiler} does not compile {text}, which is a bug in soft_switch:\n{errors}"
            )
        output.write_bytes(seal(output.read_bytes()))
        if tier is not QUICK:
            file.replace(text)  # for whoever wants to read it or profile
        output.replace(library)


@contextlib.contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """Make an empty directory, removed afterwards. A killed process may have left one of that name."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(command: list[str], stop: Stop | None) -> tuple[int, str]:
    """Run the compiler; return its exit code and its messages."""
    if stop is not None and (nice := shutil.which("nice")) is not None:
        command = [nice, *command]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,  # so that what the compiler runs ends with it
    ) as process:
        try:
            errors = _errors(process, command[0], stop)
            return process.returncode, errors
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _errors(process: subprocess.Popen[str], name: str, stop: Stop | None) -> str:
    """Return what the compiler prints until it ends."""
    deadline = time.monotonic() + COMPILE_TIMEOUT_S
    while True:
        _check(stop)
        try:
            return process.communicate(timeout=INTERRUPTION_POLL_S)[1]
        except subprocess.TimeoutExpired as error:
            if time.monotonic() > deadline:
                raise ProgramError(
                    f"{name} took more than {COMPILE_TIMEOUT_S:.0f} s for the program"
                ) from error


def _compiler() -> str:
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    if path is None:
        raise ProgramError(f"there is no C++ compiler {name} on the PATH: install g++, or set CXX")
    return path


@functools.cache
def _version(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ProgramError(f"{compiler} does not work as a C++ compiler ({error}): set CXX to one") from error


@functools.cache
def _processor() -> str:
    """Return what -march=native depends on: different machines may share a home directory."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


@functools.cache
def _headers() -> str:
    return "\n".join(path.read_text() for path in sorted(NATIVE.glob("*.h")))
