"""Digests: what the data plane learns, gathered into lists for the controller, and the `DigestEntry` entity.

Source: P4Runtime specification, section "DigestEntry". Times are nanoseconds of a clock that never goes back,
given by the caller.

    event                                what happens
    -----------------------------------  --------------------------------------------------------------
    a sample not in buffer or cache      into the buffer
    buffer full, or old enough           the buffer becomes a list, its samples go to the cache
    acknowledgement, or none in time     the list's samples leave the cache and can be learned again
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from finsy.proto import p4r

from soft_switch.server.errors import already_exists, invalid, not_found
from soft_switch.server.operation import Operation
from soft_switch.server.p4data import format_data
from soft_switch.server.schema import Digest, Schema

Sample = tuple[int, ...]

MAX_LIST = 1024  # samples in a list where the controller sets no limit
MAX_UNACKNOWLEDGED = 1 << 16  # samples that wait for it; beyond, the oldest lists are forgotten


@dataclass
class Learner:
    """One digest that a controller has enabled."""

    digest: Digest
    config: p4r.DigestEntry.Config
    next_list: int
    buffer: dict[Sample, None] = field(default_factory=dict)
    buffer_since: int = 0
    lists: dict[int, tuple[int, list[Sample]]] = field(default_factory=dict)  # sent at, samples; oldest first
    cache: set[Sample] = field(default_factory=set)

    def learn(self, sample: Sample, now: int) -> p4r.DigestList | None:
        """Take a sample of the data plane; return a list when it is time to send one."""
        self._expire(now)
        if sample in self.cache or sample in self.buffer:
            return None
        if not self.buffer:
            self.buffer_since = now
        self.buffer[sample] = None
        full = len(self.buffer) >= (self.config.max_list_size or MAX_LIST)
        return self._flush(now) if full or self.config.max_timeout_ns == 0 else None

    def tick(self, now: int) -> p4r.DigestList | None:
        """Return a list when the buffer is old enough."""
        self._expire(now)
        due = self.buffer and now - self.buffer_since >= self.config.max_timeout_ns
        return self._flush(now) if due else None

    def acknowledge(self, list_id: int) -> None:
        """Note that the controller has acted on a list; an unknown or expired one is no error."""
        _, samples = self.lists.pop(list_id, (0, []))
        self.cache.difference_update(samples)

    def deadline(self) -> int | None:
        """Return when `tick` has something to do, None: not before the next sample."""
        return self.buffer_since + self.config.max_timeout_ns if self.buffer else None

    def forget(self) -> None:
        """Let samples be learned again, as the receiver of the lists is gone."""
        self.lists.clear()
        self.cache.clear()

    def _flush(self, now: int) -> p4r.DigestList:
        samples = list(self.buffer)
        self.buffer.clear()
        message = p4r.DigestList(digest_id=self.digest.id, list_id=self.next_list)
        for sample in samples:
            message.data.append(format_data(self.digest.type, iter(sample)))
        if self.config.ack_timeout_ns:
            self.lists[self.next_list] = now, samples
            self.cache.update(samples)
            while len(self.cache) > MAX_UNACKNOWLEDGED:
                self.acknowledge(next(iter(self.lists)))
        self.next_list += 1
        return message

    def _expire(self, now: int) -> None:
        while self.lists:
            oldest = next(iter(self.lists))
            if now - self.lists[oldest][0] < self.config.ack_timeout_ns:
                return
            self.acknowledge(oldest)


class Digests:
    """Handler of `DigestEntry`, which runs the learners. Safe to use from any thread."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._by_name = {digest.name: digest.id for digest in schema.digests.values()}
        self._lock = threading.Lock()
        self._learners: dict[int, Learner] = {}
        self._next_list = dict.fromkeys(schema.digests, 1)  # goes on when a digest is disabled and enabled

    def write(self, operation: Operation, message: p4r.DigestEntry) -> None:
        """Enable, configure or disable a digest. Samples that wait to be sent are dropped on disabling."""
        digest = self._digest(message.digest_id)
        with self._lock:
            learner = self._learners.get(digest.id)
            if operation == Operation.INSERT and learner is not None:
                raise already_exists(f"digest {digest.name} is enabled already: use MODIFY to configure it")
            if operation != Operation.INSERT and learner is None:
                raise not_found(f"digest {digest.name} is not enabled: INSERT it first")
            if operation == Operation.DELETE:
                self._next_list[digest.id] = self._learners.pop(digest.id).next_list
                return
            config = _check_config(digest, message.config)
            if learner is None:
                self._learners[digest.id] = Learner(digest, config, self._next_list[digest.id])
            else:
                learner.config = config

    def read(self, request: p4r.DigestEntry) -> Iterator[p4r.Entity]:
        """Read one digest's configuration, or those of all that are enabled for id 0."""
        if request.digest_id:
            digest = self._digest(request.digest_id)
            if digest.id not in self._learners:
                raise not_found(f"digest {digest.name} is not enabled")
        with self._lock:
            for number, learner in self._learners.items():
                if request.digest_id in (0, number):
                    entry = p4r.DigestEntry(digest_id=number, config=learner.config)
                    yield p4r.Entity(digest_entry=entry)

    def learn(self, name: str, sample: Sample, now: int) -> p4r.DigestList | None:
        """Take a sample of an enabled digest, and drop others; return a list if it is time to send one."""
        with self._lock:
            learner = self._learners.get(self._by_name.get(name, 0))
            if learner is None or len(sample) != len(learner.digest.scalars):
                return None  # the latter: of the program before, still on its way
            return learner.learn(sample, now)

    def acknowledge(self, message: p4r.DigestListAck) -> None:
        """Take an acknowledgement from the controller. INVALID_ARGUMENT: there is no such digest."""
        digest = self._digest(message.digest_id)
        with self._lock:
            if digest.id in self._learners:
                self._learners[digest.id].acknowledge(message.list_id)

    def tick(self, now: int) -> list[p4r.DigestList]:
        """Return the lists whose time has come."""
        with self._lock:
            learners = self._learners.values()
            return [message for learner in learners if (message := learner.tick(now)) is not None]

    def deadline(self) -> int | None:
        """Return when to call `tick` again; None: not before the next sample."""
        with self._lock:
            learners = self._learners.values()
            deadlines = [deadline for learner in learners if (deadline := learner.deadline()) is not None]
        return min(deadlines, default=None)

    def forget(self) -> None:
        """Let all samples be learned again: there is another primary, which has seen none of the lists."""
        with self._lock:
            for learner in self._learners.values():
                learner.forget()

    def _digest(self, number: int) -> Digest:
        return self._schema.lookup("digest", self._schema.digests, number)


def _check_config(digest: Digest, message: p4r.DigestEntry.Config) -> p4r.DigestEntry.Config:
    for name in ("max_timeout_ns", "max_list_size", "ack_timeout_ns"):
        value = getattr(message, name)
        if value < 0:
            raise invalid(f"digest {digest.name}: {name} is {value}, it cannot be negative")
    config = p4r.DigestEntry.Config()
    config.CopyFrom(message)
    return config
