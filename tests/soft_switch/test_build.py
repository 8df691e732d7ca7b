"""The cache of compiled programs: shared by processes, damaged, without a compiler, without room."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import soft_switch
from soft_switch import build
from soft_switch.build import build_engine, build_program, cache_directory
from soft_switch.errors import ProgramError
from soft_switch.translation import translate
from tests.soft_switch import bmv2_json

TINY = "int answer() { return 42; }"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "p4reduce" / "programs"


def test_a_relative_cache_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("relative", "", "."):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_directory() == tmp_path / ".cache" / "p4reduce" / "programs"


def compiler(folder: Path, text: str) -> str:
    """Return a program that stands in for g++."""
    path = folder / "cxx"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("CXX", compiler(tmp_path, f'echo "$1" >> {calls}\nexec g++ "$@"'))
    assert cache_directory() == cache
    first = build_program(TINY)
    assert build_program(TINY) == first
    assert first.parent == cache
    assert build_program(TINY.replace("42", "43")) != first
    assert [line for line in calls.read_text().split() if line != "--version"] == ["-std=c++17"] * 2


def test_processes_at_once(tmp_path: Path) -> None:
    """Check that all get the same library, which one of them makes."""
    calls = tmp_path / "calls"
    cxx = compiler(tmp_path, f'[ "$1" = --version ] || echo "$$" >> {calls}\nexec g++ "$@"')
    code = f"from soft_switch.build import build_program; print(build_program({TINY!r}))"
    command, environment = [sys.executable, "-c", code], {**os.environ, "CXX": cxx}
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
    libraries = [process.communicate(timeout=60)[0] for process in processes]
    assert libraries[0].strip().endswith(b".so")
    assert len(set(libraries)) == 1
    assert len(calls.read_text().split()) == 1


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None], ids=["empty", "header only", "cut"])
def test_a_damaged_library_is_made_again(damage: bytes | None) -> None:
    library = build_program(TINY)
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert build_program(TINY) == library
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r})._name)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProgramError, match=r"no C\+\+ compiler g\+\+ on the PATH: install g\+\+, or set CXX"):
        build_program(TINY)


def test_the_engine_that_was_built_with_the_package_is_used(cache: Path) -> None:
    assert build_engine() == Path(soft_switch.__file__).parent / "_engine.so"
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.slow
def test_an_engine_of_other_sources_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "engine_sources", lambda: "others")
    build._prebuilt_engine.cache_clear()
    try:
        assert build_engine().parent == cache
    finally:
        build._prebuilt_engine.cache_clear()


def test_something_that_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ProgramError, match="does not work as a C\\+\\+ compiler"):
        build_program(TINY)


def test_what_does_not_compile_names_the_file_and_says_why(cache: Path) -> None:
    with pytest.raises(ProgramError, match="nonsense") as caught:
        build_program("nonsense")
    [source] = cache.glob("program-*.cpp")
    assert str(source) in str(caught.value)
    assert not list(cache.glob("*.so"))


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ProgramError, match="set XDG_CACHE_HOME"):
        build_program(TINY)


def test_a_switch_whose_compiler_fails_says_no_more_than_that(tmp_path: Path) -> None:
    broken = compiler(tmp_path, '[ "$1" = --version ] && exec echo broken\necho it is broken >&2; exit 1')
    program_json = Path(__file__).parent / "programs" / "stacks.json"
    command = [sys.executable, "-m", "soft_switch", "--grpc-server-addr", "127.0.0.1:0", str(program_json)]
    environment = {**os.environ, "CXX": broken}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"soft_switch: cannot run \S+stacks\.json: .*\nit is broken\n\s*", done.stderr)


def test_a_cache_without_room_gets_no_part_of_a_translation(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(Path, "replace", full)
    assert translate(bmv2_json.program(header={"op": 8}, metadata={"x": 8}, actions=[[]])).source
    assert list(cache.iterdir()) == []
