"""Hosts with several GPUs without help from the switch: the flat ring, and a master GPU in each host.

Inside a host, GPUs pass pieces on over shared memory, at the channel's rate: in each step every GPU posts
one, and takes one from its neighbour. The host's first GPU sends and receives all data of other hosts,
straight from the memory of the GPU whose turn it is, as a NIC does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from host_agent.collectives import ring
from host_agent.collectives.plan import Call, Steps, Strategy, until_sent
from host_agent.machine.channel import REGION_BYTES, SLOT_BYTES, Lane
from host_agent.machine.communicator import MachineCommunicator
from host_agent.machine.meeting import Who, meet
from host_agent.wire.aggregation import Kind
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.strategies.queued import QueuedReducer

Array = NDArray[Any]
_PIECE_BYTES: Final = 256 * 1024  # along the chain: it takes a step more for each GPU to fill
_MEETING_S: Final = 60.0


class OnMachines(QueuedReducer):
    """A strategy over a job's connections and a channel of its own; whoever joined the job leaves it."""

    def __init__(self, communicator: MachineCommunicator, *, name: str) -> None:
        super().__init__(rank=communicator.rank, world_size=communicator.world_size)
        self._communicator = communicator
        self._local, self._gpus = communicator.machine.rank, communicator.machine.size
        who = Who(local_rank=self._local, local_size=self._gpus, rank=self.rank, world_size=self.world_size)
        self._meeting = meet(name, who, region_bytes=REGION_BYTES, timeout_s=_MEETING_S)
        self._lane = Lane(self._meeting, 0, stalled=lambda seconds, late: None)

    def retransmissions(self) -> int:
        """Return the packets retransmitted on the plane's connections."""
        return self._communicator.statistics().retransmissions

    def _post(self, piece: Array | None) -> None:
        """Begin a step, and post the piece that the others may read."""
        slot = self._lane.slot()
        if piece is not None:
            slot[: piece.nbytes] = piece.view(np.uint8)
        self._lane.post()

    def _of(self, local_rank: int, like: Array) -> Array:
        """Return what a GPU has posted in this step, as long as `like`, at the channel's rate."""
        row: Array = self._lane.rows()[local_rank][: like.nbytes].view(like.dtype)
        self._communicator.machine.pace.take(like.nbytes)
        return row

    def _end_step(self) -> None:
        self._lane.rows()
        self._lane.release()

    def _barrier(self) -> None:
        self._communicator.barrier()

    def _give_up(self, reason: str) -> None:
        self._meeting.fail(reason)
        self._communicator.abort(reason)

    def _close(self) -> None:
        self._meeting.close()


class ReduceBroadcast(OnMachines):
    """A sum along each host's chain of GPUs, a ring of the hosts' first GPUs, and the chain back."""

    def _sum(self, array: Array) -> None:
        size = max(1, _PIECE_BYTES // array.itemsize)
        pieces = [array[start : start + size] for start in range(0, array.size, size)]
        last = self._gpus - 1
        for step in range(len(pieces) + last - 1):  # to the first GPU; from the last, which begins
            mine, theirs = step - (last - self._local), step - (last - self._local - 1)
            self._post(pieces[mine] if 0 <= mine < len(pieces) and self._local > 0 else None)
            if self._local < last and 0 <= theirs < len(pieces):
                pieces[theirs] += self._of(self._local + 1, pieces[theirs])
            self._end_step()
        if self._local == 0:
            self._communicator.plane.all_reduce(array, out=array, strategy=Strategy.RING)
        for step in range(len(pieces) + last - 1):  # and back
            mine, theirs = step - self._local, step - (self._local - 1)
            self._post(pieces[mine] if 0 <= mine < len(pieces) and self._local < last else None)
            if self._local > 0 and 0 <= theirs < len(pieces):
                pieces[theirs][...] = self._of(self._local - 1, pieces[theirs])
            self._end_step()


class FlatRing(OnMachines):
    """One ring of all GPUs, host after host: 2(P - 1) steps for each piece of at most P slots."""

    def _sum(self, array: Array) -> None:
        parts = self.world_size
        number = max(1, -(-array.nbytes // (parts * SLOT_BYTES)))
        for piece in np.array_split(array, number):  # alike, so that next to nothing is filled up
            size = max(1, -(-piece.size // parts))
            whole = piece
            if piece.size < size * parts:
                whole = np.zeros(size * parts, array.dtype)
                whole[: piece.size] = piece
            self._turn(whole.reshape(parts, -1))
            if whole is not piece:
                piece[...] = whole[: piece.size]

    def _turn(self, parts: Array) -> None:
        plane = self._communicator.plane
        if self._local > 0:
            for step in range(2 * (self.world_size - 1)):
                sent, taken, adds = self._places(step)
                self._post(parts[sent])
                _take(parts, taken, self._of(self._local - 1, parts[taken]), adds=adds)
                self._end_step()
            return

        def steps(call: Call, strategy: Strategy) -> Steps[None]:
            """Send the part of the host's last GPU, and receive that of the host before, as the first GPU."""
            arrived = np.empty_like(parts[0])
            leaving = [np.empty_like(parts[0]) for _ in range(2)]  # one is filled while the other may be read
            passed: list[int] = []
            for step in range(2 * (self.world_size - 1)):
                sent, taken, adds = self._places(step)
                self._post(parts[sent])
                yield from until_sent(passed[:-1])
                out = leaving[step % 2]
                out.view(np.uint8)[...] = self._lane.rows()[-1][: out.nbytes]
                self._lane.release()
                passed.append((yield from ring.pass_on(call, out, arrived)))
                _take(parts, taken, arrived, adds=adds)
            yield from ring.barrier(call)

        plane.submit("flat ring", Kind.ALL_REDUCE, parts, parts, steps, strategy=Strategy.RING).result()

    def _places(self, step: int) -> tuple[int, int, bool]:
        """Return a step's part to send, the part that comes, and whether to add that (else it is a sum)."""
        size = self.world_size
        if step < size - 1:
            return (self.rank - step) % size, (self.rank - step - 1) % size, True
        step -= size - 1
        return (self.rank + 1 - step) % size, (self.rank - step) % size, False


def _take(parts: Array, place: int, came: Array, *, adds: bool) -> None:
    if adds:
        parts[place] += came
    else:
        parts[place] = came


def on_machines(communicator: object) -> MachineCommunicator:
    """Return the communicator if its hosts have several GPUs; WorkloadError if not."""
    if not isinstance(communicator, MachineCommunicator):
        raise WorkloadError("this strategy is for hosts with several GPUs")
    return communicator
