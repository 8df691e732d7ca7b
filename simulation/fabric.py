"""A fabric on a simulated clock: model switches with the controller's entries, links with faults, jobs.

Time is an integer of nanoseconds that jumps to the next event. All chance comes from one seeded generator.
A link may lose, repeat, reorder and damage frames; links and spines may fail, and come back with empty
registers. What the controller would do about it, it does to each leaf at a time of its own.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address

from controller.allocator import SwitchAllocator
from controller.config import Config
from controller.entries import Entry
from controller.graph import ALL_UP, Graph, LinkState
from controller.routes import base_entries
from controller.trees import chosen, moved, uplink_entries
from host_agent.wire.headers import Opcode
from p4src import MAX_SLOTS
from simulation.invariant import InvariantError
from simulation.jobs import JobRun, Worker
from simulation.network import End, far_ends
from simulation.rack import Event, Faults
from simulation.switch.placement import SENDS, roce_headers
from simulation.switch.tree_packets import TreePacket
from simulation.watched import WatchedSwitch

QUEUE_NS = 1_000_000  # until a job that found no room tries again
Drop = Callable[[str, int, bytes], bool]
"""Whether a frame that leaves a switch's port for a link, or comes to it, is lost: by name and port."""


class FabricSimulation:
    """Jobs start with `start`; `run` goes on until all have ended and given back what they had."""

    def __init__(
        self,
        config: Config,
        *,
        seed: int = 0,
        host_links: Faults | None = None,
        uplinks: Faults | None = None,
        slots: int = MAX_SLOTS,
    ) -> None:
        self.config = config
        self.graph = Graph.of(config)
        self.random = random.Random(seed)
        self.host_links, self.uplinks = host_links or Faults(), uplinks or Faults()
        self.ends = far_ends(config)
        self.ports: dict[IPv4Address, tuple[str, int]] = {
            end: here for here, end in self.ends.items() if isinstance(end, IPv4Address)
        }
        self.now_ns = 0
        self.jobs: list[JobRun] = []
        self.by_qp: dict[tuple[IPv4Address, int], Worker] = {}
        sums: dict[tuple[int, int, int], bytes] = {}
        self.switches = {switch.name: WatchedSwitch(switch.name, self, sums) for switch in config.switches}
        self.allocators = {switch.name: SwitchAllocator(slots=slots) for switch in config.switches}
        self.down_links: set[str] = set()
        self.down_switches: set[str] = set()
        self.known: dict[str, LinkState] = {}  # to a leaf's entries
        self.drop: Drop | None = None
        self.tap: Callable[[str, int, bytes], None] = lambda switch, port, frame: None
        self._events: list[Event] = []
        self._order = 0
        for switch in config.switches:
            self.switches[switch.name].write(base_entries(config, switch))

    # What switches ask of a test's knowledge.

    def job(self, generation: int) -> JobRun:
        return next(job for job in self.jobs if job.plan.generation == generation)

    def is_running(self, generation: int) -> bool:
        return not self.job(generation).ended  # generations are the running jobs' and older

    def lacking(self, generation: int, message: int) -> list[int]:
        workers = self.job(generation).workers
        return [w.rank for w in workers if w.endpoint.progress().received_messages <= message]

    def expected_psn(self, generation: int, sender: int) -> int:
        return self.job(generation).successor(sender).endpoint.progress().expected_psn

    # Jobs

    def start(self, job: JobRun, *, at_ns: int = 0, late_ns: Sequence[int] = ()) -> None:
        """Have it start at a time, or when there is room; `late_ns`: how much later each rank begins."""
        self.jobs.append(job)
        self.at(at_ns, partial(self._start, job, late_ns))

    def _start(self, job: JobRun, late_ns: Sequence[int]) -> None:
        if not job.allocate(self.allocators):
            self.at(self.now_ns + QUEUE_NS, partial(self._start, job, late_ns))
            return
        job.started = True
        for switch in reversed(job.switches):  # spines first
            self.switches[switch].write(job.entries_on(switch, self.known.get(switch, ALL_UP)))
        for worker, late in zip(job.workers, late_ns or [0] * len(job.workers), strict=True):
            config = worker.endpoint.config
            self.by_qp[config.ip, config.qpn_in] = self.by_qp[config.ip, config.qpn_out] = worker
            worker.program = job.program(worker.rank)
            self.at(self.now_ns + late, partial(self.advance, worker))

    def end(self, job: JobRun) -> None:
        """All of its workers have what they wanted, and have been told that they may go."""
        for worker in job.workers:
            worker.retransmitted = worker.endpoint.counters().retransmitted_packets
            worker.endpoint.close()
            config = worker.endpoint.config
            del self.by_qp[config.ip, config.qpn_in], self.by_qp[config.ip, config.qpn_out]
        job.ended = True
        for switch in job.switches:
            job.remove(switch, self.switches[switch])
            self.allocators[switch].release(job.regions[switch])

    def run(self, *, limit_s: float = 600.0) -> None:
        """Until every job has ended; InvariantError where one never does."""
        while not all(job.ended for job in self.jobs):
            if not self._events:
                raise InvariantError(f"at {self.now_ns / 1e9:.6f} s nothing will ever happen: {self.state()}")
            if self.now_ns > limit_s * 1e9:
                raise InvariantError(f"not done after {limit_s} s of simulated time: {self.state()}")
            self.step()
        for name, allocator in self.allocators.items():
            if allocator.used or self.switches[name].jobs or self.switches[name].members:
                raise InvariantError(f"{name} still has something of a job: {allocator.regions}")

    def run_until(self, time_ns: int) -> None:
        """All that happens before."""
        while self._events and self._events[0].at_ns <= time_ns:
            self.step()
        self.now_ns = time_ns

    def state(self) -> str:
        lines = [
            f"{worker}: {worker.endpoint.progress()}"
            for job in self.jobs
            if not job.ended
            for worker in job.workers
        ]
        return "\n".join(["", *lines])

    # Time

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, Event(time_ns, self._order, action))

    def step(self) -> None:
        """Do what comes next."""
        event = heapq.heappop(self._events)
        self.now_ns = max(self.now_ns, event.at_ns)
        event.action()

    def advance(self, worker: Worker) -> None:
        worker.advance(self.now_ns)
        self.flush(worker)

    def flush(self, worker: Worker) -> None:
        """Send what an endpoint has to send; run its program on where it has what it waits for."""
        if worker.job.ended:
            return
        while True:
            while frames := worker.endpoint.poll(self.now_ns):
                for frame in frames:
                    self.from_host(worker.endpoint.config.ip, frame)
            worker.note()
            if worker.failure is not None:
                raise InvariantError(f"{worker} failed: {worker.failure}")
            if not worker.may_advance():
                break
            worker.advance(self.now_ns)
        timer = worker.endpoint.next_timeout_ns()
        if timer is not None and timer != worker.timer_ns:
            worker.timer_ns = timer
            self.at(max(timer, self.now_ns), partial(self.on_timer, worker, timer))
        if worker.job.is_over():
            self.end(worker.job)

    def on_timer(self, worker: Worker, timer_ns: int) -> None:
        if worker.timer_ns == timer_ns:
            worker.timer_ns = None
            self.flush(worker)

    # Frames

    def from_host(self, ip: IPv4Address, frame: bytes) -> None:
        switch, port = self.ports[ip]
        if self.drop is None or not self.drop(switch, port, frame):
            self.send(frame, partial(self.at_switch, switch, port), self.host_links)

    def at_switch(self, name: str, port: int, frame: bytes) -> None:
        if name in self.down_switches:
            return
        for out_port, out in self.switches[name].process(port, frame):
            self.leave(name, out_port, out)

    def leave(self, name: str, port: int, frame: bytes) -> None:
        end = self.ends[name, port]
        if self.is_down(name, end):
            return
        self.tap(name, port, frame)
        if self.drop is not None and self.drop(name, port, frame):
            return
        if isinstance(end, IPv4Address):
            self.send(frame, partial(self.at_host, end), self.host_links)
        else:
            self.send(frame, partial(self.over_link, name, *end), self.uplinks)

    def over_link(self, came_from: str, name: str, port: int, frame: bytes) -> None:
        if not self.is_down(came_from, (name, port)):
            self.at_switch(name, port, frame)

    def is_down(self, name: str, end: End) -> bool:
        """Whether a link between switches has failed."""
        if isinstance(end, IPv4Address):
            return False
        return f"{name}:{end[0]}" in self.down_links or f"{end[0]}:{name}" in self.down_links

    def at_host(self, ip: IPv4Address, frame: bytes) -> None:
        headers = roce_headers(frame)
        worker = self.by_qp.get((ip, headers[1].dest_qp)) if headers else None
        if worker is not None:  # else it is for a job that has ended
            worker.endpoint.receive(frame, self.now_ns)
            self.flush(worker)

    def send(self, frame: bytes, arrive: Callable[[bytes], None], faults: Faults) -> None:
        """Put a frame on a link, and let the link do its worst."""
        for after_ns, arriving in faults.arrivals(frame, self.random):
            self.at(self.now_ns + after_ns, partial(arrive, arriving))

    # What fails, and what the controller does about it.

    def fail_spine(self, spine: str) -> None:
        """It takes and sends nothing any more."""
        self.down_switches.add(spine)

    def restart_spine(self, spine: str, *, blank_ns: int = 0) -> None:
        """It is back with empty registers, and without entries for a while."""
        self.down_switches.discard(spine)
        switch = self.switches[spine]
        switch.write(delete=list(switch.entries.values()))
        switch.restart()
        self.at(self.now_ns + blank_ns, partial(self.reinstall, spine))

    def reinstall(self, spine: str) -> None:
        """All that a spine shall hold."""
        wanted = base_entries(self.config, self.config.switch(spine))
        for job in self.jobs:
            if job.started and not job.ended and spine in job.switches:
                wanted += job.entries_on(spine, ALL_UP)
        self.switches[spine].write(wanted)

    def link_state(self) -> LinkState:
        """As it is now."""
        return LinkState(down=frozenset(self.down_links), lost=frozenset(self.down_switches))

    def react(self, leaf: str, state: LinkState) -> None:
        """The leaf hears of what can be used: its routes and its jobs' trees move."""
        self.known[leaf] = state
        switch = self.switches[leaf]
        changed: list[Entry] = base_entries(self.config, self.config.switch(leaf), state)
        for job in self.jobs:
            if job.started and not job.ended and leaf in job.tree.leaves:
                entries = job.entries[leaf]
                usable = job.tree.spines(state)
                spines = chosen(self.config.spread, self.graph, usable, job.plan.generation)
                job.entries[leaf] = list(moved(self.graph, leaf, job.regions[leaf], entries, spines))
                changed += job.entries[leaf]
        switch.write(changed)

    def assign(self, leaf: str, job: JobRun, spines: Sequence[str]) -> None:
        """A leaf's choice of spines for a job, whatever others choose."""
        if job.started and not job.ended and job.tree.two_level:
            self.switches[leaf].write(uplink_entries(self.graph, leaf, job.regions[leaf], spines))


