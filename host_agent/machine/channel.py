"""The channel between the workers of one machine: memory that they share, paced as a link would be.

On the `Board` each worker tells its mates where it stands (`gang.Notice`).

A worker writes into its own memory, and reads the others' memory in place, so that bytes are copied only to
be added up. A `Lane` is a sequence of steps: in each, every worker fills a slot, posts it, reads the others'
slots and releases them. A worker is at most `_DEPTH` slots ahead of the slowest.

Reading from others stands for a link: `Pace` holds the reader back to the channel's rate, and counts the
bytes. Like a link, it carries one slot while processors fill the next and add up the one before
(`Lane.carry`).
"""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from host_agent.machine.gang import Notice, Said, Way
from host_agent.machine.meeting import Meeting
from host_agent.transport.native import library

Bytes = NDArray[np.uint8]
T = TypeVar("T")

SLOT_BYTES: Final = 1 << 20  # of data
_DEPTH: Final = 3
_LANES: Final = 2
_LINE: Final = 64  # bytes; a counter has a cache line to itself
_PAGE: Final = 4096
_BOARD: Final = 2 * _LANES * _LINE  # behind the lanes' counters
_LOOK_NS: Final = 50_000_000  # how often who waits looks whether the others live
REGION_BYTES: Final = _PAGE + _LANES * _DEPTH * SLOT_BYTES

_WHAT_BYTES: Final = 384  # of a call in words
_CALL: Final = f"QQBBxx32s{_WHAT_BYTES}s"  # step, renewal, way, whether there is one, digest, what
_NOTICE: Final = struct.Struct(f"=QQ{_LANES}Q{2 * _CALL}")


class Pace:
    """A limit of one worker's incoming bytes to a rate, over all lanes. `rate_bit_s` None: no limit.

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
        """Give the channel so many more bytes to carry; return when (monotonic clock) they are there."""
        with self._lock:
            self.bytes_received += nbytes
            if self.rate_bit_s is None:
                return 0.0
            self._free_at = max(self._free_at, time.monotonic()) + nbytes * 8 / self.rate_bit_s
            return self._free_at

    def wait(self, until: float) -> None:
        """Sleep until that time."""
        while (left := until - time.monotonic()) > 0:
            time.sleep(left)


class Lane:
    """Steps that all workers of a machine take alike, each in one thread at a time.

    `stalled(seconds, local_ranks)` is called while a step waits for those, and may raise. Errors: what the
    machine failed with (`Meeting.failure`). `look` is called meanwhile, too, and may raise.
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
        start = _PAGE + number * _DEPTH * SLOT_BYTES
        self._slots = [
            [region[start + i * SLOT_BYTES : start + (i + 1) * SLOT_BYTES] for i in range(_DEPTH)]
            for region in meeting.regions
        ]
        self._step = 0  # how many were posted here
        self._released = 0
        self.waits_for: tuple[int, ...] = ()  # the local ranks that a step waits for, after a moment

    def slot(self) -> Bytes:
        """Return this worker's slot of the next step, to be filled."""
        self._wait(self._released_at, self._step + 1 - _DEPTH)
        return self._slots[self._rank][self._step % _DEPTH]

    def post(self) -> None:
        """Let the others read the slot, which is filled."""
        self._step += 1
        library().p4r_counter64_set(self._posted_at[self._rank], self._step)

    def rows(self, ahead: int = 0) -> list[Bytes]:
        """Return all slots of the first step that is not released, or one `ahead` of it; by local rank."""
        step = self._released + 1 + ahead
        self._wait(self._posted_at, step)
        return [of_one[(step - 1) % _DEPTH] for of_one in self._slots]

    def release(self) -> None:
        """Let the others fill their slots of that step again, which have been read."""
        self._set_released(self._released + 1)

    def carry(
        self,
        steps: Iterable[T],
        pace: Pace,
        *,
        fill: Callable[[T, Bytes], None],
        received: Callable[[T], int],
    ) -> Iterator[tuple[T, list[Bytes]]]:
        """Yield each step with everybody's slots, once the channel has carried the bytes `received` of it.

        While it carries one, `fill` puts this worker's part of the next into its slot, and whoever iterates
        uses the one before.
        """

        def filled() -> Iterator[T]:
            for step in steps:
                fill(step, self.slot())
                self.post()
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

    def close(self) -> None:
        """Let go of the memory; no thread may be in a step."""
        self._slots, self._posted_at, self._released_at = [], [], []

    @property
    def step(self) -> int:
        """Number of slots that this worker has posted."""
        return self._step

    def go_on_from(self, step: int) -> None:
        """Go on behind that step; no worker has come past it, and all of them go on from there."""
        self._step = step
        library().p4r_counter64_set(self._posted_at[self._rank], step)
        self._set_released(step)

    def _set_released(self, step: int) -> None:
        self._released = step
        library().p4r_counter64_set(self._released_at[self._rank], step)

    def _wait(self, counters: list[int], value: int) -> None:
        if value <= 0:
            return
        began = time.monotonic()
        for rank, counter in enumerate(counters):
            while not library().p4r_counter64_wait(counter, value, _LOOK_NS):
                if self._meeting.failure is not None:
                    raise self._meeting.failure
                self._look()
                late = [
                    other
                    for other in range(rank, len(counters))
                    if not library().p4r_counter64_wait(counters[other], value, 0)
                ]
                self.waits_for = tuple(late)
                if late:
                    self._stalled(time.monotonic() - began, late)
        self.waits_for = ()
        if self._meeting.failure is not None:
            raise self._meeting.failure


