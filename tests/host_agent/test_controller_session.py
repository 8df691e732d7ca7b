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
from typing import Any

import grpc
import pytest

from controller.api import controller_pb2 as pb
from controller.api import controller_pb2_grpc, errors
from controller.api.messages import (
    EndCause,
    Ended,
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


class Conversation:
    """One call of Session, as the server sees it. Heartbeats are left out of `expect`."""

    def __init__(self, requests: Iterator[pb.WorkerMessage], context: grpc.ServicerContext) -> None:
        self.requests = requests
        self.context = context
        self.heartbeats = 0

    def expect(self, kind: str) -> Any:
        for message in self.requests:
            found = message.WhichOneof("message")
            if found == "heartbeat" != kind:
                self.heartbeats += 1
                continue
            assert found == kind, f"the worker sent {found} instead of {kind}"
            return getattr(message, kind)
        raise AssertionError(f"the worker ended the session without {kind}")

    def drop(self) -> None:
        """Break the connection."""
        self.context.abort(grpc.StatusCode.UNAVAILABLE, "the controller is restarting")


class Controller(controller_pb2_grpc.ControllerServicer):
    """Plays one script a call, in turn; what went wrong in one is in `problems`."""

    def __init__(self, *scripts: Script, address: str = "127.0.0.1:0") -> None:
        self.scripts = iter(scripts)
        self.problems: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self.finished = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        controller_pb2_grpc.add_ControllerServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
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
    """What `play` has started."""
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


def ready(talk: Conversation) -> Iterator[pb.ControllerMessage]:
    """The usual beginning, up to Start."""
    talk.expect("join")
    yield pb.ControllerMessage(ready=READY)
    talk.expect("up")
    yield pb.ControllerMessage(start=pb.Start())


def running(play: Any, *scripts: Script) -> ControllerSession:
    """A session that has heard Start."""
    session: ControllerSession = play(*scripts)
    session.join(REQUEST, timeout_s=10)
    session.up(timeout_s=10)
    return session


def test_joining_tells_the_controller_everything_and_brings_back_the_neighbours(play: Any) -> None:
    joins: list[pb.Join] = []

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        joins.append(talk.expect("join"))
        yield pb.ControllerMessage(waiting=pb.Waiting(missing_ranks=[0, 2]))
        yield pb.ControllerMessage(ready=READY)
        talk.expect("up")
        yield pb.ControllerMessage(start=pb.Start())
        talk.expect("leave")
        yield pb.ControllerMessage(left=pb.Left())

    session = play(script)
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
    assert joins == [
        pb.Join(job="train", world_size=3, worker=worker, path_mtu_max=4096, rnr_nak=True, tenant="blue")
    ]
    assert answer.ring == (1, 2, 0)
    assert (answer.job_id, answer.generation, answer.mode) == (5, 77, Mode.IN_NETWORK)
    assert (answer.window, answer.message_packets, answer.path_mtu) == (8, 16, 1024)
    assert (answer.successor.ip, answer.successor.qpn_in) == (IPv4Address("10.1.0.3"), 0x202)
    assert (answer.predecessor.qpn_out, answer.predecessor.psn_out) == (0x100, 9)
    assert answer.rc == RcParameters(timeout=18, retry_count=0, rnr_retry=6, min_rnr_timer=1)


def test_a_move_is_heard_and_answered_whenever_somebody_listens(play: Any) -> None:
    """The first step comes before anybody asked for it; an answer that is lost is asked for again."""

    def moves(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        yield pb.ControllerMessage(pause=pb.Pause(move=9))
        said.set()
        answers.append(talk.expect("paused"))
        yield pb.ControllerMessage(hold_at=pb.HoldAt(move=9, collective=8))
        answers.append(talk.expect("held"))
        talk.drop()

    def resumes(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("resume")
        yield pb.ControllerMessage(resumed=pb.Resumed())
        talk.expect("up")
        yield pb.ControllerMessage(hold_at=pb.HoldAt(move=9, collective=8))
        answers.append(talk.expect("held"))
        yield pb.ControllerMessage(moved=pb.Moved(move=9, mode=pb.RING, mode_reason="moved out"))
        talk.expect("leave")
        yield pb.ControllerMessage(left=pb.Left())

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
    answers: list[Any] = []
    steps: list[Request] = []
    session = running(play, moves, resumes)
    assert said.wait(10)
    session.listen(on_move)
    assert over.wait(10)
    session.leave(timeout_s=10)
    assert steps == [Pause(9), HoldAt(9, 8), HoldAt(9, 8), Moved(9, Mode.RING, "moved out")]
    assert answers == [pb.Paused(move=9, next_collective=7), *2 * [pb.Held(move=9)]]


def test_a_refusal_comes_with_the_controllers_sentence(play: Any) -> None:
    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        talk.context.abort(grpc.StatusCode.ALREADY_EXISTS, "job train: rank 1 is taken by host h7")
        yield pb.ControllerMessage()

    with pytest.raises(JobRefusedError, match="rank 1 is taken by host h7"):
        play(script).join(REQUEST, timeout_s=10)


def test_a_refusal_of_a_queue_pair_s_number_is_told_from_others(play: Any) -> None:
    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        refusal = errors.QueuePairTakenError("QP 0x100 of host h2 belongs to rank 0")
        talk.context.abort(refusal.code, str(refusal))
        yield pb.ControllerMessage()

    with pytest.raises(QueuePairTakenError, match="QP 0x100 of host h2 belongs to rank 0"):
        play(script).join(REQUEST, timeout_s=10)


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
    """A process that is stopped takes connections, and says nothing: gRPC's attempts fail after seconds."""
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
    controller = Controller(ready, address=address)
    try:
        assert getattr(joined.get(timeout=60), "generation", None) == READY.generation
    finally:
        joining.join()
        session.close()
        controller.server.stop(grace=None).wait()


def test_waiting_for_others_is_said(
    play: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("host_agent.controller_session._NOTICE_S", 0.1)

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(waiting=pb.Waiting(missing_ranks=[0, 2]))
        talk.expect("abort")

    session = play(script)
    with pytest.raises(JobRefusedError):
        session.join(REQUEST, timeout_s=0.3)
    assert "waits for ranks 0, 2 to join, up to 0.3 s" in caplog.text
    session.abort("enough")


def test_waiting_too_long_names_the_ranks_that_are_missing(play: Any) -> None:
    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(waiting=pb.Waiting(missing_ranks=[0, 2]))
        talk.expect("abort")

    session = play(script)
    with pytest.raises(JobRefusedError, match=r"still waits for 3 workers after 0.2 s: ranks 0, 2"):
        session.join(REQUEST, timeout_s=0.2)
    session.abort("gave up")


def test_heartbeats_go_out_as_often_as_the_controller_asked(play: Any) -> None:
    beaten = threading.Event()

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        for _ in range(3):
            talk.expect("heartbeat")
        beaten.set()
        talk.expect("leave")
        yield pb.ControllerMessage(left=pb.Left())

    session = running(play, script)
    assert beaten.wait(10)
    session.leave(timeout_s=10)


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_the_end_of_the_job_is_told_once_whenever_one_asks(play: Any, early: bool) -> None:
    go = threading.Event()

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        go.wait(10)
        yield pb.ControllerMessage(ended=pb.Ended(reason="rank 2 (h3) died", rank=2))

    session = running(play, script)
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
    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=READY)
        talk.expect("up")
        yield pb.ControllerMessage(ended=pb.Ended(reason="job train was deleted"))

    session = play(script)
    session.join(REQUEST, timeout_s=10)
    with pytest.raises(JobEndedError, match="was deleted"):
        session.up(timeout_s=10)


def test_an_abort_reaches_the_controller_even_if_the_session_is_closed_right_after(play: Any) -> None:
    reasons: queue.Queue[str] = queue.Queue()

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        reasons.put(talk.expect("abort").reason)
        yield pb.ControllerMessage(ended=pb.Ended(reason="rank 1: no", rank=1))

    session = running(play, script)
    session.abort("rank 1: no")
    session.close()
    assert reasons.get(timeout=10) == "rank 1: no"


def test_a_broken_session_is_taken_up_again_and_what_was_said_is_said_again(play: Any) -> None:
    resumed: list[pb.Resume] = []

    def breaks_before_start(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=READY)
        talk.expect("up")
        talk.drop()

    def breaks_on_leave(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        resumed.append(talk.expect("resume"))
        yield pb.ControllerMessage(resumed=pb.Resumed())
        talk.expect("up")
        yield pb.ControllerMessage(start=pb.Start())
        talk.expect("leave")
        talk.drop()

    def ends_well(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        resumed.append(talk.expect("resume"))
        yield pb.ControllerMessage(resumed=pb.Resumed())
        talk.expect("up")  # this controller may not know that the job had started
        yield pb.ControllerMessage(start=pb.Start())
        talk.expect("leave")
        yield pb.ControllerMessage(left=pb.Left())

    session = running(play, breaks_before_start, breaks_on_leave, ends_well)
    session.leave(timeout_s=10)
    for said in resumed:
        assert (said.job, said.generation, said.rank, said.token) == ("train", 77, 1, b"secret")
        assert (said.joined.worker.qpn_out, said.ready) == (0x101, READY)
    assert len(resumed) == 2


@pytest.mark.slow
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_a_controller_that_stays_away_ends_nothing(
    play: Any, code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long, and also where it is there and cannot cope; the worker says so now and then."""
    for name in ("FIRST_RETRY_NS", "LONGEST_RETRY_NS", "SAY_AFTER_NS", "SAY_EVERY_NS"):
        monkeypatch.setattr(f"host_agent.session.{name}", NS // 20)
    back = threading.Event()

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=READY)
        talk.drop()

    def away(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.context.abort(code, "not now")
        yield pb.ControllerMessage()

    def resumes(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("resume")
        yield pb.ControllerMessage(resumed=pb.Resumed())
        back.set()
        talk.expect("leave")
        yield pb.ControllerMessage(left=pb.Left())

    session = play(script, *[away] * 20, resumes)
    told: queue.Queue[Ended] = queue.Queue()
    session.on_ended(told.put)
    session.join(REQUEST, timeout_s=10)
    assert back.wait(60)
    assert told.empty()
    session.leave(timeout_s=10)
    assert "has been out of reach for" in caplog.text
    assert "the job goes on without it" in caplog.text


def test_a_controller_that_forgot_the_job_ends_it(play: Any) -> None:
    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        talk.drop()

    def forgot(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("resume")
        talk.context.abort(grpc.StatusCode.NOT_FOUND, "there is no job train with generation 77")
        yield pb.ControllerMessage()

    session = play(script, forgot)
    told: queue.Queue[Ended] = queue.Queue()
    session.on_ended(told.put)
    session.join(REQUEST, timeout_s=10)
    session.up(timeout_s=10)
    assert "there is no job train with generation 77" in told.get(timeout=10).reason


def test_a_silent_controller_is_given_up_and_called_again(play: Any) -> None:
    """TCP may not notice for minutes that the other side is gone; missing heartbeats show it."""
    again = threading.Event()
    done = threading.Event()

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        short = pb.Ready()
        short.CopyFrom(READY)
        short.heartbeat_timeout_s = 0.2
        yield pb.ControllerMessage(ready=short)
        done.wait(20)

    def second(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("resume")
        yield pb.ControllerMessage(resumed=pb.Resumed())
        again.set()
        done.wait(20)

    session = play(script, second, second, second)
    session.join(REQUEST, timeout_s=10)
    assert again.wait(20)
    done.set()


def test_who_heard_that_its_job_ended_ends_its_side(play: Any) -> None:
    """The controller takes that for the word that this worker sends nothing more to the others."""
    told = threading.Event()
    in_time: list[bool] = []

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        yield pb.ControllerMessage(ended=pb.Ended(reason="no more"))
        for message in talk.requests:
            assert message.WhichOneof("message") == "heartbeat"
        in_time.append(told.is_set())
        over.set()

    over = threading.Event()
    session = play(script)
    session.on_ended(lambda ended: told.set())
    session.join(REQUEST, timeout_s=10)
    session.up(timeout_s=10)
    assert over.wait(10)
    assert in_time == [True], "its driver was stopped first"


@pytest.mark.slow
def test_a_controller_that_is_away_is_tried_about_every_second(
    play: Any, started: list[tuple[Controller, ControllerSession]]
) -> None:
    """By itself, gRPC would double the time between two attempts up to two minutes."""

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        gone.wait(20)

    gone = threading.Event()
    running(play, script)
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


def renewed(number: int, **fields: Any) -> pb.ControllerMessage:
    later = pb.Ready()
    later.CopyFrom(READY)
    later.generation, later.resume_token = 77 + number, b"secret" + bytes([number])
    later.rank, later.world_size, later.backup = 0, 2, True
    return pb.ControllerMessage(
        renewed=pb.Renewed(renewal=number, ready=later, collective=12, members=[1, 2], **fields)
    )


def test_a_job_that_is_renewed_before_it_starts_is_up_for_its_worker(play: Any) -> None:
    """The renewal is answered by whoever runs the job from then on."""

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=READY)
        talk.expect("up")
        yield pb.ControllerMessage(renew=pb.Renew(renewal=1, reason="switch l1 has restarted"))
        talk.expect("renewing")
        yield renewed(1)
        talk.expect("up")
        yield pb.ControllerMessage(start=pb.Start())
        talk.expect("leave")
        yield pb.ControllerMessage(left=pb.Left())

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

    session = running(play, script)
    session.listen(on_renewal)
    assert over.wait(10)
    session.leave(timeout_s=10)
    assert len(steps) == 3


def test_who_died_is_named_with_its_host_and_what_it_lacks(play: Any) -> None:
    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        yield pb.ControllerMessage(
            ended=pb.Ended(reason="rank 2 (h3) died", rank=2, host="h3", first_message=17)
        )

    session = running(play, script)
    with pytest.raises(WorkerLostError, match="rank 2") as caught:
        session.leave(timeout_s=10)
    assert (caught.value.rank, caught.value.host, caught.value.first_message) == (2, "h3", 17)


@pytest.mark.parametrize("cause", EndCause)
def test_what_a_worker_raises_goes_by_the_cause_alone(cause: EndCause) -> None:
    ended = Ended(reason="all workers have left", cause=cause)
    of_workers = (EndCause.WORKER_LOST, EndCause.WORKER_ABORTED)
    kind = MismatchError if cause is EndCause.MISMATCH else JobEndedError
    assert type(error_of(ended, own_rank=1)) is (WorkerLostError if cause in of_workers else kind)
    own = error_of(replace(ended, rank=1), own_rank=1)
    assert type(own) is kind, "its own doing is not another's loss"


def test_a_controller_that_says_what_cannot_be_ends_the_session_with_its_words(play: Any) -> None:
    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        yield from ready(talk)
        yield pb.ControllerMessage(moved=pb.Moved(move=9))
        for _ in talk.requests:  # until the worker has ended its side
            pass

    session = running(play, script)
    with pytest.raises(JobEndedError, match="there is no mode 0"):
        session.leave(timeout_s=10)


# The lease of an elastic job


def leased(lease_s: float) -> pb.Ready:
    ready = pb.Ready()
    ready.CopyFrom(READY)
    ready.lease_s, ready.heartbeat_interval_s = lease_s, 30.0  # so that only who is asked for sends one
    return ready


def test_a_worker_asks_whether_it_belongs_to_its_elastic_job_and_knows_for_a_while(play: Any) -> None:
    asked, done = threading.Event(), threading.Event()

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=leased(300.0))
        number = talk.expect("heartbeat").number
        asked.set()
        yield pb.ControllerMessage(heartbeat=pb.Heartbeat())  # the controller's own say nothing of it
        done.wait(20)
        yield pb.ControllerMessage(heartbeat=pb.Heartbeat(number=number))
        done.wait(20)

    session = play(script)
    session.join(REQUEST, timeout_s=10)
    assert not session.confirm(timeout_s=0.3)
    assert asked.is_set()
    done.set()
    assert session.confirm(timeout_s=20)
    assert session.confirm(timeout_s=0.0), "for as long as the lease lasts"


def test_a_lease_runs_out_while_the_machine_is_suspended(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other clocks stand still then, and the others go on without this worker."""

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=leased(300.0))
        yield pb.ControllerMessage(heartbeat=pb.Heartbeat(number=talk.expect("heartbeat").number))
        done.wait(20)

    done = threading.Event()
    session = play(script)
    session.join(REQUEST, timeout_s=10)
    assert session.confirm(timeout_s=20)
    real, suspended = time.clock_gettime_ns, 3600 * NS
    monkeypatch.setattr(
        time, "clock_gettime_ns", lambda clock: real(clock) + suspended * (clock == time.CLOCK_BOOTTIME)
    )
    assert not session.confirm(timeout_s=0.1)
    done.set()


def test_a_worker_whose_job_went_on_without_it_does_not_belong_to_it(play: Any) -> None:
    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=leased(300.0))
        talk.expect("heartbeat")
        yield pb.ControllerMessage(ended=pb.Ended(reason="it goes on without rank 1", rank=1))

    session = play(script)
    session.join(REQUEST, timeout_s=10)
    assert not session.confirm(timeout_s=20)


@pytest.mark.slow
def test_who_cannot_leave_as_the_controller_is_away_says_so(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host_agent.session.FIRST_RETRY_NS", 60 * NS)

    def script(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.expect("join")
        yield pb.ControllerMessage(ready=READY)
        talk.expect("leave")
        talk.drop()

    session = play(script)
    session.join(REQUEST, timeout_s=10)
    with pytest.raises(ControllerUnreachableError, match=r"within 5 s: the controller at .* is out of reach"):
        session.leave(timeout_s=5)
