"""Programs that run quickly compiled first, and translations that are kept."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from soft_switch import build, optimiser, translation
from soft_switch.build import OPTIMISED, Stop, Stopped, build_program, cache_directory, find_program
from soft_switch.dataplane import DataPlane
from soft_switch.errors import ProgramError
from tests.soft_switch.bits import pack
from tests.soft_switch.layouts import STATE_COMMAND as COMMAND
from tests.soft_switch.programs import program

pytestmark = pytest.mark.slow

ADD = pack(COMMAND, {"op": 8, "index": 3})


@pytest.fixture
def tiered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DataPlane]:
    """Yield a data plane with an empty cache, to which every program is big."""
    plane = DataPlane(cpu_port=255)
    plane.stats()  # the engine comes from the usual cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SOFT_SWITCH_COMPILE", "tiered")
    monkeypatch.setattr(optimiser, "BIG", 0)
    translation.translate.cache_clear()
    yield plane
    plane.close()
    translation.translate.cache_clear()


def kinds() -> set[str]:
    return {path.name.split("-")[0] for path in cache_directory().glob("*.so")}


def test_the_optimised_program_takes_over_with_the_state(tiered: DataPlane) -> None:
    tiered.load(program("state"))
    tiered.multicast_set(3, [(7, 1)])
    tiered.register_write("TestIngress.cells", 1, 5)
    before = tiered.process(1, ADD)
    assert tiered.wait_optimised(120)
    assert kinds() == {"quick", "program"}
    assert tiered.process(1, ADD) == before
    assert tiered.register_read("TestIngress.cells", 1) == 5


def test_a_program_in_the_cache_is_the_optimised_one_at_once(tiered: DataPlane) -> None:
    tiered.load(program("state"), wait=True)
    assert kinds() == {"program"}
    tiered.load(program("state"))
    assert kinds() == {"program"}


def test_closing_ends_the_compiler(tiered: DataPlane) -> None:
    tiered.load(program("arithmetic"))
    optimising = tiered._optimiser
    assert optimising is not None
    tiered.close()
    assert optimising.wait(0)
    assert not list(cache_directory().glob("program-*.so"))


def test_loading_another_program_ends_the_compiler_of_the_one_before(tiered: DataPlane) -> None:
    tiered.load(program("arithmetic"))
    optimising = tiered._optimiser
    assert optimising is not None
    tiered.load(program("state"))
    assert optimising.wait(0)
    assert tiered.wait_optimised(120)
    assert tiered.register_read("TestIngress.cells", 1) == 0


def test_a_process_that_just_ends_leaves_no_compiler_behind(tiered: DataPlane, tmp_path: Path) -> None:
    code = """
from soft_switch import optimiser
from soft_switch.dataplane import DataPlane
from tests.soft_switch.programs import program
optimiser.BIG = 0
DataPlane().load(program("arithmetic"))
print("loaded")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "loaded\n"
    assert not list(cache_directory().glob("program-*.so"))


def test_quick_only(tiered: DataPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFT_SWITCH_COMPILE", "quick")
    tiered.load(program("state"))
    assert tiered.wait_optimised(0)
    assert kinds() == {"quick"}


def test_a_mode_that_is_none(tiered: DataPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFT_SWITCH_COMPILE", "fast")
    with pytest.raises(ProgramError, match="has to be one of tiered, wait, quick"):
        tiered.load(program("state"))


def test_stopping_a_compiler_that_waits_for_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stop = Stop()
    stop.requested = True
    with pytest.raises(Stopped):
        build_program("int x;", OPTIMISED, stop)
    assert find_program("int x;") is None


def test_stopping_a_compiler_at_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler = tmp_path / "slow"
    running = tmp_path / "running"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo slow\ntouch {running}\nsleep 100 & wait\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    stop = Stop()
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            build_program("int x;", OPTIMISED, stop)
        except Stopped as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 30
    while not running.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stop.requested = True
    thread.join(30)
    assert len(outcome) == 1


def test_translations_are_kept(tiered: DataPlane) -> None:
    text = program("state")
    first = translation.translate(text)
    [kept] = cache_directory().glob("translated-*.pickle")
    translation.translate.cache_clear()
    again = translation.translate(text)
    assert again == first
    assert again is not first
    assert translation.describe(text).description == first.program.description
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(content)
    translation.translate.cache_clear()
    assert translation.translate(text) == first  # damage is noticed
    assert pickle.loads(build.read_sealed(kept) or b"") == first
    assert translation.translate(text, optimise=False).source != first.source
