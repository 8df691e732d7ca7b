"""The connections of a job's workers under one generation, and checks of what may never be between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from controller.api.messages import Ready
from controller.jobs.serials import ahead
from host_agent.transport import native
from host_agent.wire.psn import PSN_MASK
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.results import Deliveries
from p4reduce.simulation.invariant import InvariantError
from p4reduce.simulation.nic import AnyEndpoint

_LONG_AGO_NS = -1_000 * NS


class Peer(Protocol):
    """A worker, as the checks see it. `joined_as`: its first rank, which names it for ever."""

    joined_as: int
    psn_out: int
    endpoint: AnyEndpoint | None

    @property
    def rank(self) -> int:
        """The rank in its generation."""

    @property
    def ready(self) -> Ready | None:
        """The job as the controller has set it up last."""

    @property
    def members(self) -> tuple[int, ...]:
        """The workers in the job as its next call sees it, by the ranks that they joined with."""

    @property
    def is_leaving(self) -> bool:
        """True if it has nothing more to send."""


class Generation:
    """The connections of one generation. `racks`: its ranks by their leaf, once all are known."""

    def __init__(self, ready: Ready, racks: Callable[[int], list[list[int]]]) -> None:
        self.number = ready.generation
        self.size = ready.world_size
        self.window = ready.window
        self.deliveries = Deliveries(
            self.size, ready.path_mtu, ready.message_packets, lambda: racks(self.number)
        )
        self._workers: dict[int, Peer] = {}  # by rank
        self._flows: dict[int, tuple[int, int]] = {}  # by rank: to whom, first PSN
        self._gone: dict[int, tuple[int, int]] = {}  # by rank: what it waited for when it went, and when

    @property
    def members(self) -> tuple[int, ...]:
        """The generation's workers, by rank, each by the rank that it joined with."""
        return tuple(self._workers[rank].joined_as for rank in range(self.size))

    def connect(self, worker: Peer, ready: Ready) -> None:
        """Note that a worker has brought up its queue pairs."""
        if worker.rank in self._workers:
            raise InvariantError(f"{worker}: rank {worker.rank} of generation {self.number} is given twice")
        self._workers[worker.rank] = worker
        self._flows[worker.rank] = ready.successor.rank, worker.psn_out

    def close(self, rank: int, expected_psn: int, now_ns: int) -> None:
        """Note that a rank's queue pairs go; what it acknowledged stays acknowledged."""
        self._gone[rank] = expected_psn, now_ns

    def stopped_ns(self, rank: int) -> int | None:
        """Return the time since which a rank sends nothing; None: it may.

        A rank that never connected stopped long ago.
        """
        if rank not in self._workers:
            return _LONG_AGO_NS
        return self._gone[rank][1] if rank in self._gone else None

    def up(self) -> list[Peer]:
        """Return the workers whose queue pairs are up."""
        return [worker for worker in self._workers.values() if self._position(worker) is not None]

    @property
    def numbered(self) -> int:
        """The number of messages that those whose queue pairs are up have numbered."""
        positions = map(self._position, self._workers.values())
        return max((at.numbered for at in positions if at is not None), default=0)

    def _position(self, worker: Peer | None) -> native.NativeProgress | None:
        """Return a worker's position; None: its queue pairs are not there, or not any more."""
        endpoint = None if worker is None else worker.endpoint
        if endpoint is None or endpoint.config.generation != self.number:
            return None
        return endpoint.position()

    def lacking(self, message: int) -> list[int]:
        """Return the ranks that have not received a message, and may still want it."""
        return [
            worker.rank
            for worker in self._workers.values()
            if (at := self._position(worker)) is not None and ahead(at.received_messages, message) <= 0
        ]

    def expected_psn(self, sender: int) -> int:
        """Return the PSN that the receiver of a rank's flow waits for."""
        after, first = self._flows[sender]
        position = self._position(self._workers.get(after))
        if position is not None:
            return int(position.expected_psn)
        return self._gone[after][0] if after in self._gone else first

    def check_windows(self, worker: Peer) -> None:
        """Check how far a worker is ahead of others and they of it, after something happened to it."""
        own, ready = self._position(worker), worker.ready
        if own is None or ready is None:
            return
        if ahead(own.sent_messages, own.received_messages) > self.window:
            raise InvariantError(
                f"{worker} has sent {own.sent_messages} messages and received {own.received_messages}: more "
                f"than its window of {self.window}"
            )
        self._check_flow(worker, self._workers.get(ready.successor.rank))
        self._check_flow(self._workers.get(ready.predecessor.rank), worker)

    def _check_flow(self, sender: Peer | None, receiver: Peer | None) -> None:
        """Require that what is acknowledged has arrived, and nothing arrives that was not sent."""
        sent, received = self._position(sender), self._position(receiver)
        if sent is None or received is None:
            return
        unacked, expected = sent.first_unacked_psn, received.expected_psn
        if (expected - unacked) & PSN_MASK > (sent.next_psn - unacked) & PSN_MASK:
            raise InvariantError(
                f"{sender} has all before PSN {unacked:#x} acknowledged and is to send {sent.next_psn:#x} "
                f"next, and {receiver} expects {expected:#x}"
            )