@dataclass
class UplinkCount:
    """What has gone over each leaf's uplinks: contributions and sums by fragment, other packets by kind.

    Use as a simulation's `tap`.
    """

    graph: Graph
    up: Counter[tuple[str, int, int, int]] = field(default_factory=Counter)
    down: Counter[tuple[str, int, int, int]] = field(default_factory=Counter)
    other: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __call__(self, switch: str, port: int, frame: bytes) -> None:
        is_leaf = switch in self.graph.leaves
        links = self.graph.uplinks(switch) if is_leaf else self.graph.downlinks(switch)
        link = next((k for k in links if port == (k.leaf_port if is_leaf else k.spine_port)), None)
        if link is None:
            return
        packet = TreePacket.parse(frame)
        if packet is not None:
            counts = self.up if is_leaf else self.down
            counts[link.leaf, packet.generation, packet.message, packet.index] += 1
            return
        headers = roce_headers(frame)
        assert headers is not None
        is_data = headers[1].opcode in SENDS
        assert is_data or headers[1].opcode == Opcode.ACKNOWLEDGE
        self.other[link.leaf, f"{'data' if is_data else 'ack'} {'up' if is_leaf else 'down'}"] += 1

    def times(self) -> set[int]:
        """How often each fragment crossed, in either direction."""
        return {*self.up.values(), *self.down.values()}
