"""The channel between the workers of one machine: memory that they share, paced as a link would be.

A worker writes into memory of its own, and reads what it takes from the others' in place, so that nothing is
copied but to add it up. A `Lane` is a sequence of steps: in each, every worker fills a slot, posts it, reads
the others' slots and releases them. A worker is at most `_DEPTH` slots ahead of the slowest.

What is read from others is what a link would carry: `Pace` holds the reader back to the channel's rate, and
counts the bytes. As a link would, it carries one slot while processors fill the next and add up the one
before (`Lane.carry`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from host_agent.errors import MismatchError
from host_agent.machine.meeting import Meeting
from host_agent.transport.native import library

Bytes = NDArray[np.uint8]
T = TypeVar("T")

SLOT_BYTES: Final = 1 << 20  # of data
_DEPTH: Final = 3
_LANES: Final = 2
_LINE: Final = 64  # bytes; a counter has a cache line to itself
_PAGE: Final = 4096
_WORDS: Final = 512  # of a slot, bytes that say what it is of
_GATE: Final = 2 * _LANES * _LINE  # behind the lanes' counters
_LOOK_NS: Final = 50_000_000  # how often who waits looks whether the others live
REGION_BYTES: Final = _PAGE + _LANES * _DEPTH * (_WORDS + SLOT_BYTES)


class Pace:
    """Holds one worker's incoming bytes back to a rate, over all lanes. `rate_bit_s` None: as they come.

    `bytes_received`: what has come from other workers of the machine.
    """

    def __init__(self, rate_bit_s: float | None = None) -> None:
        self.rate_bit_s = rate_bit_s
        self.bytes_received = 0
        self._free_at = 0.0  # when the channel has carried all that was taken
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        """Return when the channel has carried so many bytes more."""
        self.wait(self.begin(nbytes))

    def begin(self, nbytes: int) -> float:
        """Give the channel so many bytes more to carry. When they will be there, on the monotonic clock."""
        with self._lock:
            self.bytes_received += nbytes
            if self.rate_bit_s is None:
                return 0.0
            self._free_at = max(self._free_at, time.monotonic()) + nbytes * 8 / self.rate_bit_s
            return self._free_at

    def wait(self, until: float) -> None:
        """Return at that time."""
        while (left := until - time.monotonic()) > 0:
            time.sleep(left)


class Lane:
    """Steps that all workers of a machine take alike, each in one thread at a time.

    `stalled(seconds, local_ranks)` is called while a step waits for those, and may raise. Errors: what the
    machine failed with (`Meeting.failure`); MismatchError where workers have called different collectives, or
    a step waits for one that has left. `look` is called meanwhile, too, and may raise.
    """

    def __init__(
        self,
        meeting: Meeting,
        number: int,
        *,
        stalled: Callable[[float, list[int]], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._meeting, self._stalled, self._look = meeting, stalled, look
        self._rank = meeting.who.local_rank
        base = [region.ctypes.data + number * 2 * _LINE for region in meeting.regions]
        self._posted_at, self._released_at = base, [address + _LINE for address in base]
        start = _PAGE + number * _DEPTH * (_WORDS + SLOT_BYTES)
        size = _WORDS + SLOT_BYTES
        self._slots = [
            [region[start + i * size : start + (i + 1) * size] for i in range(_DEPTH)]
            for region in meeting.regions
        ]
        self._step = 0  # how many were posted here
        self._released = 0
        self._what = ""
        self.waits_for: tuple[int, ...] = ()  # the local ranks that a step waits for, after a moment

    def slot(self) -> Bytes:
        """This worker's slot of the next step, to be filled."""
        self._wait(self._released_at, self._step + 1 - _DEPTH)
        return self._mine[_WORDS:]

    def post(self, what: str) -> None:
        """It is filled. `what` the user has called: the same at all workers."""
        self._what = what
        words = what.encode()[:_WORDS]
        self._mine[: len(words)] = np.frombuffer(words, np.uint8)
        self._mine[len(words) : _WORDS] = 0
        self._step += 1
        library().p4r_counter_set(self._posted_at[self._rank], self._step & 0xFFFFFFFF)

    def rows(self, ahead: int = 0) -> list[Bytes]:
        """Everybody's slots of the first step that is not released, or one `ahead` of it; by local rank."""
        step = self._released + 1 + ahead
        self._wait(self._posted_at, step)
        slots = [of_one[(step - 1) % _DEPTH] for of_one in self._slots]
        said = [bytes(slot[:_WORDS]) for slot in slots]
        if any(one != said[0] for one in said):
            raise MismatchError(self._difference(said))
        return [slot[_WORDS:] for slot in slots]

    def release(self) -> None:
        """The others' slots of that step have been read."""
        self._set_released(self._released + 1)

    def carry(
        self,
        steps: Iterable[T],
        what: str,
        pace: Pace,
        *,
        fill: Callable[[T, Bytes], None],
        received: Callable[[T], int],
    ) -> Iterator[tuple[T, list[Bytes]]]:
        """Each step with everybody's slots, once the channel has carried the bytes `received` of it.

        While it carries one, `fill` puts this worker's part of the next into its slot, and whoever iterates
        uses the one before.
        """

        def filled() -> Iterator[T]:
            for step in steps:
                fill(step, self.slot())
                self.post(what)
                yield step

        posted, arrived = filled(), None
        step = next(posted, None)
        while step is not None:
            rows = self.rows(0 if arrived is None else 1)
            there_at = pace.begin(received(step))
            if arrived is not None:
                yield arrived
                self.release()
            following = next(posted, None)
            pace.wait(there_at)
            arrived, step = (step, rows), following
        if arrived is not None:
            yield arrived
            self.release()

    @property
    def step(self) -> int:
        """How many were posted here."""
        return self._step

    def go_on_from(self, step: int) -> None:
        """Go on behind that step, which no worker has come past: all of them do."""
        self._step = step
        library().p4r_counter_set(self._posted_at[self._rank], step & 0xFFFFFFFF)
        self._set_released(step)

    def _set_released(self, step: int) -> None:
        self._released = step
        library().p4r_counter_set(self._released_at[self._rank], step & 0xFFFFFFFF)

    @property
    def _mine(self) -> Bytes:
        return self._slots[self._rank][self._step % _DEPTH]

    def _wait(self, counters: list[int], value: int) -> None:
        if value <= 0:
            return
        began = time.monotonic()
        for rank, counter in enumerate(counters):
            while not library().p4r_counter_wait(counter, value & 0xFFFFFFFF, _LOOK_NS):
                if self._meeting.failure is not None:
                    raise self._meeting.failure
                self._look()
                left = dict(self._meeting.left)  # now: what they posted before is there
                late = [
                    other
                    for other in range(rank, len(counters))
                    if not library().p4r_counter_wait(counters[other], value & 0xFFFFFFFF, 0)
                ]
                self.waits_for = tuple(late)
                if gone := left.keys() & {*late}:
                    raise MismatchError(self.in_vain(self._what, {one: left[one] for one in gone}))
                if late:
                    self._stalled(time.monotonic() - began, late)
        self.waits_for = ()
        if self._meeting.failure is not None:
            raise self._meeting.failure

    def in_vain(self, what: str, left: dict[int, int]) -> str:
        """Others, by local rank, have left after so many collectives, and this worker calls one more."""
        first = self._meeting.who.rank - self._rank
        gone = (
            f"rank {first + rank} has left after {calls} collective{'s' * (calls != 1)}"
            for rank, calls in sorted(left.items())
        )
        return (
            f"the workers disagree about how many collectives there are: {'; '.join(gone)}; "
            f"rank {self._meeting.who.rank}: {what}, as one more. All workers have to call the same "
            "collectives in the same order"
        )

    def _difference(self, said: list[bytes]) -> str:
        first = self._meeting.who.rank - self._rank
        calls: dict[str, list[str]] = {}
        for local_rank, words in enumerate(said):
            calls.setdefault(words.rstrip(b"\0").decode(errors="replace"), []).append(str(first + local_rank))
        return "the workers called different collectives: " + "; ".join(
            f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}: {what}" for what, ranks in calls.items()
        )


