"""A worker in a running job, as a machine without I/O, threads or a clock: which collective may run, and how.

A move between ring and switch, at a collective that all workers agree on:

    Pause ──► nothing starts ──► HoldAt(K) ──► what is before K runs ──► Settle ──► Held
          ──► Moved ──► K starts

A collective's number decides its mode when it starts: on every worker those before K run in the old mode, and
K and later ones in the new mode. So all workers run each collective alike, whenever they called it.

A renewal can come at any moment, also during a move or another renewal:

    Renew ──► Cut ──► nothing runs, or what runs is parked ──► Offer ──► Renewing ──► Renewed ──► Connect
          ──► Up ──► Start ──► Repair, where somebody has a result that others lack ──► collectives go on

A Renew with a higher number starts over, and drops what was offered or connected for the one before.

Events come in as calls; `actions` returns what is to be done, in order. Offer, Connect, Repair and Settle
take time; the calls that report their end return whether the result is still wanted. Collectives start in the
order of their numbers, one at a time: `start`, `ended`; a cut one is `parked` until Again or Drop.

The planes of an elastic gang are renewed together. A collective of all GPUs is several in each plane, some of
which may be over, with the part of a machine that died, and others not. So the first one that no GPU has
finished is begun anew: what each worker had called for it in its plane is dropped.

A result of an elastic job is its user's when this worker's successor has it, too (`is_delivered`). All that a
worker receives comes from its predecessor: so the successor has it when it has acknowledged all that this one
sent. Where a renewal comes first, it has it when that is over.

A switch compares messages of a slot by 32-bit serial numbers, which fail for two that are 2^31 apart. So it
sums only the messages below 2^31 of a generation. Heartbeats tell the controller how many there are, and it
gives the job a new generation long before. If the controller is away until `IN_NETWORK_LIMIT` is reached,
later collectives go by ring, where a message is compared with its neighbours only. All ranks have the same
numbers when a collective begins, so they decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from controller.api.messages import (
    Called,
    Compare,
    Held,
    HoldAt,
    Mode,
    Moved,
    Pause,
    Paused,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Start,
    Up,
)
from host_agent.calls import Calls
from host_agent.membership import MembershipChange, Request, View
from host_agent.recovery import NUMBERS, ReplayLog, Window, is_consistent

# What begins below it may have 2^28 messages. A collective has 2^26 and a few: 2^32 - 1 elements at most, of
# which a message holds 64 or more.
IN_NETWORK_LIMIT: Final = 2**31 - 2**28


@dataclass(frozen=True)
class Say:
    """A message for the controller."""

    message: Paused | Held | Renewing | Up | Called


@dataclass(frozen=True)
class Cut:
    """Order to abort the connection: threads that wait on it learn of it. `planned`: nothing runs on it."""

    reason: str
    planned: bool


@dataclass(frozen=True)
class Settle:
    """Order to call `settled` when all that was sent is received and acknowledged."""

    move: int


@dataclass(frozen=True)
class Offer:
    """Order to close the connection that was cut, and call `offered` with fresh queue pairs."""

    renewal: int


@dataclass(frozen=True)
class Connect:
    """Order to connect what was offered to the neighbours, and call `connected`."""

    renewal: int
    ready: Ready


@dataclass(frozen=True)
class Repair:
    """Order to run `recovery.repair` of this collective, and call `repaired`."""

    renewal: int
    collective: int
    holder: int
    mode: Mode
    view: View


@dataclass(frozen=True)
class Again:
    """The collective that was parked goes on (`recovery.through_renewals` knows how)."""


@dataclass(frozen=True)
class Drop:
    """The collective that was parked does not go on (`recovery.BegunAnewError`)."""


@dataclass(frozen=True)
class WentOn:
    """The job goes on under the new generation. `change`: without some of its workers."""

    ready: Ready
    mode_before: Mode
    change: MembershipChange | None


@dataclass(frozen=True)
class Inconsistent:
    """The job cannot go on with what Renewed says: it has to end."""

    renewal: int
    reason: str


@dataclass(frozen=True)
class Exhausted:
    """Order to warn: this generation has used up the messages that a switch sums."""


Action = Say | Cut | Settle | Offer | Connect | Repair | Again | Drop | WentOn | Inconsistent | Exhausted


class Stage(Enum):
    """The stages of a renewal, by what they wait for."""

    NONE = auto()  # there is none
    QUIET = auto()  # nothing runs, or what runs is parked
    OFFERING = auto()  # fresh queue pairs
    AGREEING = auto()  # Renewed: all workers say where they stand
    CONNECTING = auto()  # the connection to the neighbours
    STARTING = auto()  # Start: all workers are connected
    REPAIRING = auto()  # the result of the collective that somebody has finished


class Member:
    """A worker's part in a running job.

    `view`: who is in the job now; `generation` and `mode` of the next collective, `mode_reason`: why not in
    the network. `calls`: what the user has called. `called`: the number of the user's next call, which the
    shell counts; in a gang, of all GPUs. `ring_reason`, `ring_moves`: why, and how often, the job went over
    to the ring. `renewals` counts those that are over, `marks` the steps of moves and renewals.
    `next_collective`: the first that has not started.

    In an elastic gang, `gang_collective` is the first of all GPUs that this worker has not finished,
    `gang_renewal` the number of the newest renewal that is over, and `begun_anew` that of the newest by which
    that collective was begun anew: what it had called here until then is dropped.
    """

    def __init__(self, ready: Ready, view: View) -> None:
        self.view = view
        self._views = [(0, view)]  # and from which call on it counts
        self.called = 0
        self.generation = ready.generation
        self.replay_log = ReplayLog(_window_of(ready))
        self.gang_collective: int | None = None
        self.gang_renewal = self.begun_anew = 0
        self.calls = Calls(lambda called: self._actions.append(Say(called)))
        self.ring_reason = ""
        self.ring_moves = self.renewals = self.marks = self.next_collective = 0
        self.mode = ready.mode
        self._set_mode(ready.mode, ready.mode_reason)
        self.stage = Stage.NONE
        self._actions: list[Action] = []
        self._is_over = False
        self._running: int | None = None
        self._parked = False
        self._may_go_on_without = ready.lease_s > 0
        self._undelivered = False
        self._exhausted: int | None = None  # the generation of which it has been said
        self._held_from: int | None = None  # this and all later ones wait
        self._move: int | None = None  # which HoldAt holds them
        self._renew: Renew | None = None  # the newest
        self._renewed: Renewed | None = None  # the answer to it
        self._answer: Renewing | None = None  # to it, too
        self._over = 0  # the newest that is over here
        self._missed: list[Renewed] = []  # those that a newer one has cut short here: others may have gone on
        self._started = False

    def actions(self) -> list[Action]:
        """Return what is to be done, in order; each once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def is_renewing(self) -> bool:
        """True while nothing may run, and a cut collective has to be parked."""
        return self.stage is not Stage.NONE

    @property
    def renewal(self) -> int:
        """The number of the newest renewal; 0: there was none."""
        return 0 if self._renew is None else self._renew.renewal

    @property
    def reason(self) -> str:
        """The reason of the newest renewal."""
        return "" if self._renew is None else self._renew.reason

    def view_at(self, call: int) -> View:
        """Return who is in the job as the user's call of that number sees it.

        All workers change over at the same call: the first that none of them had made when they were asked.
        """
        return self.views_since(call)[0]

    def views_since(self, call: int) -> tuple[View, ...]:
        """Return the view of `view_at`, and all later ones until now."""
        views = [*self._views]  # users ask, while another thread forgets some
        later = (k for k, (first, _) in reversed([*enumerate(views)][1:]) if _ahead(call, first) >= 0)
        return tuple(view for _, view in views[next(later, 0) :])

    @property
    def is_delivered(self) -> bool:
        """True if another worker has the last result, too, so that the job cannot make it again."""
        return not self._undelivered

    @property
    def is_holding(self) -> bool:
        """True if the next collective would have to wait."""
        return not self._may_run(self.next_collective)

    def hear(self, said: Request) -> None:
        """Take a request. After a broken session the controller may repeat it, and gets an answer again."""
        if isinstance(said, Compare):  # also where the job fails here: the others are to be told why
            self.calls.asked(said.collective)
        if self._is_over:
            return
        self.marks += 1
        match said:
            case Pause(move):
                self._move, self._held_from = None, self.next_collective
                self._actions.append(Say(Paused(move, self.next_collective)))
            case HoldAt(move, collective):
                self._move, self._held_from = move, collective
                self._perhaps_settle()
            case Moved(mode=mode, mode_reason=reason):
                self._move = self._held_from = None
                self._set_mode(mode, reason)
            case Renew():
                self._hear_renew(said)
            case Renewed():
                self._hear_renewed(said)
            case Start():
                self._started = self._renewed is not None
                self._perhaps_repair()

    def stop(self) -> None:
        """Hold nothing any more, and ask for nothing: the job is over."""
        self._is_over = True
        self._actions.clear()

    # Collectives

    def start(self, collective: int) -> bool:
        """Start the collective if it may run now; return whether it may. If not, try again after each event.

        It may run in its turn, or if the job is over, which it then finds out. Skipped numbers never start:
        they were cancelled.
        """
        if _ahead(collective, self.next_collective) > 0:
            self.next_collective = collective
            self._perhaps_settle()
        if self._running is not None or not self._may_run(collective):
            return False
        self._running, self.next_collective = collective, (collective + 1) % NUMBERS
        return True

    def mode_of(self, numbered: int) -> Mode:
        """Return the mode of a collective that begins after so many messages of this generation."""
        if self.mode is Mode.RING or numbered < IN_NETWORK_LIMIT:
            return self.mode
        if self._exhausted != self.generation:
            self._exhausted = self.generation
            self._actions.append(Exhausted())
        return Mode.RING

    def parked(self) -> None:
        """Note that the running collective has let go of the connection, and waits for Again."""
        self._parked = True
        self.replay_log.parked()
        self._perhaps_offer()

    def ended(self) -> None:
        """Note that the running collective has ended."""
        assert self._running is not None
        self.calls.is_over(self._running)
        self._running, self._parked = None, False
        if self._may_go_on_without and self.gang_collective is None:  # all GPUs finish a gang's together
            self._undelivered = True
        self._forget_views()
        self._perhaps_offer()
        self._perhaps_settle()

    def delivered(self) -> None:
        """Note that all that was sent is acknowledged."""
        if not self.is_renewing:  # else that was sent in the next generation, and says nothing
            self._undelivered = False

    def finish_gang_collective(self) -> bool:
        """Count a collective of all GPUs as finished, whose result is here; return whether it is.

        It is not while a renewal asks where all stand: that answer has to hold until the renewal is over.
        """
        if self.is_renewing and not self._is_over:
            return False
        assert self.gang_collective is not None
        self.gang_collective = (self.gang_collective + 1) % NUMBERS
        self._forget_views()
        return True

    # Answers

    def settled(self, move: int) -> bool:
        """Note that nothing is in flight; return whether that was still wanted."""
        if not self.is_settling(move):
            return False
        self._actions.append(Say(Held(move)))
        return True

    def is_settling(self, move: int) -> bool:
        """Tell whether the move still waits until nothing is in flight."""
        return self._move == move and not self._is_over

    def offered(self, renewal: int, *, qpn_out: int, psn_out: int, qpn_in: int) -> bool:
        """Offer fresh queue pairs, which this worker has from `connected` on; return if they are wanted."""
        if not self._waits_for(Stage.OFFERING, renewal):
            return False
        self.stage = Stage.AGREEING
        self._answer = Renewing(
            renewal=renewal,
            qpn_out=qpn_out,
            psn_out=psn_out,
            qpn_in=qpn_in,
            collective=self.replay_log.finished,
            gang_collective=self.gang_collective,
            called=self.called,
            over=self._over,
        )
        self._actions.append(Say(self._answer))
        return True

    def connected(self, renewal: int) -> bool:
        """Note that the connection is ready; return whether the caller has to replace the cut one with it."""
        if not self._waits_for(Stage.CONNECTING, renewal):
            return False
        self.stage = Stage.STARTING
        self._actions.append(Say(Up()))
        self._perhaps_repair()
        return True

    def repaired(self, renewal: int) -> bool:
        """Note that all have the result; return whether that was still wanted."""
        if not self._waits_for(Stage.REPAIRING, renewal):
            return False
        self._go_on()
        return True

    # Renewals

    def wants(self, renewal: int) -> bool:
        """Tell whether the work for that renewal is still wanted."""
        return self.renewal == renewal and not self._is_over

    def _hear_renew(self, renew: Renew) -> None:
        if self._renew is not None and renew.renewal <= self._renew.renewal:
            if renew.renewal == self._renew.renewal and self.stage is Stage.AGREEING:
                assert self._answer is not None
                self._actions.append(Say(self._answer))
            return
        planned = self._held_from is not None  # and so nothing is cut
        if self._renewed is not None:
            self._missed.append(self._renewed)
        self._renew, self._renewed = renew, None
        self._started = False
        self._move = self._held_from = None
        self.stage = Stage.QUIET
        self._actions.append(Cut(renew.reason, planned))
        self._perhaps_offer()

    def _hear_renewed(self, renewed: Renewed) -> None:
        if not self._waits_for(Stage.AGREEING, renewed.renewal):
            return
        finished = self.replay_log.finished
        if not is_consistent(finished, renewed.collective, held=renewed.holder is not None):
            told = f"the job goes on with collective {renewed.collective}, but {finished} are finished here"
            self._actions.append(Inconsistent(renewed.renewal, told))
            return
        self._missed = [missed for missed in self._missed if _number_of(missed) <= renewed.over]
        self._renewed, self.stage = renewed, Stage.CONNECTING
        self._actions.append(Connect(renewed.renewal, renewed.ready))

    def _perhaps_offer(self) -> None:
        if self.stage is Stage.QUIET and (self._parked or self._running is None) and not self._is_over:
            assert self._renew is not None
            self.stage = Stage.OFFERING
            self._actions.append(Offer(self._renew.renewal))

    def _perhaps_repair(self) -> None:
        renewed = self._renewed
        if self.stage is not Stage.STARTING or not self._started:
            return
        assert renewed is not None
        if renewed.holder is None:
            self._go_on()
            return
        self.stage = Stage.REPAIRING
        view = self.view.after(renewed)
        self._actions.append(
            Repair(renewed.renewal, renewed.collective, renewed.holder, renewed.ready.mode, view)
        )

    def _go_on(self) -> None:
        renewed, renew = self._renewed, self._renew
        assert renewed is not None
        assert renew is not None
        ready, before, mode_before = renewed.ready, self.view, self.mode
        self.view = view = before.after(renewed)
        since = (*self._missed, renewed)
        for each in since:
            self._change_over(before.after(each), self.called if each.ranks_from is None else each.ranks_from)
        self._missed.clear()
        self._over, self._renewed = _number_of(renewed), None
        self.generation = ready.generation
        self.replay_log.window = _window_of(ready)
        self._set_mode(ready.mode, ready.mode_reason)
        self.renewals += 1
        self.stage = Stage.NONE
        self._undelivered = False
        change = None
        if view.members != before.members:
            change = MembershipChange(
                old_rank=before.rank,
                rank=view.rank,
                old_world_size=before.world_size,
                world_size=view.world_size,
                lost=tuple(r for r, member in enumerate(before.members) if member not in view.members),
                generation=ready.generation,
                reason=renew.reason,
            )
        self._actions.append(WentOn(ready, mode_before, change))
        # Others may have begun it anew after one that was missed here, refused it, and so finished it.
        anew = self.gang_collective in {each.gang_collective for each in since} - {None}
        self.gang_renewal = max(self.gang_renewal, renewed.gang_renewal)
        if anew:  # of what is dropped, machines may have called different numbers; all have finished the same
            self.begun_anew = self.gang_renewal
            self.next_collective = self.replay_log.finished
        if self._parked:
            self._parked = False
            self._actions.append(Drop() if anew else Again())
        self._perhaps_settle()  # a move may have come while a result was repaired

    def _change_over(self, view: View, first: int) -> None:
        """Let the user see `view` from the call of number `first` on."""
        if view.members != self._views[-1][1].members:
            self._views.append((first, view))

    def _forget_views(self) -> None:
        """Drop views that no call can see any more: 2^31 calls later, their numbers would be ahead again.

        A running collective is not over: if it begins again, it has to see the same view.
        """
        done = self.next_collective if self.gang_collective is None else self.gang_collective
        while len(self._views) > 1 and _ahead(self._views[1][0], done) < 0:
            del self._views[0]

    def _waits_for(self, stage: Stage, renewal: int) -> bool:
        return self.wants(renewal) and self.stage is stage

    # Order

    def _may_run(self, collective: int) -> bool:
        if self._is_over:
            return True
        if self.is_renewing:
            return False
        return self._held_from is None or _ahead(collective, self._held_from) < 0

    def _perhaps_settle(self) -> None:
        if self._move is None or self._running is not None or self.is_renewing:
            return
        assert self._held_from is not None
        if _ahead(self.next_collective, self._held_from) >= 0 and not self._is_over:
            self._actions.append(Settle(self._move))

    def _set_mode(self, mode: Mode, reason: str) -> None:
        before = self.mode
        self.mode, self.mode_reason = mode, reason
        if mode is Mode.RING:
            self.ring_reason = reason
            self.ring_moves += before is not Mode.RING


def _number_of(renewed: Renewed) -> int:
    return renewed.gang_renewal or renewed.renewal


def _window_of(ready: Ready) -> Window:
    return Window(ready.window, ready.message_packets, ready.path_mtu)


_HALF: Final = NUMBERS // 2


def _ahead(number: int, of: int) -> int:
    """Return how far a collective's number is ahead of another; they are 32-bit serial numbers."""
    return (number - of + _HALF) % NUMBERS - _HALF
