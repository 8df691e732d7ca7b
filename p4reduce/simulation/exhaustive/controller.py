"""The controller that ships, one step at a time: its registry, its switches' machines, a database in memory.

This module alone knows how the controller is built. Its workers' streams are queues; the switch answers its
requests when the explorer says so ("work"). Its clock stands still but for that, and for "time": then time
passes until every patience is over, or until the controller does something by itself. Timeouts are long here,
so that requests and answers take no time beside them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from controller.api.messages import Ended, FromController, FromWorker, Heartbeat, Mode
from controller.config import Config
from controller.database.store import Store
from controller.entries import Entry, TableEntry, key_of
from controller.fabric.flows import of_jobs
from controller.fabric.tables.membership import FLOW
from controller.jobs.job import Job
from controller.orchestration.sessions import Session
from p4reduce.simulation.exhaustive.canonical import Canon, Moments
from p4reduce.simulation.exhaustive.control_scopes import ControlScope
from p4reduce.simulation.exhaustive.parts import Given
from p4reduce.simulation.faults.control import Defects, HungUp, Life
from p4reduce.simulation.faults.loop import NS, Clock
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.p4runtime import Connection, SimulatedSwitch
from p4reduce.simulation.network import fabric_config

JOB: Final = "job"
BEAT_S: Final = 1000.0  # between heartbeats
PATIENCE_S: Final = 7 * BEAT_S  # longer than guards stay
SHORT_S: Final = 60.0  # what is due within that is a matter of the switch
_BEGINS_S: Final = 1_000_000_000
_GENERATIONS: Final = 1000
_REQUEST_S: Final = 0.01
_TICK_S: Final = BEAT_S / 4


@dataclass(frozen=True)
class Passed:
    """Time has passed. `idle`: nothing has come of it."""

    idle: bool


@dataclass(frozen=True)
class ControllerFacts:
    """The controller's state, as far as others need it.

    `works`: it waits for the switch; `flows`: the generations that the switch sums for; `movable`: the job is
    among them, and can be moved; `phase`: the job's; `left`: what there is of jobs, though all may be over;
    `cut`: the workers whose streams broke, unnoticed.
    """

    up: bool
    works: bool
    switch_up: bool
    flows: frozenset[int]
    movable: bool
    phase: str
    left: str
    cut: frozenset[int]


def config_of(scope: ControlScope) -> Config:
    """Return the configuration of a rack with as many hosts as workers."""
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
        """Return the time of the next thing that happens; None: nothing will."""
        heap = self._heap
        while heap and _is_cancelled(heap[0][3]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pending(self) -> list[tuple[bool, Any, Any]]:
        """Return what will happen, in order: whether soon, the action and its arguments."""
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


class _Counting(Random):
    """Randomness that is not: the numbers 1, 2, … as the controller draws them. `drawn`: the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0

    def getrandbits(self, k: int, /) -> int:
        self.drawn += 1
        return self.drawn % (1 << k)


class _Plane:
    """The entries of a switch; nothing is in its registers."""

    def __init__(self) -> None:
        self.entries: dict[Any, Entry] = {}
        self.registers: dict[int, Any] = {}

    def write(self, insert: Sequence[Entry] = (), delete: Sequence[Entry] = ()) -> None:
        for entry in delete:
            self.entries.pop(key_of(entry), None)
        self.entries.update((key_of(entry), entry) for entry in insert)

    def restart(self) -> None:
        self.entries.clear()

    def forget(self) -> None:
        """Do nothing: there are no registers."""


class _Node(SwitchNode):
    """The switch, as far as the controller sees it."""

    def __init__(self) -> None:
        plane: Any = _Plane()
        super().__init__("l1", plane, request_s=_REQUEST_S)
        self.waiting: list[asyncio.Future[None]] = []

    def send(self, port: int, frame: bytes) -> None:
        raise AssertionError("one switch has no links to probe")

    def start(self) -> None:
        super().start()
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class _Connection(Connection):
    """A connection that waits for a switch that is away, instead of trying again and again."""

    async def open(self, election_id: int) -> Any:
        node: Any = self.node
        if not node.up:
            future = asyncio.get_running_loop().create_future()
            node.waiting.append(future)
            await future
        return await super().open(election_id)


