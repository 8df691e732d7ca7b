"""The image in the cache: whole or not at all, made once."""

from __future__ import annotations

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
    with pytest.raises(TopologyError, match=r"has not been built.*run 'make roce-image'"):
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
