"""A worker of a gang's scope: the gang and the member that ship, one step at a time.

Its session is left out: what the controller says comes from `gang.py`. Closing a connection and making
another take no time of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, Final

import numpy as np

from controller.api.messages import FromWorker, Join, Mode, Ready
from controller.api.messages import Worker as Addresses
from host_agent.collectives.plan import Call, Shared
from host_agent.machine.gang import Stage
from host_agent.member import Action as OnJob
from host_agent.member import Again, Connect, Cut, Drop, Offer, Repair, WentOn
from host_agent.membership import Request
from host_agent.recovery import Attempt, LinkCut
from host_agent.session import Action, Session
from p4reduce.simulation.exhaustive.canonical import Canon, Moments
from p4reduce.simulation.exhaustive.gang_scopes import CALLS, CANCEL, GangScope
from p4reduce.simulation.exhaustive.parts import Given
from p4reduce.simulation.exhaustive.worker import summed
from p4reduce.simulation.faults.agent import Agent
from p4reduce.simulation.faults.machine import InMachine, Memory
from p4reduce.simulation.faults.schedule import Work

FIRST: Final = 1  # generation


@dataclass(frozen=True)
class Runs:
    """A collective that a worker runs in its plane: `number` of that generation.

    `what`: the call, which all have to run alike.
    """

    generation: int
    number: int
    members: tuple[int, ...]
    asks: bool
    what: tuple[Any, ...]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call. `made`: its result's generation (FIRST in a rigid gang); None: no result."""

    refused: str | None
    made: int | None


@dataclass(frozen=True)
class MateFacts:
    """A worker's state, as far as the gang needs it.

    `stage`: of its call, the user's number `call`. `entered`: by generation, the last that it began there.
    `kept`: what it has of its plane's last result; `told`: why it is over, if it has found that out.
    """

    stage: Stage
    call: int
    memory: Memory
    seen: tuple[Memory, ...]
    runs: Runs | None
    entered: tuple[Runs, ...]
    repairs: Repair | None
    kept: int
    outcomes: tuple[Outcome, ...]
    dropped: tuple[tuple[int, int], ...]
    over: bool
    told: str


@dataclass
class _Seen:
    memory: Memory = field(default_factory=Memory)


def ready_of(scope: GangScope, machine: int, machines: int, generation: int) -> Ready:
    """Return the Ready that a plane's worker of that rank is told."""
    where = address_of(machine)
    return Ready(
        job_id=1,
        generation=generation,
        window=1,
        message_packets=1,
        path_mtu=1024,
        mode=Mode.IN_NETWORK,
        successor=where,
        predecessor=where,
        heartbeat_interval_s=1.0,
        heartbeat_timeout_s=1.0,
        rank=machine,
        world_size=machines,
        lease_s=float(scope.elastic),
    )


def address_of(machine: int) -> Addresses:
    """Return made-up addresses: nothing is sent there."""
    return Addresses(
        rank=machine,
        mac="02:00:00:00:00:01",
        ip=IPv4Address("10.0.0.1"),
        qpn_out=16,
        qpn_in=17,
        psn_out=0,
        hostname="h",
    )


