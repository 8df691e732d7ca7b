"""A job of a run: what its workers are to compute, and what may never be between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from controller.api.messages import Ready
from controller.config import HostConfig
from controller.serials import ahead
from host_agent.wire.psn import PSN_MASK
from simulation.faults.endpoints import AnyEndpoint
from simulation.faults.loop import NS
from simulation.faults.results import Deliveries, Expected
from simulation.faults.scene import Scene
from simulation.faults.schedule import JobPlan
from simulation.invariant import InvariantError

_Made = tuple[tuple[int, ...], str]


class Peer(Protocol):
    """What the checks see of a worker. `joined_as`: its first rank, which names it for ever."""

    joined_as: int
    psn_out: int
    endpoint: AnyEndpoint | None

    @property
    def rank(self) -> int:
        """In its generation."""

    @property
    def ready(self) -> Ready | None:
        """The job as the controller has set it up last."""

    @property
    def is_leaving(self) -> bool:
        """It has nothing more to send."""


class JobRun:
    """`number` counts from 1; `generations`: of all jobs; `began` is told when this one begins to run."""

    def __init__(
        self,
        scene: Scene,
        number: int,
        plan: JobPlan,
        generations: Generations,
        began: Callable[[int], None],
    ) -> None:
        self.scene = scene
        self.number = number
        self.name = f"job{number}"
        self.plan = plan
        self.plan_size = len(plan.hosts)
        self.collectives = 0
        self.renewals = 0
        self.newest = 0  # the generation that a renewal has told of
        self.created = False
        self.running_ns = 1 << 62  # since when
        self.failures: list[str] = []
        self.unfinished = self.plan_size  # workers that have not left, and were not told that it is over
        self._generations = generations
        self.began = began
        self._members: dict[int, dict[int, int]] = {}  # by generation: who joined as what, by rank
        self._by_rank: dict[int, dict[int, Peer]] = {}
        self._flows: dict[tuple[int, int], tuple[int, int]] = {}  # by generation and rank: to whom, first PSN
        self._stood: dict[tuple[int, int], int] = {}  # what a receiver waited for when it went
        self._stopped_ns: dict[tuple[int, int], int] = {}  # and when
        self._sizes: dict[int, int] = {}
        self._windows: dict[int, int] = {}
        # By collective: which workers have its result, as they joined, and of whom it is; how it was made.
        self._made: dict[int, dict[int, _Made]] = {}  # in their accounts
        self._finished: dict[int, dict[int, tuple[int, ...]]] = {}  # in their users' hands
        self._deliveries: dict[int, Deliveries] = {}
        self._expected: dict[int, Expected] = {}

    @property
    def over(self) -> bool:
        """Every worker has left, was told that the job is over, or is dead."""
        return not self.unfinished

    def worker_over(self) -> None:
        """One of its workers has come to its end."""
        self.unfinished -= 1
        if self.over:
            self.scene.note(f"{self.name} is over")

    def first_message(self, generation: int) -> int:
        """What its messages count from."""
        return self.plan.first_message if generation == min(self._members) else 0

    def runs(self) -> None:
        """The first of its workers may begin."""
        if self.running_ns > self.scene.clock.now_ns:
            self.running_ns = self.scene.clock.now_ns
            self.began(self.number)

    def host_of(self, rank: int) -> HostConfig:
        """Where a rank runs."""
        return self.scene.config.hosts[self.plan.hosts[rank]]

    def inputs(self, collective: int) -> list[NDArray[Any]]:
        """What each rank, as it joined, puts into a collective."""
        return self.expected(collective).inputs

    def expected(self, collective: int) -> Expected:
        """What has to come out of it."""
        if collective not in self._expected:
            case = self.plan.work[collective].case()
            self._expected[collective] = Expected(
                case, case.inputs(self.plan_size, self.plan.seed + collective)
            )
        return self._expected[collective]

    def deliveries(self, generation: int) -> Deliveries:
        """The operations of a generation."""
        return self._deliveries[generation]

    def _racks(self, generation: int) -> list[list[int]]:
        """Its ranks, by the leaf that they are behind."""
        racks: dict[str, list[int]] = {}
        for rank, joined_as in enumerate(self.members(generation)):
            racks.setdefault(self.host_of(joined_as).switch, []).append(rank)
        return list(racks.values())

    def connected(self, worker: Peer, ready: Ready) -> None:
        """A worker has brought up its queue pairs."""
        generation = ready.generation
        if generation not in self._deliveries:
            size = self._sizes[generation] = ready.world_size
            racks = partial(self._racks, generation)
            self._deliveries[generation] = Deliveries(size, ready.path_mtu, ready.message_packets, racks)
            self._windows[generation] = ready.window
            self._generations[generation] = self
        known = self._members.setdefault(generation, {})
        if known.setdefault(worker.rank, worker.joined_as) != worker.joined_as:
            raise InvariantError(f"{worker}: rank {worker.rank} of generation {generation} is given twice")
        there = self._by_rank.setdefault(generation, {})
        if worker.rank in there:
            raise InvariantError(f"{worker} was in generation {generation} before")
        there[worker.rank] = worker
        self._flows[generation, worker.rank] = ready.successor.rank, worker.psn_out

    def closes(self, worker: Peer) -> None:
        """A worker's queue pairs go; what it acknowledged stays acknowledged."""
        assert worker.endpoint is not None
        place = worker.endpoint.config.generation, worker.endpoint.config.rank
        self._stood[place] = worker.endpoint.position().expected_psn
        self._stopped_ns[place] = self.scene.clock.now_ns

    def stopped_ns(self, generation: int, rank: int) -> int | None:
        """Since when a rank of a generation sends nothing: long ago where it never did; None: it may."""
        if rank not in self._by_rank.get(generation, {}):
            return -1_000 * NS
        return self._stopped_ns.get((generation, rank))

    def world_size(self, generation: int) -> int:
        """How many workers a generation has."""
        return self._sizes.get(generation, self.plan_size)

    def members(self, generation: int) -> tuple[int, ...]:
        """Its workers, by rank, each by the rank that it joined with."""
        known = self._members[generation]
        return tuple(known[rank] for rank in range(self.world_size(generation)))

    def of_generation(self, generation: int) -> list[Peer]:
        """Those whose queue pairs of that generation are up."""
        return [
            worker
            for worker in self._by_rank.get(generation, {}).values()
            if worker.endpoint is not None and worker.endpoint.config.generation == generation
        ]

    def made(self, worker: Peer, collective: int, generation: int, module: str, *, restored: bool) -> None:
        """A worker has a collective's result, and gives it to others from now on: its user may get it later.

        `restored`: it is another one's that had it.
        """
        made = self._made.setdefault(collective, {})
        members = self.members(generation)
        if restored:
            alive = [how for rank, how in made.items() if rank in members]
            if not made:
                raise InvariantError(
                    f"{worker} was given the result of collective {collective}, which nobody had"
                )
            members, module = alive[0] if alive else next(iter(made.values()))
        made[worker.joined_as] = members, module

    def finished(self, worker: Peer, collective: int, generation: int, out: NDArray[Any]) -> None:
        """A worker's user has a collective's result."""
        members, module = self._made[collective][worker.joined_as]
        done = self._finished.setdefault(collective, {})
        now = self.members(generation)
        for rank, others in done.items():
            if rank in now and others != members:
                raise InvariantError(
                    f"{worker} has the result of collective {collective} of ranks {list(members)}, and "
                    f"rank {rank} that of {list(others)}"
                )
        done[worker.joined_as] = members
        place = members.index(worker.joined_as)
        if len(members) > 1:
            self.expected(collective).check(str(worker), members, place, module, out)
        self.collectives += 1

    def lacking(self, generation: int, message: int) -> list[int]:
        """The ranks that have not received a message, and may still want it."""
        return [
            worker.rank
            for worker in self.of_generation(generation)
            if worker.endpoint is not None
            and ahead(worker.endpoint.position().received_messages, message) <= 0
        ]

    def expected_psn(self, generation: int, sender: int) -> int:
        """What the receiver of a rank's flow waits for."""
        after, first = self._flows[generation, sender]
        receiver = self._by_rank[generation].get(after)
        if receiver is None:
            return first
        endpoint = receiver.endpoint
        if endpoint is None or endpoint.config.generation != generation:
            return self._stood.get((generation, after), first)
        expected: int = endpoint.position().expected_psn
        return expected

    def check_windows(self, worker: Peer) -> None:
        """Who is how far ahead of whom, after something happened to a worker."""
        endpoint = worker.endpoint
        if endpoint is None or worker.ready is None:
            return
        generation = endpoint.config.generation
        own = endpoint.position()
        if ahead(own.sent_messages, own.received_messages) > self._windows[generation]:
            raise InvariantError(
                f"{worker} has sent {own.sent_messages} messages and received {own.received_messages}: more "
                f"than its window of {self._windows[generation]}"
            )
        first, next_psn = own.first_unacked_psn, own.next_psn
        expected = own.expected_psn
        peers = self._by_rank[generation]
        after = peers.get(worker.ready.successor.rank)
        if (
            after is not None
            and after.endpoint is not None
            and after.endpoint.config.generation == generation
        ):
            self._check_flow(worker, first, after, after.endpoint.position().expected_psn, next_psn)
        before = peers.get(worker.ready.predecessor.rank)
        if (
            before is not None
            and before.endpoint is not None
            and before.endpoint.config.generation == generation
        ):
            theirs = before.endpoint.position()
            self._check_flow(before, theirs.first_unacked_psn, worker, expected, theirs.next_psn)

    def _check_flow(self, sender: Peer, unacked: int, receiver: Peer, expected: int, next_psn: int) -> None:
        """What is acknowledged has arrived, and nothing arrives that was not sent."""
        if (expected - unacked) & PSN_MASK > (next_psn - unacked) & PSN_MASK:
            raise InvariantError(
                f"{sender} has all before PSN {unacked:#x} acknowledged and is to send {next_psn:#x} next, "
                f"and {receiver} expects {expected:#x}"
            )


class Generations(dict[int, JobRun]):
    """Whose each is; what switches ask of them, as `watched.Knowledge`."""

    def is_running(self, generation: int) -> bool:
        """Whether somebody may still want sums of that generation."""
        job = self.get(generation)
        # A worker that was given up may not have heard of it; nothing that it sends is added any more. Who
        # leaves has all that it will ever want, and may not have heard that all others do so too.
        return (
            job is not None
            and job.newest <= generation
            and not all(worker.is_leaving for worker in job.of_generation(generation))
        )

    def lacking(self, generation: int, message: int) -> list[int]:
        """The ranks that have not received a message."""
        job = self.get(generation)
        return [] if job is None else job.lacking(generation, message)

    def expected_psn(self, generation: int, sender: int) -> int:
        """What the receiver of a rank's flow waits for."""
        return self[generation].expected_psn(generation, sender)
