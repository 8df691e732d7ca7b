"""A worker's process around the machines that ship: it carries out what `Session` and `Member` want.

Subclasses decide what takes time, and how anything gets to the controller or to other workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from controller.api.messages import (
    Ended,
    FromController,
    FromWorker,
    Heartbeat,
    Leave,
    Left,
    Ready,
    Resumed,
    Waiting,
)
from controller.api.messages import Worker as Addresses
from controller.config import HostConfig
from host_agent.collectives.plan import Steps
from host_agent.member import Action as OnJob
from host_agent.member import Inconsistent, Member, Repair, Say
from host_agent.membership import Request, View
from host_agent.recovery import Attempt, through_renewals
from host_agent.session import Action, Session
from p4reduce.simulation.faults.control import HungUp
from p4reduce.simulation.invariant import InvariantError


def addresses(host: HostConfig, rank: int, *, qpn: int, psn: int = 0) -> Addresses:
    """Return the addresses with which a worker on a host joins."""
    qpns = {"qpn_out": qpn, "qpn_in": qpn + 1}
    return Addresses(rank=rank, mac=host.mac, ip=host.ip, psn_out=psn, hostname=host.name, **qpns)


class Agent(ABC):
    """A worker's process.

    `state`: "new", "joining", "ready", "running", "leaving", "left", "ended" (with `end`), "dead". `member`:
    of the job, from its beginning; `collective`: the user's call that runs, or is made next.
    """

    session: Session
    now_ns: int

    def __init__(self) -> None:
        self.state = "new"
        self.end: Ended | str | None = None
        self.member: Member | None = None
        self.collective = 0
        self._number = 0  # of what runs, or ran last, in the job
        self._whole: Steps[Any] | None = None  # of the collective that runs, or is parked
        self._unreturned: Any = None  # a result that waits until this worker is known to be in its job

    @property
    def over(self) -> bool:
        """True if it has nothing more to do."""
        return self.state in ("left", "ended", "dead")

    @property
    def in_job(self) -> Member:
        """`member`, which there must be."""
        assert self.member is not None
        return self.member

    @abstractmethod
    def _carry_out(self, action: Action | OnJob) -> None:
        """Do what either machine wants of its stream, its connection or its time."""

    @abstractmethod
    def _set_up(self, ready: Ready) -> None:
        """Set up the job: all have joined."""

    @abstractmethod
    def _attempt(self) -> Attempt:
        """Return the collective, for the first time or anew."""

    def _is_acknowledged(self) -> bool:
        """Return whether all that it has sent is acknowledged."""
        return True

    @abstractmethod
    def _returned(self, result: Any) -> None:
        """Give its user a result."""

    @abstractmethod
    def _close(self) -> None:
        """Drop its connection."""

    # The session

    def _join(self) -> None:
        self.state = "joining"
        self.session.begin(self.now_ns)
        self._act()

    def say(self, what: FromWorker) -> None:
        """Say something to the controller, if it hears."""
        self.session.say(what)
        self._act()

    def _act(self) -> None:
        """Do what the session wants."""
        self._do(self.session.actions())

    def _do(self, actions: Iterable[Action | OnJob]) -> None:
        for action in actions:
            match action:
                case Say(message):
                    self.say(message)
                case Inconsistent(reason=reason):
                    raise InvariantError(f"{self}: {reason}")
                case Repair(view=view) if view.world_size == 1:
                    raise InvariantError(f"{self} is alone, and is told to give its result to others")
                case _:
                    self._carry_out(action)

    def _heard(self, said: FromController) -> None:
        self.session.heard(said, self.now_ns)
        self._act()
        match said:
            case Ready():
                self._set_up(said)
            case Left():
                self._finish("left")
            case Ended():
                self._finish("ended", said)
            case _ if isinstance(said, Request):
                self._asked(said)
            case Heartbeat() | Waiting() | Resumed():
                pass
            case _:
                raise InvariantError(f"{self} does not know what {said} is")
        self._return()

    def _asked(self, request: Request) -> None:
        self.in_job.hear(request)
        self._act_on_job()

    def _broken(self, hung_up: HungUp) -> None:
        """Note that its stream has ended."""
        if self.over:
            return
        final = hung_up.refused if self.session.ready is None else hung_up.final
        self.session.broken(hung_up.why, self.now_ns, final=final)
        if self.session.refused is not None:
            self._finish("ended", f"not taken in: {hung_up.why}")
        elif self.session.ended is not None:
            self._finish("ended", self.session.ended.reason)
        self._act()

    def _finish(self, state: str, end: Ended | str | None = None) -> None:
        if not self.over:
            self.state, self.end = state, end
            self._close()
            self.session.close()
            self._act()

    # The job

    def _enter(self, ready: Ready) -> None:
        # A Ready is of the first generation, as only a member comes into another.
        self.member = Member(ready, View.first(ready.rank, ready.world_size, ready.ring))

    def _act_on_job(self) -> None:
        """Do what the member wants."""
        while actions := self.in_job.actions():
            self._do(actions)

    # Collectives

    def _start(self) -> bool:
        """Begin the next collective, if it may; return whether it does."""
        member = self.in_job
        if member.gang_collective is None:
            member.called = self.collective + 1
        self._number = member.next_collective
        member.calls.made(self._number, f"collective {self.collective}".__str__)
        starts = member.start(self._number)
        self._act_on_job()
        if starts:
            self.session.running = self._number
            self._whole = through_renewals(member.replay_log, self._attempt)
        return starts

    def _ends(self) -> None:
        """Note that the collective that ran has a result."""
        self._whole = None
        if (finished := self.in_job.replay_log.finished) != self._number + 1:
            raise InvariantError(f"{self} counts {finished} collectives, and ran {self._number + 1}")
        self.in_job.ended()
        self._act_on_job()

    def _done(self, result: Any) -> None:
        """Note that the call that ran has a result."""
        self._unreturned = result
        self.collective += 1
        self._ends()
        self._return()

    def _return(self) -> None:
        """Give the user a result that is there, unless an elastic job may go on without this worker."""
        if self._unreturned is None or not self.session.is_member:
            return
        if not self.in_job.is_delivered and self._is_acknowledged():
            self.in_job.delivered()
        if self.in_job.is_delivered and self.session.confirm(self.now_ns):
            result, self._unreturned = self._unreturned, None
            self._returned(result)
        self._act()

    def _leave(self) -> None:
        self.state = "leaving"
        self.say(Leave(self.in_job.next_collective))
