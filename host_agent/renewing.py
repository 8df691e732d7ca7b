"""A worker goes on under a new generation of its job: the thread that takes it from one to the next.

    Renew ──► the link is closed ──► nothing runs ──► Renewing ──► Renewed ──► a new link ──► Up ──► Start
          ──► the repair (recovery.py) ──► collectives go on

A Renew with a higher number, at any moment of this, starts it over; so nothing here waits for anything but
that as well. What a collective's thread does meanwhile is in `execution.py`: it parks at the gate.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from controller.api.messages import Mode, Ready, Renew, Renewed, Renewing, Up
from host_agent.collectives.plan import Call
from host_agent.errors import ConnectionFailedError, InterfaceError
from host_agent.gate import Gate
from host_agent.membership import Membership, MembershipChange, RenewalStep, Seat
from host_agent.recovery import Ledger, Window, is_consistent, repair
from host_agent.runner import Link, Runner
from host_agent.transport.errors import TransportError

_LOG = logging.getLogger(__name__)
_FAREWELL_S: Final = 5.0  # how long closing waits for the thread, which waits for nothing then


class Offer(Protocol):
    """Fresh queue pairs that neighbours can be told of."""

    @property
    def qpn_out(self) -> int: ...

    @property
    def psn_out(self) -> int: ...

    @property
    def qpn_in(self) -> int: ...

    def connect(self, ready: Ready) -> Link:
        """The connection to the neighbours, started. TransportError, InterfaceError."""
        ...

    def close(self) -> None:
        """Let go of what got no connection; idempotent."""
        ...


class Connections(Protocol):
    """Makes a worker's connections anew."""

    def offer(self) -> Offer:
        """Fresh queue pairs. TransportError, InterfaceError."""
        ...


class _Replaced(Exception):
    """A newer renewal, or the end of the job, came between."""


