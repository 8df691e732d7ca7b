"""Ctrl-C, at any time and again: the soak is taken down, and says that it was interrupted. No network."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from p4reduce.workloads.soak import __main__ as soak_command
from p4reduce.workloads.soak import running
from p4reduce.workloads.soak.board import Board
from p4reduce.workloads.soak.running import SoakOptions, soak
from tests.topologies.states import cluster_state

OPTIONS = SoakOptions(name="c1", seconds=60.0, seed=1)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Fabric:
    """Interrupted again while it is taken down."""

    interrupted_at_once = False
    taken_down = 0

    def __init__(self, _: object) -> None:
        self.state = cluster_state("c1")

    def __enter__(self) -> Fabric:
        if self.interrupted_at_once:
            interrupt()
        return self

    def __exit__(self, *_: object) -> None:
        interrupt()
        type(self).taken_down += 1


@contextmanager
def at_work(_: object, options: SoakOptions, board: Board) -> Iterator[tuple[list[Any], list[Any]]]:
    yield [], []
    assert board.stop.is_set()
    interrupt()


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> type[Fabric]:
    class Own(Fabric):
        pass

    monkeypatch.setattr(running, "Fabric", Own)
    monkeypatch.setattr(running, "_at_work", at_work)
    return Own


def test_a_soak_that_is_interrupted_is_taken_down_however_often(fabric: type[Fabric]) -> None:
    before = signal.getsignal(signal.SIGINT)
    timer = threading.Timer(0.2, interrupt)
    timer.start()
    outcome = soak(OPTIONS)
    assert outcome.interrupted
    assert outcome.complaints == []
    assert fabric.taken_down == 1
    assert outcome.as_json()["interrupted"] is True
    assert signal.getsignal(signal.SIGINT) is before


def test_while_the_fabric_comes_up_it_ends_at_once(fabric: type[Fabric]) -> None:
    fabric.interrupted_at_once = True
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        soak(OPTIONS)
    assert signal.getsignal(signal.SIGINT) is before


class Interrupted:
    """Importing that module is interrupted."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name:
            raise KeyboardInterrupt


def test_ctrl_c_while_modules_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "p4reduce.workloads.soak.running"
    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(module), *sys.meta_path])
    assert soak_command.main() == soak_command.EXIT_INTERRUPTED
    assert capsys.readouterr().err == "p4reduce: interrupted\n"
