"""A worker of a scope: an `Agent` that makes one step at a time.

What `host_agent`'s shells do with threads is a step of its own here, which the explorer chooses: to connect,
to call the next collective, to notice that one was cut. A collective is a number that all of its generation's
workers have to enter; the explorer keeps account of who has entered, and so may finish. Its result says in
which generation it was made, as the account keeps it and gives it to others.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from controller.api.messages import (
    Abort,
    Ended,
    FromController,
    Heartbeat,
    Join,
    Mode,
    Ready,
    Up,
)
from host_agent.collectives.plan import Call, Restored, Shared, Steps
from host_agent.member import Action as OnJob
from host_agent.member import Again, Connect, Cut, Offer, Repair, Settle
from host_agent.membership import Request
from host_agent.recovery import Attempt, LinkCut
from host_agent.session import NS, Action, Break, Close, Open, Send, Session
from p4reduce.simulation.exhaustive.canonical import Canon, Moments
from p4reduce.simulation.exhaustive.control_scopes import ControlScope
from p4reduce.simulation.exhaustive.controller import BEAT_S, JOB, PATIENCE_S, config_of
from p4reduce.simulation.exhaustive.parts import Given
from p4reduce.simulation.faults.agent import Agent, addresses
from p4reduce.simulation.faults.control import HungUp

_BEGINS_NS: Final = 1_000_000_000 * NS
_FIRST_QPN: Final = 0x1000
_SUM, _REPAIR = "sum", "repair"


@dataclass(frozen=True)
class Connected:
    """The worker has its connection of that generation."""

    generation: int


@dataclass(frozen=True)
class Enter:
    """The worker takes part in a collective of that generation from now on.

    `kind`: "sum" or "repair"; `members`: the workers that have to, as they joined; `result`: what it has to
    give to the others.
    """

    generation: int
    kind: str
    collective: int
    mode: Mode
    members: tuple[int, ...]
    result: int = 0


@dataclass(frozen=True)
class Closed:
    """The worker has ended its side of the stream; `told`: because the job is over."""

    told: bool


@dataclass(frozen=True)
class WorkerFacts:
    """A worker's state, as far as others need it.

    `steps`: what it can do by itself. `waits`: what it has entered, and has no result of; `settles`: it waits
    for all that was sent to arrive. `generation`: its connection's, None if it has none; `newest`: that of
    its newest connection; `members`: its job's workers, as they joined. `finished`: the number of finished
    collectives; `results`: the generations in which the user's results were made. `beat`: its next heartbeat,
    without a number. `timer`: "", "open" or "ask". `told`: why it has no job any more; `over`: it does
    nothing more.
    """

    state: str
    steps: tuple[str, ...]
    waits: Enter | None
    settles: bool
    generation: int | None
    newest: int
    members: tuple[int, ...]
    finished: int
    results: tuple[int, ...]
    beat: Heartbeat
    timer: str
    told: str
    over: bool
    renewal: int


class WorkerPart(Agent):
    """One rank.

    It is given: "start", ("hear", message), ("hung", HungUp), "timer", ("time", is connected, is idle),
    ("get", holder's result) and each of its `steps`. Out come: messages, Connected, Enter, Closed.
    """

    def __init__(self, scope: ControlScope, rank: int) -> None:
        super().__init__()
        self.scope = scope
        self.rank = rank
        self.now_ns = _BEGINS_NS
        self.session = Session(self._request())
        self.asked: list[Request] = []  # before there is a member to hear it
        self.talks = False
        self.generation: int | None = None
        self.newest = 0  # that it has been connected in
        self.offers = 0
        self.entered: Enter | None = None
        self.is_cut = False  # what runs, and it has not noticed
        self.result = np.zeros(1, np.int64)
        self.work: deque[Any] = deque()
        self.repairs: Repair | None = None  # it has entered that
        self.results: list[int] = []
        self.out: list[Any] = []

    def __str__(self) -> str:
        return f"rank {self.rank}"

    def _request(self) -> Join:
        host = config_of(self.scope).hosts[self.rank]
        return Join(
            job=JOB,
            world_size=self.scope.workers,
            worker=addresses(host, self.rank, qpn=_FIRST_QPN * (self.rank + 1)),
            path_mtu_max=1024,
            elastic=self.scope.elastic,
        )

    # What it is given

    def apply(self, given: Given) -> tuple[Any, ...]:
        """Make one step. Raise AssertionError if it is wrong."""
        self.out = []
        verb, *what = given
        getattr(self, _GIVEN.get(verb, f"_{verb}"))(*what)
        if self.member is not None:
            self._act_on_job()
        self._act()
        return tuple(self.out)

    def _heard(self, said: FromController) -> None:
        if not self.session.is_over:
            super()._heard(said)

    def _set_up(self, ready: Ready) -> None:
        if self.state == "joining":
            self.state = "ready"

    def _asked(self, request: Request) -> None:
        if self.member is not None:
            super()._asked(request)
        else:
            self.asked.append(request)
            self._begin()

    def _broken(self, hung_up: HungUp) -> None:
        self.talks = False
        super()._broken(hung_up)

    def _timer(self) -> None:
        """Open a stream again, or ask for the lease again."""
        if self.talks:  # nobody will answer what was asked before, as nothing is under way
            lease = self.session._lease
            lease._number -= len(lease._sent)
            lease._sent.clear()
        while (due := self.session.next_timeout()) is not None:
            self.now_ns = max(self.now_ns, due)
            self.session.timeout(self.now_ns)
            actions = self.session.actions()
            self._do(actions)
            if actions:
                return

    def _time(self, connected: bool, idle: bool) -> None:
        """Let time pass. A worker that is still joining gives up if nothing happened."""
        self.now_ns += round(PATIENCE_S * NS)
        if connected:
            lease = deepcopy(self.session._lease)  # it has no trace of what is beaten, so that it can end
            self.session.heard(Heartbeat(), self.now_ns)
            self.session.timeout(self.now_ns)
            self._do([action for action in self.session.actions() if not _is_beat(action)])
            self.session._lease = lease
        if idle and self.state in ("joining", "up"):
            why = "not all workers came"
            self.say(Abort(f"{self} could not start: {why}"))
            self._finish("ended", why)

    # What it does by itself

    def _connect(self) -> None:
        """Connect for the first time."""
        assert self.session.ready is not None
        self._connected(self.session.ready.generation)
        self.state = "up"
        self.say(Up())
        self._begin()

    def _connected(self, generation: int) -> None:
        self.generation = self.newest = generation
        self.out.append(Connected(generation))

    def _begin(self) -> None:
        """Begin to run, once joining is over and the user has a communicator."""
        ready = self.session.ready
        if self.state != "up" or not self.session.has_begun:
            return
        assert ready is not None
        self.state = "running"
        self._enter(ready)
        asked, self.asked = self.asked, []
        for said in asked:
            super()._asked(said)

    def _call(self) -> None:
        """Call the next collective, or leave."""
        if self.collective == self.scope.collectives:
            self._leave()
            return
        if not self._start():
            raise AssertionError(f"{self} may not start collective {self.collective}")
        assert self._whole is not None
        next(self._whole)

    def _attempt(self) -> Attempt:
        member = self.in_job
        self.session.counted = Heartbeat(generation=member.generation)
        self.result = out = np.zeros(1, np.int64)
        call = Call(
            rank=member.view.rank,
            world_size=member.view.world_size,
            collective=self.collective,
            shared=Shared(out, whole=True),
        )
        if self.generation is not None:
            if self.generation != member.generation:
                raise AssertionError(
                    f"{self} runs collective {self.collective} of generation {member.generation} over "
                    f"connections of {self.generation}"
                )
            members = member.view.members
            self._enters(Enter(self.generation, _SUM, self.collective, member.mode, members))
        return Attempt(None, call, summed(out))

    def _enters(self, what: Enter) -> None:
        self.entered = what
        self.out.append(what)

    def _get(self, generation: int) -> None:
        """Finish the collective that it is in with its result, or the repair with the result it was given."""
        if self.repairs is not None:
            repairs, self.repairs = self.repairs, None
            self.entered = None
            self.work.popleft()
            self.in_job.replay_log.take(repairs.collective, np.array([generation], np.int64).view(np.uint8))
            self.in_job.repaired(repairs.renewal)
        else:
            self._resume(generation)

    def _resume(self, generation: int | None) -> None:
        """Run on with a result; None: the connection was cut, and there is another one."""
        assert self._whole is not None
        try:
            if generation is None:
                self._whole.throw(LinkCut())
            else:
                self._whole.send(generation)
        except StopIteration:
            self.entered, self.is_cut = None, False
            self._done(int(self.result[0]))

    def _returned(self, result: Any) -> None:
        self.session.running = None
        self.results.append(result)

    def _park(self) -> None:
        """Tell what runs that its connection is gone."""
        self.entered, self.is_cut = None, False
        self.in_job.parked()

    def _do_work(self) -> None:
        """Do the next of what takes time."""
        member = self.in_job
        match self.work[0]:
            case Settle(move):
                self.work.popleft()
                member.settled(move)
            case Offer(renewal):
                self.work.popleft()
                self.offers += 1
                qpn = _FIRST_QPN * (self.rank + 1) + 2 * self.offers
                member.offered(renewal, qpn_out=qpn, psn_out=0, qpn_in=qpn + 1)
            case Connect(renewal, ready):
                self.work.popleft()
                if member.is_renewing and member.wants(renewal):
                    self._connected(ready.generation)
                member.connected(renewal)
            case Repair() as repair:
                self._enter_repair(repair)

    def _enter_repair(self, repair: Repair) -> None:
        """Enter a repair, as `host_agent.recovery.repair` does, but for how the result travels."""
        assert self.generation is not None
        mine = self.in_job.replay_log.kept(repair.collective)
        if repair.view.rank == repair.holder and not mine.view(np.int64).any():
            raise AssertionError(f"rank {self.rank} is to give a result that it has not")
        self.repairs = repair
        members = repair.view.members
        result = int(mine.view(np.int64)[0])
        self._enters(Enter(self.generation, _REPAIR, repair.collective, repair.mode, members, result))

    # What its machines want

    def _carry_out(self, action: Action | OnJob) -> None:
        match action:
            case Open(first):
                self.talks = True
                self.out.append(first)
            case Send(message):
                self.out.append(message)
            case Break():
                raise AssertionError(f"{self} has heard nothing for too long")
            case Close() if self.talks:
                self.talks = False
                self.out.append(Closed(told=isinstance(self.end, Ended)))
            case Cut(planned=planned):
                self._cut(planned)
            case Again():
                self._resume(None)
            case Settle() | Offer() | Connect() | Repair():
                self.work.append(action)

    def _act_on_job(self) -> None:
        super()._act_on_job()
        while self.work and not self._is_wanted(self.work[0]):
            self.work.popleft()
            self.repairs = None

    def _cut(self, planned: bool) -> None:
        self.generation = None
        if self.repairs is not None:
            self.repairs = self.entered = None
            self.work.popleft()
        if self._whole is not None:
            self.is_cut = True
            if planned:
                raise AssertionError(
                    f"rank {self.rank} is in collective {self.collective}, which a move cuts"
                )

    def _is_wanted(self, work: Any) -> bool:
        if isinstance(work, Settle):
            return self.in_job.is_settling(work.move)
        return self.in_job.wants(work.renewal)

    def _close(self) -> None:
        self.generation = None
        self.work.clear()
        self.repairs = None
        if self._whole is not None:
            self._whole.close()
            self._whole = None
        self.entered, self.is_cut = None, False
        if self.member is not None:
            self.member.stop()

    # What is to be seen of it

    def _steps(self) -> list[str]:
        if self.state == "ready":
            return ["connect"]
        if self.state not in ("running", "leaving") or self.member is None:
            return []
        steps = []
        idle = self._whole is None and self._unreturned is None
        last = self.collective == self.scope.collectives
        if self.state == "running" and idle and (last or not self.member.is_holding):
            steps.append("call")
        if self.is_cut:
            steps.append("park")
        if self.work and not isinstance(self.work[0], Settle) and self.repairs is None:
            steps.append("do_work")
        return steps

    def facts(self) -> WorkerFacts:
        """Return what the rest of the system needs of it."""
        member = self.member
        due = self.session.next_timeout()
        is_soon = due is not None and due - self.now_ns < BEAT_S * NS / 2
        timer = ("ask" if self.talks else "open") if is_soon and self.state != "new" else ""
        ready = self.session.ready
        members = member.view.members if member is not None else tuple(range(self.scope.workers))
        return WorkerFacts(
            state=self.state,
            steps=tuple(self._steps()),
            waits=self.entered,
            settles=bool(self.work) and isinstance(self.work[0], Settle),
            generation=self.generation,
            newest=self.newest,
            members=members if ready is not None else (),
            finished=0 if member is None else member.replay_log.finished,
            results=tuple(self.results),
            beat=replace(self.session.counted, running=self.session.running),
            timer=timer,
            told=self.end.reason if isinstance(self.end, Ended) else self.end or "",
            over=self.over,
            renewal=0 if member is None else member.renewal,
        )

    def digest(self) -> bytes:
        """Return the digest of all that decides what it does next."""
        fields = {name: value for name, value in vars(self).items() if name not in ("now_ns", "out", "scope")}
        return _CANON.digest(
            [fields], Moments(int, self.now_ns, 1e17, BEAT_S * NS / 4, round(4 * PATIENCE_S / BEAT_S))
        )

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def summed(out: Any) -> Steps[None]:
    """Wait for the result, unless it is put in place."""
    generation: Any = 0
    try:
        generation = yield  # type: ignore[misc]
    except Restored:
        return
    out[0] = generation


def _is_beat(action: Any) -> bool:
    return isinstance(action, Send) and isinstance(action.message, Heartbeat)


# Where what it is given has another name here.
_GIVEN: Final = {"start": "_join", "hear": "_heard", "hung": "_broken"}
_CANON: Final = Canon({"ControlScope"})
