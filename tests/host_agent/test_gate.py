"""The gate that collectives pass: who starts, in which mode, and when a job is held."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDoneError
from typing import Any

import pytest

from controller.api.messages import Mode
from host_agent.gate import Gate


def through(gate: Gate, collective: int) -> Mode:
    with gate.turn(collective):
        return gate.mode


def test_a_pause_lets_what_runs_go_on_and_starts_nothing() -> None:
    gate = Gate(Mode.RING, "no room")
    with ThreadPoolExecutor(1) as pool:
        with gate.turn(0):
            assert gate.pause(7) == 1
            late = pool.submit(through, gate, 1)
        with pytest.raises(NotDoneError):
            late.result(0.05)
        gate.moved(Mode.IN_NETWORK, "")
        assert late.result(10) is Mode.IN_NETWORK


def test_what_comes_before_the_agreed_collective_runs_in_the_old_mode_and_the_rest_in_the_new() -> None:
    gate = Gate(Mode.RING, "no room")
    assert gate.pause(1) == 0
    with ThreadPoolExecutor(1) as pool:
        modes = pool.submit(lambda: [through(gate, number) for number in range(4)])
        gate.hold_at(1, 2)
        assert gate.wait_held(1)
        assert not modes.done()
        assert gate.moved(Mode.IN_NETWORK, "") == 2
        assert modes.result(10) == [Mode.RING, Mode.RING, Mode.IN_NETWORK, Mode.IN_NETWORK]


def test_an_idle_worker_holds_at_once_and_a_busy_one_when_it_is_done() -> None:
    gate = Gate(Mode.IN_NETWORK, "")
    gate.hold_at(3, 0)
    assert gate.wait_held(3)
    gate.moved(Mode.RING, "moved out")
    with ThreadPoolExecutor(1) as pool:
        with gate.turn(0):
            gate.hold_at(4, 1)
            held = pool.submit(gate.wait_held, 4)
            with pytest.raises(NotDoneError):
                held.result(0.05)
        assert held.result(10)


def test_who_waits_for_a_move_that_is_over_is_told_so() -> None:
    gate = Gate(Mode.RING, "no room")
    gate.hold_at(1, 5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gate.wait_held, 1)
        gate.moved(Mode.RING, "no room after all")
        assert not waiting.result(10)
    assert not gate.wait_held(1)
    assert gate.mode_reason == "no room after all"


def test_numbers_that_never_start_hold_nobody_up() -> None:
    """A queued future that is cancelled leaves a gap; what comes after it says that all before has run."""
    gate = Gate(Mode.RING, "no room")
    gate.hold_at(1, 3)
    with ThreadPoolExecutor(1) as pool:
        after = pool.submit(through, gate, 4)
        assert gate.wait_held(1)
        gate.moved(Mode.IN_NETWORK, "")
        assert after.result(10) is Mode.IN_NETWORK


def test_numbers_wrap() -> None:
    gate = Gate(Mode.RING, "no room")
    last = 2**32 - 1
    assert through(gate, last) is Mode.RING
    assert gate.pause(1) == 0
    gate.hold_at(1, 1)
    assert through(gate, 0) is Mode.RING
    assert gate.wait_held(1)


def test_a_job_that_is_over_holds_nobody() -> None:
    paused, holding = Gate(Mode.RING, "no room"), Gate(Mode.RING, "no room")
    paused.pause(1)
    holding.hold_at(1, 5)
    with ThreadPoolExecutor(2) as pool:
        waiting, held = pool.submit(through, paused, 0), pool.submit(holding.wait_held, 1)
        steps: list[tuple[Gate, Future[Any]]] = [(paused, waiting), (holding, held)]
        for gate, future in steps:
            with pytest.raises(NotDoneError):
                future.result(0.02)
            gate.give_up()
        assert waiting.result(10) is Mode.RING
        assert not held.result(10)
    assert through(paused, 1) is Mode.RING
