"""Counters in memory that processes share: who waits for one sees what was written before it was set."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from host_agent.transport import native

LIB = native.library()
LONG_NS: Final = 60 * 10**9
Words = NDArray[np.uint64]


@pytest.fixture
def words() -> Words:
    """Memory that a forked child shares."""
    return np.frombuffer(mmap.mmap(-1, 4096), np.uint64)


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Runs a function in a forked child, whose pid it returns."""
    children: list[int] = []

    def run(work: Callable[[], object]) -> int:
        if pid := os.fork():
            children.append(pid)
            return pid
        try:
            work()
        finally:
            os._exit(0)

    yield run
    for pid in children:
        os.waitpid(pid, 0)


@pytest.mark.parametrize(("name", "largest"), [("p4r_counter", 2**32 - 1), ("p4r_counter64", 2**64 - 1)])
def test_a_counter_is_reached_by_what_is_at_least_as_much(words: Words, name: str, largest: int) -> None:
    wait, put = getattr(LIB, f"{name}_wait"), getattr(LIB, f"{name}_set")
    at = words.ctypes.data
    assert not wait(at, 1, 0)
    assert wait(at, 0, 0)
    put(at, 7)
    assert wait(at, 6, 0)
    assert wait(at, 7, -5)
    assert not wait(at, 8, -5)
    assert not wait(at, 8, 1_000_000)
    put(at, largest)
    assert wait(at, largest, 0)


def test_a_counter_of_32_bits_comes_round(words: Words) -> None:
    at = words.ctypes.data
    LIB.p4r_counter_set(at, 2**32 - 2)
    assert not LIB.p4r_counter_wait(at, 1, 0)
    LIB.p4r_counter_set(at, 1)
    assert LIB.p4r_counter_wait(at, 2**32 - 1, 0)


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1])
def test_a_counter_of_64_bits_does_not(words: Words, value: int) -> None:
    at = words.ctypes.data
    LIB.p4r_counter64_set(at, value)
    assert LIB.p4r_counter64_get(at) == value == int(words[0])
    assert int(words[1]) == 0
    assert LIB.p4r_counter64_wait(at, value, 0)
    assert LIB.p4r_counter64_wait(at, value // 2, 0)
    if value < 2**64 - 1:
        assert not LIB.p4r_counter64_wait(at, value + 1, 0)


@pytest.mark.parametrize("to", [1, 2**32, 2**32 + 1, 2**33])
def test_who_waits_is_woken_by_another_process(words: Words, child: Any, to: int) -> None:
    """Wake it also if only the upper half of the counter changes."""
    at = words.ctypes.data

    def work() -> None:
        time.sleep(0.1)
        words[8] = 4711
        LIB.p4r_counter64_set(at, to)

    child(work)
    assert LIB.p4r_counter64_wait(at, to, LONG_NS)
    assert int(words[8]) == 4711


def test_many_steps_are_seen_in_order_with_what_belongs_to_them(words: Words, child: Any) -> None:
    steps = 20_000
    mine, theirs = words.ctypes.data, words[8:].ctypes.data

    def work() -> None:
        for step in range(1, steps + 1):
            assert LIB.p4r_counter64_wait(mine, step, LONG_NS)
            words[24] = words[16] + np.uint64(1)
            LIB.p4r_counter64_set(theirs, step)

    child(work)
    for step in range(1, steps + 1):
        words[16] = 3 * step
        LIB.p4r_counter64_set(mine, step)
        assert LIB.p4r_counter64_wait(theirs, step, LONG_NS)
        assert int(words[24]) == 3 * step + 1


def test_a_wait_for_one_that_moves_and_does_not_arrive_ends(words: Words) -> None:
    """Check that its time runs on although each change wakes it."""
    at, stop = words.ctypes.data, threading.Event()

    def move() -> None:
        value = 0
        while not stop.is_set():
            value = (value + 1) % 1000
            LIB.p4r_counter64_set(at, value)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        assert not LIB.p4r_counter64_wait(at, 2000, 50_000_000)
    finally:
        stop.set()
        mover.join()
