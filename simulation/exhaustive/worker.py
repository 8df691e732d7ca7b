"""A worker that ships, one step at a time: its session, its member, its account of collectives.

What `host_agent`'s shells do with threads is a step of its own here, whenever the explorer says so: to
connect, to call the next collective, to notice that one was cut. A collective is a number that all of its
generation's workers have to enter; who has entered, and so who may finish, is the explorer's affair. Its
result says in which generation it was made, as the account keeps it and gives it to others.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, Final

import numpy as np

from controller.api.messages import (
    Abort,
    Ended,
    FromController,
    Heartbeat,
    Join,
    Leave,
    Left,
    Mode,
    Ready,
    Up,
)
from controller.api.messages import Worker as Addresses
from host_agent.collectives.plan import Call, Restored, Shared, Steps
from host_agent.member import (
    Again,
    Connect,
    Cut,
    Exhausted,
    Inconsistent,
    Member,
    Offer,
    Repair,
    Say,
    Settle,
    WentOn,
)
from host_agent.membership import Request, View
from host_agent.recovery import Attempt, LinkCut, through_renewals
from host_agent.session import NS, Close, Open, Send, Session
from simulation.exhaustive.canonical import Canon, Moments
from simulation.exhaustive.control_scopes import ControlScope
from simulation.exhaustive.controller import BEAT_S, JOB, PATIENCE_S, config_of
from simulation.exhaustive.parts import Given
from simulation.faults.control import HungUp

_BEGINS_NS: Final = 1_000_000_000 * NS
_FIRST_QPN: Final = 0x1000
_SUM, _REPAIR = "sum", "repair"


@dataclass(frozen=True)
class Connected:
    """It has its connection of that generation."""

    generation: int


@dataclass(frozen=True)
class Enter:
    """It takes part in a collective of that generation from now on. `kind`: "sum" or "repair"; `members`: who
    has to, as they joined; `result`: what it has to give to the others.
    """

    generation: int
    kind: str
    collective: int
    mode: Mode
    members: tuple[int, ...]
    result: int = 0


@dataclass(frozen=True)
class Closed:
    """It has ended its side of the stream; `told`: as the job is over."""

    told: bool


@dataclass(frozen=True)
class WorkerFacts:
    """`steps`: what it can do by itself. `waits`: what it has entered, and has no result of; `settles`: for
    all that was sent to arrive. `generation`: of its connection, None where it has none; `newest`: of those
    that it had; `members`: its job's workers, as they joined. `finished`: so many collectives; `results`: the
    generations that those were made in which its user has. `timer`: "", "open" or "ask". `told`: why it has
    no job any more; `over`: it does nothing more.
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
    running: int | None
    timer: str
    talks: bool
    told: str
    over: bool
    renewal: int


