"""Switches that refuse to do what the protocol rules out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES
from host_agent.wire.headers import RocePacket
from simulation.invariant import InvariantError
from simulation.switch.from_entries import EntrySwitch
from simulation.switch.state import Flow, Job, Out, Record, Slot, SpineJob, Tag
from simulation.switch.tree_packets import Kind, TreePacket


class Knowledge(Protocol):
    """What a switch cannot know, but a test can: about running jobs, by generation."""

    def is_running(self, generation: int) -> bool:
        """Whether somebody may still want the job's sums."""

    def lacking(self, generation: int, message: int) -> list[int]:
        """The ranks that have not received a message."""

    def expected_psn(self, generation: int, sender: int) -> int:
        """What the receiver of a rank's flow waits for."""


class WatchedSwitch(EntrySwitch):
    """Holds three invariants.

    No slot is claimed while somebody lacks what it holds; on a spine, whose sums leaves can always send once
    more, not while it has two jobs' entries. Every sum of all racks of a fragment, wherever it is made or
    stored, is the same. An RNR NAK says nothing that its peer has not said.
    """

    def __init__(self, name: str, world: Knowledge, sums: dict[tuple[int, int, int], bytes]) -> None:
        super().__init__()
        self.name = name
        self.world = world
        self.sums = sums  # of the whole fabric

    def claim(self, job: Job, slot: Slot, tag: Tag) -> None:
        self._check_claim(slot, tag, self.world.is_running)
        super().claim(job, slot, tag)

    def claim_on_spine(self, job: SpineJob, slot: Slot, tag: Tag) -> None:
        # A renewal takes a job off spines at once, before its workers can have heard of it: what its leaves
        # still send is of no job then, and dropped. A job that has other slots here than before, because the
        # controller's database is from a backup, begins with empty ones, as on a spine that came back.
        self._check_claim(slot, tag, lambda generation: self._holds(generation, slot))
        super().claim_on_spine(job, slot, tag)

    def _holds(self, generation: int, slot: Slot) -> bool:
        job = self.jobs.get(generation)
        return job is not None and any(mine is slot for mine in job.slots)

    def _check_claim(self, slot: Slot, tag: Tag, is_held: Callable[[int], bool]) -> None:
        if slot.tag is None:
            return
        generation, message = slot.tag
        if generation != tag[0]:
            if is_held(generation):
                raise InvariantError(f"{self.name}: {tag} takes a slot of generation {generation}'s job")
            return
        lacking = self.world.lacking(generation, message)
        if lacking:
            raise InvariantError(
                f"{self.name}: message {tag[1]} overwrites the slot of {message}, which ranks {lacking} lack"
            )

    def emit_in_rack(self, job: Job, slot: Slot, packet: TreePacket) -> list[Out]:
        self._check_sum(job.generation, packet, slot)
        return super().emit_in_rack(job, slot, packet)

    def to_leaf(self, job: SpineJob, slot: Slot, leaf: int, packet: TreePacket, disagrees: bool) -> Out:
        if packet.kind != Kind.ASK:
            self._check_sum(job.generation, packet, slot)
        return super().to_leaf(job, slot, leaf, packet, disagrees)

    def _check_sum(self, generation: int, packet: TreePacket, slot: Slot) -> None:
        lanes = slot.load(packet.index, len(packet.payload))
        if packet.index == 0:
            lanes = lanes[CHUNK_BYTES:]
        known = self.sums.setdefault((generation, packet.message, packet.index), lanes)
        if lanes != known and not slot.mismatch:
            raise InvariantError(
                f"{self.name}: another sum of message {packet.message}, index {packet.index} than elsewhere"
            )

    def not_ready(self, flow: Flow, record: Record, packet: RocePacket) -> Out:
        generation = next(
            job.generation for job in self.jobs.values() if isinstance(job, Job) and flow in job.flows
        )
        expected = self.world.expected_psn(generation, flow.rank)
        if psn_math.compare(expected, packet.bth.psn) < 0:
            raise InvariantError(
                f"{self.name}: rank {flow.rank} hears that all before {packet.bth.psn:#x} has arrived, and "
                f"its receiver waits for {expected:#x}"
            )
        return super().not_ready(flow, record, packet)
