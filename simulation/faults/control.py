"""The controller as a process of the simulation: the real registry and switches, and workers' sessions.

It is killed at any time; what it had committed to its database is what the next one finds.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from controller.api.errors import ControllerError, QueuePairTakenError
from controller.api.messages import Ended, FromController, FromWorker, Join, Ready, Resume
from controller.database.store import Store
from controller.fabric.routes import base_entries
from controller.orchestration.registry import Registry
from controller.orchestration.sessions import Session
from controller.slots.allocator import SwitchAllocator
from controller.switches.managed_switch import ManagedSwitch
from host_agent.controller_session import OVER
from simulation.faults.loop import Clock, ProcessLoop, new_loop
from simulation.faults.node import SwitchNode
from simulation.faults.p4runtime import SimulatedSwitch
from simulation.faults.scene import Scene
from simulation.invariant import InvariantError

_LISTENING_S = 0.05  # from its start until it takes sessions, at least


class Caller(Protocol):
    """A worker's end of a conversation. `management_ns`: how long what is said takes."""

    management_ns: int

    @property
    def ready(self) -> Ready | None:
        """The job as it was set up; None: it has not joined."""

    def told(self, conversation: Conversation, event: FromController) -> None:
        """The controller says something."""

    def hung_up(self, conversation: Conversation, why: str, gone: bool) -> None:
        """The conversation has ended; `gone`: it may try again."""

    def take_other_queue_pairs(self) -> None:
        """Others have the numbers of its."""


class Conversation:
    """A worker's connection with the controller. Either side may end it, and the other hears of it later.

    What one says arrives in order; what is under way when the connection ends is lost.
    """

    def __init__(self, clock: Clock, worker: Caller) -> None:
        self.clock = clock
        self.worker = worker
        self.session: Session | None = None
        self.open = True
        self.controller: ControllerProcess | None = None

    def say(self, what: FromWorker) -> None:
        """From the worker to the controller."""
        if self.open:
            self.clock.after(self.worker.management_ns, self._hear, what)

    def _hear(self, what: FromWorker) -> None:
        controller = self.controller
        if controller is not None and controller.waits(self._hear, what):
            return
        if not self.open or controller is None or not controller.alive or self.session is None:
            return
        with controller.running():
            try:
                self.session.hear(what)
            except (ControllerError, sqlite3.Error) as error:
                gone = isinstance(error, sqlite3.Error)
                self.session.broken()
                self.hang_up(f"the controller says: {error}", gone=gone)

    def tell(self, event: FromController) -> None:
        """From the controller to the worker."""
        self.clock.after(self.worker.management_ns, self.worker.told, self, event)

    def hang_up(self, why: str, *, gone: bool = True) -> None:
        """The controller's side has ended; `gone`: the worker may try again."""
        if self.open:
            self.open = False
            self.clock.after(self.worker.management_ns, self.worker.hung_up, self, why, gone)

    def closed_by_worker(self, *, told_end: bool = False) -> None:
        """The worker's side has ended: it died, its session timed out, or it heard that the job is over."""
        if not self.open and not told_end:
            return
        self.open = False
        self.clock.after(self.worker.management_ns, self._worker_gone, told_end)

    def _worker_gone(self, told_end: bool) -> None:
        controller = self.controller
        if controller is not None and controller.waits(self._worker_gone, told_end):
            return
        if controller is not None and controller.alive and self.session is not None:
            with controller.running():
                if told_end:
                    self.session.took_end()
                else:
                    self.session.broken()


class _Running:
    """The process's event loop is the running one."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(self._before)


class ControllerProcess:
    """One life of the controller."""

    def __init__(self, scene: Scene, nodes: Mapping[str, SwitchNode], store: Store) -> None:
        self.scene = scene
        self.nodes = nodes
        self.alive = True
        self.listening = self.pushed = False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # while it is stopped
        self.loop = new_loop(scene.clock)
        self.conversations: list[Conversation] = []
        with self.running():
            self.switches = [
                SimulatedSwitch(
                    nodes[switch.name],
                    switch,
                    base_entries(scene.config, switch),
                    on_change=lambda changed: self.registry.manager.on_switch_change(changed.config.name),
                )
                for switch in scene.config.switches
            ]
            self.registry = Registry(
                scene.config, store, [ManagedSwitch(s) for s in self.switches], clock=self.loop.time
            )
            if scene.schedule.slots:
                for managed in self.registry.switches.values():
                    managed.allocator = SwitchAllocator(slots=scene.schedule.slots)
            self.registry.load()
            self.loop.create_task(self.registry.run())
            self.loop.create_task(self._start())

    def running(self) -> _Running:
        """Calls into it are made inside this."""
        return _Running(self.loop)

    async def _start(self) -> None:
        for switch in self.switches:
            await switch.start()
        waits = [
            s.wait_ready(self.scene.config.switch_timeout_s / 2) for s in self.registry.switches.values()
        ]
        await asyncio.gather(*waits)
        await asyncio.sleep(_LISTENING_S)
        self.listening = True
        self.registry.listens()

    def connect(self, conversation: Conversation, first: Join | Resume) -> None:
        """A worker's first message has come: it joins, or resumes."""
        conversation.controller = self
        if self.waits(self.connect, conversation, first):
            return
        if not conversation.open:  # it has given this one up
            return
        with self.running():
            try:
                conversation.session = self.registry.sessions.begin(first)
            except QueuePairTakenError:
                conversation.worker.take_other_queue_pairs()
                conversation.hang_up("others have the numbers of its queue pairs", gone=True)
                return
            except ControllerError as error:
                comes_back = conversation.worker.ready is not None and error.code not in OVER
                conversation.hang_up(str(error), gone=comes_back)
                return
            except sqlite3.Error as error:
                conversation.hang_up(f"the controller's database failed: {error}", gone=True)
                return
            self.conversations.append(conversation)
            self.loop.create_task(self._serve(conversation, conversation.session))

    async def _serve(self, conversation: Conversation, session: Session) -> None:
        while (event := await session.events.get()) is not None:
            conversation.tell(event)
        if not isinstance(session.told, Ended):
            session.broken()
        conversation.hang_up("the session is over")

    def stop(self, until_ns: int) -> None:
        """SIGSTOP, and SIGCONT then. Its kernel takes connections, and what is said, all the time."""
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
        """`p4reduce push --force`: what an operator does with what is left of jobs that nobody knows."""
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
        """Whether it is stopped; that is done when it goes on."""
        if not (self.alive and self.loop.stopped):
            return False
        self._backlog.append((action, args))
        return True

    def kill(self) -> None:
        """At once, whatever it was at; the workers' connections break."""
        self.alive = self.listening = False
        self.loop.kill()
        for conversation in self.conversations:
            conversation.hang_up("the controller is gone")
        for switch in self.nodes.values():
            switch.connection = None


class DefectsHeard(logging.Handler):
    """What the controller logs as a defect of its own is one; everything goes to the trace."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(logging.INFO if scene.tracing else logging.WARNING)
        self.scene = scene

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and record.exc_info:
            error: Any = record.exc_info[1]
            self.scene.defect = InvariantError(f"{record.getMessage()}: {error!r}")
            self.scene.defect.__cause__ = error
        if self.scene.tracing:
            self.scene.note(f"controller: {record.getMessage()}")
