"""The controller as a process of the simulation: the real registry and switches, and workers' sessions.

It is killed at any time; the next one finds what it had committed to its database.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from controller.api.errors import ControllerError, QueuePairTakenError
from controller.api.messages import Ended, FromController, FromWorker, Join, Resume
from controller.config import Config
from controller.database.store import Store
from controller.fabric.routes import base_entries
from controller.orchestration.registry import Registry
from controller.orchestration.sessions import Session
from controller.slots.allocator import SwitchAllocator
from controller.switches.managed_switch import ManagedSwitch
from host_agent.controller_session import OVER
from p4reduce.simulation.faults.loop import Clock, new_loop
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.p4runtime import SimulatedSwitch
from p4reduce.simulation.faults.scene import Scene
from p4reduce.simulation.invariant import InvariantError

_LISTENING_S = 0.05  # from its start until it takes sessions, at least
_AGAIN = ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED")  # who is told so joins again


@dataclass(frozen=True)
class HungUp:
    """The end of a stream, by the controller.

    `final`: a worker that has heard Ready need not come back; `refused`: nor one that has not; `taken`:
    others have the numbers of its queue pairs.
    """

    why: str
    final: bool = False
    refused: bool = False
    taken: bool = False


class Conversation:
    """A worker's connection with the controller. Either side may end it, and the other hears of it later.

    Messages of one side arrive in order; those under way when the connection ends are lost. The worker's side
    gives `told`, for what the controller says, and `hung_up`, for the end by the controller. `delay_ns`: the
    time that a message takes.
    """

    def __init__(
        self,
        clock: Clock,
        delay_ns: int,
        told: Callable[[Conversation, FromController], None],
        hung_up: Callable[[Conversation, HungUp], None],
    ) -> None:
        self._later = partial(clock.after, delay_ns)
        self._told, self._hung_up = told, hung_up
        self.session: Session | None = None
        self.open = True
        self.controller: ControllerProcess | None = None

    def say(self, what: FromWorker) -> None:
        """Say something from the worker to the controller."""
        if self.open:
            self._later(self._hear, what)

    def _hear(self, what: FromWorker) -> None:
        controller = self.controller
        if controller is None or controller.waits(self._hear, what):
            return
        if not self.open or not controller.alive or self.session is None:
            return
        if (hung_up := controller.hear(self.session, what)) is not None:
            self.hang_up(hung_up)

    def tell(self, event: FromController) -> None:
        """Say something from the controller to the worker."""
        self._later(self._told, self, event)

    def hang_up(self, hung_up: HungUp) -> None:
        """End the controller's side."""
        if self.open:
            self.open = False
            self._later(self._hung_up, self, hung_up)

    def closed_by_worker(self, *, told_end: bool = False) -> None:
        """End the worker's side: it died, its session timed out, or it heard that the job is over."""
        if not self.open and not told_end:
            return
        self.open = False
        self._later(self._worker_gone, told_end)

    def _worker_gone(self, told_end: bool) -> None:
        controller = self.controller
        if controller is None or controller.waits(self._worker_gone, told_end):
            return
        if controller.alive and self.session is not None:
            controller.ended(self.session, told=told_end)


class Life:
    """A process of the controller: its event loop, its switches' machines, its registry, and its sessions.

    `slots`: of each switch, if they are fewer than it has (0: all). `patience_s`: how long it waits at its
    start for switches that do not answer.
    """

    def __init__(
        self,
        clock: Clock,
        config: Config,
        nodes: Mapping[str, SwitchNode],
        store: Store,
        *,
        rng: Random,
        patience_s: float,
        slots: int = 0,
        switch: type[SimulatedSwitch] = SimulatedSwitch,
    ) -> None:
        self.alive = True
        self.listening = False
        self.loop = new_loop(clock)
        with self.running():
            switches = [
                switch(
                    nodes[one.name],
                    one,
                    base_entries(config, one),
                    on_change=lambda changed: self.registry.manager.on_switch_change(changed.config.name),
                )
                for one in config.switches
            ]
            managed = [ManagedSwitch(s) for s in switches]
            self.registry = Registry(config, store, managed, clock=self.loop.time, rng=rng)
            if slots:
                for one in managed:
                    one.allocator = SwitchAllocator(slots=slots)
            self.registry.load()
            self.loop.create_task(self.registry.run())
            self.loop.create_task(self._start(switches, patience_s))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make its event loop the running one; calls into it are made inside this block."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    async def _start(self, switches: list[SimulatedSwitch], patience_s: float) -> None:
        for switch in switches:
            await switch.start()
        await asyncio.gather(*[s.wait_ready(patience_s) for s in self.registry.switches.values()])
        await asyncio.sleep(_LISTENING_S)
        self.listening = True
        self.registry.listens()

    def begin(self, first: FromWorker) -> Session | HungUp:
        """Begin the session of a worker whose first message has come: it joins, or resumes."""
        with self.running():
            try:
                return self.registry.sessions.begin(first)
            except QueuePairTakenError as error:
                return HungUp(str(error), taken=True)
            except ControllerError as error:
                return HungUp(str(error), final=error.code in OVER, refused=error.code.name not in _AGAIN)
            except sqlite3.Error as error:
                return HungUp(f"the controller's database failed: {error}")

    def hear(self, session: Session, said: FromWorker) -> HungUp | None:
        """Hear what a worker says; if it is not taken, end its session and return why."""
        with self.running():
            try:
                session.hear(said)
            except (ControllerError, sqlite3.Error) as error:
                session.broken()
                final = isinstance(error, ControllerError) and error.code in OVER
                return HungUp(f"the controller says: {error}", final=final)
        return None

    def ended(self, session: Session, *, told: bool) -> None:
        """End the worker's side; `told`: because it heard that its job is over."""
        with self.running():
            if told:
                session.took_end()
            else:
                session.broken()


