"""A switch in the simulation: the model, whether it is up, and who holds its P4Runtime connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from controller.entries import Entry
from controller.fabric.tables.membership import FLOW
from controller.orchestration.orphans import generation_in
from controller.switches.queries import OP_QUERY_SLOT
from host_agent.wire.headers import RocePacket
from p4reduce.oracle.state import Flow, Job, Out, Record, Slot, SpineJob, Tag
from p4reduce.simulation.faults.links import Wire
from p4reduce.simulation.invariant import InvariantError
from p4reduce.simulation.watched import Knowledge, WatchedSwitch

_MANY = 1 << 62


class Connection(Protocol):
    """A controller's connection, as far as the switch is concerned."""

    def cut(self) -> None:
        """End the connection."""

    def echo(self, nonce: int) -> None:
        """Tell the controller that a probe came back."""

    def is_of(self, loop: object) -> bool:
        """Return whether that process has opened it."""


class Shadow(Protocol):
    """A counterpart that is given all that a switch gets, and has to come to the same (`lockstep`)."""

    def write(self, insert: Sequence[Entry], delete: Sequence[Entry]) -> None: ...

    def restart(self) -> None: ...

    def process(self, port: int, frame: bytes, left: list[Out], echoes: list[int]) -> None: ...


class GhostSwitch(WatchedSwitch):
    """A `WatchedSwitch` that knows whose contributions are in each sum.

    No rank is in a sum twice, no sum is complete without all of them, tags and generations never go back.
    Flows of a generation that was taken off do not come back under it, unless nothing was sent meanwhile:
    what registers hold of it would be believed. Nor does a generation go on with other ranks or leaves than
    those that it has added up: what a slot holds for others would be combined with theirs.
    """

    def __init__(self, name: str, world: Knowledge, sums: dict[tuple[int, int, int], bytes]) -> None:
        super().__init__(name, world, sums)
        self.is_stale = False
        self.inside: dict[int, tuple[Tag, set[int]]] = {}  # by slot object: whose tag, who is in it
        self.newest: dict[int, Tag] = {}
        self.left: dict[int, int] = {}  # generations whose flows are gone, and how many messages they had had

    def write(self, insert: Iterable[Entry] = (), *, delete: Iterable[Entry] = ()) -> None:
        before = self._generations()
        super().write(insert, delete=delete)
        after = self._generations()
        for generation in before - after:
            self.left[generation] = self.world.numbered(generation)
        for generation in after - before:
            if self.world.numbered(generation) > self.left.pop(generation, _MANY):
                raise InvariantError(
                    f"{self.name}: flows of generation {generation} come back under it after others were sent"
                )

    def _generations(self) -> set[int]:
        of = (generation_in([e]) for e in self.entries.values() if e.table == FLOW)
        return {generation for generation in of if generation is not None}

    def rebuild(self) -> None:
        """Put rebuilding off until it matters: several writes often come one behind the other."""
        self.is_stale = True

    def settle(self) -> None:
        """Rebuild now, if it was put off."""
        if self.is_stale:
            self.is_stale = False
            before = {generation: _behind(job) for generation, job in self.jobs.items() if _has_added(job)}
            super().rebuild()
            for generation, behind in before.items():
                job = self.jobs.get(generation)
                if job is not None and _behind(job) != behind:
                    raise InvariantError(
                        f"{self.name}: generation {generation} has added up what comes from {behind}, and "
                        f"is to go on with {_behind(job)}"
                    )

    def process(self, port: int, frame: bytes) -> list[Out]:
        if self.is_stale:
            self.settle()
        return super().process(port, frame)

    def aggregate(self, job: Job, flow: Flow, record: Record, packet: RocePacket, frame: bytes) -> list[Out]:
        before, completed = job.counters["aggregated"], job.counters["completed"]
        left = super().aggregate(job, flow, record, packet, frame)
        if job.counters["aggregated"] != before:
            index = (packet.bth.psn - record.psn) & 0xFFFFFF
            self._note(job, job.slot(record.message, index), record.message, index, flow.rank)
            if job.tree is None and job.counters["completed"] != completed:
                inside = self.inside[id(job.slot(record.message, index))][1]
                if len(inside) != len(job.flows):
                    raise InvariantError(
                        f"{self.name}: the sum of message {record.message}, index {index} of generation "
                        f"{job.generation} is said to be complete with ranks {sorted(inside)} only"
                    )
        return left

    def _note(self, job: Job, slot: Slot, message: int, index: int, rank: int) -> None:
        tag = (job.generation, message)
        known = self.inside.get(id(slot))
        if known is None or known[0] != tag:
            self.inside[id(slot)] = (tag, {rank})
            return
        if rank in known[1]:
            raise InvariantError(
                f"{self.name}: rank {rank} is added a second time to message {message}, index {index} of "
                f"generation {job.generation}"
            )
        known[1].add(rank)

    def claim(self, job: Job | SpineJob, slot: Slot, tag: Tag) -> None:
        self._goes_on(slot, tag)
        super().claim(job, slot, tag)

    def _goes_on(self, slot: Slot, tag: Tag) -> None:
        before = self.newest.get(id(slot))
        # Messages of a run are far from 2^32; a job that moves may come into the place of a newer one's.
        if before is not None and tag[0] == before[0] and tag[1] <= before[1]:
            raise InvariantError(f"{self.name}: a slot that was {before}'s is claimed by {tag}")
        self.newest[id(slot)] = tag

    def forget(self) -> None:
        """Forget what the registers held: they are empty again."""
        self.inside.clear()
        self.newest.clear()
        self.left = dict.fromkeys(self.left, 0)  # also where nothing was sent, as sums are lost


