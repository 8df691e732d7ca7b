"""The controller that ships, one step at a time: its registry, its switches' machines, a database in memory.

The one module here that knows how the controller is built. Its workers' streams are queues; what it asks of
the switch is answered when the explorer says so ("work"), and its clock stands still but for that, and for
"time": then so much passes that every patience is over, or until it does something by itself. Timeouts are
long here, so that what goes to and fro takes no time beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.api.errors import ControllerError, QueuePairTakenError
from controller.api.messages import Ended, FromController, FromWorker, Heartbeat, Mode
from controller.config import Config, SwitchConfig
from controller.database.store import Store
from controller.entries import Entry, TableEntry, key_of
from controller.fabric.flows import FLOW, of_jobs
from controller.fabric.routes import base_entries
from controller.jobs.specs import Phase
from controller.orchestration.registry import Registry
from controller.orchestration.sessions import Session
from controller.switches.managed_switch import ManagedSwitch
from host_agent.controller_session import OVER
from simulation.exhaustive.canonical import Canon, Moments
from simulation.exhaustive.control_scopes import ControlScope
from simulation.exhaustive.parts import Given
from simulation.faults.loop import NS, Clock, ProcessLoop, new_loop
from simulation.faults.p4runtime import Connection, SimulatedSwitch
from simulation.network import fabric_config

JOB: Final = "job"
BEAT_S: Final = 1000.0  # between heartbeats
PATIENCE_S: Final = 7 * BEAT_S  # longer than guards stay
SHORT_S: Final = 60.0  # what is due within that is a matter of the switch
_BEGINS_S: Final = 1_000_000_000
_GENERATIONS: Final = 1000
_REQUEST_S: Final = 0.01
_TICK_S: Final = BEAT_S / 4

# What a job's phase may become (jobs/job.py).
_NEXT: Final = {
    Phase.CREATED: {Phase.JOINING, Phase.INSTALLING},
    Phase.JOINING: {Phase.CREATED, Phase.INSTALLING},
    Phase.INSTALLING: {Phase.READY, Phase.ENDED},
    Phase.READY: {Phase.RUNNING, Phase.ENDED},
    Phase.RUNNING: {Phase.ENDED},
    Phase.ENDED: set(),
}


@dataclass(frozen=True)
class HungUp:
    """The controller has ended a stream. `final`: a worker that has heard Ready need not come back;
    `refused`: nor one that has not.
    """

    why: str
    final: bool = False
    refused: bool = False


@dataclass(frozen=True)
class Passed:
    """Time has. `idle`: nothing has come of it."""

    idle: bool


@dataclass(frozen=True)
class ControllerFacts:
    """`works`: it waits for the switch; `flows`: the generations that the switch sums for; `left`: what there
    is of jobs, though all may be over; `phase`: the job's; `cut`: whose streams broke, unnoticed.
    """

    up: bool
    works: bool
    switch_up: bool
    flows: frozenset[int]
    movable: str
    phase: str
    left: str
    cut: frozenset[int]


def config_of(scope: ControlScope) -> Config:
    """A rack with as many hosts as workers."""
    return replace(
        fabric_config(0, [scope.workers]),
        path_mtu=1024,
        window=1,
        message_packets=2,
        heartbeat_interval_s=BEAT_S,
        heartbeat_timeout_s=1.2 * BEAT_S,
        lost_timeout_s=1.2 * BEAT_S,
        resume_timeout_s=1.2 * BEAT_S,
        switch_timeout_s=BEAT_S,
        probe_interval_s=0.0,
    )


class _Heap(Clock):
    """A clock that tells what comes."""

    def due_ns(self) -> int | None:
        """When the next thing happens."""
        heap = self._heap
        while heap and _is_cancelled(heap[0][3]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pending(self) -> list[tuple[bool, Any, Any]]:
        """What will happen, in order: whether soon, and what."""
        soon = self.now_ns + round(SHORT_S * NS)
        return [
            (time <= soon, action, args)
            for time, _, action, args in sorted(self._heap, key=lambda item: item[:2])
            if not _is_cancelled(args)
        ]

    def clear(self) -> None:
        self._heap.clear()


def _is_cancelled(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], asyncio.Handle) and args[0].cancelled()


class _Plane:
    """The entries of a switch."""

    def __init__(self) -> None:
        self.entries: dict[Any, Entry] = {}


class _Node:
    """The switch, as far as the controller sees it."""

    def __init__(self) -> None:
        self.name = "l1"
        self.request_s = _REQUEST_S
        self.plane = _Plane()
        self.up = True
        self.has_program = False
        self.boots = 1
        self.connection: Connection | None = None
        self.waiting: list[asyncio.Future[None]] = []

    @property
    def reachable(self) -> bool:
        return self.up

    def write(self, insert: Any, delete: Any) -> None:
        for entry in delete:
            self.plane.entries.pop(key_of(entry), None)
        self.plane.entries.update((key_of(entry), entry) for entry in insert)

    def load_program(self) -> None:
        self.plane.entries.clear()
        self.has_program = True

    def slot(self, index: int) -> dict[str, int]:
        """Nothing is in it."""
        names = ("generation", "message", "bitmap", "chunks", "flags")
        return {"op": 1, "index": index, **dict.fromkeys(names, 0)}

    def send(self, port: int, frame: bytes) -> None:
        raise AssertionError("one switch has no links to probe")

    def die(self) -> None:
        self.up = self.has_program = False
        self.boots += 1
        self.plane.entries.clear()
        if self.connection is not None:
            self.connection.cut()

    def start(self) -> None:
        self.up = True
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class _Connection(Connection):
    """Waits for a switch that is away, instead of trying again and again."""

    async def open(self, election_id: int) -> Any:
        node: Any = self.node
        if not node.up:
            future = asyncio.get_running_loop().create_future()
            node.waiting.append(future)
            await future
        return await super().open(election_id)


class _Switch(SimulatedSwitch):
    def __init__(self, node: Any, config: SwitchConfig, base: Any, *, on_change: Callable[..., None]) -> None:
        super().__init__(node, config, base, on_change=on_change)
        self._poll_interval_s = 1e9

    def _new_client(self) -> Any:
        return _Connection(self._node, self._label, self._packet_in)


class _Stream:
    """A worker's, as the controller has it. `is_cut`: the worker is not at the other end any more."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_cut = False


