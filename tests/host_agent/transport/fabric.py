"""Endpoints joined by a simulated fabric: a clock, links with faults, and a switch model or plain forwarding.

Everything that happens follows from the arguments and the seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from host_agent.transport import (
    Endpoint,
    Event,
    EventType,
    Operation,
    TransportConfig,
)
from simulation.nic import NicEndpoint
from simulation.rack import configs as configs_of
from simulation.rack import job_of, routes_of
from simulation.switch.slot_rules import SwitchModel
from simulation.switch.state import Job, Slot, SpineJob

LINK_DELAY_NS = 10_000
TTL_OFFSET = 22  # the switch model trusts it, which a router does only where the IP checksum is right
Forward = Callable[[int, bytes], list[tuple[int, bytes]]]  # of a switch with rank r on port r + 1


def ring_configs(
    ranks: int,
    *,
    window: int = 2,
    message_packets: int = 4,
    first_psns: Sequence[int] | None = None,
    **how: Any,
) -> list[TransportConfig]:
    """What a controller would hand out to the workers of one job."""
    psns = list(first_psns) if first_psns is not None else [1000 * (rank + 1) for rank in range(ranks)]
    return configs_of(ranks, window=window, packets=message_packets, psns=psns, **how)


def router(configs: list[TransportConfig]) -> Forward:
    """A switch that knows no job: it forwards by destination address."""
    return SwitchModel([], routes_of(configs)).process


class CheckedSwitch(SwitchModel):
    """Holds design.md's invariant: a slot is claimed only when all workers have what it held."""

    received_messages: Callable[[], Sequence[int]] = staticmethod(lambda: [0])  # of every worker
    reused_slots = 0

    def claim(self, job: Job | SpineJob, slot: Slot, tag: tuple[int, int]) -> None:
        if slot.tag is not None:
            self.reused_slots += 1
            assert min(self.received_messages()) > slot.tag[1], f"the slot of {slot.tag} is taken by {tag}"
        super().claim(job, slot, tag)


def aggregating_switch(configs: list[TransportConfig]) -> CheckedSwitch:
    """The switch model with this job's flows."""
    return CheckedSwitch([job_of(configs)], routes_of(configs))


@dataclass
class Faults:
    """What links do to frames, by chance; `drop` decides about chosen ones (worker, outbound, frame)."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    corruption: float = 0.0
    drop: Callable[[int, bool, bytes], bool] | None = None


@dataclass
class Fabric:
    """The workers' endpoints, the switch between them and the frames under way."""

    configs: Sequence[TransportConfig]
    switch: Forward
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    max_frames: int = 64
    adapters: Container[int] = ()  # ranks whose packets are a simulated RDMA adapter's

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.endpoints: list[Endpoint | NicEndpoint] = [
            NicEndpoint(config) if config.rank in self.adapters else Endpoint(config)
            for config in self.configs
        ]
        self.events: list[list[Event]] = [[] for _ in self.endpoints]
        self.checked_switch: CheckedSwitch | None = None
        self.asleep: set[int] = set()  # workers that take nothing and send nothing
        self.now = 1_000_000
        self.frames_on_wire = 0
        self._queue: list[tuple[int, int, int, bool, bytes]] = []
        self._order = 0

    def post(self, rank: int, operation: Operation) -> int:
        op_id = self.endpoints[rank].post(operation, self.now)
        self.pump(rank)
        return op_id

    def pump(self, rank: int) -> None:
        """Let a worker send what it may, and collect what happened."""
        if rank in self.asleep:
            return
        while frames := self.endpoints[rank].poll(self.now, self.max_frames):
            for frame in frames:
                self._send(rank, True, frame)
        self.events[rank] += self.endpoints[rank].events()

    def run(self, *, until: Callable[[], bool], limit_s: float = 100.0) -> None:
        """Step until `until` holds; AssertionError when nothing can happen any more, or time is up."""
        end = self.now + round(limit_s * 1e9)
        while not until():
            assert self.step(end), self.describe()

    def run_for(self, seconds: float) -> None:
        end = self.now + round(seconds * 1e9)
        while self.step(end):
            pass
        self.now = end

    def step(self, end: int) -> bool:
        """Do the next thing before `end`; False: there is none."""
        timers = [
            (max(timeout, self.now), rank)
            for rank, endpoint in enumerate(self.endpoints)
            if rank not in self.asleep and (timeout := endpoint.next_timeout_ns()) is not None
        ]
        next_timer = min(timers, default=None)
        if self._queue and (next_timer is None or self._queue[0][0] <= next_timer[0]):
            at, _, port, outbound, frame = self._queue[0]
            if at > end:
                return False
            heapq.heappop(self._queue)
            self.now = at
            self._arrive(port, outbound, frame)
            return True
        if next_timer is None or next_timer[0] > end:
            return False
        self.now = next_timer[0]
        self.pump(next_timer[1])
        return True

    def completed(self, *, op_id: int, rank: int | None = None) -> bool:
        """Whether an operation is complete at a worker, or at all; raises what an endpoint failed with."""
        ranks = range(len(self.endpoints)) if rank is None else [rank]
        failures = [e.failure for events in self.events for e in events if e.failure is not None]
        assert not failures, failures
        return all(
            any(e.op_id == op_id and e.type is EventType.COMPLETED for e in self.events[r]) for r in ranks
        )

    def describe(self) -> str:
        """Where everybody is, for a failed assertion."""
        lines = [f"stuck at {self.now} ns (seed {self.seed}, {len(self._queue)} frames under way)"]
        lines += [f"rank {rank}: {endpoint.progress()}" for rank, endpoint in enumerate(self.endpoints)]
        return "\n".join(lines)

    def _arrive(self, port: int, outbound: bool, frame: bytes) -> None:
        if outbound:
            for out_port, out_frame in self.switch(port + 1, frame):
                self._send(out_port - 1, False, out_frame)
        elif port not in self.asleep:
            self.endpoints[port].receive(frame, self.now)
            self.pump(port)

    def _send(self, port: int, outbound: bool, frame: bytes) -> None:
        self.frames_on_wire += 1
        faults, chance = self.faults, self.random.random
        if faults.drop is not None and faults.drop(port, outbound, frame):
            return
        copies = 1 + (chance() < faults.duplication)
        for _ in range(copies):
            if chance() < faults.loss:
                continue
            delay = LINK_DELAY_NS
            if chance() < faults.reordering:
                delay += self.random.randrange(20 * LINK_DELAY_NS)
            damaged = bytearray(frame)
            if chance() < faults.corruption:
                damaged[self.random.choice([o for o in range(len(frame)) if o != TTL_OFFSET])] ^= (
                    self.random.randrange(1, 256)
                )
            self._order += 1
            heapq.heappush(self._queue, (self.now + delay, self._order, port, outbound, bytes(damaged)))
