"""A worker's session, against a gRPC server that says what the test has written down."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any, NamedTuple

import grpc
import pytest

from controller.api import controller_pb2 as pb
from controller.api import errors, rpc
from controller.api.messages import (
    EndCause,
    Ended,
    Gang,
    Held,
    HoldAt,
    Join,
    Mode,
    Moved,
    Pause,
    Paused,
    RcParameters,
    Renew,
    Renewed,
    Renewing,
    Start,
    Up,
    Worker,
)
from host_agent.controller_session import ControllerSession
from host_agent.errors import (
    CollectiveTimeoutError,
    CommunicatorError,
    ControllerUnreachableError,
    JobEndedError,
    JobRefusedError,
    MismatchError,
    QueuePairTakenError,
    WorkerLostError,
)
from host_agent.membership import Request, error_of
from host_agent.session import NS

REQUEST = Join(
    job="train",
    world_size=3,
    worker=Worker(
        rank=1,
        mac="02:00:00:00:01:02",
        ip=IPv4Address("10.1.0.2"),
        qpn_out=0x101,
        psn_out=0xFFFFFF,
        qpn_in=0x201,
        hostname="h2",
    ),
    path_mtu_max=4096,
    rnr_nak=True,
    tenant="blue",
)
READY = pb.Ready(
    job_id=5,
    generation=77,
    window=8,
    message_packets=16,
    path_mtu=1024,
    mode=pb.IN_NETWORK,
    successor=pb.Worker(rank=2, mac="02:00:00:00:01:03", ip="10.1.0.3", qpn_in=0x202, hostname="h3"),
    predecessor=pb.Worker(rank=0, mac="02:00:00:00:01:01", ip="10.1.0.1", qpn_out=0x100, psn_out=9),
    heartbeat_interval_s=0.05,
    heartbeat_timeout_s=30,
    resume_token=b"secret",
    rc=pb.RcParameters(timeout=18, retry_count=0, rnr_retry=6, min_rnr_timer=1),
    ring=[1, 2, 0],
)

Script = Callable[["Conversation"], Iterator[pb.ControllerMessage]]
FIELDS = {
    type(getattr(pb.ControllerMessage(), field.name)).__name__: field.name
    for field in pb.ControllerMessage.DESCRIPTOR.fields
}


class Conversation:
    """One call of Session, as the server sees it. Heartbeats are left out of `expect`."""

    def __init__(self, requests: Iterator[pb.WorkerMessage], context: grpc.ServicerContext) -> None:
        self.requests = requests
        self.context = context

    def expect(self, kind: str) -> Any:
        for message in self.requests:
            found = message.WhichOneof("message")
            if found == "heartbeat" != kind:
                continue
            assert found == kind, f"the worker sent {found} instead of {kind}"
            return getattr(message, kind)
        raise AssertionError(f"the worker ended the session without {kind}")


class Refuse(NamedTuple):
    """The call ends with this error."""

    code: grpc.StatusCode
    text: str


DROP = Refuse(grpc.StatusCode.UNAVAILABLE, "the controller is restarting")
STARTED = ("join", READY, "up", pb.Start())
RESUMED = ("resume", pb.Resumed())
LEFT = ("leave", pb.Left())
OVER = "the worker has ended its side, with heartbeats at most before"


def script(*steps: Any, heard: list[Any] | None = None) -> Script:
    """Return a script. The worker has to send what words say, which goes into `heard`; messages are sent to
    it, and calls are made.
    """

    def play(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        for step in steps:
            if step is OVER:
                assert {message.WhichOneof("message") for message in talk.requests} <= {"heartbeat"}
            elif isinstance(step, str):
                said = talk.expect(step)
                if heard is not None:
                    heard.append(said)
            elif isinstance(step, Refuse):
                talk.context.abort(step.code, step.text)
            elif callable(step):
                step()
            else:
                yield pb.ControllerMessage(**{FIELDS[type(step).__name__]: step})

    return play


class Controller:
    """Plays one script a call, in turn; what went wrong in one is in `problems`."""

    def __init__(self, *scripts: Script, address: str = "127.0.0.1:0") -> None:
        self.scripts = iter(scripts)
        self.problems: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self.finished = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        rpc.add_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port(address)}"
        self.server.start()

    def Session(
        self, requests: Iterator[pb.WorkerMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.ControllerMessage]:
        script = next(self.scripts)
        try:
            yield from script(Conversation(requests, context))
        except AssertionError as problem:
            self.problems.put(problem)
            raise
        finally:
            self.finished.set()


@pytest.fixture
def started() -> list[tuple[Controller, ControllerSession]]:
    """The controllers and sessions that `play` has started."""
    return []


@pytest.fixture
def play(started: list[tuple[Controller, ControllerSession]]) -> Iterator[Callable[..., ControllerSession]]:
    """Start a controller with these scripts, and a session at it; both end with the test."""

    def start(*scripts: Script) -> ControllerSession:
        controller = Controller(*scripts)
        started.append((controller, ControllerSession(controller.address)))
        return started[-1][1]

    yield start
    for controller, session in started:
        session.close()
        controller.server.stop(grace=None).wait()
        if not controller.problems.empty():
            raise controller.problems.get()


def but(**fields: Any) -> pb.Ready:
    """Return READY with something else in it."""
    ready = pb.Ready(**fields)
    changed = pb.Ready()
    changed.CopyFrom(READY)
    changed.MergeFrom(ready)
    return changed


def joined(play: Any, *scripts: Script) -> ControllerSession:
    """Return a session that has heard Ready."""
    session: ControllerSession = play(*scripts)
    session.join(REQUEST, timeout_s=10)
    return session


def running(play: Any, *scripts: Script) -> ControllerSession:
    """Return a session that has heard Start."""
    session = joined(play, *scripts)
    session.up(timeout_s=10)
    return session


def test_joining_tells_the_controller_everything_and_brings_back_the_neighbours(play: Any) -> None:
    heard: list[Any] = []
    session = play(script("join", pb.Waiting(missing_ranks=[0, 2]), *STARTED[1:], *LEFT, heard=heard))
    answer = session.join(REQUEST, timeout_s=10)
    session.up(timeout_s=10)
    session.leave(timeout_s=10)
    worker = pb.Worker(
        rank=1,
        mac="02:00:00:00:01:02",
        ip="10.1.0.2",
        qpn_out=0x101,
        psn_out=0xFFFFFF,
        qpn_in=0x201,
        hostname="h2",
    )
    assert heard[0] == pb.Join(
        job="train", world_size=3, worker=worker, path_mtu_max=4096, rnr_nak=True, tenant="blue"
    )
    assert answer.ring == (1, 2, 0)
    assert (answer.job_id, answer.generation, answer.mode) == (5, 77, Mode.IN_NETWORK)
    assert (answer.window, answer.message_packets, answer.path_mtu) == (8, 16, 1024)
    assert (answer.successor.ip, answer.successor.qpn_in) == (IPv4Address("10.1.0.3"), 0x202)
    assert (answer.predecessor.qpn_out, answer.predecessor.psn_out) == (0x100, 9)
    assert answer.rc == RcParameters(timeout=18, retry_count=0, rnr_retry=6, min_rnr_timer=1)


def test_a_move_is_heard_and_answered_whenever_somebody_listens(play: Any) -> None:
    """Send the first step before anybody listens, and lose an answer, which is asked for again."""

    hold = pb.HoldAt(move=9, collective=8)
    moved = pb.Moved(move=9, mode=pb.RING, mode_reason="moved out")

    def on_move(step: Request) -> None:
        if isinstance(step, Start):
            return
        steps.append(step)
        if isinstance(step, Pause):
            session.say(Paused(step.move, 7))
        elif isinstance(step, HoldAt):
            session.say(Held(step.move))
        else:
            over.set()

    said, over = threading.Event(), threading.Event()
    heard: list[Any] = []
    steps: list[Request] = []
    moves = script(*STARTED, pb.Pause(move=9), said.set, "paused", hold, "held", DROP, heard=heard)
    session = running(play, moves, script(*RESUMED, "up", hold, "held", moved, *LEFT, heard=heard))
    assert said.wait(10)
    session.listen(on_move)
    assert over.wait(10)
    session.leave(timeout_s=10)
    assert steps == [Pause(9), HoldAt(9, 8), HoldAt(9, 8), Moved(9, Mode.RING, "moved out")]
    answers = [said for said in heard if isinstance(said, (pb.Paused, pb.Held))]
    assert answers == [pb.Paused(move=9, next_collective=7), *2 * [pb.Held(move=9)]]


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (errors.ConflictError("job train: rank 1 is taken by host h7"), JobRefusedError),
        (errors.QueuePairTakenError("QP 0x100 of host h2 belongs to rank 0"), QueuePairTakenError),
    ],
)
def test_a_refusal_comes_with_the_controllers_sentence(
    play: Any, refusal: errors.ControllerError, kind: type[JobRefusedError]
) -> None:
    with pytest.raises(JobRefusedError, match=str(refusal)) as caught:
        play(script("join", Refuse(refusal.code, str(refusal)))).join(REQUEST, timeout_s=10)
    assert type(caught.value) is kind


def test_a_controller_that_does_not_come_while_a_worker_joins_is_named_in_the_end() -> None:
    session = ControllerSession("127.0.0.1:1")
    with pytest.raises(
        ControllerUnreachableError,
        match=r"no session with the controller at 127.0.0.1:1 within 0.5 s: Connection refused. Is it run",
    ):
        session.join(REQUEST, timeout_s=0.5)
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize("while_away", ["nobody listens", "a stopped process listens"])
def test_whoever_joins_tries_again_until_the_controller_answers(while_away: str) -> None:
    """Check also a stopped process, which takes connections and says nothing: gRPC gives up after seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    if while_away == "nobody listens":
        listener.close()
    session = ControllerSession(address)
    joined: queue.Queue[Any] = queue.Queue()

    def join() -> None:
        try:
            joined.put(session.join(REQUEST, timeout_s=60))
        except CommunicatorError as error:
            joined.put(error)

    joining = threading.Thread(target=join)
    joining.start()
    with pytest.raises(queue.Empty):
        joined.get(timeout=5)  # longer than an attempt may take
    listener.close()
    controller = Controller(script(*STARTED), address=address)
    try:
        assert getattr(joined.get(timeout=60), "generation", None) == READY.generation
    finally:
        joining.join()
        session.close()
        controller.server.stop(grace=None).wait()


