"""Switches that raise InvariantError where the slot rules would do what the protocol rules out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from host_agent.wire import psn as psn_math
from host_agent.wire.aggregation import CHUNK_BYTES
from p4reduce.oracle.from_entries import EntrySwitch
from p4reduce.oracle.rules import Fragment
from p4reduce.oracle.state import Job, Out, Slot, SpineJob, Tag
from p4reduce.simulation.invariant import InvariantError


class Knowledge(Protocol):
    """Knowledge of running jobs, by generation, which a test has and a switch has not."""

    def is_running(self, generation: int) -> bool:
        """Return whether somebody may still want the job's sums."""

    def lacking(self, generation: int, message: int) -> list[int]:
        """Return the ranks that have not received a message."""

    def numbered(self, generation: int) -> int:
        """Return how many messages the job's workers have had, as far as they are up."""

    def expected_psn(self, generation: int, sender: int) -> int:
        """Return the PSN that the receiver of a rank's flow waits for."""


class WatchedSwitch(EntrySwitch):
    """A switch that checks three invariants.

    No slot is claimed for a newer message while a rank lacks the one that it holds, or for another job while
    its own job runs; on a spine, to which leaves can always send their sums once more, while its own job
    still has entries for it. Every sum of all racks of a fragment is the same, wherever it is made or stored.
    An RNR NAK acknowledges nothing that the receiver has not received.
    """

    def __init__(self, name: str, world: Knowledge, sums: dict[tuple[int, int, int], bytes]) -> None:
        super().__init__()
        self.name = name
        self.world = world
        self.sums = sums  # of the whole fabric

    def claim(self, job: Job | SpineJob, slot: Slot, tag: Tag) -> None:
        if isinstance(job, Job):
            self._check_claim(slot, tag, self.world.is_running)
        else:
            # A renewal takes a job off spines at once, before its workers can have heard of it: what its
            # leaves still send is of no job then, and dropped. A job that has other slots here than before,
            # because the controller's database is from a backup, begins with empty ones, as on a spine that
            # came back.
            self._check_claim(slot, tag, lambda generation: self._holds(generation, slot))
        super().claim(job, slot, tag)

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

    def emit_sums(self, job: Job, slot: Slot, fragment: Fragment) -> list[Out]:
        if job.tree is not None:
            self._check_sum(job.generation, fragment, slot)
        return super().emit_sums(job, slot, fragment)

    def to_leaf(self, job: SpineJob, slot: Slot, leaf: int, fragment: Fragment, *, asks: bool) -> Out:
        if not asks:
            self._check_sum(job.generation, fragment, slot)
        return super().to_leaf(job, slot, leaf, fragment, asks=asks)

    def _check_sum(self, generation: int, fragment: Fragment, slot: Slot) -> None:
        message, index = fragment.message, fragment.index
        lanes = slot.load(index, fragment.shape)
        if index == 0:
            lanes = lanes[CHUNK_BYTES:]
        known = self.sums.setdefault((generation, message, index), lanes)
        if lanes != known and not slot.mismatch:
            raise InvariantError(
                f"{self.name}: another sum of message {message}, index {index} than elsewhere"
            )

    def not_ready(self, job: Job, fragment: Fragment) -> Out:
        rank = job.flows[fragment.sender].rank
        expected = self.world.expected_psn(job.generation, rank)
        if psn_math.compare(expected, fragment.psn) < 0:
            raise InvariantError(
                f"{self.name}: rank {rank} hears that all before {fragment.psn:#x} has arrived, and "
                f"its receiver waits for {expected:#x}"
            )
        return super().not_ready(job, fragment)