class MatePart(Agent):
    """One worker.

    It is given: "call", "leave", ("see", GPU, its memory), ("result", the plane's result), ("hear", the
    controller's message), ("repaired", result), ("end", why). Out come messages.
    """

    def __init__(self, scope: GangScope, worker: int) -> None:
        super().__init__()
        self.scope, self.worker = scope, worker
        self.joined_as, gpu = divmod(worker, scope.gpus)
        self.plan_size = scope.machines
        self.has_given_up = False
        self.settings = 0, 0
        where = address_of(self.joined_as)
        self.session = Session(Join(job="g", world_size=self.plan_size, worker=where, path_mtu_max=1024))
        self.machine = InMachine(self, gpu, scope.gpus, elastic=scope.elastic)
        self.seen = {mate: _Seen() for mate in range(scope.gpus) if mate != gpu}
        self.machine.mates.update(self.seen)
        self.runs: Runs | None = None
        self.entered: dict[int, Runs] = {}
        self.repairs: Repair | None = None
        self.array = np.zeros(1, np.int64)
        self.outcomes: list[Outcome] = []
        self.dropped: list[tuple[int, int]] = []
        self.told = ""
        self.out: list[Any] = []
        self._enter(ready_of(scope, self.joined_as, scope.machines, FIRST))
        self.in_job.gang_collective = 0 if scope.elastic else None
        self.state = "running"

    def __str__(self) -> str:
        return f"worker {self.worker}"

    # What it is given

    def apply(self, given: Given) -> tuple[Any, ...]:
        """Make one step. Raise AssertionError if it is wrong."""
        self.out = []
        verb, *what = given
        getattr(self, f"_{verb}")(*what)
        self._act_on_job()
        if not self.over:
            self.machine.look()
        self._act_on_job()
        return tuple(self.out)

    def _call(self) -> None:
        self.machine.begin()

    def _leave(self) -> None:
        self.state = "left"
        self.machine.leave()

    def _see(self, gpu: int, memory: Memory) -> None:
        self.seen[gpu].memory = memory

    def _result(self, result: int) -> None:
        self._resume(result)

    def _hear(self, said: Request) -> None:
        self.in_job.hear(said)

    def _repaired(self, result: int) -> None:
        repairs, self.repairs = self.repairs, None
        assert repairs is not None
        kept = np.array([result], np.int64).view(np.uint8)
        self.in_job.replay_log.take(repairs.collective, kept)
        self.in_job.repaired(repairs.renewal)

    def _end(self, why: str) -> None:
        self.state, self.told = "ended", why
        self._close()

    # What its gang wants

    def cancels(self, collective: int) -> bool:
        """Return whether its user cancels that call before its turn."""
        return self.scope.call(self.worker, self.collective) == CANCEL

    @property
    def work(self) -> Work:
        """The user's call that runs, or is made next."""
        return CALLS[self.scope.call(self.worker, self.collective)]

    def go(self) -> None:
        """Begin in the plane what is to run there, if it may."""
        if self.machine.is_running and self._whole is None and self._start():
            assert self._whole is not None
            next(self._whole)

    def nothing(self) -> Any:
        """Return the result of a call of no elements, which its planes do not see."""
        return (self.in_job.generation << 1,)

    def gathered(self, collective: int) -> None:
        """Require that all results are of one generation, and so of the same machines.

        A rigid gang's machines stay the same.
        """
        if not self.scope.elastic:
            return
        own = self.machine.post
        assert own is not None
        for gpu, seen in self.seen.items():
            theirs = next(post for post in seen.memory.posts if post.slot == own.slot)
            if theirs.result != own.result:
                raise AssertionError(
                    f"{self} has the result of step {collective} of generation {own.result[0] >> 1}, GPU "
                    f"{gpu} that of {theirs.result[0] >> 1}"
                )

    def call_is_over(self, result: Any, refused: str | None) -> None:
        """Note that the gang's call is over."""
        made = result and (result[0] >> 1 if self.scope.elastic else FIRST)
        self.outcomes.append(Outcome(refused, made))
        self.collective += 1

    def differ(self, reason: str) -> None:
        """Give up: workers of this machine have called different collectives."""
        self.has_given_up = True
        self._end(reason)

    def wake_mates(self) -> None:
        """Do nothing: mates see it when the explorer says so."""

    # What its member wants

    def say(self, what: FromWorker) -> None:
        """Say something to the controller."""
        self.out.append(what)

    def _attempt(self) -> Attempt:
        member, work = self.in_job, self.work
        start = self.machine.start
        assert start is not None
        view, asks = member.view, self.machine.is_asking
        self.array = out = np.zeros(1, np.int64)
        called = self.machine.gang.step, asks, () if asks else (work.name, work.reduction, start.root)
        self.runs = Runs(member.generation, self._number, view.members, asks, called)
        self.entered[member.generation] = self.runs
        for old in sorted(self.entered)[:-2]:
            del self.entered[old]
        call = Call(
            rank=view.rank,
            world_size=view.world_size,
            collective=self._number,
            shared=Shared(out, whole=True),
        )
        return Attempt(None, call, summed(out))

    def _resume(self, result: int | None) -> None:
        """Run on with a result; None: the connection was cut, and there is another one."""
        assert self._whole is not None
        try:
            if result is None:
                self._whole.throw(LinkCut())
            else:
                self._whole.send(result)
        except StopIteration:
            self.runs = None
            self.session.running = None
            self._ends()
            value = int(self.array[0])
            self.machine.came_to((value & 1,) if self.machine.is_asking else (value,))

    def _carry_out(self, action: Action | OnJob) -> None:
        member = self.in_job
        match action:
            case Cut():
                self.runs = self.repairs = None
                if self._whole is not None:
                    member.parked()
            case Offer(renewal):
                member.offered(renewal, qpn_out=16, psn_out=0, qpn_in=17)
            case Connect(renewal):
                member.connected(renewal)
            case Repair() as repair:
                self.repairs = repair
            case WentOn():
                if self.machine.is_dropped and self._whole is None:
                    self._begin_anew()
            case Drop():
                self._begin_anew()
            case Again():
                self._resume(None)

    def _begin_anew(self) -> None:
        whole, self._whole, self.runs = self._whole, None, None
        if whole is not None:
            whole.close()
            self.session.running = None
            self.in_job.ended()
        if (post := self.machine.post) is not None:
            self.dropped.append((self.collective, post.result[0] >> 1))
        self.machine.drop()

    def _set_up(self, ready: Ready) -> None:
        """Do nothing: it is set up from the beginning."""

    def _returned(self, result: Any) -> None:
        """Do nothing: the gang returns the result."""

    def _close(self) -> None:
        if self._whole is not None:
            self._whole.close()
        self._whole = self.runs = self.repairs = None

    # What is to be seen of it

    def facts(self) -> MateFacts:
        """Return what the rest of the gang needs of it."""
        kept = self.in_job.replay_log._kept
        return MateFacts(
            stage=self.machine.gang.stage,
            call=self.collective,
            memory=self.machine.memory,
            seen=tuple(self.seen[gpu].memory for gpu in sorted(self.seen)),
            runs=self.runs,
            entered=tuple(self.entered.values()),
            repairs=self.repairs,
            kept=int(np.frombuffer(kept, np.int64)[0]) if kept else 0,
            outcomes=tuple(self.outcomes),
            dropped=tuple(self.dropped),
            over=self.over,
            told=self.told,
        )

    def digest(self) -> bytes:
        """Return the digest of all that decides what it does next."""
        fields = {
            name: value for name, value in vars(self).items() if name not in ("out", "scope", "session")
        }
        return _CANON.digest([fields], Moments(int, 0, 0, 1, 0))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


_CANON: Final = Canon({"GangScope", "Session"})