def _behind(job: Job | SpineJob) -> tuple[int, ...]:
    """Return the ranks, or on a spine the ports of the leaves, whose packets it adds up."""
    return tuple(sorted(job.places)) if isinstance(job, Job) else job.leaves


def _has_added(job: Job | SpineJob) -> bool:
    return job.counters["aggregated"] > 0


class SwitchNode:
    """A switch.

    `out`: the wire at each port; `boots`: how often it was started, another number ends all connections;
    `up`: it processes frames.
    """

    def __init__(self, name: str, plane: GhostSwitch, *, request_s: float) -> None:
        self.name = name
        self.plane = plane
        self.out: dict[int, Wire] = {}
        self.request_s = request_s
        self.up = True
        self.cut_off = 0  # how many faults keep the controller from it
        self.has_program = False
        self.boots = 1
        self.connection: Connection | None = None
        self.opened: list[tuple[object, float]] = []  # whose event loop became primary, and when
        self.shadow: Shadow | None = None

    @property
    def reachable(self) -> bool:
        """True if its controller can reach it."""
        return self.up and not self.cut_off

    def arrive(self, port: int, frame: bytes) -> None:
        """Take a frame that comes in by a port, and send what leaves."""
        for out_port, out in self.process(port, frame):
            self.send(out_port, out)

    def send(self, port: int, frame: bytes) -> None:
        """Send a frame by a port."""
        self.out[port].send(frame)

    def process(self, port: int, frame: bytes) -> list[Out]:
        """Return what leaves when a frame comes in."""
        if not (self.up and self.has_program):
            return []
        plane = self.plane
        left = plane.process(port, frame)
        if plane.echoes:
            echoes, plane.echoes = plane.echoes, []
            if self.shadow is not None:
                self.shadow.process(port, frame, left, echoes)
            for nonce in echoes:
                if self.connection is not None:
                    self.connection.echo(nonce)
        elif self.shadow is not None:
            self.shadow.process(port, frame, left, [])
        return left

    def write(self, insert: Sequence[Entry], delete: Sequence[Entry]) -> None:
        """Write what the controller wants."""
        self.plane.write(insert, delete=delete)
        if self.shadow is not None:
            self.shadow.write(insert, delete)

    def load_program(self) -> None:
        """Load the program, with empty tables and registers."""
        self._forget()
        self.has_program = True

    def die(self) -> None:
        """End the process, and its connections with it."""
        self.up = self.has_program = False
        self.boots += 1
        self._forget()
        self.cut()

    def start(self) -> None:
        """Start it again, with nothing in it."""
        self.up = True

    def cut(self) -> None:
        """Break the controller's connection."""
        if self.connection is not None:
            self.connection.cut()

    def slot(self, index: int) -> dict[str, Any]:
        """Return the answer to a query about a slot."""
        slot = self.plane.registers.get(index)
        generation, message = (slot.tag or (0, 0)) if slot is not None else (0, 0)
        return {
            "op": OP_QUERY_SLOT,
            "index": index,
            "generation": generation,
            "message": message,
            "bitmap": sum(1 << rank for rank in slot.ranks) if slot is not None else 0,
            "chunks": slot.count if slot is not None else 0,
            "flags": (slot.result | slot.mismatch << 1) if slot is not None else 0,
            "age": 0,
        }

    def _forget(self) -> None:
        if self.shadow is not None:
            self.shadow.write([], list(self.plane.entries.values()))
            self.shadow.restart()
        self.plane.write(delete=list(self.plane.entries.values()))
        self.plane.restart()
        self.plane.forget()