class ControllerPart:
    """All that the controller's machine has: its processes one after the other, their database, the switch.

    What it is given: ("open", worker, first), ("hear", worker, message), ("end", worker, told), ("cut",
    worker), ("notice", worker), "work", ("time", ((worker, running), ...)), "crash", "start", "away", "back",
    "move", "renumber". What comes out: (worker, message or HungUp), and Passed.
    """

    def __init__(self, scope: ControlScope) -> None:
        self.scope = scope
        self.config = config_of(scope)
        self.clock = _Heap()
        self.clock.now_ns = _BEGINS_S * NS
        self.node = _Node()
        self.store = Store(":memory:", wall_clock=lambda: _GENERATIONS)
        self.drawn = 0
        self.alive = self.listening = False
        self.loop: ProcessLoop = new_loop(self.clock)
        self.out: list[Any] = []
        self.canon = _CANON
        with self._running():
            self._start()
            while self._soon() is not None:
                self._work()
        if not self.listening:
            raise AssertionError("the controller did not start")

    # What it is given

    def apply(self, given: Given) -> tuple[Any, ...]:
        """One step. AssertionError: it is wrong."""
        self.out = []
        verb, *what = given
        with self._running():
            getattr(self, f"_{verb}")(*what)
            self._run()
        return tuple(self.out)

    def _open(self, worker: int, first: FromWorker) -> None:
        try:
            session = self.registry.sessions.begin(first)
        except ControllerError as error:
            taken = isinstance(error, QueuePairTakenError)
            self.out.append((worker, HungUp(str(error), error.code in OVER, not taken and _refuses(error))))
            return
        for stream in self.streams.get(worker, []):
            stream.is_cut = True
        self.streams.setdefault(worker, []).append(_Stream(session))

    def _hear(self, worker: int, message: FromWorker) -> None:
        stream = self._newest(worker)
        if stream is None:
            return
        try:
            stream.session.hear(message)
        except ControllerError as error:
            stream.session.broken()
            self.streams[worker].remove(stream)
            self.out.append((worker, HungUp(f"the controller says: {error}", error.code in OVER)))

    def _end(self, worker: int, told: bool) -> None:
        """The worker has ended its side; `told`: as it heard that its job is over."""
        stream = self._newest(worker)
        if stream is None:
            return
        self.streams[worker].remove(stream)
        if told:
            stream.session.took_end()
        else:
            stream.session.broken()

    def _cut(self, worker: int) -> None:
        """The stream breaks, and nobody here knows."""
        stream = self._newest(worker)
        if stream is not None:
            stream.is_cut = True

    def _notice(self, worker: int) -> None:
        """Now it is known: the oldest of those that broke."""
        stream = next(stream for stream in self.streams[worker] if stream.is_cut)
        self.streams[worker].remove(stream)
        stream.session.broken()

    def _work(self) -> None:
        """The switch answers, and what follows from that."""
        first = self._soon()
        while (due := self._soon()) is not None and not (self.scope.fine and due != first):
            self.clock.step()
            self._run()

    def _time(self, beating: tuple[tuple[int, int | None], ...]) -> None:
        """It passes, until all patience is over or something is said or written. Who beats is heard."""
        until = self.clock.now_ns + round(PATIENCE_S * NS)
        while (due := self.clock.due_ns()) is not None and due <= until:
            for worker, running in beating:
                self._hear(worker, Heartbeat(running=running))
            while self.clock.due_ns() == due:
                self.clock.step()
            self._run()
            if self.out or self._soon() is not None:
                self.out.append(Passed(idle=False))
                return
        self.clock.now_ns = until
        self.out.append(Passed(idle=True))

    def _crash(self) -> None:
        self._kill()
        generation = self.store.connection.execute(
            "SELECT value FROM counters WHERE name = 'generation'"
        ).fetchone()[0]
        again = Store(":memory:", wall_clock=lambda: int(generation))
        self.store.connection.backup(again.connection)
        self.store.close()
        self.store = again

    def _start(self) -> None:
        self.alive, self.listening = True, False
        self.loop = new_loop(self.clock)
        asyncio._set_running_loop(self.loop)
        self.streams: dict[int, list[_Stream]] = {}
        switches = [
            _Switch(
                self.node,
                switch,
                base_entries(self.config, switch),
                on_change=lambda changed: self.registry.manager.on_switch_change(changed.config.name),
            )
            for switch in self.config.switches
        ]
        self.registry = Registry(
            self.config, self.store, [ManagedSwitch(s) for s in switches], clock=self.loop.time
        )
        self.registry.load()
        self.loop.create_task(self.registry.run())
        self.loop.create_task(self._begin(switches))

    async def _begin(self, switches: list[_Switch]) -> None:
        for switch in switches:
            await switch.start()
        waits = [s.wait_ready(SHORT_S / 2) for s in self.registry.switches.values()]
        await asyncio.gather(*waits)
        self.listening = True
        self.registry.listens()

    def _away(self) -> None:
        self.node.die()

    def _back(self) -> None:
        self.node.start()

    def _move(self) -> None:
        self.registry.waitlist.move_out(self.registry.job(JOB), "somebody wants it to")

    def _renumber(self) -> None:
        self.registry.waitlist.renumber(self.registry.job(JOB))

    # How it runs

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """The process's event loop is the running one, and what it draws is what it drew before."""
        loop, drawn = asyncio._get_running_loop(), (secrets.token_bytes, secrets.randbelow)
        asyncio._set_running_loop(self.loop)
        secrets.token_bytes = self._bytes  # type: ignore[assignment]
        secrets.randbelow = self._draw  # type: ignore[assignment]
        try:
            yield
        finally:
            asyncio._set_running_loop(loop)
            secrets.token_bytes, secrets.randbelow = drawn

    def _draw(self, below: int) -> int:
        self.drawn += 1
        return self.drawn % below

    def _bytes(self, size: int | None = None) -> bytes:
        return self._draw(1 << 62).to_bytes(size or 32, "big")

    def _soon(self) -> int | None:
        due = self.clock.due_ns()
        return due if due is not None and due <= self.clock.now_ns + round(SHORT_S * NS) else None

    def _run(self) -> None:
        """All that it does by itself now."""
        if not self.alive:
            return
        while True:
            while (due := self.clock.due_ns()) is not None and due <= self.clock.now_ns:
                self.clock.step()
            if not self._tell():
                break
        defects, _HEARD.defects = _HEARD.defects, []
        if defects:
            raise AssertionError(f"a defect in the controller: {defects[0]}")

    def _tell(self) -> bool:
        """What sessions have to say goes out; whether there was anything that has consequences here."""
        acted = False
        for worker, streams in self.streams.items():
            for stream in list(streams):
                while not stream.session.events.empty():
                    event = stream.session.events.get_nowait()
                    if event is not None:
                        self._say(worker, stream, event)
                    elif not isinstance(stream.session.told, Ended):  # else its worker ends its side
                        acted = True
                        streams.remove(stream)
                        stream.session.broken()
                        if not stream.is_cut:
                            self.out.append((worker, HungUp("the session is over")))
                        break
        return acted

    def _say(self, worker: int, stream: _Stream, event: FromController) -> None:
        if not stream.is_cut and event != Heartbeat():
            self.out.append((worker, event))

    def _newest(self, worker: int) -> _Stream | None:
        streams = [stream for stream in self.streams.get(worker, []) if not stream.is_cut]
        return streams[-1] if streams else None

    def _kill(self) -> None:
        self.alive = self.listening = False
        self.loop.kill()
        self.clock.clear()
        self.node.connection = None
        self.node.waiting.clear()
        boots, self.node.boots = self.node.boots, -1  # what it is at ends at once
        with self._running():
            self.loop.bury()
        _HEARD.defects.clear()
        self.node.boots = boots
        self.clock.clear()
        self.streams = {}

    def close(self) -> None:
        """It is not used any more."""
        if self.alive:
            self._kill()
        self.store.close()

    # What is to be seen of it

    def facts(self) -> ControllerFacts:
        """For the rest of the system."""
        flows = {
            value
            for entry in self.node.plane.entries.values()
            if isinstance(entry, TableEntry) and entry.table == FLOW
            for name, value in (*entry.match, *entry.params)
            if name == "generation" and isinstance(value, int)
        }
        return ControllerFacts(
            up=self.listening,
            works=self.alive and self._soon() is not None,
            switch_up=self.node.up,
            flows=frozenset(flows),
            movable=self._movable(),
            phase=self._phase(),
            left=self._left(),
            cut=frozenset(w for w, streams in self.streams.items() if any(s.is_cut for s in streams)),
        )

    def _movable(self) -> str:
        """ "", "in-network" or "ring": whether the job can be moved now, and where it is."""
        record = self.registry.book.by_name.get(JOB) if self.alive else None
        if record is None or record.job.plan is None or record.job.why_not_move():
            return ""
        return "in-network" if record.job.plan.mode is Mode.IN_NETWORK else "ring"

    def _phase(self) -> str:
        record = self.registry.book.by_name.get(JOB) if self.alive else None
        return "" if record is None else record.job.phase.name

    def _left(self) -> str:
        if not self.alive:
            return ""
        for name, managed in self.registry.switches.items():
            if managed.allocator.used:
                return f"{name} has slots taken: {managed.allocator.regions}"
        if held := [entry for entry in self.node.plane.entries.values() if of_jobs(key_of(entry))]:
            return f"the switch has {len(held)} entries of jobs"
        if alive := self.store.running():
            return f"the database has generations that run: {alive}"
        if self.registry.places.holding:
            return "jobs have places"
        return ""

    def digest(self) -> bytes:
        """Of all that decides what it does next."""
        roots: list[Any] = [self.alive, self.listening, self.drawn, self.node]
        if self.alive:
            tasks = [task for task in self.loop.tasks if not task.done()]
            roots += [self.registry, self.streams, tasks, self.clock.pending()]
        else:
            roots.append(self.store)
        moments = Moments(float, self.clock.now_s, 1e8, _TICK_S, round(PATIENCE_S / _TICK_S))
        return self.canon.digest(roots, moments)


def _refuses(error: ControllerError) -> bool:
    return error.code.name not in ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED")


class _Heard(logging.Handler):
    """What the controller logs as a defect of its own is one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.defects: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.defects.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """What the controller logs is heard here, and nowhere else."""
    logger = logging.getLogger("controller")
    before = logger.propagate, logger.level
    logger.propagate = False
    logger.addHandler(_HEARD)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(_HEARD)
        logger.propagate = before[0]
        logger.setLevel(before[1])


_HEARD: Final = _Heard()

_CANON: Final = Canon(
    {"Config", "ControllerPart", "ConfigView", "_Heap", "Timing", "Program", "SimpleNamespace", "Graph"}
)
