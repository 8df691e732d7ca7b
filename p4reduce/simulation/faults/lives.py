"""The controller's lives, one after the other, and the database that each finds: its own, none, a backup."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path

from controller.database.store import Store
from p4reduce.simulation.faults.control import ControllerProcess
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.node import SwitchNode
from p4reduce.simulation.faults.scene import Scene

EPOCH = 1_000_000  # where generations begin
_MOST_PAGES = 1073741823  # as SQLite has it


class Lives:
    """The controller's lives. `current`: the process there is, which may be coming up or stopped; or None."""

    def __init__(self, scene: Scene, nodes: Mapping[str, SwitchNode]) -> None:
        self.scene = scene
        self.nodes = nodes
        self.current: ControllerProcess | None = None
        self.store = Store(":memory:", wall_clock=lambda: EPOCH)
        self._second: ControllerProcess | None = None
        self._seconds: list[tuple[object, float]] = []  # event loops of those, and until when they live
        self._copies: list[Store] = []
        self._past: list[ControllerProcess] = []
        self._lost: list[Store] = []
        self._copy: sqlite3.Connection | None = None  # the backup that there is
        self._restored: list[tempfile.TemporaryDirectory[str]] = []

    @property
    def listening(self) -> ControllerProcess | None:
        """The process that takes connections, if there is one."""
        return self.current if self.current is not None and self.current.listening else None

    def start(self) -> None:
        """Begin the next life, unless it has begun."""
        if self.current is None:
            self.current = ControllerProcess(self.scene, self.nodes, self.store)

    def kill(self, until_ns: int) -> None:
        """Kill the controller (SIGKILL), and start it again at `until_ns`."""
        if self.current is not None:
            self.current.kill()
            self._past.append(self.current)
            self.current = None
            self.scene.clock.at(until_ns, self.start)

    def start_second(self, until_ns: int) -> None:
        """Run a second controller until `until_ns`, on a copy of the database; no worker has its address."""
        if self._second is None:
            self._copies.append(self._copied(self.store.connection))
            self._second = ControllerProcess(self.scene, self.nodes, self._copies[-1])
            self._seconds.append((self._second.loop, until_ns / NS))
            self.scene.clock.at(until_ns, self._stop_second)

    def _stop_second(self) -> None:
        assert self._second is not None
        self._second.kill()
        self._past.append(self._second)
        self._second = None

    @property
    def second_had_a_switch_s(self) -> float:
        """The longest time that a second controller lived after it had got a switch."""
        got = [opened for node in self.nodes.values() for opened in node.opened]
        return max(
            (until - at for one, until in self._seconds for loop, at in got if loop is one), default=0.0
        )

    # Its database.

    @property
    def forgot(self) -> bool:
        """True if the database may not say all that the controller once knew."""
        return bool(self._lost)

    def lose_database(self) -> None:
        """Let the next life find an empty database; its numbers begin at the time, long after the others."""
        self._lost.append(self.store)
        self.store = Store(":memory:", wall_clock=lambda: EPOCH + 100_000 * len(self._lost))

    def back_up_database(self) -> None:
        """Copy the database, while the controller runs or not."""
        if self._copy is None:
            self._copy = sqlite3.connect(":memory:")
        self.store.connection.backup(self._copy)

    def restore_database(self) -> None:
        """Let the next life find the copy, or its own database if nobody has made one."""
        if self._copy is None:
            return
        self._lost.append(self.store)
        self.store = self._copied(self._copy)

    def _copied(self, source: sqlite3.Connection) -> Store:
        self._restored.append(tempfile.TemporaryDirectory(prefix="p4reduce-"))
        path = Path(self._restored[-1].name) / "controller.db"
        file = sqlite3.connect(path)
        source.backup(file)
        file.close()
        store = Store(path)
        store.connection.execute("PRAGMA synchronous = OFF")  # no run is there to see a power cut
        return store

    def fill_disk(self) -> None:
        """Let the database grow no more."""
        (pages,) = self.store.connection.execute("PRAGMA page_count").fetchone()
        self.store.connection.execute(f"PRAGMA max_page_count = {pages}")

    def free_disk(self) -> None:
        """Let the database grow again."""
        self.store.connection.execute(f"PRAGMA max_page_count = {_MOST_PAGES}")

    def close(self) -> None:
        """Let go of everything."""
        for store in (self.store, *self._lost, *self._copies):
            store.close()
        if self._copy is not None:
            self._copy.close()
        for directory in self._restored:
            directory.cleanup()
        for process in (*self._past, self.current, self._second):
            if process is not None:
                process.loop.abandon()
