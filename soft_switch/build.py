"""C++ to shared libraries, compiled for this machine and kept in the user's cache.

A library's name is a hash of everything that made it: source, headers, flags, compiler and processor.
It appears under its name only when complete, and processes that want the same one wait for the first.
Behind it in its file is its SHA-256 (which the loader ignores): a damaged file is made again, because
opening it could kill the process.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from soft_switch.errors import ProgramError

NATIVE = Path(__file__).parent / "native"
FLAGS = (
    "-std=c++17",
    "-O3",
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
DIGEST_BYTES = hashlib.sha256().digest_size


def user_cache() -> Path:
    """Where this project keeps what can be made again: $XDG_CACHE_HOME/p4reduce, by default in ~/.cache.

    A relative path there is ignored, as the XDG Base Directory Specification has it.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "p4reduce"


def cache_directory() -> Path:
    """Where compiled programs are kept."""
    return user_cache() / "programs"


def build_program(source: str) -> Path:
    """The library made from generated source; ProgramError when it cannot be compiled."""
    return _build(source, "program")


def build_engine() -> Path:
    """The library that moves packets."""
    return _build((NATIVE / "engine.cpp").read_text(), "engine")


def _build(source: str, kind: str) -> Path:
    compiler = _compiler()
    digest = hashlib.sha256()
    for part in (source, _headers(), " ".join(FLAGS), _version(compiler), _processor()):
        digest.update(part.encode())
        digest.update(b"\0")
    directory = cache_directory()
    library = directory / f"{kind}-{digest.hexdigest()[:32]}.so"
    if _intact(library):
        return library
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (library.with_suffix(".lock")).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _intact(library):
                _compile(compiler, source, library)
    except OSError as error:
        raise ProgramError(
            f"cannot keep compiled programs in {directory} ({error.strerror}): "
            "set XDG_CACHE_HOME to a directory that can be written"
        ) from error
    return library


def _intact(library: Path) -> bool:
    try:
        content = library.read_bytes()
    except OSError:  # it is not there, or making it says what is wrong
        return False
    return hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]


def _compile(compiler: str, source: str, library: Path) -> None:
    text = library.with_suffix(".cpp")
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        file, output = Path(scratch) / text.name, Path(scratch) / library.name
        file.write_text(source)
        command = [compiler, *FLAGS, f"-I{NATIVE}", "-o", str(output), str(file)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ProgramError(
                f"{compiler} took more than {COMPILE_TIMEOUT_S:.0f} s for the program"
            ) from error
        if done.returncode != 0:
            shutil.copy(file, text)
            raise ProgramError(
                f"{compiler} does not compile {text}, which is a bug in soft_switch:\n{done.stderr}"
            )
        with output.open("ab") as stream:
            stream.write(hashlib.sha256(output.read_bytes()).digest())
        file.replace(text)  # for whoever wants to read it or profile
        output.replace(library)


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
    """What -march=native depends on; a home directory may be shared by machines that differ."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


@functools.cache
def _headers() -> str:
    return "\n".join(path.read_text() for path in sorted(NATIVE.glob("*.h")))
