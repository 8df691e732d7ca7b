"""The image in the cache: whole or not at all, made once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from topologies.errors import TopologyError, UnsupportedError
from topologies.machines import __main__ as command
from topologies.machines import building, image, machine


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache; root, with all programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(building, "require_programs", lambda: None)
    monkeypatch.setattr(machine, "require_programs", lambda: None)
    return tmp_path / "p4reduce" / "machines"


Builds = list[Path]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """The scratch directories of pretended builds."""
    made: Builds = []

    def build(scratch: Path, files: Path, *, progress: Callable[[str], None]) -> Path:
        made.append(scratch)
        (scratch / "image").mkdir()
        for part in ("vmlinux", "initrd"):
            (scratch / "image" / part).write_text(part)
        return scratch / "image"

    monkeypatch.setattr(building, "build", build)
    return made


def test_built_once(builds: Builds, cache: Path) -> None:
    assert image.find() is None
    built = image.build()
    assert image.build() == image.require() == image.find() == built
    assert built.initrd.read_text() == "initrd"
    assert len(builds) == 1
    assert json.loads((built.directory / "sizes").read_text()) == {"vmlinux": 7, "initrd": 6}
    assert sorted(path.name for path in cache.iterdir()) == sorted(["lock", built.directory.name])


def test_another_version_is_another_image(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = []
    for version in range(5):
        monkeypatch.setattr(image, "digest", lambda version=version: f"{version:016x}")
        directories.append(image.build().directory)
    assert len(builds) == 5
    assert [directory.exists() for directory in directories] == [False, False, True, True, True]


def test_the_digest_covers_what_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = image.digest()
    assert before == image.digest()
    files = tmp_path / "files"
    files.mkdir()
    for path in image.FILES.iterdir():
        (files / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(image, "FILES", files)
    assert image.digest() == before
    for path in files.iterdir():
        content = path.read_bytes()
        path.write_bytes(content + b"#\n")
        assert image.digest() != before
        path.write_bytes(content)


def test_a_build_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def build(scratch: Path, files: Path, *, progress: Callable[[str], None]) -> Path:
        (scratch / "half").write_text("x")
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build", build)
    with pytest.raises(KeyboardInterrupt):
        image.build()
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_what_a_killed_build_left_is_removed(builds: Builds, cache: Path) -> None:
    (cache / "build-killed" / "root").mkdir(parents=True)
    incomplete = cache / image.digest()
    incomplete.mkdir()
    (incomplete / "vmlinux").write_text("old")
    assert image.build().kernel.read_text() == "vmlinux"
    assert not (cache / "build-killed").exists()


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("vmlinux", b""),
        ("initrd", b"initr"),
        ("sizes", b""),
        ("sizes", b"[]"),
        ("initrd", None),
        ("sizes", None),
    ],
)
def test_a_damaged_image_is_built_again(builds: Builds, part: str, content: bytes | None) -> None:
    """Leave files empty or short, as a power cut does."""
    damaged = image.build().directory / part
    if content is None:
        damaged.unlink()
    else:
        damaged.write_bytes(content)
    assert image.find() is None
    with pytest.raises(TopologyError, match="has not been built"):
        image.require()
    assert image.build().initrd.read_text() == "initrd"
    assert len(builds) == 2


def test_the_manifest_is_written_last(monkeypatch: pytest.MonkeyPatch, builds: Builds) -> None:
    """Check that all it speaks of is on the disk by then."""
    synced = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, (builds[0] / "image" / "sizes").exists()))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    image.build()
    assert synced == [("vmlinux", False), ("initrd", False), ("sizes", True), ("image", True)]


def test_a_relative_cache_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("relative", "", "."):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert image.cache_directory() == tmp_path / ".cache" / "p4reduce" / "machines"


def test_a_cache_in_a_path_with_blanks(
    builds: Builds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    with pytest.raises(TopologyError, match="a path with blanks: set XDG_CACHE_HOME to another directory"):
        image.build()
    assert builds == []
    assert not (tmp_path / "my cache").exists()


def test_two_builds_at_once(builds: Builds) -> None:
    found: list[image.Image] = []
    threads = [threading.Thread(target=lambda: found.append(image.build())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert len(set(found)) == 1


def test_an_image_that_is_not_there(cache: Path) -> None:
    with pytest.raises(
        TopologyError, match=r"has not been built.*run 'make roce-image' .*'python -m topologies.machines'"
    ):
        image.require()


def test_what_cannot_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(UnsupportedError, match="x86-64 machines, and this one is aarch64"):
        image.build()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(TopologyError, match="needs root: run it again with sudo"):
        image.build()


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(TopologyError, match="set XDG_CACHE_HOME to another directory"):
        image.build()


def test_the_command(
    builds: Builds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main() == 0
    assert capsys.readouterr().out == f"== the image of the RoCE hosts is {image.require().directory}\n"

    def refuse() -> None:
        raise UnsupportedError("no taps")

    monkeypatch.setattr(machine, "require_programs", refuse)
    assert command.main() == 69  # what .ci/run takes for "cannot run here"
    assert capsys.readouterr().err == "p4reduce: no taps\n"
    monkeypatch.setattr(machine, "require_programs", lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(image, "find", lambda: None)
    assert command.main() == 1


def test_the_command_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def build(scratch: Path, files: Path, *, progress: Callable[[str], None]) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build", build)
    assert command.main() == 130
    assert capsys.readouterr().err == "p4reduce: interrupted; nothing of the image is left\n"


@pytest.mark.parametrize(("reachable", "code"), [(True, 1), (False, 69)])
def test_what_continuous_integration_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reachable: bool, code: int
) -> None:
    """Fail debootstrap beside a registry that answers: that is an error, not "cannot run here"."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "debootstrap").write_text("#!/bin/sh\necho E: no such package: rdma-cor >&2; exit 1\n")
    (programs / "debootstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("P4REDUCE_DEBIAN_MIRROR", "http://mirror.invalid")
    monkeypatch.setattr(building, "CONFINED", ())
    monkeypatch.setattr(building, "_DEBIAN_REACHABLE", lambda: reachable)
    assert command.main() == code
