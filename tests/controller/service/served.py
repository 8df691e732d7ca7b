"""The controller's service on a port, and its workers."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from controller.api.messages import Join, Ready, Worker
from controller.config import Config
from controller.database.store import Store
from controller.fabric.routes import rack_entries
from controller.orchestration.registry import Registry
from controller.security.files import TlsFiles
from controller.service.service import ControllerService, make_server
from controller.switches.managed_switch import ManagedSwitch
from host_agent.controller_session import ControllerSession
from tests.controller.bench import RACK
from tests.controller.fake_switch import FakeSwitch

CONFIG = replace(
    RACK,
    heartbeat_interval_s=0.1,
    heartbeat_timeout_s=1.0,
    resume_timeout_s=5.0,
    rc_timeout=17,
    rc_min_rnr_timer=14,
    straggler_rnr_timer=23,
)


_OF_THE_WORKER = {"rank", "mac", "ip", "qpn_out", "psn_out", "qpn_in", "hostname"}


def request_of(place: int, *, job: str = "train", size: int = 3, **fields: Any) -> Join:
    host = CONFIG.hosts[place]
    worker = Worker(
        rank=place,
        mac=host.mac,
        ip=host.ip,
        qpn_out=0x100 + place,
        psn_out=0xFFFFFF - place,
        qpn_in=0x200 + place,
        hostname="machine",
    )
    own = {name: fields.pop(name) for name in fields.keys() & _OF_THE_WORKER}
    request = Join(
        job=job, world_size=size, worker=replace(worker, **own), path_mtu_max=1024, rnr_nak=place == 1
    )
    return replace(request, **fields)


@dataclass
class Served:
    """A controller in a thread of its own; `address` stays over restarts."""

    database: Path
    switch: FakeSwitch
    address: str = "127.0.0.1:0"
    registry: Registry | None = None
    tls: TlsFiles | None = None
    config: Config = CONFIG

    def start(self) -> None:
        self._ready: queue.Queue[Exception | None] = queue.Queue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        if (error := self._ready.get(timeout=20)) is not None:
            self._thread.join()
            raise error

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        with Store(self.database) as store:
            managed = ManagedSwitch(self.switch)
            registry = self.registry = Registry(self.config, store, [managed])
            registry.load()
            await registry.manager.settle(managed)
            addresses = [self.address, f"unix:{self.database.parent / 'c.sock'}"]
            try:
                server, bound = make_server(ControllerService(registry), addresses, tls=self.tls)
            except Exception as error:  # noqa: BLE001 (it is raised where it was asked for)
                self._ready.put(error)
                return
            self.address, self.unix = bound
            await server.start()
            ticking = asyncio.create_task(registry.run())
            self._ready.put(None)
            await self._stop.wait()
            registry.stop()
            await server.stop(0.1)
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await registry.drain()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    controller = Served(
        tmp_path / "c.db", FakeSwitch(CONFIG.switches[0], rack_entries(CONFIG.switches[0], CONFIG.hosts))
    )
    controller.start()
    yield controller
    controller.stop()


class HasAddress(Protocol):
    """An object with the address of a controller."""

    address: str


class Workers:
    """Sessions in threads."""

    def __init__(self, served: HasAddress) -> None:
        self.served = served
        self.pool = ThreadPoolExecutor(16)
        self.sessions: list[ControllerSession] = []

    def session(self) -> ControllerSession:
        self.sessions.append(ControllerSession(self.served.address))
        return self.sessions[-1]

    def each(self, call: Callable[[ControllerSession], Any], sessions: list[ControllerSession]) -> list[Any]:
        futures: list[Future[Any]] = [self.pool.submit(call, session) for session in sessions]
        return [future.result(timeout=20) for future in futures]

    def run(self, size: int = 3, job: str = "train") -> tuple[list[ControllerSession], list[Ready]]:
        """Start a job, and return its workers' sessions and the Ready of each."""
        sessions = [self.session() for _ in range(size)]

        def begin(session: ControllerSession) -> Ready:
            request = request_of(sessions.index(session), job=job, size=size)
            ready = session.join(request, timeout_s=10)
            session.up(timeout_s=10)
            return ready

        return sessions, self.each(begin, sessions)

    def leave(self, sessions: list[ControllerSession]) -> None:
        self.each(lambda session: session.leave(timeout_s=10), sessions)


@pytest.fixture
def workers(served: Served) -> Iterator[Workers]:
    made = Workers(served)
    yield made
    for session in made.sessions:
        session.close()
    made.pool.shutdown()