class _Switch(SimulatedSwitch):
    def __init__(self, *of: Any, **how: Any) -> None:
        super().__init__(*of, **how)
        self._poll_interval_s = 1e9

    def _new_client(self) -> Any:
        return _Connection(self._node, self._label, self._packet_in)


class _Stream:
    """A worker's stream, as the controller has it. `is_cut`: the worker is no longer at the other end."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_cut = False


class ControllerPart:
    """The controller's machine: its processes one after the other, their database, and the switch.

    It is given: ("open", worker, first), ("hear", worker, message), ("end", worker, told), ("cut", worker),
    ("notice", worker), "work", ("time", ((worker, beat), ...)), "crash", "start", "away", "back", "move",
    "renumber". Out come: (worker, message or HungUp), and Passed.
    """

    def __init__(self, scope: ControlScope) -> None:
        self.scope = scope
        self.config = config_of(scope)
        self.clock = _Heap()
        self.clock.now_ns = _BEGINS_S * NS
        self.node = _Node()
        self.store = Store(":memory:", wall_clock=lambda: _GENERATIONS)
        self.rng = _Counting()
        self.out: list[Any] = []
        self._start()
        while self._soon() is not None:
            self._work()
        if not self.life.listening:
            raise AssertionError("the controller did not start")

    # What it is given

    def apply(self, given: Given) -> tuple[Any, ...]:
        """Make one step. Raise AssertionError if it is wrong."""
        self.out = []
        verb, *what = given
        with self.life.running():
            getattr(self, f"_{verb}")(*what)
            self._run()
        return tuple(self.out)

    def _open(self, worker: int, first: FromWorker) -> None:
        begun = self.life.begin(first)
        if isinstance(begun, HungUp):
            self.out.append((worker, begun))
            return
        for stream in self.streams.get(worker, []):
            stream.is_cut = True
        self.streams.setdefault(worker, []).append(_Stream(begun))

    def _hear(self, worker: int, message: FromWorker) -> None:
        stream = self._newest(worker)
        if stream is not None and (hung_up := self.life.hear(stream.session, message)) is not None:
            self.streams[worker].remove(stream)
            self.out.append((worker, hung_up))

    def _end(self, worker: int, told: bool) -> None:
        """End the worker's side of the stream; `told`: because it heard that its job is over."""
        stream = self._newest(worker)
        if stream is not None:
            self.streams[worker].remove(stream)
            self.life.ended(stream.session, told=told)

    def _cut(self, worker: int) -> None:
        """Break the stream, unnoticed by the controller."""
        stream = self._newest(worker)
        if stream is not None:
            stream.is_cut = True

    def _notice(self, worker: int) -> None:
        """Let the controller notice the oldest of the streams that broke."""
        stream = next(stream for stream in self.streams[worker] if stream.is_cut)
        self.streams[worker].remove(stream)
        stream.session.broken()

    def _work(self) -> None:
        """Let the switch answer, and do what follows from that."""
        first = self._soon()
        while (due := self._soon()) is not None and not (self.scope.fine and due != first):
            self.clock.step()
            self._run()

    def _time(self, beating: tuple[tuple[int, Heartbeat], ...]) -> None:
        """Let time pass, until all patience is over or something is said or written.

        Workers that beat are heard meanwhile.
        """
        until = self.clock.now_ns + round(PATIENCE_S * NS)
        while (due := self.clock.due_ns()) is not None and due <= until:
            for worker, beat in beating:
                self._hear(worker, beat)
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
        self.streams: dict[int, list[_Stream]] = {}
        nodes = {self.node.name: self.node}
        self.life = Life(
            *(self.clock, self.config, nodes, self.store),
            rng=self.rng,
            patience_s=SHORT_S / 2,
            switch=_Switch,
        )

    def _away(self) -> None:
        self.node.die()

    def _back(self) -> None:
        self.node.start()

    def _move(self) -> None:
        self.life.registry.waitlist.move_out(self.life.registry.job(JOB), "somebody wants it to")

    def _renumber(self) -> None:
        self.life.registry.waitlist.renumber(self.life.registry.job(JOB))

    # How it runs

    def _soon(self) -> int | None:
        due = self.clock.due_ns()
        return due if due is not None and due <= self.clock.now_ns + round(SHORT_S * NS) else None

    def _run(self) -> None:
        """Run all that the controller does by itself now."""
        if not self.life.alive:
            return
        while True:
            while (due := self.clock.due_ns()) is not None and due <= self.clock.now_ns:
                self.clock.step()
            if not self._tell():
                break
        defects, DEFECTS.found = DEFECTS.found, []
        if defects:
            raise AssertionError(f"a defect in the controller: {defects[0]}")

    def _tell(self) -> bool:
        """Send what sessions have to say; return whether one is over, which has consequences here."""
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
        life = self.life
        life.alive = life.listening = False
        life.loop.kill()
        self.clock.clear()
        self.node.connection = None
        self.node.waiting.clear()
        boots, self.node.boots = self.node.boots, -1  # what it is at ends at once
        life.loop.abandon()
        DEFECTS.found.clear()
        self.node.boots = boots
        self.clock.clear()
        self.streams = {}

    def close(self) -> None:
        """End the controller and close its database."""
        if self.life.alive:
            self._kill()
        self.store.close()

    # What is to be seen of it

    def facts(self) -> ControllerFacts:
        """Return what the rest of the system needs of it."""
        flows = {
            value
            for entry in self.node.plane.entries.values()
            if isinstance(entry, TableEntry) and entry.table == FLOW
            for name, value in (*entry.match, *entry.params)
            if name == "generation" and isinstance(value, int)
        }
        job = self._job()
        return ControllerFacts(
            up=self.life.listening,
            works=self.life.alive and self._soon() is not None,
            switch_up=self.node.up,
            flows=frozenset(flows),
            movable=self._is_movable(),
            phase="" if job is None else job.phase.name,
            left=self._left(),
            cut=frozenset(w for w, streams in self.streams.items() if any(s.is_cut for s in streams)),
        )

    def _job(self) -> Job | None:
        record = self.life.registry.book.by_name.get(JOB) if self.life.alive else None
        return None if record is None else record.job

    def _is_movable(self) -> bool:
        """Return whether the job is in the switch, and can be moved now."""
        job = self._job()
        if job is None or job.plan is None or job.plan.mode is not Mode.IN_NETWORK:
            return False
        return not job.why_not_move()

    def _left(self) -> str:
        if not self.life.alive:
            return ""
        for name, managed in self.life.registry.switches.items():
            if managed.allocator.used:
                return f"{name} has slots taken: {managed.allocator.regions}"
        if held := [entry for entry in self.node.plane.entries.values() if of_jobs(key_of(entry))]:
            return f"the switch has {len(held)} entries of jobs"
        if alive := self.store.running():
            return f"the database has generations that run: {alive}"
        if self.life.registry.allocations.holding:
            return "jobs have allocations"
        return ""

    def digest(self) -> bytes:
        """Return the digest of all that decides what it does next."""
        roots: list[Any] = [self.life.alive, self.life.listening, self.rng.drawn, self.node]
        if self.life.alive:
            tasks = [task for task in self.life.loop.tasks if not task.done()]
            roots += [self.life.registry, self.streams, tasks, self.clock.pending()]
        else:
            roots.append(self.store)
        moments = Moments(float, self.clock.now_s, 1e8, _TICK_S, round(PATIENCE_S / _TICK_S))
        return _CANON.digest(roots, moments)


DEFECTS: Final = Defects()

_CANON: Final = Canon(
    {
        "Config",
        "ControllerPart",
        "Life",
        "ConfigView",
        "_Heap",
        "_Counting",
        "Timing",
        "Program",
        "SimpleNamespace",
        "Graph",
    }
)