def test_waiting_too_long_is_said_and_names_the_ranks_that_are_missing(
    play: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("host_agent.controller_session._NOTICE_S", 0.1)
    session = play(script("join", pb.Waiting(missing_ranks=[0, 2]), "abort"))
    with pytest.raises(JobRefusedError, match=r"still waits for 3 workers after 1 s: ranks 0, 2"):
        session.join(REQUEST, timeout_s=1)
    assert "waits for ranks 0, 2 to join, up to 1 s" in caplog.text
    session.abort("enough")


def test_heartbeats_go_out_as_often_as_the_controller_asked(play: Any) -> None:
    beaten = threading.Event()
    session = running(play, script(*STARTED, *["heartbeat"] * 3, beaten.set, *LEFT))
    assert beaten.wait(10)
    session.leave(timeout_s=10)


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_the_end_of_the_job_is_told_once_whenever_one_asks(play: Any, early: bool) -> None:
    go = threading.Event()
    ended = pb.Ended(reason="rank 2 (h3) died", rank=2)
    session = running(play, script(*STARTED, lambda: go.wait(10), ended))
    told: queue.Queue[Ended] = queue.Queue()
    if early:
        go.set()
        with pytest.raises(WorkerLostError, match=r"rank 2 \(h3\) died"):
            session.leave(timeout_s=10)
    session.on_ended(told.put)
    go.set()
    assert told.get(timeout=10) == Ended(reason="rank 2 (h3) died", rank=2)
    assert told.empty()


def test_a_job_that_ends_while_its_workers_come_up_is_an_error_there(play: Any) -> None:
    session = joined(play, script("join", READY, "up", pb.Ended(reason="job train was deleted")))
    with pytest.raises(JobEndedError, match="was deleted"):
        session.up(timeout_s=10)


def test_an_abort_reaches_the_controller_even_if_the_session_is_closed_right_after(play: Any) -> None:
    heard: list[Any] = []
    over = threading.Event()
    ended = pb.Ended(reason="rank 1: no", rank=1)
    session = running(play, script(*STARTED, "abort", over.set, ended, heard=heard))
    session.abort("rank 1: no")
    session.close()
    assert over.wait(10)
    assert heard[-1].reason == "rank 1: no"


def test_a_broken_session_is_taken_up_again_and_what_was_said_is_said_again(play: Any) -> None:
    heard: list[Any] = []
    again = (*RESUMED, "up", pb.Start())  # this controller may not know that the job had started
    session = running(
        play,
        script("join", READY, "up", DROP),
        script(*again, "leave", DROP, heard=heard),
        script(*again, *LEFT, heard=heard),
    )
    session.leave(timeout_s=10)
    resumed = [said for said in heard if isinstance(said, pb.Resume)]
    for said in resumed:
        assert (said.job, said.generation, said.rank, said.token) == ("train", 77, 1, b"secret")
        assert (said.joined.worker.qpn_out, said.ready) == (0x101, READY)
    assert len(resumed) == 2


@pytest.mark.slow
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_a_controller_that_stays_away_ends_nothing(
    play: Any, code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Keep it away for long, or there and unable to cope; the worker says so now and then."""
    for name in ("FIRST_RETRY_NS", "LONGEST_RETRY_NS", "SAY_AFTER_NS", "SAY_EVERY_NS"):
        monkeypatch.setattr(f"host_agent.session.{name}", NS // 20)
    back = threading.Event()
    away = [script(Refuse(code, "not now"))] * 20
    session = play(script("join", READY, DROP), *away, script(*RESUMED, back.set, *LEFT))
    told: queue.Queue[Ended] = queue.Queue()
    session.on_ended(told.put)
    session.join(REQUEST, timeout_s=10)
    assert back.wait(60)
    assert told.empty()
    session.leave(timeout_s=10)
    assert "has been out of reach for" in caplog.text
    assert "the job goes on without it" in caplog.text


def test_a_controller_that_forgot_the_job_ends_it(play: Any) -> None:
    forgot = Refuse(grpc.StatusCode.NOT_FOUND, "there is no job train with generation 77")
    begun = threading.Event()
    session = play(script(*STARTED, lambda: begun.wait(10), DROP), script("resume", forgot))
    told: queue.Queue[Ended] = queue.Queue()
    session.on_ended(told.put)
    session.join(REQUEST, timeout_s=10)
    session.up(timeout_s=10)
    begun.set()
    assert "there is no job train with generation 77" in told.get(timeout=10).reason


def test_a_silent_controller_is_given_up_and_called_again(play: Any) -> None:
    """Miss its heartbeats; TCP may not notice for minutes that the other side is gone."""
    again, done = threading.Event(), threading.Event()
    first = script("join", but(heartbeat_timeout_s=0.2), lambda: done.wait(20))
    joined(play, first, *[script(*RESUMED, again.set, lambda: done.wait(20))] * 3)
    assert again.wait(20)
    done.set()


def test_who_heard_that_its_job_ended_ends_its_side(play: Any) -> None:
    """Check the end of its side, which tells the controller that it sends nothing more to the others."""
    begun, told, over = threading.Event(), threading.Event(), threading.Event()
    in_time: list[bool] = []
    ends = (lambda: begun.wait(10), pb.Ended(reason="no more"))
    session = play(script(*STARTED, *ends, OVER, lambda: in_time.append(told.is_set()), over.set))
    session.on_ended(lambda ended: told.set())
    session.join(REQUEST, timeout_s=10)
    session.up(timeout_s=10)
    begun.set()
    assert over.wait(10)
    assert in_time == [True], "its driver was stopped first"


@pytest.mark.slow
def test_a_controller_that_is_away_is_tried_about_every_second(
    play: Any, started: list[tuple[Controller, ControllerSession]]
) -> None:
    """Check the intervals: by itself, gRPC would double them up to two minutes."""
    gone = threading.Event()
    running(play, script(*STARTED, lambda: gone.wait(20)))
    ((controller, _),) = started
    port = int(controller.address.rpartition(":")[2])
    gone.set()
    controller.server.stop(grace=None).wait()
    with socket.create_server(("127.0.0.1", port)) as busy:
        until = time.monotonic() + 9.0  # what gRPC by itself does takes at least 12 s
        for _ in range(6):
            busy.settimeout(until - time.monotonic())
            connection, _ = busy.accept()
            connection.close()


def test_a_job_that_is_renewed_before_it_starts_is_up_for_its_worker(play: Any) -> None:
    """Let whoever runs the job from then on answer the renewal."""
    steps: list[Request] = []
    over = threading.Event()

    def on_renewal(step: Request) -> None:
        steps.append(step)
        if isinstance(step, Renew):
            session.say(Renewing(renewal=1, qpn_out=1, psn_out=2, qpn_in=3, collective=0))
        elif isinstance(step, Renewed):
            assert step.holder is None
            session.say(Up())
        else:
            over.set()

    renew = pb.Renew(renewal=1, reason="switch l1 has restarted")
    ready = but(generation=78, resume_token=b"secret\x01", rank=0, world_size=2, backup=True)
    renewed = pb.Renewed(renewal=1, ready=ready, collective=12, members=[1, 2])
    session = running(play, script("join", READY, "up", renew, "renewing", renewed, "up", pb.Start(), *LEFT))
    session.listen(on_renewal)
    assert over.wait(10)
    session.leave(timeout_s=10)
    assert len(steps) == 3


def test_who_died_is_named_with_its_host_and_what_it_lacks(play: Any) -> None:
    ended = pb.Ended(reason="rank 2 (h3) died", rank=2, host="h3", first_message=17)
    with pytest.raises(WorkerLostError, match="rank 2") as caught:  # at the start, or at the end
        running(play, script(*STARTED, ended)).leave(timeout_s=10)
    assert (caught.value.rank, caught.value.host, caught.value.first_message) == (2, "h3", 17)


@pytest.mark.parametrize("cause", EndCause)
def test_what_a_worker_raises_goes_by_the_cause_alone(cause: EndCause) -> None:
    ended = Ended(reason="all workers have left", cause=cause)
    of_workers = (EndCause.WORKER_LOST, EndCause.WORKER_ABORTED)
    kind = MismatchError if cause is EndCause.MISMATCH else JobEndedError
    assert type(error_of(ended, own_rank=1)) is (WorkerLostError if cause in of_workers else kind)
    own = error_of(replace(ended, rank=1), own_rank=1)
    assert type(own) is kind, "its own doing is not another's loss"


def test_another_gpu_of_its_machine_is_not_the_worker_itself() -> None:
    mate = Ended(reason="GPU 3 of machine 1 (h2) died", cause=EndCause.WORKER_LOST, rank=1, plane=3)
    error = error_of(mate, own_rank=1)
    assert isinstance(error, WorkerLostError)
    assert (error.rank, error.plane) == (1, 3)


def test_a_controller_that_says_what_cannot_be_ends_the_session_with_its_words(play: Any) -> None:
    def talks(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from script(*STARTED, pb.Moved(move=9))(talk)
        for _ in talk.requests:  # until the worker has ended its side
            pass

    with pytest.raises(JobEndedError, match="there is no mode 0"):
        running(play, talks).leave(timeout_s=10)


# The lease of an elastic job

LEASED = but(lease_s=300.0, heartbeat_interval_s=30.0)  # so that only who is asked for sends a heartbeat


def test_a_worker_asks_whether_it_belongs_to_its_elastic_job_and_knows_for_a_while(play: Any) -> None:
    asked, done = threading.Event(), threading.Event()

    def talks(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=LEASED)
        number = talk.expect("heartbeat").number
        asked.set()
        yield pb.ControllerMessage(heartbeat=pb.Heartbeat())  # the controller's own say nothing of it
        done.wait(20)
        yield pb.ControllerMessage(heartbeat=pb.Heartbeat(number=number))
        done.wait(20)

    session = joined(play, talks)
    assert not session.confirm(timeout_s=0.3)
    assert asked.is_set()
    done.set()
    assert session.confirm(timeout_s=20)
    assert session.confirm(timeout_s=0.0), "for as long as the lease lasts"


def test_a_lease_runs_out_while_the_machine_is_suspended(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspend the machine: all other clocks stand still, and the other workers go on without this one."""

    def talks(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=LEASED)
        yield pb.ControllerMessage(heartbeat=pb.Heartbeat(number=talk.expect("heartbeat").number))
        done.wait(20)

    done = threading.Event()
    session = joined(play, talks)
    assert session.confirm(timeout_s=20)
    real, suspended = time.clock_gettime_ns, 3600 * NS
    monkeypatch.setattr(
        time, "clock_gettime_ns", lambda clock: real(clock) + suspended * (clock == time.CLOCK_BOOTTIME)
    )
    assert not session.confirm(timeout_s=0.1)
    done.set()


def test_a_worker_whose_job_went_on_without_it_does_not_belong_to_it(play: Any) -> None:
    ended = pb.Ended(reason="it goes on without rank 1", rank=1)
    session = joined(play, script("join", LEASED, "heartbeat", ended))
    assert not session.confirm(timeout_s=20)


def test_who_leaves_before_the_others_says_who_they_are(play: Any) -> None:
    waiting = pb.Waiting(missing_ranks=[1])
    session = joined(play, script("join", READY, "leave", waiting, OVER))
    with pytest.raises(CollectiveTimeoutError, match=r"within 2 s: rank 1 has not, and may still compute"):
        session.leave(timeout_s=2)


@pytest.mark.slow
def test_who_cannot_leave_as_the_controller_is_away_says_so(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host_agent.session.FIRST_RETRY_NS", 60 * NS)
    session = joined(play, script("join", READY, "leave", DROP))
    with pytest.raises(ControllerUnreachableError, match=r"within 5 s: the controller at .* is out of reach"):
        session.leave(timeout_s=5)


def test_who_is_missing_is_asked_and_told(play: Any) -> None:
    heard: list[Any] = []
    answers = ("stalled", pb.Lacking(collective=6, who="too late"), pb.Lacking(collective=7, who="rank 2"))
    session = running(play, script(*STARTED, *answers, "stalled", pb.Lacking(collective=8), heard=heard))
    session.runs(7)
    assert session.who_is_missing(timeout_s=30) == "The controller says: rank 2"
    session.runs(8)
    assert session.who_is_missing(timeout_s=30).startswith("The controller knows of nobody who is late")
    assert [said.collective for said in heard if isinstance(said, pb.Stalled)] == [7, 8]


@pytest.mark.parametrize(("gang", "rank"), [(None, 0), (Gang("train", 1, 2), 1)], ids=["alone", "gang"])
def test_a_controller_that_does_not_say_who_is_missing_is_named(
    play: Any, gang: Gang | None, rank: int
) -> None:
    """Use a controller that does not answer, for instance one of an earlier release."""
    session = play(script(*STARTED, "stalled"))
    session.join(replace(REQUEST, gang=gang), timeout_s=10)
    session.up(timeout_s=10)
    session.runs(7)
    said = session.who_is_missing(timeout_s=0.2)
    assert said.startswith(f"Whom it waits for is not known: the controller at {session.controller} does not")
    assert said.endswith(
        f"All that it receives comes from rank {rank} (10.1.0.1), which may wait for another one itself"
    )
