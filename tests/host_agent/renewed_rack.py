"""Workers that run collectives on simulated racks, one rack a generation, and are cut where a test says.

Each worker is its program, a `ReplayLog` and what its user got; the user spoils all arrays as soon as it has
a result, as a training step does.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.api.messages import Mode
from host_agent.collectives.plan import Call, Steps
from host_agent.recovery import Attempt, LinkCut, ReplayLog, Window, is_consistent, repair, through_renewals
from p4reduce.simulation.cases import Case
from p4reduce.simulation.faults.schedule import Rates
from p4reduce.simulation.rack import configs
from tests.host_agent.rack import Simulation, check

Array = NDArray[Any]


@dataclass(eq=False)
class Member:
    """A worker: `identity` is the rank it began with."""

    identity: int
    replay_log: ReplayLog
    inputs: list[Array]
    results: list[Array] = field(default_factory=list)
    steps: Steps[Any] | None = None  # of the collective that it is in
    begin: Callable[[], Attempt] = field(init=False)
    out: Array = field(init=False)
    in_place: bool = False


class RenewedRack:
    """`cases` on workers that live longer than their connections."""

    def __init__(
        self,
        cases: Sequence[Case],
        world_size: int,
        *,
        in_place: bool,
        seed: int,
        window: int = 4,
        packets: int = 4,
        path_mtu: int = 256,
        faults: Rates | None = None,
    ) -> None:
        self.cases, self.seed, self.faults = list(cases), seed, faults
        self.shape = Window(window, packets, path_mtu)
        self.chance = random.Random(seed)
        self.given = [case.inputs(world_size, seed + number) for number, case in enumerate(cases)]
        self.members = [
            Member(
                rank, ReplayLog(self.shape), [given[rank].copy() for given in self.given], in_place=in_place
            )
            for rank in range(world_size)
        ]
        self.events = 0  # of all generations
        self.repaired = 0

    def run(
        self,
        mode: Mode,
        *,
        until: Callable[[int], bool] = lambda events: False,
        lost: Sequence[int] = (),
        stagger: int = 0,
        window: Window | None = None,
        ring: Sequence[int] = (),
        deaf: int | None = None,
    ) -> bool:
        """Run one generation, without the members at the places `lost`: to its end (True), or `until` an
        event.

        Then the connections are cut, one after the other, up to `stagger` events apart. `deaf`: a rank that
        nothing reaches any more as soon as it has sent all that it has posted.
        """
        self.members = [member for place, member in enumerate(self.members) if place not in lost]
        size = len(self.members)
        order = [rank for rank in ring if rank < size] or list(range(size))
        self.chance.shuffle(order)
        window = window or self.shape
        simulation = Simulation(
            configs(
                size,
                window=window.messages,
                packets=window.message_packets,
                path_mtu=window.path_mtu,
                psns=[self.chance.randrange(1 << 24) for _ in range(size)],
                ring=order,
            ),
            faults=self.faults,
            seed=self.chance.randrange(1 << 30),
        )
        if mode is Mode.RING:
            simulation.uninstall()
        if deaf is not None:
            _deafen(simulation, deaf)
        finished = [member.replay_log.finished for member in self.members]
        collective = min(finished)
        holder = next((rank for rank, count in enumerate(finished) if count > collective), None)
        for member in self.members:
            assert is_consistent(member.replay_log.finished, collective, held=holder is not None), finished
        self.repaired += holder is not None
        programs = [self._life(rank, mode, tuple(order), collective, holder, window) for rank in range(size)]
        try:
            return self._drive(simulation, programs, until, stagger)
        finally:
            simulation.close()

    def _drive(
        self, simulation: Simulation, programs: list[Steps[None]], until: Callable[[int], bool], stagger: int
    ) -> bool:
        for rank, worker in enumerate(simulation.workers):
            worker.program = programs[rank]
            simulation.advance(rank)
        events = itertools.count()
        simulation.until(lambda: simulation.settled() or until(next(events)), limit_s=3600)
        assert not any(worker.failure for worker in simulation.workers)
        self.events += next(events)
        if simulation.settled():
            return True
        ranks = list(range(len(self.members)))
        self.chance.shuffle(ranks)
        for rank in ranks:
            worker = simulation.workers[rank]
            worker.endpoint.halt()
            worker.waiting = None
            for _ in range(self.chance.randint(0, stagger)):
                if not simulation.step():
                    break
        return False

    def _life(
        self,
        rank: int,
        mode: Mode,
        ring: tuple[int, ...],
        collective: int,
        holder: int | None,
        window: Window,
    ) -> Steps[None]:
        """Do what a worker does in one generation."""
        member, size = self.members[rank], len(self.members)
        replay_log = member.replay_log
        if holder is not None:
            call = Call(rank=rank, world_size=size, collective=collective, ring=ring)
            yield from repair(replay_log, call, holder=holder, mode=mode)
        replay_log.window = window
        member.begin = partial(self._begin, member, rank, size, mode, ring)
        while len(member.results) < len(self.cases):
            try:
                if member.steps is not None:
                    step = member.steps.throw(LinkCut())
                else:
                    member.steps = through_renewals(replay_log, lambda: member.begin())
                    step = next(member.steps)
                while True:
                    step = member.steps.send((yield step))
            except StopIteration:
                self._end(member)

    def _begin(self, member: Member, rank: int, size: int, mode: Mode, ring: tuple[int, ...]) -> Attempt:
        """Begin a collective as the communicator does; the output may be the input where that is allowed."""
        number = len(member.results)
        case, source = self.cases[number], member.inputs[number]
        if mode is Mode.RING:
            case = replace(case, module="ring")
        same = member.in_place and case.name == "all_reduce"
        member.out = source if same else case.output(size)
        call = case.call(rank, size, number, ring)
        return Attempt(source if same else None, call, case.steps(call, source, member.out))

    def _end(self, member: Member) -> None:
        member.steps = None
        member.results.append(member.out.copy())
        for array in (member.out, member.inputs[len(member.results) - 1]):
            array.view(np.uint8)[...] = 0xA5

    def check(self, number: int) -> None:
        """Check that collective `number` of a job that lost nobody is right on every rank."""
        check(self.cases[number], self.given[number], [member.results[number] for member in self.members])


def _deafen(simulation: Simulation, rank: int) -> None:
    arrive = simulation.at_worker

    def at_worker(at: int, frame: bytes) -> None:
        progress = simulation.workers[at].endpoint.progress()
        if at != rank or progress.sent_messages < progress.posted_messages:
            arrive(at, frame)

    simulation.at_worker = at_worker  # type: ignore[method-assign, assignment]