class WorkerPart:
    """One rank. What it is given: "start", ("hear", message), ("hung", HungUp), "timer", ("time", is
    connected, is idle), "break", ("get", holder's result) and each of its `steps`. What comes out: messages,
    Connected, Enter, Closed.
    """

    def __init__(self, scope: ControlScope, rank: int) -> None:
        self.scope = scope
        self.rank = rank
        self.now = _BEGINS_NS
        self.state = "new"
        self.told = ""
        self.session = Session(self._request())
        self.member: Member | None = None
        self.asked: list[Any] = []  # before there is a member to hear it
        self.talks = False
        self.generation: int | None = None
        self.newest = 0  # that it has been connected in
        self.offers = 0
        self.collective = 0
        self.run: Steps[Any] | None = None
        self.entered: Enter | None = None
        self.is_cut = False  # what runs, and it has not noticed
        self.result = np.zeros(1, np.int64)
        self.work: deque[Any] = deque()
        self.repairs: Repair | None = None  # it has entered that
        self.unreturned: int | None = None
        self.results: list[int] = []
        self.out: list[Any] = []

    def _request(self) -> Join:
        host = config_of(self.scope).hosts[self.rank]
        qpn = _FIRST_QPN * (self.rank + 1)
        return Join(
            job=JOB,
            world_size=self.scope.workers,
            worker=Addresses(
                rank=self.rank,
                mac=host.mac,
                ip=IPv4Address(host.ip),
                qpn_out=qpn,
                psn_out=0,
                qpn_in=qpn + 1,
                hostname=host.name,
            ),
            path_mtu_max=1024,
            elastic=self.scope.elastic,
        )

    # What it is given

    def apply(self, given: Given) -> tuple[Any, ...]:
        """One step. AssertionError: it is wrong."""
        self.out = []
        verb, *what = given
        getattr(self, f"_{verb}")(*what)
        self._act()
        return tuple(self.out)

    def _start(self) -> None:
        self.state = "joining"
        self.session.begin(self.now)

    def _hear(self, said: FromController) -> None:
        if self.session.is_over:
            return
        self.session.heard(said, self.now)
        match said:
            case Ready() if self.state == "joining":
                self.state = "ready"
            case _ if isinstance(said, Request):
                if self.member is None:
                    self.asked.append(said)
                    self._begin()
                else:
                    self.member.hear(said)
            case Left():
                self._finish("left")
            case Ended():
                self._finish("ended", said.reason)
        self._return()

    def _hung(self, hung: HungUp) -> None:
        self.talks = False
        final = hung.final if self.session.ready is not None else hung.refused
        self._broken(hung.why, final=final)

    def _break(self) -> None:
        self.talks = False
        self._broken("the connection broke", final=False)

    def _broken(self, why: str, *, final: bool) -> None:
        if self.session.is_over:
            return
        self.session.broken(why, self.now, final=final)
        if self.session.refused is not None:
            self._finish("ended", f"not taken in: {why}")
        elif self.session.ended is not None:
            self._finish("ended", self.session.ended.reason)

    def _timer(self) -> None:
        """Open a stream again, or ask for the lease again."""
        if self.talks:  # nobody will answer what was asked before, as nothing is under way
            lease = self.session._lease
            lease._number -= len(lease._sent)
            lease._sent.clear()
        while (due := self.session.next_timeout()) is not None:
            self.now = max(self.now, due)
            self.session.timeout(self.now)
            actions = self.session.actions()
            self._do(actions)
            if actions:
                return

    def _time(self, connected: bool, idle: bool) -> None:
        """It passes. Who waits to join has no patience any more where nothing came of that."""
        self.now += round(PATIENCE_S * NS)
        if connected:
            lease = deepcopy(
                self.session._lease
            )  # what is beaten meanwhile leaves no trace, so that it can end
            self.session.heard(Heartbeat(), self.now)
            self.session.timeout(self.now)
            self._do([action for action in self.session.actions() if not _is_beat(action)])
            self.session._lease = lease
        if idle and self.state in ("joining", "up"):
            why = "not all workers came"
            self.session.say(Abort(f"rank {self.rank} could not start: {why}"))
            self._act()
            self._finish("gave up", why)

    # What it does by itself

    def _connect(self) -> None:
        """For the first time."""
        assert self.session.ready is not None
        self._connected(self.session.ready.generation)
        self.state = "up"
        self.session.say(Up())
        self._begin()

    def _connected(self, generation: int) -> None:
        self.generation = self.newest = generation
        self.out.append(Connected(generation))

    def _begin(self) -> None:
        """Where joining is over, and the user has a communicator."""
        ready = self.session.ready
        if self.state != "up" or not self.session.has_begun:
            return
        assert ready is not None
        self.state = "running"
        # A Ready is of the first generation, as only a member comes into another.
        self.member = Member(ready, View.first(ready.rank, ready.world_size, ready.ring))
        asked, self.asked = self.asked, []
        for said in asked:
            self.member.hear(said)
            self._act_on_job()

    def _call(self) -> None:
        """The next collective, or leave."""
        assert self.member is not None
        if self.collective == self.scope.collectives:
            self.state = "leaving"
            self.session.say(Leave(self.collective))
            return
        number = self.collective
        self.member.calls.made(number, f"collective {number}".__str__)
        if not self.member.start(number):
            raise AssertionError(f"rank {self.rank} may not start collective {number}")
        self.session.running = number
        self.run = through_renewals(self.member.ledger, self._attempt)
        next(self.run)

    def _attempt(self) -> Attempt:
        """The collective, for the first time or anew."""
        member = self.member
        assert member is not None
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
                    f"rank {self.rank} runs collective {self.collective} of generation {member.generation} "
                    f"over connections of {self.generation}"
                )
            view = member.view
            self._enter(Enter(self.generation, _SUM, self.collective, member.mode, view.members))
        return Attempt(None, call, _sum(out))

    def _enter(self, what: Enter) -> None:
        self.entered = what
        self.out.append(what)

    def _get(self, generation: int) -> None:
        """The collective that it is in is over: its result, or the one that was given to it."""
        if self.repairs is not None:
            repairs, self.repairs = self.repairs, None
            assert self.member is not None
            result = np.array([generation], np.int64).view(np.uint8)
            self._repaired(repairs, result)
            return
        self._resume(generation)

    def _resume(self, generation: int | None) -> None:
        """Run on with a result; None: the connection was cut, and there is another one."""
        assert self.run is not None
        try:
            if generation is None:
                self.run.throw(LinkCut())
            else:
                self.run.send(generation)
        except StopIteration:
            self._done()

    def _done(self) -> None:
        assert self.member is not None
        self.run, self.entered, self.is_cut = None, None, False
        self.collective += 1
        if self.member.ledger.finished != self.collective:
            raise AssertionError(
                f"rank {self.rank} has ended collective {self.collective - 1}, and counts "
                f"{self.member.ledger.finished}"
            )
        self.unreturned = int(self.result[0])
        self.member.ended()
        self._act_on_job()
        self._return()

    def _return(self) -> None:
        """The user gets a result that is there, unless an elastic job may go on without this worker."""
        if self.unreturned is None or not self.session.is_member:
            return
        if self.session.confirm(self.now):
            self.session.running = None
            self.results.append(self.unreturned)
            self.unreturned = None

    def _park(self) -> None:
        """What runs learns that its connection is gone."""
        assert self.member is not None
        self.entered, self.is_cut = None, False
        self.member.parked()

    def _do_work(self) -> None:
        """The next of what takes time."""
        member = self.member
        assert member is not None
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
        """As `host_agent.recovery.repair`, but for how the result travels."""
        assert self.member is not None
        assert self.generation is not None
        mine = self.member.ledger.kept(repair.collective)
        if repair.view.world_size == 1:
            raise AssertionError(f"rank {self.rank} is alone, and is told to give its result to others")
        if repair.view.rank == repair.holder and not mine.view(np.int64).any():
            raise AssertionError(f"rank {self.rank} is to give a result that it has not")
        self.repairs = repair
        members = repair.view.members
        result = int(mine.view(np.int64)[0])
        self._enter(Enter(self.generation, _REPAIR, repair.collective, repair.mode, members, result))

    def _repaired(self, repair: Repair, result: Any) -> None:
        assert self.member is not None
        self.entered = None
        self.work.popleft()
        self.member.ledger.take(repair.collective, result)
        self.member.repaired(repair.renewal)

    # What its machines want

    def _act(self) -> None:
        self._act_on_job()
        self._do(self.session.actions())

    def _do(self, actions: Any) -> None:
        for action in actions:
            match action:
                case Open(first):
                    self.talks = True
                    self.out.append(first)
                case Send(message):
                    self.out.append(message)
                case Close():
                    if self.talks:
                        self.talks = False
                        self.out.append(Closed(told=self.session.ended is not None))

    def _act_on_job(self) -> None:
        member = self.member
        if member is None:
            return
        while actions := member.actions():
            for action in actions:
                self._act_on(action)
        while self.work and not self._is_wanted(self.work[0]):
            self.work.popleft()
            self.repairs = None

    def _act_on(self, action: Any) -> None:
        match action:
            case Say(message):
                self.session.say(message)
            case Cut(planned=planned):
                self._cut(planned)
            case Again():
                self._resume(None)
            case WentOn():
                pass
            case Exhausted():
                raise AssertionError(f"rank {self.rank} has had too many messages")
            case Inconsistent(reason=reason):
                raise AssertionError(f"rank {self.rank}: {reason}")
            case _:
                self.work.append(action)

    def _cut(self, planned: bool) -> None:
        self.generation = None
        if self.repairs is not None:
            self.repairs = self.entered = None
            self.work.popleft()
        if self.run is not None:
            self.is_cut = True
            if planned:
                raise AssertionError(
                    f"rank {self.rank} is in collective {self.collective}, which a move cuts"
                )

    def _is_wanted(self, work: Any) -> bool:
        assert self.member is not None
        if isinstance(work, Settle):
            return self.member.is_settling(work.move)
        return self.member.wants(work.renewal)

    def _finish(self, state: str, told: str = "") -> None:
        self.state, self.told = state, told
        self.generation = None
        self.work.clear()
        self.repairs = None
        if self.run is not None:
            self.run.close()
            self.run = None
        self.entered, self.is_cut = None, False
        if self.member is not None:
            self.member.stop()
        self.session.close()

    # What is to be seen of it

    @property
    def is_over(self) -> bool:
        return self.state in ("left", "ended", "gave up")

    def _steps(self) -> list[str]:
        if self.state == "ready":
            return ["connect"]
        if self.state not in ("running", "leaving") or self.member is None:
            return []
        steps = []
        idle = self.run is None and self.unreturned is None
        last = self.collective == self.scope.collectives
        if self.state == "running" and idle and (last or not self.member.is_holding):
            steps.append("call")
        if self.is_cut:
            steps.append("park")
        if self.work and not isinstance(self.work[0], Settle) and self.repairs is None:
            steps.append("do_work")
        return steps

    def facts(self) -> WorkerFacts:
        """For the rest of the system."""
        member = self.member
        due = self.session.next_timeout()
        is_soon = due is not None and due - self.now < BEAT_S * NS / 2
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
            finished=0 if member is None else member.ledger.finished,
            results=tuple(self.results),
            running=self.session.running,
            timer=timer,
            talks=self.talks,
            told=self.told,
            over=self.is_over,
            renewal=0 if member is None else member.renewal,
        )

    def digest(self) -> bytes:
        """Of all that decides what it does next."""
        fields = {name: value for name, value in vars(self).items() if name not in ("now", "out", "scope")}
        return _CANON.digest(
            [fields], Moments(int, self.now, 1e17, BEAT_S * NS / 4, round(4 * PATIENCE_S / BEAT_S))
        )

    def close(self) -> None:
        """It is not used any more."""


def _sum(out: Any) -> Steps[None]:
    """Waits for the result, unless it is put in place."""
    generation: Any = 0
    try:
        generation = yield  # type: ignore[misc]
    except Restored:
        return
    out[0] = generation


def _is_beat(action: Any) -> bool:
    return isinstance(action, Send) and isinstance(action.message, Heartbeat)


_CANON: Final = Canon({"ControlScope"})