class ControllerProcess(Life):
    """One life of the controller among others, which a schedule stops and kills."""

    def __init__(self, scene: Scene, nodes: Mapping[str, SwitchNode], store: Store) -> None:
        self.scene = scene
        self.nodes = nodes
        self.pushed = False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # while it is stopped
        self.conversations: list[Conversation] = []
        patience_s, slots = scene.config.switch_timeout_s / 2, scene.schedule.slots
        super().__init__(
            scene.clock, scene.config, nodes, store, rng=scene.rng, patience_s=patience_s, slots=slots
        )

    def connect(self, conversation: Conversation, first: Join | Resume) -> None:
        """Take a worker's first message: it joins, or resumes."""
        conversation.controller = self
        if self.waits(self.connect, conversation, first):
            return
        if not conversation.open:  # it has given this one up
            return
        begun = self.begin(first)
        if isinstance(begun, HungUp):
            conversation.hang_up(begun)
            return
        conversation.session = begun
        self.conversations.append(conversation)
        self.loop.create_task(self._serve(conversation, begun))

    async def _serve(self, conversation: Conversation, session: Session) -> None:
        while (event := await session.events.get()) is not None:
            conversation.tell(event)
        if not isinstance(session.told, Ended):
            session.broken()
        conversation.hang_up(HungUp("the session is over"))

    def stop(self, until_ns: int) -> None:
        """Stop it (SIGSTOP), and let it go on (SIGCONT) at `until_ns`.

        Its kernel takes connections, and what is said, all the time.
        """
        if not self.loop.stopped:
            self.loop.stop()
            self.scene.clock.at(until_ns, self._go_on)

    def _go_on(self) -> None:
        backlog, self._backlog = self._backlog, []
        clock_first = self.scene.clock.now_ns % 2
        if not self.alive:
            return
        self.scene.note("the controller goes on")
        if clock_first:
            self.loop.go_on()
        self.loop.stopped = False
        for action, args in backlog:
            action(*args)
        if not clock_first:
            self.loop.go_on()

    def push(self) -> None:
        """Do `p4reduce push --force`, as an operator does about what is left of jobs that nobody knows."""
        self.pushed = True
        with self.running():
            self.registry.engine.spawn(self._push())

    async def _push(self) -> None:
        try:
            await self.registry.manager.push("", force=True)
        except ControllerError as error:  # a switch is away; the operator does it once more
            self.scene.note(f"pushing: {error}")
            await asyncio.sleep(1.0)
            self.pushed = False

    def waits(self, action: Callable[..., None], *args: Any) -> bool:
        """Return whether it is stopped; the action is done when it goes on."""
        if not (self.alive and self.loop.stopped):
            return False
        self._backlog.append((action, args))
        return True

    def kill(self) -> None:
        """Kill it at once, whatever it was at; the workers' connections break."""
        self.alive = self.listening = False
        self.loop.kill()
        for conversation in self.conversations:
            conversation.hang_up(HungUp("the controller is gone"))
        for switch in self.nodes.values():
            if switch.connection is not None and switch.connection.is_of(self.loop):
                switch.connection = None


class Defects(logging.Handler):
    """A log handler by which the controller's own errors are defects; `note` is told everything."""

    def __init__(self, level: int = logging.ERROR, note: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(level)
        self.found: list[InvariantError] = []
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and record.exc_info:
            error: Any = record.exc_info[1]
            self.found.append(InvariantError(f"{record.getMessage()}: {error!r}"))
            self.found[-1].__cause__ = error
        self._note(f"controller: {record.getMessage()}")

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Take all that the controller logs while the block runs; nobody else gets it."""
        logger = logging.getLogger("controller")
        before = logger.propagate, logger.level
        logger.propagate = False
        logger.addHandler(self)
        logger.setLevel(self.level)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = before[0]
            logger.setLevel(before[1])
