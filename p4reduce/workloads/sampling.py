"""Periodic looks at a running fabric: bytes over its links, slots of a job that hold an incomplete sum.

Links are one read of a file. The controller asks the P4 program for slots, a packet each, which takes a
fifth of a second of a processor for 256 of them. So slots are looked at only while nothing is timed, and
less often the longer a look takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.api.admin import AdminClient
from controller.api.errors import ControllerError
from p4reduce.workloads.links import LinkLook, since
from p4reduce.workloads.run_file import LinkBytes, Sample

INTERVAL_S: Final = 0.2
MAX_SAMPLES: Final = 300
_SHARE: Final = 0.5  # of the time, at most, is spent on looking at slots
_IN_THE_MAKING: Final = ("adding", "sent up")

_LOG = logging.getLogger(__name__)

SlotLook = Callable[[], int]


@dataclass(frozen=True)
class Look:
    """One look. `at`: a time of this machine's monotonic clock. Bytes count since the links exist."""

    at: float
    links: dict[str, LinkBytes]
    slots_open: int


class Sampler:
    """Threads that look at the fabric inside the `with` block. `slots`: None if no slots are in use."""

    def __init__(self, links: LinkLook, slots: SlotLook | None, *, interval_s: float = INTERVAL_S) -> None:
        self.looks: list[Look] = []
        self._look_at_links = links
        self._look_at_slots = slots
        self._interval_s = interval_s
        self._slots_open = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._links, name="p4reduce-links", daemon=True)]
        if slots is not None:
            self._threads.append(threading.Thread(target=self._slots, name="p4reduce-slots", daemon=True))

    def __enter__(self) -> Sampler:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def samples(self, *, began: float, slots_allocated: int) -> list[Sample]:
        """Return at most `MAX_SAMPLES` looks since `began`, evenly; bytes and times count from there."""
        return samples(self.looks, began=began, slots_allocated=slots_allocated)

    def _links(self) -> None:
        due = time.monotonic()
        while True:
            self.looks.append(Look(time.monotonic(), self._look_at_links(), self._slots_open))
            due = max(due + self._interval_s, time.monotonic())
            if self._stop.wait(due - time.monotonic()):
                break
        self.looks.append(Look(time.monotonic(), self._look_at_links(), self._slots_open))

    def _slots(self) -> None:
        if self._look_at_slots is None:
            return
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._slots_open = self._look_at_slots()
            except ControllerError as error:
                _LOG.warning("the slots cannot be looked at any more: %s", error)
                self._slots_open = 0
                return
            took = time.monotonic() - started
            self._stop.wait(max(self._interval_s, took / _SHARE) - took)


def samples(looks: Sequence[Look], *, began: float, slots_allocated: int) -> list[Sample]:
    """Make samples of looks, see `Sampler.samples`. Bytes count from the last look before `began`."""
    before = [look for look in looks if look.at <= began]
    kept = [look for look in looks if look.at > began]
    if not kept:
        return []
    start = before[-1] if before else kept[0]
    if len(kept) > MAX_SAMPLES:
        last = len(kept) - 1
        kept = [kept[round(place * last / (MAX_SAMPLES - 1))] for place in range(MAX_SAMPLES)]
    return [
        Sample(
            at_s=look.at - began,
            links=since(look.links, start.links),
            slots_open=look.slots_open,
            slots_allocated=slots_allocated,
        )
        for look in kept
    ]


def slot_look(admin: AdminClient, jobs: Sequence[str]) -> SlotLook:
    """Make a function that counts the slots of jobs that hold an incomplete sum, on all switches."""
    return lambda: sum(slot.state in _IN_THE_MAKING for job in jobs for slot in admin.slots(job))


def slots_of(admin: AdminClient, jobs: Sequence[str]) -> int:
    """Return the number of slots that a job or its planes have, on all switches."""
    return sum(place.slots for job in jobs for place in admin.show_job(job).places)
