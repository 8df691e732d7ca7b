"""Reliable connections between two workers each, for strategies that do not go around a ring.

Each is a job of two workers that asks for no slots: plain RoCE v2 to the switches, which forward it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import ExitStack

import numpy as np

from host_agent.communicator import Communicator, RingFallbackWarning
from p4reduce.workloads.strategies.queued import QueuedReducer


def job_of(job: str, first: int, second: int) -> str:
    """Return the name of two workers' job."""
    low, high = sorted((first, second))
    return f"{job}-{low}-{high}"


class Pairs:
    """One worker's connections, by the other's rank. The lower rank is rank 0 of the two.

    Both join in the order of `peers`, which therefore must not make any two workers wait for each other.
    """

    def __init__(self, controller: str, job: str, *, rank: int, peers: Iterable[int]) -> None:
        self._pairs: dict[int | None, Communicator] = {}
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore", RingFallbackWarning)  # that is what was asked for
            for peer in peers:
                self._pairs[peer] = Communicator.join(
                    controller,
                    job=job_of(job, rank, peer),
                    rank=int(rank > peer),
                    world_size=2,
                    strategy="ring",
                )
                stack.callback(self._pairs[peer].leave)
            self._open = stack.pop_all()

    def __getitem__(self, peer: int | None) -> Communicator:
        return self._pairs[peer]

    def retransmissions(self) -> int:
        """Return the packets retransmitted on all connections."""
        return sum(pair.statistics().retransmissions for pair in self._pairs.values())

    def abort(self, reason: str) -> None:
        """Abort all jobs: workers on the other connections would not hear of an error on one."""
        for pair in self._pairs.values():
            pair.abort(reason)

    def close(self) -> None:
        """Leave all jobs; the peers do so too."""
        # In the order of joining: leaving waits for the other one.
        for pair in self._pairs.values():
            pair.leave()
        self._open.pop_all()


class PairsReducer(QueuedReducer):
    """A strategy that runs over its own pairs of connections."""

    def __init__(self, pairs: Pairs, *, rank: int, world_size: int) -> None:
        super().__init__(rank=rank, world_size=world_size)
        self._pairs = pairs

    def retransmissions(self) -> int:
        """Return the packets retransmitted on all connections."""
        return self._pairs.retransmissions()

    def _barrier(self) -> None:
        self._sum(np.zeros(1, np.int32))

    def _give_up(self, reason: str) -> None:
        self._pairs.abort(reason)

    def _close(self) -> None:
        self._pairs.close()
