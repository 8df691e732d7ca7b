"""One run of a schedule: everything that there is, and the checks after every event."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeAlias

from controller.config import HostConfig
from controller.store import Store
from simulation.faults import mishaps
from simulation.faults.control import ControllerProcess, DefectsHeard
from simulation.faults.job import JobRun
from simulation.faults.loop import NS, Clock
from simulation.faults.node import GhostSwitch, SwitchNode
from simulation.faults.schedule import Mishap, Schedule, Strike, StrikesOfLink
from simulation.faults.worker import Worker
from simulation.rack import InvariantError

_TO_BACKUP = 0xAC000000 - 0x0A000000  # 10.x.y.z: 172.x.y.z
EPOCH = 1_000_000  # where generations begin
AFTER_THE_LAST_FAULT_S = 60.0
CLEAN_UP_S = 60.0
STRAGGLERS_NS = 2 * NS  # how long a packet may be under way
MOST_EVENTS = 3_000_000
QueuePairs: TypeAlias = (
    "dict[tuple[bytes, bytes], Worker]"  # whose they are: address, QP number, as in frames
)


@dataclass
class Outcome:
    """What came of a run. `error`: the invariant that broke; `strikes`: the packet faults that struck."""

    schedule: Schedule
    error: str = ""
    events: int = 0
    packets: int = 0
    simulated_s: float = 0.0
    collectives: int = 0
    renewals: int = 0
    trace: int = 0
    strikes: list[Strike] = field(default_factory=list)
    jobs: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


class Wire:
    """One direction of a link. `down`: it loses everything, for as many reasons."""

    def __init__(
        self,
        clock: Clock,
        faults: StrikesOfLink,
        arrive: Callable[[bytes], None],
        *,
        delay_ns: int,
        gap_ns: int,
    ) -> None:
        self.clock = clock
        self.faults = faults
        self.arrive = arrive
        self.delay_ns = delay_ns
        self.gap_ns = gap_ns
        self.down = 0
        self.sent = 0
        self.lost = 0
        self._free_ns = 0

    def send(self, frame: bytes) -> None:
        """Put a frame on the link, and let the link do its worst."""
        number = self.sent
        self.sent = number + 1
        clock = self.clock
        start = self._free_ns
        if start < clock.now_ns:
            start = clock.now_ns
        self._free_ns = start + self.gap_ns
        arrives = start + self.delay_ns
        strikes = None if self.faults.quiet else self.faults.at(number)
        if strikes is None:
            clock.at(arrives, self._arrive, frame)
            return
        for strike in strikes:
            if strike.kind == "loss":
                self.lost += 1
                return
        for strike in strikes:
            if strike.kind == "corrupt":
                damaged = bytearray(frame)
                bit = strike.bit % (8 * (len(frame) - 42))  # of what the ICRC covers and no router changes
                damaged[42 + bit // 8] ^= 1 << bit % 8
                frame = bytes(damaged)
            elif strike.kind == "reorder":
                arrives += strike.after_ns
            else:
                clock.at(arrives + strike.after_ns, self._arrive, frame)
        clock.at(arrives, self._arrive, frame)

    def _arrive(self, frame: bytes) -> None:
        if not self.down:
            self.arrive(frame)


class BackupNetwork:
    """Another network than the switches', on which nothing is lost."""

    def __init__(self, clock: Clock, qps: QueuePairs, *, delay_ns: int) -> None:
        self.clock = clock
        self.qps = qps
        self.delay_ns = delay_ns

    def send(self, frame: bytes) -> None:
        """To whom it is for."""
        self.clock.after(self.delay_ns, self._arrive, frame)

    def _arrive(self, frame: bytes) -> None:
        worker = self.qps.get((frame[30:34], frame[47:50]))
        if worker is not None:
            worker.receive(frame)


