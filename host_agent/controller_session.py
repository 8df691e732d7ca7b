"""The session with the controller over gRPC: joining, heartbeats, and taking a broken session up again.

    Join ──► Waiting… ──► Ready ──► Up ──► Start ──► (heartbeats, moves) ──► Leave ──► Left
                            │                                 │
                            └── connection breaks: Resume ◄───┘      Ended: at any time

A thread reads what the controller says, another one sends heartbeats. The job does not depend on the session
being up: the controller may be stopped, dead or out of reach for as long as it likes, and training goes on
meanwhile. Who cannot reach it tries again, at least once in a few seconds, until it is told that the job is
over; who joins, until its time for that is up.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Final

import grpc

from controller.api import controller_pb2 as pb
from controller.api import errors
from controller.api.codec import from_controller, to_controller
from controller.api.controller_pb2_grpc import ControllerStub
from controller.api.errors import plainly
from controller.api.messages import (
    Abort,
    Called,
    Compare,
    Ended,
    FromController,
    FromWorker,
    Heartbeat,
    HoldAt,
    Join,
    Leave,
    Left,
    Moved,
    Pause,
    Ready,
    Renew,
    Renewed,
    Renewing,
    Resume,
    Resumed,
    Start,
    Up,
    Waiting,
)
from host_agent.errors import (
    CommunicatorError,
    ControllerUnreachableError,
    JobRefusedError,
    QueuePairTakenError,
)
from host_agent.membership import Answer, Request, error_of
from security import diagnosis
from security.channels import open_channel
from security.files import TlsError, TlsFiles

_FAREWELL_S: Final = 2.0  # how long closing waits for the controller to take our last words
_LOG = logging.getLogger(__name__)
_NOTICE_S: Final = 10.0  # a worker that waits for others so long says so
_FIRST_RETRY_S: Final = 0.1
_FIRST_ASK_S: Final = 0.02
_LONGEST_RETRY_S: Final = 1.0
_UNANSWERED: Final = 64  # heartbeats whose time of sending is kept
_SAY_S: Final = 60.0  # how often a worker says that it goes on without the controller
# The controller went away or restarts, rather than say no. OK: it closed the stream without a word.
_GONE: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.OK,
)
# What a controller that knows better says to a worker that wants to come back. Nothing else ends its job.
OVER: Final = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
)
# The management network is never behind a web proxy, whatever the environment says.
# A controller that is back is found within about a second; gRPC by itself would soon wait for minutes between
# two attempts. "min" is, in spite of its name, how long one attempt may take.
_CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass
class _Heard:
    """What the controller has said so far."""

    ready: Ready | None = None
    started: bool = False
    renewing: bool = False  # since a Renew, until the Start that follows it
    left: bool = False
    ended: Ended | None = None
    refused: CommunicatorError | None = None
    missing_ranks: tuple[int, ...] = ()
    trouble: str = ""  # why there is no session now, in gRPC's words
    at: float = 0.0


class ControllerSession:
    """The `Membership` of one worker, at the controller at "host:port".

    `tls`: its certificate (None: without TLS). ControllerUnreachableError where that cannot be used.
    """

    def __init__(self, controller: str, *, tls: TlsFiles | None = None) -> None:
        self.controller = controller
        self._tls = tls
        self._changed = threading.Condition()
        self._heard = _Heard()
        self._request: Join | None = None
        self._callback: Callable[[Ended], None] | None = None
        self._outgoing: SimpleQueue[pb.WorkerMessage | None] = SimpleQueue()
        self._call: Any = None
        self._called_at = 0.0
        self._asking = threading.Lock()  # guards these two, and keeps requests in order
        self._listener: Callable[[Request], None] | None = None
        self._requests: list[Request] = []  # that nobody has listened to
        self._standing: Renewing | None = None  # what we have said, to say it again after a break
        self._lease = _Lease()
        self._up = False
        self._leaving: Leave | None = None
        self._aborting: Abort | None = None
        self._counted = Heartbeat()  # what the next one says,
        self._runs: int | None = None  # and this
        self._stop = threading.Event()
        try:
            self._channel = open_channel(controller, tls, options=_CHANNEL_OPTIONS)
        except TlsError as error:
            raise ControllerUnreachableError(str(error)) from error
        self._stub = ControllerStub(self._channel)  # type: ignore[no-untyped-call]
        self._reader = threading.Thread(target=self._read, name="p4reduce-session", daemon=True)
        self._pulse = threading.Thread(target=self._send_heartbeats, name="p4reduce-heartbeat", daemon=True)

    def join(self, request: Join, *, timeout_s: float) -> Ready:
        """Join, and wait for all workers. JobRefusedError, ControllerUnreachableError."""
        self._request = request
        self._reader.start()
        notice_s = min(_NOTICE_S, timeout_s)
        joined = self._wait(lambda: self._heard.ready is not None, notice_s)
        if not joined and notice_s < timeout_s:
            _LOG.warning(
                "job %s: rank %d %s, up to %g s",
                request.job,
                request.worker.rank,
                self._awaited(),
                timeout_s,
            )
            joined = self._wait(lambda: self._heard.ready is not None, timeout_s - notice_s)
        if not joined:
            missing = ", ".join(map(str, self._heard.missing_ranks))
            if not missing:
                trouble = self._heard.trouble or "it did not answer"
                raise ControllerUnreachableError(
                    f"no session with the controller at {self.controller} within {timeout_s:g} s: {trouble}. "
                    "Is it running (a process that is stopped takes connections, and says nothing), and does "
                    "this host reach the management network?"
                )
            raise JobRefusedError(
                f"job {request.job} still waits for {request.world_size} workers after {timeout_s:g} s: "
                f"ranks {missing} have not joined"
            )
        assert self._heard.ready is not None
        self._pulse.start()
        return self._heard.ready

    def up(self, *, timeout_s: float) -> None:
        """Say that this worker's QPs are ready, and wait until everybody's are, or the job is renewed."""
        self.say(Up())
        if not self._wait(lambda: self._heard.started or self._heard.renewing, timeout_s):
            raise ControllerUnreachableError(
                f"not all workers had their connections ready within {timeout_s:g} s, or the controller at "
                f"{self.controller} is gone"
            )

    def on_ended(self, callback: Callable[[Ended], None]) -> None:
        """Call `callback` once, from any thread, when the job ends early (at once if it has)."""
        with self._changed:
            self._callback = callback
            ended = self._heard.ended
        if ended is not None:
            callback(ended)

    def listen(self, callback: Callable[[Request], None]) -> None:
        """Call `callback`, which must not block, with all that is asked of this worker, now and before."""
        with self._asking:
            self._listener = callback
            for request in self._requests:
                callback(request)
            self._requests.clear()

    def say(self, answer: Answer) -> None:
        """What was asked."""
        if isinstance(answer, Renewing):
            self._standing = answer
        elif isinstance(answer, Up):
            self._up = True
        self._send(answer)

    def confirm(self, *, timeout_s: float) -> bool:
        """Whether this worker is in its job now, for sure; see `Membership`."""
        ready = self._heard.ready
        if ready is None or not ready.lease_s or self._lease.holds(ready.lease_s):
            return True
        until, pause_s = time.monotonic() + timeout_s, _FIRST_ASK_S
        with self._changed:
            while not self._is_over() and (left_s := until - time.monotonic()) > 0:
                self._beat()
                self._changed.wait(min(pause_s, left_s))
                if not self._is_over() and self._lease.holds(ready.lease_s):
                    return True
                pause_s = min(2 * pause_s, _LONGEST_RETRY_S)
        return False

    def _is_over(self) -> bool:
        """The job has ended, or this worker has ended it, or its own part in it."""
        return self._heard.ended is not None or self._aborting is not None or self._stop.is_set()

    def _beat(self) -> None:
        self._send(replace(self._counted, number=self._lease.next_number(), running=self._runs))

    def counted(self, generation: int, messages: int) -> None:
        """So many messages have been numbered in a generation."""
        self._counted = Heartbeat(generation=generation, messages=messages)

    def runs(self, collective: int | None) -> None:
        """This worker is in a collective now, or in none."""
        self._runs = collective

    def abort(self, reason: str, mismatch: Called | None = None) -> None:
        """End the job for everybody. Does not wait."""
        with self._changed:
            self._aborting = Abort(reason, mismatch)
            self._changed.notify_all()
        self._send(self._aborting)

    def leave(self, *, timeout_s: float, collectives: int | None = None) -> None:
        """Wait until all workers leave. Where the job ends otherwise: see `error_of`."""
        self._leaving = Leave(collectives)
        self._send(self._leaving)
        if not self._wait(lambda: self._heard.left, timeout_s):
            trouble = self._heard.trouble
            raise ControllerUnreachableError(
                f"not all workers had left their job within {timeout_s:g} s"
                + (f": the controller at {self.controller} is out of reach ({trouble})" if trouble else "")
            )

    def close(self) -> None:
        """End the session; idempotent."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        self._outgoing.put(None)
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join(_FAREWELL_S)
        if self._call is not None:
            self._call.cancel()
        self._channel.close()

    def _wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it was reached in time; raises what the controller said instead."""
        with self._changed:
            self._changed.wait_for(
                lambda: reached() or self._heard.ended or self._heard.refused, timeout=timeout_s
            )
            if reached():
                return True
            if self._heard.refused is not None:
                raise self._heard.refused
            if self._heard.ended is not None:
                raise error_of(self._heard.ended, own_rank=self._rank())
            return False

    def _awaited(self) -> str:
        """What joining waits for."""
        if self._heard.missing_ranks:
            return f"waits for ranks {', '.join(map(str, self._heard.missing_ranks))} to join"
        trouble = f" ({self._heard.trouble})" if self._heard.trouble else ""
        return f"waits for the controller at {self.controller} to answer{trouble}"

    def _send(self, message: FromWorker) -> None:
        self._outgoing.put(to_controller(message))

    def _rank(self) -> int:
        assert self._request is not None
        ready = self._heard.ready
        return ready.rank if ready is not None and ready.world_size else self._request.worker.rank

    # What follows runs in the reader's thread.

    def _read(self) -> None:
        assert self._request is not None
        first: FromWorker = self._request
        away = _Away(self.controller)
        while True:
            error = self._talk(first)
            heard = self._heard
            if self._stop.is_set() or heard.left or heard.ended is not None:
                return
            if self._is_final(error, heard, away):
                self._refuse(error)
                return
            with self._changed:
                heard.trouble = plainly(error.details() or "") or error.code().name
                heard.missing_ranks = ()
            if self._stop.wait(away.next_try_s(heard.at, heard.trouble if heard.ready is not None else "")):
                return
            if heard.ready is not None:
                first = self._resume(self._request, heard.ready)

    def _is_final(self, error: Any, heard: _Heard, away: _Away) -> bool:
        """Whether trying again is of no use. A job that runs goes on until it is told that it is over."""
        if heard.ready is not None:
            return error.code() in OVER
        if error.code() not in _GONE:
            return True
        return away.is_first and self._why_not_tls() is not None  # it is not known to pass by itself

    def _why_not_tls(self) -> str | None:
        return diagnosis.why(self.controller, self._tls, what=f"the controller at {self.controller}")

    def _talk(self, first: FromWorker) -> Any:
        """One call, from its first message to the error that it ends with."""
        outgoing: SimpleQueue[pb.WorkerMessage | None] = SimpleQueue()
        outgoing.put(to_controller(first))  # before anybody else can put something there
        last, self._outgoing = self._outgoing, outgoing
        last.put(None)  # the last call's sender, if it still waits, ends
        self._called_at = time.monotonic()
        self._call = self._stub.Session(_until_none(outgoing))
        try:
            for message in self._call:
                self._take(from_controller(message))
        except grpc.RpcError as error:
            return error
        except errors.InvalidRequestError as error:
            self._take(Ended(reason=f"the controller at {self.controller} says what cannot be: {error}"))
        return self._call  # it ended without an error: status OK

    def _take(self, said: FromController | None) -> None:
        if isinstance(said, Ended):
            self._end(said)
            self._outgoing.put(None)  # this says that nothing more will be sent to the other workers
            return
        with self._changed:
            self._note(said)
            self._changed.notify_all()
        if isinstance(said, (Pause, HoldAt, Moved, Renew, Renewed, Start, Compare)):
            with self._asking:
                if self._listener is not None:
                    self._listener(said)
                else:
                    self._requests.append(said)
        if isinstance(said, Resumed):
            self._say_again()

    def _note(self, said: FromController | None) -> None:
        """What this session itself makes of it; None is something of a later release."""
        heard = self._heard
        heard.at, heard.trouble = time.monotonic(), ""
        match said:
            case Heartbeat(number=number):
                self._lease.answered(number)
            case Waiting(missing_ranks):
                heard.missing_ranks = missing_ranks
            case Ready():
                heard.ready = said
            case Renew():
                heard.renewing, heard.started = True, False
                self._up = False
            case Renewed() if self._standing is not None and self._standing.renewal == said.renewal:
                self._use_qps(self._standing)
                heard.ready, self._standing = said.ready, None
                self._up = False  # it may have been said for the generation before
            case Start() if self._standing is None:
                heard.started, heard.renewing = True, False
            case Moved(mode=mode, mode_reason=reason) if heard.ready is not None:
                heard.ready = replace(heard.ready, mode=mode, mode_reason=reason)
            case Left():
                heard.left = True

    def _say_again(self) -> None:
        """What the controller may not have taken before the connection broke."""
        if self._standing is not None:
            self._send(self._standing)
        elif self._up:  # also after Start: a controller may not have been able to save that it said so
            self._send(Up())
        if self._aborting is not None:
            self._send(self._aborting)
        elif self._leaving is not None:
            self._send(self._leaving)

    def _resume(self, request: Join, ready: Ready) -> Resume:
        return Resume(
            job=request.job,
            generation=ready.generation,
            rank=ready.rank if ready.world_size else request.worker.rank,
            token=ready.resume_token,
            joined=request,
            ready=ready,
            answered=0 if self._standing is None else self._standing.renewal,
        )

    def _use_qps(self, standing: Renewing) -> None:
        """This worker has other queue pairs from now on."""
        assert self._request is not None
        worker = replace(
            self._request.worker,
            qpn_out=standing.qpn_out,
            psn_out=standing.psn_out,
            qpn_in=standing.qpn_in,
        )
        self._request = replace(self._request, worker=worker)

    def _refuse(self, error: Any) -> None:
        """The controller, or the network, said no."""
        details = plainly(error.details() or "") or error.code().name
        if self._heard.ready is not None:
            self._end(Ended(reason=f"the controller did not take this worker back: {details}"))
            return
        with self._changed:
            if error.code() in _GONE:
                self._heard.refused = ControllerUnreachableError(self._why_not_tls() or details)
            else:
                taken = error.code() is errors.QueuePairTakenError.code
                self._heard.refused = (QueuePairTakenError if taken else JobRefusedError)(details)
            self._changed.notify_all()

    def _end(self, ended: Ended) -> None:
        with self._changed:
            if self._heard.ended is not None:
                return
            self._heard.ended = ended
            callback = self._callback
            self._changed.notify_all()
        if callback is not None:
            callback(ended)

    # And this in the heartbeat's.

    def _send_heartbeats(self) -> None:
        ready = self._heard.ready
        assert ready is not None
        while not self._stop.wait(ready.heartbeat_interval_s):
            self._beat()
            call = self._call  # first of all, so that it is no newer than the time that it is judged by
            if time.monotonic() - max(self._heard.at, self._called_at) > ready.heartbeat_timeout_s:
                call.cancel()  # it is dead, and TCP has not noticed: the reader takes it up again


class _Lease:
    """Since when this worker is known to be in its job: when it sent the last heartbeat that was answered.

    By this machine's clock alone, and before the controller counts from when it heard that one. The clock is
    one that goes on while the machine is suspended, which the others do not wait for.
    """

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}  # by number, those without an answer
        self._number = 0
        self._since = -math.inf
        self._counting = threading.Lock()

    def next_number(self) -> int:
        """Of a heartbeat that is sent now."""
        with self._counting:
            self._number += 1
            self._sent[self._number] = _boot_time()
            if len(self._sent) > _UNANSWERED:
                del self._sent[min(self._sent)]
            return self._number

    def answered(self, number: int) -> None:
        """That one has come; 0: none."""
        with self._counting:
            self._since = max(self._since, self._sent.get(number, -math.inf))
            self._sent = {later: at for later, at in self._sent.items() if later > number}

    def holds(self, lease_s: float) -> bool:
        """Whether it is not longer ago than that."""
        return _boot_time() - self._since < lease_s


def _boot_time() -> float:
    """As `time.monotonic`, which stands still while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Away:
    """The controller cannot be reached: when to try next, and saying now and then that it is so."""

    def __init__(self, controller: str) -> None:
        self.is_first = True
        self._controller = controller
        self._since: float | None = None
        self._said_at = 0.0
        self._retry_s = _FIRST_RETRY_S

    def next_try_s(self, heard_at: float, trouble: str) -> float:
        """How long to wait. `heard_at`: when the controller last said something; `trouble`: what to say."""
        now = time.monotonic()
        if self._since is None or heard_at > self._since:  # the last session was taken up
            self._since, self._said_at, self._retry_s = now, now - _SAY_S + _NOTICE_S, _FIRST_RETRY_S
        self.is_first = False
        if trouble and now - self._said_at >= _SAY_S:
            self._said_at = now
            _LOG.warning(
                "the controller at %s has been out of reach for %.0f s (%s): the job goes on without it",
                self._controller,
                now - self._since,
                trouble,
            )
        wait_s, self._retry_s = self._retry_s, min(2 * self._retry_s, _LONGEST_RETRY_S)
        return wait_s


def _until_none(messages: SimpleQueue[pb.WorkerMessage | None]) -> Iterator[pb.WorkerMessage]:
    while (message := messages.get()) is not None:
        yield message
