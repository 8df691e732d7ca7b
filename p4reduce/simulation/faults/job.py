"""A job of a run: what its workers are to compute, and checks of what may never be between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from controller.api.messages import Ready
from controller.config import HostConfig
from p4reduce.simulation.faults.generation import Generation, Peer
from p4reduce.simulation.faults.results import Expected
from p4reduce.simulation.faults.scene import Scene
from p4reduce.simulation.faults.schedule import JobPlan
from p4reduce.simulation.invariant import InvariantError

_Made = tuple[tuple[int, ...], str]


class JobRun:
    """A job. `number` counts from 1; `generations`: of all jobs; `began` is called when this one runs."""

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
        self.name = scene.schedule.name_of(number - 1)
        self.gang = scene.schedule.gang_of(number - 1)
        self.plan = plan
        self.plan_size = len(plan.hosts)
        self.collectives = 0
        self.renewals = 0
        self.newest = 0  # the generation that a renewal has told of
        self.created = False
        self.running_ns = 1 << 62  # since when
        self.failures: list[str] = []
        self.unfinished = self.plan_size  # workers that have not left, and were not told that it is over
        self._of_all = generations
        self.began = began
        self.generations: dict[int, Generation] = {}
        # By collective: which workers have its result, as they joined, and of whom it is; how it was made.
        self._made: dict[int, dict[int, _Made]] = {}  # in their accounts
        self._finished: dict[int, dict[int, tuple[int, ...]]] = {}  # in their users' hands
        self._expected: dict[int, Expected] = {}
        # By collective, of all planes: why it was not done, empty where it was, and who says so.
        self.outcomes: dict[int, tuple[str, int]] = {}
        self._roots: dict[int, int] = {}
        self._differs_at = scene.schedule.differs_at(number - 1)

    @property
    def over(self) -> bool:
        """True if every worker has left, was told that the job is over, or is dead."""
        return not self.unfinished

    def worker_over(self) -> None:
        """Note that one of its workers has come to its end."""
        self.unfinished -= 1
        if self.over:
            self.scene.note(f"{self.name} is over")

    def first_message(self, generation: int) -> int:
        """Return the number that the messages of a generation count from."""
        return self.plan.first_message if generation == min(self.generations) else 0

    def runs(self) -> None:
        """Note that the first of its workers may begin."""
        if self.running_ns > self.scene.clock.now_ns:
            self.running_ns = self.scene.clock.now_ns
            self.began(self.number)

    def host_of(self, rank: int) -> HostConfig:
        """Return the host that a rank runs on."""
        return self.scene.config.hosts[self.plan.hosts[rank]]

    def inputs(self, collective: int) -> list[NDArray[Any]]:
        """Return what each rank, as it joined, puts into a collective."""
        return self.expected(collective).inputs

    def expected(self, collective: int) -> Expected:
        """Return what has to come out of a collective."""
        if collective not in self._expected:
            case = self.plan.work[collective].case()
            self._expected[collective] = Expected(
                case, case.inputs(self.plan_size, self.plan.seed + collective)
            )
        return self._expected[collective]

    def _racks(self, generation: int) -> list[list[int]]:
        """Return a generation's ranks, by the leaf that they are behind."""
        racks: dict[str, list[int]] = {}
        for rank, joined_as in enumerate(self.generations[generation].members):
            racks.setdefault(self.host_of(joined_as).switch, []).append(rank)
        return list(racks.values())

    def connected(self, worker: Peer, ready: Ready) -> None:
        """Note that a worker has brought up its queue pairs."""
        if ready.generation not in self.generations:
            self.generations[ready.generation] = Generation(ready, self._racks)
            self._of_all[ready.generation] = self
        self.generations[ready.generation].connect(worker, ready)

    def closes(self, worker: Peer) -> None:
        """Note that a worker's queue pairs go."""
        assert worker.endpoint is not None
        config, expected_psn = worker.endpoint.config, worker.endpoint.position().expected_psn
        self.generations[config.generation].close(config.rank, expected_psn, self.scene.clock.now_ns)

    def made(self, worker: Peer, collective: int, generation: int, module: str, *, restored: bool) -> None:
        """Note that a worker has a collective's result, and gives it to others from now on.

        Its user may get it later. `restored`: another worker had it, and gave it.
        """
        made = self._made.setdefault(collective, {})
        members = self.generations[generation].members
        if restored:
            alive = [how for rank, how in made.items() if rank in members]
            if not made:
                raise InvariantError(
                    f"{worker} was given the result of collective {collective}, which nobody had"
                )
            members, module = alive[0] if alive else next(iter(made.values()))
        made[worker.joined_as] = members, module

    def takes_root(self, worker: Peer, collective: int, member: int) -> None:
        """Check that all workers take the same worker (as it joined) for the root of a broadcast."""
        if self._roots.setdefault(collective, member) != member:
            raise InvariantError(
                f"{worker} takes rank {member} for the root of collective {collective}, and another worker "
                f"rank {self._roots[collective]}"
            )

    def outcome(self, worker: Peer, collective: int, why: str) -> None:
        """Check that a call ends alike at all workers: done (empty), or not for the reason `why`.

        Machines may differ about a call of no elements. What a worker that has died heard no longer counts:
        the others begin anew, and a switch may serve them by then, or none.
        """
        if self._differs_at is not None and collective >= self._differs_at:
            return
        if not self.plan.work[collective].travels:
            return
        at_other, other = self.outcomes.get(collective, (why, 0))
        if at_other != why and other in worker.members:
            raise InvariantError(
                f"{worker}: collective {collective} is {why!r}, and {at_other!r} at rank {other}"
            )
        self.outcomes[collective] = why, worker.joined_as

    def begins_anew(self, worker: Peer, collective: int) -> None:
        """Forget a worker's result of a collective in this plane, if it has one: it begins anew."""
        self._made.get(collective, {}).pop(worker.joined_as, None)

    def check_planes(self, worker: Peer, others: list[JobRun], collective: int) -> None:
        """Require that the results that a machine has of all planes are of the same machines."""
        own, _ = self._made[collective][worker.joined_as]
        for job in others:
            members, _ = job._made[collective][worker.joined_as]
            if members != own:
                raise InvariantError(
                    f"{worker} has the result of collective {collective} of machines {list(own)} in "
                    f"{self.name}, and of {list(members)} in {job.name}"
                )

    def finished(self, worker: Peer, collective: int, generation: int, out: NDArray[Any]) -> None:
        """Check a collective's result that a worker's user has."""
        if self.gang is not None and not out.size:
            return  # nobody waits for anybody of another machine there
        everybody = len(self.generations[generation].members) == self.plan_size
        if self._differs_at is not None and collective >= self._differs_at and everybody:
            raise InvariantError(f"{worker} has a result of collective {collective}, of which calls differ")
        members, module = self._made[collective][worker.joined_as]
        done = self._finished.setdefault(collective, {})
        now = self.generations[generation].members
        for rank, others in done.items():
            if rank in now and others != members:
                raise InvariantError(
                    f"{worker} has the result of collective {collective} of ranks {list(members)}, and "
                    f"rank {rank} that of {list(others)}"
                )
        done[worker.joined_as] = members
        place = members.index(worker.joined_as)
        if len(members) > 1:
            root = self._roots.get(collective)
            self.expected(collective).check(str(worker), members, place, module, out, root)
        self.collectives += 1


class Generations(dict[int, JobRun]):
    """Jobs by generation; they tell switches what `watched.Knowledge` asks."""

    def is_running(self, generation: int) -> bool:
        """Return whether somebody may still want sums of that generation."""
        job = self.get(generation)
        # A worker that was given up may not have heard of it; nothing that it sends is added any more. Who
        # leaves has all that it will ever want, and may not have heard that all others do so too.
        return (
            job is not None
            and job.newest <= generation
            and not all(worker.is_leaving for worker in job.generations[generation].up())
        )

    def lacking(self, generation: int, message: int) -> list[int]:
        """Return the ranks that have not received a message."""
        job = self.get(generation)
        return [] if job is None else job.generations[generation].lacking(message)

    def numbered(self, generation: int) -> int:
        """Return how many messages its workers have had, as far as they are up."""
        job = self.get(generation)
        return 0 if job is None else job.generations[generation].numbered

    def expected_psn(self, generation: int, sender: int) -> int:
        """Return the PSN that the receiver of a rank's flow waits for."""
        return self[generation].generations[generation].expected_psn(sender)