class World:
    """See the top of the file. `shadow`: makes something that is to come to the same as each switch."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        tracing: bool = False,
        shadow: Callable[[World, SwitchNode], None] | None = None,
        switch: type[GhostSwitch] = GhostSwitch,
    ) -> None:
        self.schedule = schedule
        self.tracing = tracing
        self.lines: list[str] = []
        self.clock = Clock()
        self.trace = 0
        self.defect: InvariantError | None = None
        self.generations: dict[int, JobRun] = {}
        self.retransmitted = 0
        self.strikes: list[Strike] = []
        self.happened: list[tuple[int, Mishap]] = []
        self._last_fault_ns = 0
        self.config = schedule.config()
        self._hosts = {host.name: host for host in self.config.hosts}
        self._qps: QueuePairs = {}
        self.backup_wire = BackupNetwork(
            self.clock, self._qps, delay_ns=self.latency("backup", 50_000, 500_000)
        )
        self._qpns = 0x800000
        self.wires: dict[str, Wire] = {}
        self._out: dict[tuple[str, int], Wire] = {}
        sums: dict[tuple[int, int, int], bytes] = {}
        request_s = self.latency("p4runtime", 100_000, 2_000_000) / NS
        self.nodes = {
            config.name: SwitchNode(
                config.name, switch(config.name, self, sums), self._sender(config.name), request_s=request_s
            )
            for config in self.config.switches
        }
        self._lay_wires()
        if shadow is not None:
            for node in self.nodes.values():
                shadow(self, node)
        self.store = Store(":memory:", wall_clock=lambda: EPOCH)
        self._lost: list[Store] = []
        self._copy: sqlite3.Connection | None = None  # the backup that there is of the database
        self._restored: list[tempfile.TemporaryDirectory[str]] = []
        self._used: dict[tuple[bytes, bytes], tuple[JobRun, int, int]] = {}  # generation, and who sends to it
        self.controller: ControllerProcess | None = None
        self.past: list[ControllerProcess] = []
        self.unfinished = sum(len(plan.hosts) for plan in schedule.jobs)
        self.jobs = [JobRun(self, number, plan) for number, plan in enumerate(schedule.jobs, 1)]

    # What is made of the schedule.

    def latency(self, name: str, least_ns: int, most_ns: int) -> int:
        """A delay of the schedule, or one that follows from its seed and the name."""
        known = self.schedule.latencies.get(name)
        if known is not None:
            return known
        return least_ns + zlib.crc32(f"{self.schedule.seed}/{name}".encode()) % (most_ns - least_ns + 1)

    def _lay_wires(self) -> None:
        listed: dict[str, dict[int, list[Strike]]] | None = None
        if self.schedule.strikes is not None:
            listed = {}
            for strike in self.schedule.strikes:
                listed.setdefault(strike.link, {}).setdefault(strike.frame, []).append(strike)
        schedule = self.schedule

        def lay(a: str, b: str, rates: Any, arrive: Callable[[bytes], None]) -> Wire:
            name = f"{a}>{b}"
            mine = None if listed is None else listed.get(name, {})
            faults = StrikesOfLink(name, rates, schedule.seed, mine, self.strikes)
            delay = self.latency(f"delay/{name}", 2_000, 30_000)
            gap = self.latency(f"gap/{name}", 0, 2_000)
            wire = self.wires[name] = Wire(self.clock, faults, arrive, delay_ns=delay, gap_ns=gap)
            return wire

        for host in self.config.hosts:
            lay(host.name, host.switch, schedule.host_rates, self._at_switch(host.switch, host.port))
            self._out[host.switch, host.port] = lay(
                host.switch, host.name, schedule.host_rates, self._at_host(host.ip)
            )
        for link in self.config.links:
            rates = schedule.uplink_rates
            self._out[link.a, link.a_port] = lay(link.a, link.b, rates, self._at_switch(link.b, link.b_port))
            self._out[link.b, link.b_port] = lay(link.b, link.a, rates, self._at_switch(link.a, link.a_port))

    def ports(self, switch: str) -> list[int]:
        """Of a switch, those that lead somewhere."""
        return sorted(port for name, port in self._out if name == switch)

    def host_wire(self, host: str) -> Wire:
        """From a host to its switch."""
        return self.wires[f"{host}>{self._hosts[host].switch}"]

    # Frames.

    def _at_switch(self, name: str, port: int) -> Callable[[bytes], None]:
        node, clock = self.nodes[name], self.clock

        def arrive(frame: bytes) -> None:
            self.trace = zlib.crc32(frame, self.trace ^ clock.now_ns & 0xFFFFFFFF)
            for out_port, out in node.process(port, frame):
                self._out[name, out_port].send(out)

        return arrive

    def _at_host(self, ip: IPv4Address) -> Callable[[bytes], None]:
        qps, packed = self._qps, ip.packed

        def arrive(frame: bytes) -> None:
            self.trace = zlib.crc32(frame, self.trace ^ self.clock.now_ns & 0xFFFFFFFF)
            worker = qps.get((packed, frame[47:50]))
            if worker is not None:
                worker.receive(frame)

        return arrive

    def _sender(self, name: str) -> Callable[[int, bytes], None]:
        return lambda port, frame: self._out[name, port].send(frame)

    def backup_of(self, host: HostConfig) -> tuple[str, IPv4Address]:
        """MAC and address of a host's other interface."""
        return "02:00:ac" + host.mac[8:], host.ip + _TO_BACKUP

    def fresh_qpn(self) -> int:
        """Of a pair that nobody has had."""
        self._qpns += 2
        return self._qpns

    def know_qps(self, worker: Worker) -> None:
        """Frames for these go to that worker."""
        assert worker.endpoint is not None
        config = worker.endpoint.config
        assert worker.ready is not None
        for qpn, sender in (
            (config.qpn_in, worker.ready.predecessor.rank),
            (config.qpn_out, worker.ready.successor.rank),
        ):
            pair = config.ip.packed, qpn.to_bytes(3, "big")
            self._qps[pair] = worker
            self._check_number(pair, worker)
            self._used[pair] = worker.job, config.generation, sender

    def _check_number(self, pair: tuple[bytes, bytes], worker: Worker) -> None:
        """Nobody gets the number of a queue pair that an earlier one's sender may still send to."""
        assert worker.endpoint is not None
        job, generation, sender = self._used.get(pair, (worker.job, worker.endpoint.config.generation, 0))
        if generation == worker.endpoint.config.generation or self._lost:
            return
        stopped_ns = job.stopped_ns(generation, sender)
        if stopped_ns is None or self.clock.now_ns < stopped_ns + STRAGGLERS_NS:
            raise InvariantError(
                f"{worker} has QP {int.from_bytes(pair[1], 'big'):#x}, to which rank {sender} of {job.name} "
                f"may still send in generation {generation}"
            )

    def forget_qps(self, worker: Worker) -> None:
        """Nobody takes them any more."""
        assert worker.endpoint is not None
        config = worker.endpoint.config
        for qpn in (config.qpn_in, config.qpn_out):
            pair = config.ip.packed, qpn.to_bytes(3, "big")
            if self._qps.get(pair) is worker:
                del self._qps[pair]

    # What the switches ask, as `watched.Knowledge`.

    def is_running(self, generation: int) -> bool:
        """Whether somebody may still want sums of that generation."""
        job = self.generations.get(generation)
        # A worker that was given up may not have heard of it; nothing that it sends is added any more. Who
        # leaves has all that it will ever want, and may not have heard that all others do so too.
        return (
            job is not None
            and job.newest <= generation
            and not all(worker.is_leaving for worker in job.of_generation(generation))
        )

    def lacking(self, generation: int, message: int) -> list[int]:
        """The ranks that have not received a message."""
        job = self.generations.get(generation)
        return [] if job is None else job.lacking(generation, message)

    def expected_psn(self, generation: int, sender: int) -> int:
        """What the receiver of a rank's flow waits for."""
        return self.generations[generation].expected_psn(generation, sender)

    # The run.

    def note(self, what: str) -> None:
        """A line of the trace, where one is wanted."""
        if self.tracing:
            self.lines.append(f"{self.clock.now_ns / NS:12.6f}  {what}")

    def progress(self) -> None:
        """Something useful has happened."""

    def run(self) -> Outcome:
        """To the end; what breaks is in the outcome."""
        outcome = Outcome(self.schedule)
        heard = DefectsHeard(self)
        logger = logging.getLogger("controller")
        before = logger.propagate, logger.level
        logger.propagate = False
        logger.addHandler(heard)
        logger.setLevel(heard.level)
        try:
            self._start()
            self._run()
        except InvariantError as error:
            outcome.error = str(error)
        except Exception as error:  # noqa: BLE001  whatever breaks is what a run is to find out
            frame = traceback.extract_tb(error.__traceback__)[-1]
            outcome.error = f"{frame.name}, line {frame.lineno}: {frame.line}: {error!r}"
        finally:
            outcome.events, outcome.trace = self.clock.events, self.trace
            outcome.packets = sum(wire.sent for wire in self.wires.values())
            outcome.simulated_s = self.clock.now_s
            outcome.collectives = sum(job.collectives for job in self.jobs)
            outcome.renewals = sum(job.renewals for job in self.jobs)
            outcome.strikes, outcome.lines = self.strikes, self.lines
            for job in self.jobs:
                for worker in job.workers:
                    outcome.jobs[worker.state] += 1
            self._close()
            logger.removeHandler(heard)
            logger.propagate, logger.level = before[0], logger.level
            logger.setLevel(before[1])
        return outcome

    def _start(self) -> None:
        self.controller = ControllerProcess(self, self.store)
        for job in self.jobs:
            self.clock.at(job.plan.starts_ns, self._create, job)
            for rank, worker in enumerate(job.workers):
                late = job.plan.late_ns[rank] if job.plan.late_ns else 0
                self.clock.at(job.plan.starts_ns + late, self._join, worker)
        self.clock.at(self.schedule.calm_ns, self._calm)
        self.job_runs(0)

    def job_runs(self, number: int) -> None:
        """A job begins to run (0: everything begins): what goes wrong counts from then."""
        for mishap in self.schedule.mishaps:
            if mishap.since == number:
                self.clock.after(mishap.at_ns, self._happen, mishap)
                self._last_fault_ns = max(
                    self._last_fault_ns, self.clock.now_ns + mishap.at_ns + mishap.lasts_ns
                )

    def _happen(self, mishap: Mishap) -> None:
        self.happened.append((self.clock.now_ns, mishap))
        mishaps.happen(self, mishap)

    def _calm(self) -> None:
        for wire in self.wires.values():
            wire.faults.quiet = True

    def _create(self, job: JobRun) -> None:
        """What `p4reduce job create` does, until it is done."""
        controller = self.controller
        waits = job.plan.after and not self.jobs[job.plan.after - 1].over
        if waits or controller is None or not controller.listening:
            self.clock.after(NS // 20, self._create, job)
            return
        with controller.running():
            try:
                controller.registry.create_job(job.plan.spec(job.name))
            except Exception as error:  # noqa: BLE001
                self.note(f"{job.name} cannot be created: {error}")
                self.clock.after(NS // 5, self._create, job)
                return
        job.created = True

    def _join(self, worker: Worker) -> None:
        if not worker.job.created:
            self.clock.after(NS // 20, self._join, worker)
            return
        worker.start()

    def _run(self) -> None:
        last_ns = max(job.plan.starts_ns + max(job.plan.late_ns, default=0) for job in self.jobs)
        if not all(wire.faults.quiet for wire in self.wires.values()):
            last_ns = max(last_ns, self.schedule.calm_ns)
        self._last_fault_ns = max(self._last_fault_ns, last_ns)
        patience_ns = round(AFTER_THE_LAST_FAULT_S * NS)
        step = self.clock.step
        clock, jobs = self.clock, self.jobs
        while self.unfinished:
            step()
            if self.defect is not None:
                raise self.defect
            if clock.now_ns > self._last_fault_ns + patience_ns or clock.events > MOST_EVENTS:
                raise InvariantError(
                    f"not over {AFTER_THE_LAST_FAULT_S:g} s after the last fault: {self.stuck()}"
                )
        for job in jobs:
            job.check_end()
        limit_ns = max(self._last_fault_ns, clock.now_ns) + round(CLEAN_UP_S * NS)
        while held := self.held():
            step()
            if self.defect is not None:
                raise self.defect
            if clock.now_ns > limit_ns:
                raise InvariantError(
                    f"{CLEAN_UP_S:g} s after the end of all jobs, switches hold something: {held}"
                )

    def stuck(self) -> str:
        """Who waits where."""
        lines = []
        for job in self.jobs:
            for worker in job.workers:
                if not worker.over:
                    where = "" if worker.endpoint is None else f": {worker.endpoint.progress()}"
                    lines.append(f"{worker} is {worker.state} at collective {worker.collective}{where}")
        return "; ".join(lines)

    def held(self) -> str:
        """What there still is of jobs, though all are over."""
        controller = self.controller
        if controller is None or not controller.listening:
            return "there is no controller"
        if any(controller.registry.places.orphans.values()) and not controller.pushed:
            controller.push()
        for name, managed in controller.registry.switches.items():
            if managed.allocator.used:
                return f"{name}: {managed.allocator.regions}"
            node = self.nodes[name]
            if not managed.ready:
                return f"{name} is not ready"
            node.plane.settle()
            if node.plane.members or node.plane.jobs:
                return f"{name}: {len(node.plane.members)} flows and guards"
        alive = self.store.running()
        return f"the database, where generations run: {' '.join(map(str, alive))}" if alive else ""

    def lose_database(self) -> None:
        """The next controller finds an empty one; its numbers begin at the time, long after the others."""
        self._lost.append(self.store)
        self.store = Store(":memory:", wall_clock=lambda: EPOCH + 100_000 * len(self._lost))

    def back_up_database(self) -> None:
        """Copy it, while the controller runs or not."""
        if self._copy is None:
            self._copy = sqlite3.connect(":memory:")
        self.store.connection.backup(self._copy)

    def restore_database(self) -> None:
        """The next controller finds the copy; its own, where nobody has made one."""
        if self._copy is None:
            return
        self._lost.append(self.store)
        self._restored.append(tempfile.TemporaryDirectory(prefix="p4reduce-"))
        path = Path(self._restored[-1].name) / "controller.db"
        file = sqlite3.connect(path)
        self._copy.backup(file)
        file.close()
        self.store = Store(path)
        self.store.connection.execute("PRAGMA synchronous = OFF")  # no run is there to see a power cut

    def excuse(self, job: JobRun, worker: Worker) -> str:
        """What could be the reason that a worker is told an error; empty: nothing."""
        return mishaps.excuse(self, job, worker)

    def _close(self) -> None:
        for job in self.jobs:
            for worker in job.workers:
                if worker.endpoint is not None:
                    worker.endpoint.close()
                    worker.endpoint = None
        for store in (self.store, *self._lost):
            store.close()
        if self._copy is not None:
            self._copy.close()
        for directory in self._restored:
            directory.cleanup()
        for process in [*self.past, *([self.controller] if self.controller is not None else [])]:
            process.loop.bury()


def run(schedule: Schedule, **options: Any) -> Outcome:
    """Play a schedule once."""
    return World(schedule, **options).run()
