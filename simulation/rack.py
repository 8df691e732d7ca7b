"""N workers, a switch and bad links on a simulated clock: real endpoints, the switch of `simulation/switch`.

Nothing here waits or reads a clock: time is an integer of nanoseconds that jumps to the next event. All
chance comes from one seeded generator.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address
from typing import Any

from host_agent.collectives.plan import Steps, Wait
from host_agent.transport import Endpoint, EventType, Predecessor, Successor, TransportConfig
from host_agent.transport.events import Failure
from host_agent.wire.headers import parse_mac
from simulation.invariant import InvariantError
from simulation.nic import NicEndpoint
from simulation.switch.slot_rules import SwitchModel
from simulation.switch.state import Flow, Job, Route, Slot

LINK_DELAY_NS = 10_000
GENERATION = 7
JOB = 3

Program = Callable[[int], Steps[Any]]


@dataclass(frozen=True)
class Faults:
    """What a link does to a frame: probabilities, and how far behind (ns) a late frame may fall."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    late_ns: int = 200_000

    def arrivals(self, frame: bytes, chance: random.Random) -> Iterator[tuple[int, bytes]]:
        """What becomes of a frame on the link: after how long (ns) what arrives."""
        if chance.random() < self.loss:
            return
        for _ in range(2 if chance.random() < self.duplicate else 1):
            late = chance.randrange(self.late_ns) if chance.random() < self.reorder else 0
            yield LINK_DELAY_NS + late, corrupted(frame, chance) if chance.random() < self.corrupt else frame


class WatchedSwitch(SwitchModel):
    """A switch that refuses to forget a sum which somebody still lacks."""

    received: Callable[[], list[int]]

    def claim(self, job: Job, slot: Slot, tag: tuple[int, int]) -> None:
        if slot.tag is not None and slot.tag[0] == tag[0]:
            old = slot.tag[1]
            lacking = [rank for rank, count in enumerate(self.received()) if count <= old]
            if lacking or len(slot.ranks) < len(job.flows):
                raise InvariantError(
                    f"message {tag[1]} overwrites the slot of {old}, whose sum ranks {lacking} lack "
                    f"(contributed: {sorted(slot.ranks)})"
                )
        super().claim(job, slot, tag)


@dataclass
class Worker:
    """One rank: its endpoint and the program that it runs."""

    endpoint: Endpoint | NicEndpoint
    program: Steps[Any] | None = None
    waiting: Wait | None = None
    received: int = 0  # the last operation that is RECEIVED
    completed: int = 0
    result: Any = None
    failure: Failure | None = None
    done: bool = False

    def may_advance(self) -> bool:
        """It waits for what is there."""
        if self.waiting is None:
            return False
        reached = self.received if self.waiting.until is EventType.RECEIVED else self.completed
        return reached >= self.waiting.op_id

    def advance(self, now_ns: int) -> None:
        """Run on until it waits for what is not there yet."""
        assert self.program is not None
        try:
            step = next(self.program) if self.waiting is None else self.program.send(0)
            while True:
                self.waiting = step if isinstance(step, Wait) else None
                if self.waiting is not None and not self.may_advance():
                    return
                reply = 0 if isinstance(step, Wait) else self.endpoint.post(step, now_ns)
                step = self.program.send(reply)
        except StopIteration as end:
            self.result, self.done, self.waiting = end.value, True, None

    def note(self) -> None:
        """Take note of the endpoint's events."""
        for event in self.endpoint.events():
            if event.type is EventType.RECEIVED:
                self.received = event.op_id
            elif event.type is EventType.COMPLETED:
                self.received, self.completed = max(self.received, event.op_id), event.op_id
            else:
                self.failure = event.failure

    def is_over(self) -> bool:
        """Its program has ended, and all that it sent is acknowledged."""
        return self.done and self.endpoint.progress().operations == 0


@dataclass(order=True)
class Event:
    """What happens at a time; of several, what was asked for first."""

    at_ns: int
    order: int
    action: Callable[[], None] = field(compare=False)


def ip_of(rank: int) -> IPv4Address:
    return IPv4Address("10.1.0.1") + rank


def mac_of(rank: int) -> str:
    return f"02:00:00:00:01:{rank + 1:02x}"


def configs(
    world_size: int,
    *,
    window: int = 4,
    packets: int = 4,
    path_mtu: int = 256,
    psns: list[int] | None = None,
    ring: Sequence[int] = (),
    **extra: Any,
) -> list[TransportConfig]:
    """Everybody's connections, by rank. `psns`: the first PSN of each rank's QP_out; `ring`: its order."""
    psns = psns or [0x1000 * (rank + 1) for rank in range(world_size)]
    order = list(ring) or list(range(world_size))

    def config(rank: int) -> TransportConfig:
        place = order.index(rank)
        ahead, behind = order[(place + 1) % world_size], order[place - 1]
        return TransportConfig(
            mac=mac_of(rank),
            ip=ip_of(rank),
            qpn_out=0x100 + rank,
            psn_out=psns[rank],
            qpn_in=0x200 + rank,
            successor=Successor(mac=mac_of(ahead), ip=ip_of(ahead), qpn_in=0x200 + ahead),
            predecessor=Predecessor(
                mac=mac_of(behind),
                ip=ip_of(behind),
                qpn_out=0x100 + behind,
                psn_out=psns[behind],
                rank=behind,
            ),
            path_mtu=path_mtu,
            window=window,
            message_packets=packets,
            job_id=JOB,
            generation=GENERATION,
            rank=rank,
            world_size=world_size,
            **extra,
        )

    return [config(rank) for rank in range(world_size)]


