"""Memory that the workers of a machine share, step by step, and its pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from host_agent.errors import MismatchError
from host_agent.machine.channel import Board, Bytes, Lane, Pace, sum_words
from host_agent.machine.gang import Notice, Said, Way
from host_agent.machine.meeting import Meeting
from tests.host_agent.machine.machines import meetings


@pytest.fixture
def met() -> Iterator[list[Meeting]]:
    workers = meetings(1, 3)
    yield workers
    for one in workers:
        one.close()


def lanes(met: list[Meeting], number: int = 0) -> list[Lane]:
    return [Lane(meeting, number, stalled=lambda seconds, late: None) for meeting in met]


def test_each_step_has_what_everybody_put_into_it(met: list[Meeting]) -> None:
    """Check it however far one is ahead of another."""

    def work(rank: int, lane: Lane) -> list[list[int]]:
        random = np.random.default_rng(rank)
        seen = []
        for step in range(200):
            lane.slot()[:4] = np.frombuffer(np.int32(1000 * rank + step).tobytes(), np.uint8)
            lane.post()
            seen.append([int(row[:4].view(np.int32)[0]) for row in lane.rows()])
            if random.random() < 0.05:
                time.sleep(0.002)
            lane.release()
        return seen

    with ThreadPoolExecutor() as pool:
        for seen in pool.map(work, range(3), lanes(met)):
            assert seen == [[step, 1000 + step, 2000 + step] for step in range(200)]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 50])
def test_what_is_carried_is_what_everybody_filled(met: list[Meeting], steps: int) -> None:
    """Slow down those who fill slots and those who use them."""

    def work(rank: int, lane: Lane) -> list[tuple[int, list[int]]]:
        random = np.random.default_rng(rank)

        def fill(step: int, slot: Bytes) -> None:
            if random.random() < 0.2:
                time.sleep(0.002)
            slot[:4] = np.frombuffer(np.int32(1000 * rank + step).tobytes(), np.uint8)

        seen = []
        carried = lane.carry(range(steps), Pace(), fill=fill, received=lambda step: 8)
        for step, slots in carried:
            if random.random() < 0.2:
                time.sleep(0.002)
            seen.append((step, [int(slot[:4].view(np.int32)[0]) for slot in slots]))
        return seen

    with ThreadPoolExecutor() as pool:
        for seen in pool.map(work, range(3), lanes(met)):
            assert seen == [(step, [step, 1000 + step, 2000 + step]) for step in range(steps)]


def test_while_the_channel_carries_a_step_the_next_is_filled_and_the_one_before_used() -> None:
    events: list[str] = []

    class Channel(Pace):
        def begin(self, nbytes: int) -> float:
            events.append(f"carry {nbytes}")
            return super().begin(nbytes)

        def wait(self, until: float) -> None:
            events.append("there")

    (alone,) = meetings(1, 1)
    lane = Lane(alone, 0, stalled=lambda seconds, late: None)
    carried = lane.carry(
        range(4),
        Channel(),
        fill=lambda step, slot: events.append(f"fill {step}"),
        received=lambda step: step,
    )
    for step, _ in carried:
        events.append(f"use {step}")
    alone.close()
    assert events == [
        *("fill 0", "carry 0", "fill 1", "there"),
        *("carry 1", "use 0", "fill 2", "there"),
        *("carry 2", "use 1", "fill 3", "there"),
        *("carry 3", "use 2", "there"),
        "use 3",
    ]


def test_nobody_overwrites_what_is_not_read(met: list[Meeting]) -> None:
    workers = lanes(met)
    fast = workers[0]

    def fill() -> None:
        fast.slot()[0] = 1 + fast._step
        fast.post()

    for _ in range(3):
        fill()
    thread = threading.Thread(target=fill)
    thread.start()
    for other in workers[1:]:
        other.slot()
        other.post()
    for other in workers[1:]:
        assert other.rows()[0][0] == 1
        assert thread.is_alive(), "it has not been released by all"
        other.release()
    assert thread.is_alive(), "nor by itself"
    fast.release()
    thread.join(20)
    assert not thread.is_alive()


def test_who_waits_hears_that_another_failed(met: list[Meeting]) -> None:
    lane = lanes(met)[0]
    lane.slot()
    lane.post()
    timer = threading.Timer(0.1, lambda: met[2].fail(MismatchError("something else")))
    timer.start()
    with pytest.raises(MismatchError, match="something else"):
        lane.rows()


def test_who_is_late_is_told(met: list[Meeting]) -> None:
    def stalled(seconds: float, late: list[int]) -> None:
        raise TimeoutError(f"{late}")

    lane = Lane(met[0], 0, stalled=stalled)
    Lane(met[1], 0, stalled=stalled).post()
    lane.post()
    with pytest.raises(TimeoutError, match=r"\[2\]"):
        lane.rows()
    assert lane.waits_for == (2,)


def test_a_pace_counts_and_holds_back() -> None:
    """Check only that it does not let through more: a busy machine is slower."""
    pace = Pace(8e6)  # a megabyte a second
    began = time.monotonic()
    for _ in range(20):
        pace.take(10_000)
    assert time.monotonic() - began >= 0.199
    assert pace.bytes_received == 200_000
    unpaced = Pace()
    unpaced.take(10**15)
    assert unpaced.bytes_received == 10**15


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 5000])
def test_words_wrap(count: int) -> None:
    random = np.random.default_rng(count)
    rows = [random.integers(-(2**31), 2**31, count, dtype=np.int32) for _ in range(5)]
    out = np.empty(count, np.int32)
    sum_words([row.view(np.uint8) for row in rows], out)
    with np.errstate(over="ignore"):
        assert (out == np.add.reduce(rows, dtype=np.int32)).all()


def notice(step: int, what: str) -> Notice:
    calls = tuple(Said(n, 7, Way.BY_RING, f"{what} {n}", bytes([n % 256] * 32)) for n in (step - 1, step))
    return Notice(step, 7, (step, 2 * step), calls)


def test_a_board_has_the_newest_notice_of_each_once(met: list[Meeting]) -> None:
    mine, theirs, _ = (Board(meeting) for meeting in met)
    assert mine.news(1) is None
    theirs.tell(notice(2**40, "a call"))
    theirs.tell(notice(2**40 + 1, "a call"))
    assert mine.news(1) == notice(2**40 + 1, "a call")
    assert mine.news(1) is None


def test_a_long_call_is_cut_between_characters(met: list[Meeting]) -> None:
    mine, theirs, _ = (Board(meeting) for meeting in met)
    theirs.tell(Notice(1, 0, (0, 0), (Said(1, 0, Way.UNKNOWN, "\N{SNOWMAN}" * 500, bytes(32)),)))
    told = mine.news(1)
    assert told is not None
    assert told.calls[0].what == "\N{SNOWMAN}" * 127 + "..."


def test_nobody_reads_half_a_notice(met: list[Meeting]) -> None:
    """Check that each notice that is read is one that was told, whenever that was."""
    mine, theirs, _ = (Board(meeting) for meeting in met)

    def tell() -> None:
        for step in range(1, 3000):
            theirs.tell(notice(step, "call " * (step % 50)))

    with ThreadPoolExecutor() as pool:
        telling = pool.submit(tell)
        seen = 0
        while not telling.done():
            if (told := mine.news(1)) is not None:
                assert told.step > seen
                assert told == notice(told.step, "call " * (told.step % 50))
                seen = told.step
    last = mine.news(1)
    assert seen == 2999 or (last is not None and last.step == 2999)