class Gate:
    """Where the workers of a machine of an elastic gang wait for each other before each collective.

    So all of them are in the same one, after the same renewal, when it is begun anew; and where some had come
    further than others when it was dropped, all `lanes` go on from one step. Errors are those of a `Lane`.
    """

    def __init__(
        self, meeting: Meeting, lanes: tuple[Lane, ...], *, stalled: Callable[[float, list[int]], None]
    ) -> None:
        self._meeting, self._lanes, self._stalled = meeting, lanes, stalled
        self._rank = meeting.who.local_rank
        size = 8 * (2 + len(lanes))
        self._turns_at = [region.ctypes.data + _GATE for region in meeting.regions]
        self._notices = [
            region[_GATE + _LINE : _GATE + _LINE + size].view(np.uint64) for region in meeting.regions
        ]
        self._turn = 0
        self.waits_for: tuple[int, ...] = ()

    def wait(self, collective: int, where: Callable[[], tuple[int, T]], what: str) -> tuple[int, T]:
        """Wait until all are before that collective, after the same renewal: `where` says which, and more."""
        began, said = time.monotonic(), -1
        while True:
            renewal, more = where()
            if renewal != said:
                said = renewal
                self._say(renewal, collective)
            turns, notices = zip(*map(self._read, range(len(self._turns_at))), strict=True)
            late = [rank for rank, one in enumerate(notices) if not _is_there(one, renewal, collective)]
            if not late:
                for number, lane in enumerate(self._lanes):
                    lane.go_on_from(max(one[2 + number] for one in notices))
                self.waits_for = ()
                return renewal, more
            library().p4r_counter_wait(self._turns_at[late[0]], turns[late[0]] + 1 & 0xFFFFFFFF, _LOOK_NS)
            if self._meeting.failure is not None:
                raise self._meeting.failure
            if self._read(late[0])[0] != turns[late[0]]:
                continue
            self.waits_for = tuple(late)
            left = dict(self._meeting.left)
            if gone := left.keys() & {*late}:
                raise MismatchError(self._lanes[0].in_vain(what, {one: left[one] for one in gone}))
            self._stalled(time.monotonic() - began, late)

    def _say(self, renewal: int, collective: int) -> None:
        """For the others; the number of turns is odd while it is written."""
        self._set_turn(self._turn + 1)
        self._notices[self._rank][:] = [
            renewal & 0xFFFFFFFF,
            collective,
            *(lane.step for lane in self._lanes),
        ]
        self._set_turn(self._turn + 1)

    def _set_turn(self, turn: int) -> None:
        self._turn = turn & 0xFFFFFFFF
        library().p4r_counter_set(self._turns_at[self._rank], self._turn)

    def _read(self, rank: int) -> tuple[int, tuple[int, ...]]:
        """The number of turns of another, and what it said last; nothing while that is written."""
        turns = self._turns_of(rank)
        notice = tuple(map(int, self._notices[rank]))
        is_whole = turns and turns % 2 == 0 and self._turns_of(rank) == turns
        return turns, notice if is_whole else ()

    def _turns_of(self, rank: int) -> int:
        return ctypes.c_uint32.from_address(self._turns_at[rank]).value


def _is_there(notice: tuple[int, ...], renewal: int, collective: int) -> bool:
    """Whether a worker is before that collective, or past one that all refuse, which nothing holds up."""
    return notice[:1] == (renewal & 0xFFFFFFFF,) and (notice[1] - collective) % (1 << 32) < 1 << 31


def sum_words(rows: list[Bytes], out: NDArray[np.int32]) -> None:
    """Leave the sums of the rows' int32s, which wrap, in `out`; each row is as long, and contiguous."""
    pointers = (ctypes.c_void_p * len(rows))(*(row.ctypes.data for row in rows))
    library().p4r_sum_words(pointers, len(rows), out.size, out.ctypes.data)