def job_of(workers: list[TransportConfig]) -> Job:
    """The job as a controller would install it: rank r sits on port r + 1."""
    ports = {c.ip: c.rank + 1 for c in workers}
    flows = tuple(
        Flow(
            rank=c.rank,
            port=c.rank + 1,
            src_mac=parse_mac(c.mac),
            src_ip=c.ip,
            src_qp=c.qpn_out,
            dst_port=ports[c.successor.ip],
            dst_mac=parse_mac(c.successor.mac),
            dst_ip=c.successor.ip,
            dst_qp=c.successor.qpn_in,
        )
        for c in workers
    )
    first = workers[0]
    return Job(first.job_id, first.generation, first.window, first.message_packets, flows)


def routes_of(workers: list[TransportConfig]) -> dict[IPv4Address, Route]:
    """The way to every worker, as a controller would install it."""
    switch_mac = parse_mac("02:00:00:00:ff:01")
    return {c.ip: Route(port=c.rank + 1, src_mac=switch_mac, dst_mac=parse_mac(c.mac)) for c in workers}


class Simulation:
    """A rack. `run` lets every rank run a program and gives what each returned."""

    def __init__(
        self, workers: list[TransportConfig], *, faults: Faults | None = None, seed: int = 0
    ) -> None:
        self.faults = faults or Faults()
        self.random = random.Random(seed)
        self.now_ns = 0
        self.job = job_of(workers)
        self.workers = [Worker(Endpoint(config)) for config in workers]
        self.switch = WatchedSwitch([self.job], routes_of(workers))
        self.switch.received = lambda: [w.endpoint.progress().received_messages for w in self.workers]
        self._events: list[Event] = []
        self._order = 0

    def install(self) -> None:
        """The switch serves the job, as if it had never before."""
        self.job = job_of([worker.endpoint.config for worker in self.workers])
        self.switch.members.update(SwitchModel([self.job], {}).members)

    def uninstall(self) -> None:
        """The switch only routes."""
        self.switch.members.clear()

    def run(self, program: Program, *, limit_s: float = 3600.0) -> list[Any]:
        """Every rank's `program(rank)` to its end, all acknowledged. Stops where an endpoint fails."""
        for rank, worker in enumerate(self.workers):
            worker.program, worker.done, worker.waiting = program(rank), False, None
            self.advance(rank)
        while not self.settled():
            if not self.step():
                raise InvariantError(
                    f"at {self.now_ns / 1e9:.6f} s nothing will ever happen again: {self.state()}"
                )
            if self.now_ns > limit_s * 1e9:
                raise InvariantError(f"not done after {limit_s} s of simulated time: {self.state()}")
        return [worker.result for worker in self.workers]

    def settled(self) -> bool:
        """All programs ended and nothing unacknowledged, or somebody failed."""
        if any(worker.failure for worker in self.workers):
            return True
        return all(worker.is_over() for worker in self.workers)

    def state(self) -> list[Any]:
        return [worker.endpoint.progress() for worker in self.workers]

    def step(self) -> bool:
        """Take the next event, a frame's arrival or a timer; False where there is none."""
        timers = [t for w in self.workers if (t := w.endpoint.next_timeout_ns()) is not None]
        timer = min(timers, default=None)
        if self._events and (timer is None or self._events[0].at_ns <= timer):
            event = heapq.heappop(self._events)
            self.now_ns = max(self.now_ns, event.at_ns)
            event.action()
        elif timer is not None:
            self.now_ns = max(self.now_ns, timer)
            for rank in range(len(self.workers)):
                self.flush(rank)
        else:
            return False
        return True

    def frames_under_way(self) -> bool:
        return bool(self._events)

    def advance(self, rank: int) -> None:
        """Run a rank's program on, until it waits for what is not there yet."""
        self.workers[rank].advance(self.now_ns)
        self.flush(rank)

    def flush(self, rank: int) -> None:
        """Send what an endpoint has to send, and take note of its events."""
        worker = self.workers[rank]
        while frames := worker.endpoint.poll(self.now_ns):
            for frame in frames:
                self.send(frame, partial(self.at_switch, rank))
        worker.note()
        if worker.may_advance():
            self.advance(rank)

    def at_switch(self, rank: int, frame: bytes) -> None:
        for port, out in self.switch.process(rank + 1, frame):
            self.send(out, partial(self.at_worker, port - 1))

    def at_worker(self, rank: int, frame: bytes) -> None:
        self.workers[rank].endpoint.receive(frame, self.now_ns)
        self.flush(rank)

    def send(self, frame: bytes, arrive: Callable[[bytes], None]) -> None:
        """Put a frame on a link, and let the link do its worst."""
        for after_ns, arriving in self.faults.arrivals(frame, self.random):
            self._order += 1
            event = Event(self.now_ns + after_ns, self._order, partial(arrive, arriving))
            heapq.heappush(self._events, event)

    def close(self) -> None:
        for worker in self.workers:
            worker.endpoint.close()


def corrupted(frame: bytes, chance: random.Random) -> bytes:
    """One bit of what the ICRC covers wrong: in the payload, where there is one, else in the BTH."""
    damaged = bytearray(frame)
    damaged[chance.randrange(47, len(frame))] ^= 1 << chance.randrange(8)
    return bytes(damaged)
