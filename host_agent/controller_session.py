"""Session with the controller over gRPC: runs `session.py` with threads, a channel and a clock.

One thread reads what the controller says, another one does what is due.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Final

import grpc

from controller.api import controller_pb2 as pb
from controller.api import errors
from controller.api.codec import from_controller, to_controller
from controller.api.errors import plainly
from controller.api.messages import (
    Abort,
    Called,
    Ended,
    FromController,
    Heartbeat,
    Join,
    Lacking,
    Leave,
    Ready,
    Stalled,
    Up,
)
from controller.api.rpc import ControllerStub
from controller.security import diagnosis
from controller.security.channels import open_channel
from controller.security.files import TlsError, TlsFiles
from host_agent.errors import (
    CollectiveTimeoutError,
    CommunicatorError,
    ControllerUnreachableError,
    JobRefusedError,
    QueuePairTakenError,
)
from host_agent.forks import connections_not_for_children
from host_agent.membership import Answer, Request, error_of
from host_agent.session import NS, Away, Break, Close, Open, Send, Session, State

_LOG = logging.getLogger(__name__)
_FAREWELL_S: Final = 2.0  # how long closing waits for the controller to take our last words
_NOTICE_S: Final = 10.0  # a worker that waits for others so long says so
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

_Outgoing = SimpleQueue[pb.WorkerMessage | None]


class ControllerSession:
    """The `Membership` of one worker, at the controller at "host:port".

    `tls`: its certificate (None: without TLS). ControllerUnreachableError if that cannot be used.
    """

    def __init__(self, controller: str, *, tls: TlsFiles | None = None) -> None:
        self.controller = controller
        self._tls = tls
        self._changed = threading.Condition()  # guards the session, and what its actions change
        self._session: Session | None = None  # from `join` on
        self._opening: _Outgoing | None = None  # of a stream that the reader has to open
        self._outgoing: _Outgoing = SimpleQueue()
        self._refusal: Any = None  # the error behind `refused`
        self._call: Any = None
        self._broken = False  # the stream that was opened last
        self._callback: Callable[[Ended], None] | None = None
        self._asking = threading.Lock()  # guards these two, and keeps requests in order
        self._listener: Callable[[Request], None] | None = None
        self._requests: list[Request] = []  # that nobody has listened to
        try:
            self._channel = open_channel(controller, tls, options=_CHANNEL_OPTIONS)
        except TlsError as error:
            raise ControllerUnreachableError(str(error)) from error
        self._stub = ControllerStub(self._channel)
        self._reader = threading.Thread(target=self._read, name="p4reduce-session", daemon=True)
        self._pulse = threading.Thread(target=self._keep_time, name="p4reduce-heartbeat", daemon=True)

    def join(self, request: Join, *, timeout_s: float) -> Ready:
        """Join, and wait for all workers. JobRefusedError, ControllerUnreachableError."""
        session = Session(request)
        with self._changed:
            self._session = session
            session.begin(_now())
            self._act()
        self._reader.start()
        self._pulse.start()
        notice_s = min(_NOTICE_S, timeout_s)
        joined = self._wait(lambda: session.ready is not None, notice_s)
        if not joined and notice_s < timeout_s:
            _LOG.warning(
                "job %s: rank %d %s, up to %g s",
                request.job,
                request.worker.rank,
                self._awaited(session),
                timeout_s,
            )
            joined = self._wait(lambda: session.ready is not None, timeout_s - notice_s)
        if not joined:
            if not session.missing:
                error = session.last_error or "it did not answer"
                raise ControllerUnreachableError(
                    f"no session with the controller at {self.controller} within {timeout_s:g} s: {error}. "
                    "Is it running (a process that is stopped takes connections, and says nothing), and does "
                    "this host reach the management network?"
                )
            gang, workers = request.gang, f"{request.world_size} workers after {timeout_s:g} s"
            what = f"job {request.job}" if gang is None else f"gang {gang.name}"
            planes = "" if gang is None else f"{gang.planes} planes of "
            raise JobRefusedError(
                f"{what} still waits for {planes}{workers}: {session.missing} {session.have} not joined"
            )
        assert session.ready is not None
        return session.ready

    def up(self, *, timeout_s: float) -> None:
        """Say that this worker's QPs are ready, and wait until everybody's are, or the job is renewed."""
        session = self._joined
        self.say(Up())
        if not self._wait(lambda: session.has_begun, timeout_s):
            raise ControllerUnreachableError(
                f"not all workers had their connections ready within {timeout_s:g} s, or the controller at "
                f"{self.controller} is gone"
            )

    def on_ended(self, callback: Callable[[Ended], None]) -> None:
        """Call `callback` once, from any thread, when the job ends early (at once if it has)."""
        with self._changed:
            self._callback = callback
            ended = None if self._session is None else self._session.ended
        if ended is not None:
            callback(ended)

    def listen(self, callback: Callable[[Request], None]) -> None:
        """Call `callback`, which must not block, with every request to this worker, now and before."""
        with self._asking:
            self._listener = callback
            for request in self._requests:
                callback(request)
            self._requests.clear()

    def say(self, answer: Answer) -> None:
        """Answer a request of the controller."""
        with self._changed:
            self._joined.say(answer)
            self._act()

    def confirm(self, *, timeout_s: float) -> bool:
        """Return whether this worker is surely in its job now; see `Membership.confirm`."""
        session = self._joined
        if session.holds_lease(_now()):
            return True
        with self._changed:
            session.confirm(_now())
            self._act()
            self._changed.wait_for(
                lambda: not session.is_member or session.holds_lease(_now()), timeout=timeout_s
            )
            session.ask_no_more()
            return session.is_member and session.holds_lease(_now())

    def who_is_missing(self, *, timeout_s: float) -> str:
        """Say whom the collective waits for; see `Membership.who_is_missing`."""
        session, collective = self._joined, self._joined.running

        def answer() -> Lacking | None:
            lacking = session.lacking
            return lacking if lacking is not None and lacking.collective == collective else None

        with self._changed:
            if collective is not None:
                session.lacking = None
                session.say(Stalled(collective))
                self._act()
                self._changed.wait_for(lambda: answer() or session.is_over, timeout=timeout_s)
            lacking = answer()
        if lacking is None:
            error = f" ({session.last_error})" if session.last_error else ""
            told = f"Whom it waits for is not known: the controller at {self.controller} does not say{error}"
            return f"{told}. {_predecessor(session)}"
        if not lacking.who:
            return "The controller knows of nobody who is late: all workers are in this collective"
        return f"The controller says: {lacking.who}"

    def counted(self, generation: int, messages: int) -> None:
        """Note how many messages have been numbered in a generation."""
        self._joined.counted = Heartbeat(generation=generation, messages=messages)

    def runs(self, collective: int | None) -> None:
        """Note the collective that this worker is in, or that it is in none."""
        self._joined.running = collective

    def abort(self, reason: str, mismatch: Called | None = None, plane: int | None = None) -> None:
        """End the job for everybody. Does not wait."""
        with self._changed:
            if self._session is not None:
                self._session.say(Abort(reason, mismatch, plane))
                self._act()

    def leave(self, *, timeout_s: float, collectives: int | None = None) -> None:
        """Wait until all workers leave. If the job ends otherwise, raise the error of `error_of`.

        CollectiveTimeoutError where others do not leave in time, ControllerUnreachableError where the
        controller is away.
        """
        session = self._joined
        with self._changed:
            session.say(Leave(collectives))
            self._act()
        if self._wait(lambda: session.state is State.LEFT, timeout_s):
            return
        late = f"not all workers had left their job within {timeout_s:g} s"
        if error := session.last_error:
            raise ControllerUnreachableError(
                f"{late}: the controller at {self.controller} is out of reach ({error})"
            )
        if not session.missing:  # it says at once who has not
            raise ControllerUnreachableError(f"{late}: the controller at {self.controller} does not answer")
        raise CollectiveTimeoutError(
            f"{late}: {session.missing} {session.have} not, and may still compute ('p4reduce doctor' says "
            "more); leave(timeout_s=...) waits longer"
        )

    def close(self) -> None:
        """End the session; idempotent."""
        with self._changed:
            if self._session is not None:
                self._session.close()
                self._act()
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join(_FAREWELL_S)
        if self._call is not None:
            self._call.cancel()
        self._channel.close()

    @property
    def _joined(self) -> Session:
        assert self._session is not None, "join() comes first"
        return self._session

    def _wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `reached`; return whether it came in time. Raise what the controller said instead."""
        session = self._joined
        with self._changed:
            self._changed.wait_for(lambda: reached() or session.ended or session.refused, timeout=timeout_s)
            if reached():
                return True
        if session.refused is not None:
            raise self._error_of_refusal(session.refused)
        if session.ended is not None:
            raise error_of(session.ended, own_rank=session.rank)
        return False

    def _awaited(self, session: Session) -> str:
        """Say what joining waits for."""
        if session.missing:
            return f"waits for {session.missing} to join"
        error = f" ({session.last_error})" if session.last_error else ""
        return f"waits for the controller at {self.controller} to answer{error}"

    def _error_of_refusal(self, why: str) -> CommunicatorError:
        if self._refusal.code() in _GONE:
            return ControllerUnreachableError(self._why_not_tls() or why)
        taken = self._refusal.code() is errors.QueuePairTakenError.code
        return (QueuePairTakenError if taken else JobRefusedError)(why)

    def _why_not_tls(self) -> str | None:
        return diagnosis.why(self.controller, self._tls, what=f"the controller at {self.controller}")

    def _act(self) -> None:
        """Do what the session wants. Nothing here blocks; the lock keeps it in order."""
        for action in self._joined.actions():
            match action:
                case Open(first):
                    last, self._outgoing = self._outgoing, SimpleQueue()
                    self._outgoing.put(to_controller(first))
                    last.put(None)  # the last stream's sender, if it still waits, ends
                    self._opening, self._broken = self._outgoing, False
                case Send(message):
                    self._outgoing.put(to_controller(message))
                case Close():
                    self._outgoing.put(None)
                case Break():
                    self._broken = True
                    if self._call is not None:
                        self._call.cancel()  # the reader says that it is broken
                case Away(for_ns, why):
                    _LOG.warning(
                        "the controller at %s has been out of reach for %.0f s (%s): the job goes on without "
                        "it",
                        self.controller,
                        for_ns / NS,
                        why,
                    )
        self._changed.notify_all()

    # What follows runs in the reader's thread.

    def _read(self) -> None:
        session = self._joined
        connections_not_for_children(self, self.controller)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._opening is not None or session.is_over)
                outgoing, self._opening = self._opening, None
            if outgoing is None or session.is_over:
                return
            end = self._talk(outgoing)
            # Not under the lock: this waits for the stream's end, or asks the network.
            why = plainly(end.details() or "") or end.code().name
            final = not session.is_over and self._is_final(session, end)
            with self._changed:
                if session.is_over:
                    return
                if final and session.ready is None:
                    self._refusal = end
                session.broken(why, _now(), final=final)
                self._act()
                callback = self._callback
            if session.ended is not None and callback is not None:
                callback(session.ended)

    def _talk(self, outgoing: _Outgoing) -> Any:
        """Run one stream; return the error, or the call, that it ended with."""
        call = self._stub.Session(_until_none(outgoing))
        with self._changed:
            self._call = call
            if self._broken:  # while it was being opened: this process was stopped, perhaps
                call.cancel()
        try:
            for message in call:
                self._take(from_controller(message))
        except grpc.RpcError as error:
            return error
        except errors.InvalidRequestError as error:
            self._take(Ended(reason=f"the controller at {self.controller} says what cannot be: {error}"))
        return call  # it ended without an error: status OK

    def _is_final(self, session: Session, end: Any) -> bool:
        """Tell whether it is of no use to try again. A running job goes on until it hears that it is over."""
        if session.ready is not None:
            return end.code() in OVER
        if end.code() not in _GONE:
            return True
        return session.is_first and self._why_not_tls() is not None  # it is not known to pass by itself

    def _take(self, said: FromController | None) -> None:
        with self._changed:
            self._joined.heard(said, _now())
            self._act()
            callback = self._callback
        if isinstance(said, Request):
            with self._asking:
                if self._listener is not None:
                    self._listener(said)
                else:
                    self._requests.append(said)
        elif isinstance(said, Ended):
            if callback is not None and said is self._joined.ended:  # it may be said twice
                callback(said)
            with self._changed:
                self._joined.close()
                self._act()

    # And this in the heartbeat's.

    def _keep_time(self) -> None:
        session = self._joined
        with self._changed:
            while not session.is_over:
                due = session.next_timeout()
                left_s = None if due is None else (due - _now()) / NS
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                else:
                    session.timeout(_now())
                    self._act()


def _now() -> int:
    """Return nanoseconds, suspended time included: others do not wait while this machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _until_none(messages: _Outgoing) -> Iterator[pb.WorkerMessage]:
    while (message := messages.get()) is not None:
        yield message


def _predecessor(session: Session) -> str:
    """Say which predecessor this worker receives from; in a gang, by its rank among those of all GPUs."""
    assert session.ready is not None  # it is in a collective
    worker, gang = session.ready.predecessor, session.join.gang
    rank = worker.rank if gang is None else worker.rank * gang.planes + gang.plane
    where = f" on {worker.hostname} ({worker.ip})" if worker.hostname else f" ({worker.ip})"
    return f"All that it receives comes from rank {rank}{where}, which may wait for another one itself"
