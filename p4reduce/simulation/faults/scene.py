"""State that all parts of a run share: the schedule, the cluster, the clock, the mishaps, and the trace."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random
from typing import Protocol

from controller.config import HostConfig
from host_agent.transport import TransportConfig
from p4reduce.simulation.faults.links import StrikesOfLink, Wire
from p4reduce.simulation.faults.loop import NS, Clock
from p4reduce.simulation.faults.node import GhostSwitch
from p4reduce.simulation.faults.schedule import Mishap, Schedule
from p4reduce.simulation.nic import AnyEndpoint
from p4reduce.simulation.watched import Knowledge


class Receiver(Protocol):
    """An owner of queue pairs. `stopped_until_ns`: it looks at nothing before then (0: it does)."""

    host: HostConfig
    endpoint: AnyEndpoint | None
    stopped_until_ns: int

    def receive(self, frame: bytes) -> None:
        """Take a frame for one of its queue pairs."""


class Observer(Protocol):
    """An observer of a run.

    It makes links and switches that report what passes them, and otherwise do what they do without it; the
    run tells it the rest.
    """

    def wire(
        self,
        clock: Clock,
        faults: StrikesOfLink,
        arrive: Callable[[bytes], None],
        *,
        delay_ns: int,
        gap_ns: int,
    ) -> Wire:
        """Make a direction of a link."""

    def switch(self, name: str, world: Knowledge, sums: dict[tuple[int, int, int], bytes]) -> GhostSwitch:
        """Make a switch's data plane."""

    def opened(self, receiver: Receiver, config: TransportConfig) -> None:
        """Note that a worker has brought up its queue pairs."""

    def happened(self, mishap: Mishap, where: tuple[str, ...]) -> None:
        """Note a mishap, at a host, a switch, both ends of a link, or nowhere among these."""

    def note(self, what: str) -> None:
        """Note a line of the trace."""


class Scene:
    """State that a run's parts share. `happened`: the mishaps, each with its time. `observer`: if any."""

    def __init__(
        self, schedule: Schedule, *, tracing: bool = False, observer: Observer | None = None
    ) -> None:
        self.schedule = schedule
        self.config = schedule.config()
        self.clock = Clock()
        self.rng = Random(f"{schedule.seed}/controller")  # of all of the controller's lives
        self.tracing = tracing
        self.observer = observer
        self.new_wire = Wire if observer is None else observer.wire
        self.new_switch = GhostSwitch if observer is None else observer.switch
        self.lines: list[str] = []
        self.happened: list[tuple[int, Mishap]] = []

    @property
    def is_heard(self) -> bool:
        """True if somebody wants notes."""
        return self.tracing or self.observer is not None

    def happens(self, mishap: Mishap, *where: str) -> None:
        """Note a mishap, at a host, a switch, both ends of a link, or nowhere among these."""
        self.happened.append((self.clock.now_ns, mishap))
        if self.observer is not None:
            self.observer.happened(mishap, where)
        what = f"job {mishap.job}, rank {mishap.rank}" if mishap.job else mishap.what
        self.note(f"fault: {mishap.kind} {what}")

    def latency(self, name: str, least_ns: int, most_ns: int) -> int:
        """Return a delay of the schedule, or one that follows from its seed and the name."""
        known = self.schedule.latencies.get(name)
        if known is not None:
            return known
        return least_ns + zlib.crc32(f"{self.schedule.seed}/{name}".encode()) % (most_ns - least_ns + 1)

    def note(self, what: str) -> None:
        """Note a line of the trace, if one is wanted."""
        if self.tracing:
            self.lines.append(f"{self.clock.now_ns / NS:12.6f}  {what}")
        if self.observer is not None:
            self.observer.note(what)
