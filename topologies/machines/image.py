"""The image of the RoCE hosts: made once from Debian packages and Python wheels, kept in the user's cache.

Its directory's name is a hash of all that it is made from. It appears under that name only when it is
complete; two builds at once do not meet (the second waits, and takes the first one's).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from soft_switch.build import user_cache
from topologies.errors import TopologyError, UnsupportedError
from topologies.machines import building

FILES: Final = Path(__file__).parent / "files"
MAKE_TARGET: Final = "make roce-image"
HOW: Final = f"run '{MAKE_TARGET}' (or, without this project's repository, 'python -m topologies.machines')"
_PARTS: Final = ("vmlinux", "initrd")
_MANIFEST: Final = "sizes"  # of the parts in bytes, a JSON object; written when they are on the disk
_KEPT: Final = 3

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Image:
    """A built image."""

    directory: Path

    @property
    def kernel(self) -> Path:
        """Linux, not compressed: software emulation would unpack it for seconds."""
        return self.directory / "vmlinux"

    @property
    def initrd(self) -> Path:
        """The root file system, a cpio archive, not compressed for the same reason."""
        return self.directory / "initrd"


def cache_directory() -> Path:
    """Return the directory where images are kept."""
    return user_cache() / "machines"


def digest() -> str:
    """Hash all that the image is made from."""
    content = hashlib.sha256()
    own = [path for path in FILES.iterdir() if path.is_file()]
    for path in sorted([*own, Path(building.__file__)], key=lambda path: path.name):
        content.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]


def find() -> Image | None:
    """Return the image of this version, if it has been built and is whole."""
    directory = cache_directory() / digest()
    try:
        written = json.loads((directory / _MANIFEST).read_bytes())
        whole = written == {part: (directory / part).stat().st_size for part in _PARTS}
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return Image(directory) if whole else None


def require() -> Image:
    """Return the image of this version. Raise TopologyError that says how it is built."""
    found = find()
    if found is None:
        raise TopologyError(
            f"the image of the RoCE hosts has not been built (it would be in {cache_directory()}): {HOW}"
        )
    return found


def build(*, progress: Progress = lambda text: None) -> Image:
    """Return the image; build it if needed. Raise TopologyError that says what is missing or wrong."""
    found = find()
    if found is not None:
        return found
    if os.geteuid() != 0:
        raise TopologyError("building the image of the RoCE hosts needs root: run it again with sudo")
    if platform.machine() != "x86_64":
        raise UnsupportedError(f"RoCE hosts are x86-64 machines, and this one is {platform.machine()}")
    if any(letter.isspace() for letter in str(cache_directory())):
        raise TopologyError(
            f"debootstrap cannot work in '{cache_directory()}', a path with blanks: "
            "set XDG_CACHE_HOME to another directory"
        )
    building.require_programs()
    target = cache_directory() / digest()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / "lock", progress):
            found = find()
            if found is None:
                _remove_unfinished(target.parent)
                _build(target, progress)
    except OSError as error:
        raise TopologyError(
            f"cannot keep the image in {target.parent} ({error}): set XDG_CACHE_HOME to another directory"
        ) from error
    return require()


def _build(target: Path, progress: Progress) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    try:
        result = building.build(scratch, FILES, progress=progress)
        _complete(result)
        if target.exists():  # not whole
            shutil.rmtree(target)
        result.rename(target)
        _remove_old(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _complete(directory: Path) -> None:
    """Write the manifest once the parts are on the disk, so that a power cut cannot leave it without them."""
    for part in _PARTS:
        _sync(directory / part)
    manifest = directory / _MANIFEST
    manifest.write_text(json.dumps({part: (directory / part).stat().st_size for part in _PARTS}))
    _sync(manifest)
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another build of the image")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_unfinished(directory: Path) -> None:
    """Remove what killed builds left; the caller holds the lock, so nobody is building."""
    for left in directory.glob("build-*"):
        shutil.rmtree(left, ignore_errors=True)


def _remove_old(current: Path) -> None:
    """Remove all images but the last few: somebody may go to and fro between versions."""
    images = [
        path for path in current.parent.iterdir() if path.is_dir() and not path.name.startswith("build-")
    ]
    for old in sorted(images, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