class Board:
    """Each worker's newest notice, in its own memory, where its mates read it.

    A notice has a version, which is odd while the notice is written. A reader that finds the same even
    version before and after has read one whole notice (a seqlock; the native counters order what they guard).
    """

    def __init__(self, meeting: Meeting) -> None:
        self._rank = meeting.who.local_rank
        self._versions_at = [region.ctypes.data + _BOARD for region in meeting.regions]
        start = _BOARD + _LINE
        self._notices = [region[start : start + _NOTICE.size] for region in meeting.regions]
        self._read = [0] * len(self._notices)  # the version that was read last
        self._version = 0

    def tell(self, notice: Notice) -> None:
        """Put this worker's notice in place of the one before."""
        packed = np.frombuffer(_packed(notice), np.uint8)
        self._set_version(self._version + 1)
        self._notices[self._rank][:] = packed
        self._set_version(self._version + 1)

    def news(self, mate: int) -> Notice | None:
        """Return another worker's notice; None: it is the one that was read last, or is being written."""
        version = self._version_of(mate)
        if version == self._read[mate] or version % 2:
            return None
        packed = self._notices[mate].tobytes()
        if self._version_of(mate) != version:
            return None
        self._read[mate] = version
        return _unpacked(packed)

    def wait(self, mate: int) -> None:
        """Return when another worker has a newer notice than the one that was read, or after a moment."""
        library().p4r_counter64_wait(self._versions_at[mate], self._read[mate] + 2, _LOOK_NS)

    def close(self) -> None:
        """Let go of the memory; no thread may be at the board."""
        self._notices, self._versions_at = [], []

    def _set_version(self, version: int) -> None:
        self._version = version
        library().p4r_counter64_set(self._versions_at[self._rank], version)

    def _version_of(self, mate: int) -> int:
        return int(library().p4r_counter64_get(self._versions_at[mate]))


def _packed(notice: Notice) -> bytes:
    calls: list[int | bytes] = []
    for said in notice.calls:
        calls += [said.step, said.renewal, said.way, 1, said.digest, _cut(said.what)]
    for _ in range(2 - len(notice.calls)):
        calls += [0, 0, 0, 0, b"", b""]
    return _NOTICE.pack(notice.step, notice.renewal, *notice.lanes, *calls)


def _unpacked(packed: bytes) -> Notice:
    step, renewal, *rest = _NOTICE.unpack(packed)
    lanes, words = rest[:_LANES], rest[_LANES:]
    calls = tuple(
        Said(step, renewal, Way(way), what.rstrip(b"\0").decode(), digest)
        for step, renewal, way, is_there, digest, what in (words[:6], words[6:])
        if is_there
    )
    return Notice(step, renewal, tuple(lanes), calls)


def _cut(what: str) -> bytes:
    """Return the words in at most as many bytes as a notice has for them, cut between characters."""
    encoded = what.encode()
    if len(encoded) <= _WHAT_BYTES:
        return encoded
    return encoded[: _WHAT_BYTES - 3].decode(errors="ignore").encode() + b"..."


def sum_words(rows: list[Bytes], out: NDArray[np.int32]) -> None:
    """Leave the sums of the rows' int32s, which wrap, in `out`; each row is as long, and contiguous."""
    pointers = (ctypes.c_void_p * len(rows))(*(row.ctypes.data for row in rows))
    library().p4r_sum_words(pointers, len(rows), out.size, out.ctypes.data)