class Renewals:
    """Runs a worker's renewals, one at a time; `seat` is where it sits now. Safe from any thread."""

    def __init__(
        self,
        *,
        seat: Seat,
        generation: int,
        ledger: Ledger,
        gate: Gate,
        runner: Runner,
        membership: Membership,
        connections: Connections | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.seat = seat
        self.generation = generation
        self.count = 0  # those that are over
        self._ledger = ledger
        self._gate = gate
        self._runner = runner
        self._membership = membership
        self._connections = connections
        self._failed = failed
        self._changed = threading.Condition()
        self._renew: Renew | None = None  # the newest
        self._renewed: Renewed | None = None  # the answer to it
        self._started = False
        self._asked_again = False
        self._over = True
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._changes = _Changes()

    @property
    def reason(self) -> str:
        """Of the newest renewal."""
        return "" if self._renew is None else self._renew.reason

    def on_change(self, callback: Callable[[MembershipChange], None]) -> None:
        """Call `callback` in a thread of its own whenever ranks or world size have changed."""
        self._changes.add(callback)

    def on_step(self, step: RenewalStep) -> None:
        """What the controller says; does not block."""
        with self._changed:
            if self._stopped:
                return
            if isinstance(step, Renew):
                self._begin(step)
            elif self._over or self._renew is None:
                return
            elif not isinstance(step, Renewed):
                self._started = self._renewed is not None
            elif step.renewal == self._renew.renewal and self._renewed is None:
                self._renewed = step
            self._gate.progress()
            self._changed.notify_all()

    def stop(self) -> None:
        """Renew no more: the job is over. Does not block."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and wait until the thread has let go of everything."""
        self.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_FAREWELL_S)
        self._changes.close()

    def _begin(self, step: Renew) -> None:
        if self._renew is not None and step.renewal <= self._renew.renewal:
            # Said again after the session broke: it may not have our answer.
            self._asked_again = step.renewal == self._renew.renewal
            return
        self._renew, self._renewed = step, None
        self._started = self._asked_again = self._over = False
        planned = self._gate.is_moving  # and so nothing is cut
        self._gate.interrupt()
        self._runner.link.abort(f"the job is renewed: {step.reason}")
        level = logging.INFO if planned else logging.WARNING
        _LOG.log(level, "rank %d: the job goes on under a new generation: %s", self.seat.rank, step.reason)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="p4reduce-renewal", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._over or self._stopped:
                    self._thread = None
                    return
                renew = self._renew
                assert renew is not None
            try:
                self._renew_once(renew)
            except _Replaced:
                continue
            except Exception as error:  # noqa: BLE001  whatever it is, the others must not wait for this worker
                if self._is_wanted(renew):
                    self._fail(renew, error)

    def _fail(self, renew: Renew, error: Exception) -> None:
        if isinstance(error, (TransportError, InterfaceError)):
            what = f"this worker could not go on under a new generation ({renew.reason}): {error}"
            failure: Exception = ConnectionFailedError(what)
            failure.__cause__ = error
        else:
            failure = error
        self.stop()
        self._failed(failure)

    def _is_wanted(self, renew: Renew) -> bool:
        return self._renew is renew and not self._stopped

    def _renew_once(self, renew: Renew) -> None:
        began = time.monotonic()
        if not self._gate.wait_quiet(lambda: self._is_wanted(renew)):
            raise _Replaced
        self._runner.retire()
        if self._connections is None:
            raise InterfaceError("it has no way to make connections anew")
        offer = self._connections.offer()
        try:
            renewed = self._agree(renew, offer)
            link = offer.connect(renewed.ready)
        except BaseException:
            offer.close()
            raise
        with self._changed:
            if not self._is_wanted(renew):
                link.close()
                raise _Replaced
            self._runner.replace(link)
        self._membership.say(Up())
        self._wait(renew, lambda: self._started)
        seat = self.seat.after(renewed)
        if renewed.holder is not None:
            self._repair(renewed, renewed.holder, seat)
        self._go_on(renew, renewed, seat, time.monotonic() - began)

    def _agree(self, renew: Renew, offer: Offer) -> Renewed:
        """Tell the controller where this worker stands; what it makes of everybody's."""
        while True:
            with self._changed:
                self._asked_again = False
            self._membership.say(
                Renewing(
                    renewal=renew.renewal,
                    qpn_out=offer.qpn_out,
                    psn_out=offer.psn_out,
                    qpn_in=offer.qpn_in,
                    collective=self._ledger.finished,
                )
            )
            self._wait(renew, lambda: self._renewed is not None or self._asked_again)
            renewed = self._renewed
            if renewed is not None:
                break
        finished = self._ledger.finished
        if not is_consistent(finished, renewed.collective, held=renewed.holder is not None):
            raise ConnectionFailedError(
                f"the job goes on with collective {renewed.collective}, but {finished} are finished here"
            )
        return renewed

    def _wait(self, renew: Renew, reached: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: reached() or not self._is_wanted(renew))
            if not self._is_wanted(renew):
                raise _Replaced

    def _repair(self, renewed: Renewed, holder: int, seat: Seat) -> None:
        call = Call(rank=seat.rank, world_size=seat.world_size, collective=renewed.collective, ring=seat.ring)
        steps = repair(self._ledger, call, holder=holder, mode=renewed.ready.mode)
        self._runner.run(steps, f"the result of collective {renewed.collective}, which rank {holder} has")

    def _go_on(self, renew: Renew, renewed: Renewed, seat: Seat, seconds: float) -> None:
        ready = renewed.ready
        with self._changed:
            if not self._is_wanted(renew):
                raise _Replaced
            self._over = True
            before, self.seat = self.seat, seat
            self.generation = ready.generation
            self.count += 1
            self._runner.rank = seat.rank
            self._ledger.window = Window(ready.window, ready.message_packets, ready.path_mtu)
            mode_before = self._gate.mode
            self._gate.go_on(ready.mode, ready.mode_reason)
        if seat.members == before.members:
            _LOG.info("going on as generation %d after %.2f s", ready.generation, seconds)
        else:
            self._tell_of_change(renew, before, seat)
        if ready.mode is Mode.RING is not mode_before:
            way = ", over the workers' backup interfaces" if ready.backup else ""
            _LOG.info("by ring all-reduce from now on%s: %s", way, ready.mode_reason)
        elif ready.mode is not mode_before:
            _LOG.info("the switch sums again")

    def _tell_of_change(self, renew: Renew, before: Seat, seat: Seat) -> None:
        change = MembershipChange(
            old_rank=before.rank,
            rank=seat.rank,
            old_world_size=before.world_size,
            world_size=seat.world_size,
            lost=tuple(rank for rank, member in enumerate(before.members) if member not in seat.members),
            generation=self.generation,
            reason=renew.reason,
        )
        _LOG.warning(
            "without rank %s (%s), going on as rank %d of %d, generation %d",
            ", ".join(map(str, change.lost)),
            renew.reason,
            seat.rank,
            seat.world_size,
            self.generation,
        )
        self._changes.tell(change)


class _Changes:
    """Tells callbacks of changes, in a thread that there is from the first one on."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[MembershipChange], None]] = []
        self._queue: SimpleQueue[MembershipChange | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, callback: Callable[[MembershipChange], None]) -> None:
        self._callbacks.append(callback)

    def tell(self, change: MembershipChange) -> None:
        if not self._callbacks:
            return
        self._queue.put(change)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="p4reduce-changes", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (change := self._queue.get()) is not None:
            for callback in list(self._callbacks):
                try:
                    callback(change)
                except Exception:  # noqa: BLE001  the user's; others have to be told as well
                    _LOG.exception("a callback for changes of membership failed")
