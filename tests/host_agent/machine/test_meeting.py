"""The workers of one machine find each other, share memory, and learn at once who died."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from controller.api.messages import LONGEST_REASON
from host_agent.errors import (
    CommunicatorError,
    JobEndedError,
    JobRefusedError,
    MismatchError,
    WorkerLostError,
)
from host_agent.machine.arriving import make_region
from host_agent.machine.meeting import Meeting, Who, meet
from host_agent.machine.messages import (
    MESSAGE_BYTES,
    Hello,
    Parts,
    Refused,
    Welcome,
    decoded,
    encoded,
)
from host_agent.machine.place import Place
from tests.host_agent.machine.machines import meetings

BYTES = 4096


@pytest.fixture(autouse=True)
def no_thread_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An exception in a watcher's thread would go by unseen."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    yield
    assert not failed


def who(local_rank: int, local_size: int = 2, **how: Any) -> Who:
    whole = {"local_rank": local_rank, "local_size": local_size, "rank": local_rank, "world_size": local_size}
    return Who(**{**whole, **how})


def come(*all_who: Who, timeout_s: float = 5) -> list[Any]:
    """Let all come at once; return each one's Meeting, or the error that it got."""
    name = str(uuid.uuid4())
    with ThreadPoolExecutor() as pool:
        futures: list[Future[Meeting]] = [
            pool.submit(meet, name, one, region_bytes=BYTES, timeout_s=timeout_s) for one in all_who
        ]
        return [future.exception() or future.result() for future in futures]


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_see_what_each_writes() -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    for meeting in met:
        meeting.regions[meeting.who.local_rank][7] = 10 + meeting.who.local_rank
    for meeting in met:
        assert [int(region[7]) for region in meeting.regions] == [10, 11, 12]
    for meeting in met:
        meeting.close()
        meeting.close()
        assert meeting.failure is None


def test_they_may_come_in_any_order() -> None:
    name = str(uuid.uuid4())
    met: list[Meeting] = []
    late = threading.Thread(target=lambda: met.append(meet(name, who(1), region_bytes=BYTES, timeout_s=20)))
    late.start()
    time.sleep(0.1)
    met.append(meet(name, who(0), region_bytes=BYTES, timeout_s=20))
    late.join()
    for meeting in met:
        meeting.close()


def test_jobs_of_one_name_may_follow_each_other() -> None:
    for _ in range(3):
        for meeting in come(who(0), who(1)):
            assert isinstance(meeting, Meeting)
            meeting.close()


@pytest.mark.parametrize("present", [0, 1])
def test_who_does_not_come_is_named(present: int) -> None:
    (error,) = come(who(present, 3), timeout_s=0.3)
    assert isinstance(error, JobRefusedError)
    assert f"rank {present}, local rank {present} of 3" in str(error)
    assert "did not come in time" in str(error)
    assert ("local ranks 1, 2" if present == 0 else "local rank 0") in str(error)


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        ({"settings": "pipeline False"}, "settings is '' at local rank 0 and 'pipeline False' at another"),
        ({"world_size": 4}, "world size is 2 at local rank 0 and 4 at another"),
        ({"rank": 3, "world_size": 2}, "machine is 0 at local rank 0 and 1 at another"),
    ],
)
def test_who_does_not_fit_is_told_and_so_are_the_others(other: dict[str, Any], wrong: str) -> None:
    for error in come(who(0), who(1, **other)):
        assert isinstance(error, JobRefusedError)
        assert wrong in str(error)


@pytest.mark.parametrize(
    "said",
    [
        b"hello?",
        b"[]",
        b'{"local_rank": 1}',
        b'{"hello": {"local_rank": "one"}}',
        b'{"hello": {"local_rank": -1, "local_size": 2, "world_size": 2, "machine": 0, "settings": ""}}',
        b'{"welcome": {}}',
        b"[" * 10_000,
        b"x" * 100_000,
        encoded(Hello.of(who(1))),  # without its memory
    ],
    ids=lambda said: said[:24].decode(),
)
def test_who_says_nonsense_is_not_one_of_them(said: bytes) -> None:
    """Let any process of the user connect: it is told, and holds nobody up, nor does one that is silent."""
    name = str(uuid.uuid4())
    with ThreadPoolExecutor() as pool, Place(name) as place:
        first = pool.submit(meet, name, who(0), region_bytes=BYTES, timeout_s=20)
        with connected(place) as silent, connected(place) as stranger:
            stranger.send(said)
            stranger.settimeout(20)
            assert isinstance(decoded(stranger.recv(MESSAGE_BYTES)), Refused)
            second = pool.submit(meet, name, who(1), region_bytes=BYTES, timeout_s=20)
            met = [first.result(), second.result()]
            silent.settimeout(20)
            assert not silent.recv(1)
    for meeting in met:
        meeting.close()


def connected(place: Place) -> socket.socket:
    """Return a socket connected to local rank 0, once that listens."""
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deadline = time.monotonic() + 20
    while True:
        try:
            place.connect(visitor)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return visitor


@pytest.mark.parametrize("files", [0, 1, 3])
@pytest.mark.parametrize(
    "said", [b"hello?", encoded(Welcome()), encoded(Parts()), b'{"welcome": {"files": 2}}', b"x" * 100_000]
)
def test_a_host_that_says_nonsense_is_no_host(said: bytes, files: int) -> None:
    name = str(uuid.uuid4())
    with (
        ThreadPoolExecutor() as pool,
        Place(name) as place,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        place.listen(listener, 1, time.monotonic() + 20)
        visitor = pool.submit(meet, name, who(1), region_bytes=BYTES, timeout_s=20)
        peer, _ = listener.accept()
        peer.recv(MESSAGE_BYTES)
        own = os.memfd_create("not theirs")
        socket.send_fds(peer, [said], [own] * files)
        os.close(own)
        place.remove()
        error = visitor.exception()
        peer.close()
    assert isinstance(error, JobRefusedError)
    assert "is not local rank 0 of a job of this version" in str(error)


@pytest.mark.parametrize("rank", [2, 2**40])
def test_a_rank_that_cannot_be_is_refused(rank: int) -> None:
    for error in come(who(0), who(rank, rank=1)):
        assert isinstance(error, JobRefusedError)
        assert f"{rank} is no local rank of 2" in str(error)


def test_two_with_one_rank_are_refused_and_so_is_the_third() -> None:
    errors = come(who(0, 3), who(1, 3), who(1, 3))
    for error in errors:
        assert isinstance(error, JobRefusedError)
        assert "local rank 1 is there already" in str(error)


def test_who_died_while_it_waited_may_come_again() -> None:
    name = str(uuid.uuid4())
    with ThreadPoolExecutor() as pool, Place(name) as place:
        first = pool.submit(meet, name, who(0, 3), region_bytes=BYTES, timeout_s=20)
        with connected(place) as dies:
            region = make_region(BYTES)
            socket.send_fds(dies, [encoded(Hello.of(who(1, 3)))], [region])
            os.close(region)
            dies.settimeout(0.2)
            with pytest.raises(TimeoutError):
                dies.recv(1)
        others = [pool.submit(meet, name, who(rank, 3), region_bytes=BYTES, timeout_s=20) for rank in (1, 2)]
        for meeting in (first.result(), *(other.result() for other in others)):
            assert meeting.failure is None
            meeting.close()


@pytest.mark.parametrize("kind", ["file", "pipe", "not sealed", "smaller"])
def test_memory_that_could_be_taken_away_is_refused(kind: str, tmp_path: Path) -> None:
    """Check that it is refused: reading memory that its owner has shrunk kills a process by SIGBUS."""
    name = str(uuid.uuid4())
    with ThreadPoolExecutor() as pool, Place(name) as place:
        first = pool.submit(meet, name, who(0), region_bytes=BYTES, timeout_s=20)
        with connected(place) as visitor:
            file = {
                "file": lambda: os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT),
                "pipe": lambda: os.pipe()[0],
                "not sealed": lambda: os.memfd_create("test", os.MFD_ALLOW_SEALING),
                "smaller": lambda: make_region(BYTES // 2),
            }[kind]()
            if kind in ("file", "not sealed"):
                os.ftruncate(file, BYTES)
            socket.send_fds(visitor, [encoded(Hello.of(who(1)))], [file])
            os.close(file)
            error = first.exception()
    assert isinstance(error, JobRefusedError)
    assert "share memory of different sizes or kinds" in str(error)


def test_who_dies_is_named_to_all() -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    told: list[CommunicatorError] = []
    for meeting in (met[0], met[1]):
        meeting.on_failure(told.append)
    met[2]._peers[0].shutdown(socket.SHUT_RDWR)  # what the kernel does for a process that ends
    eventually(lambda: len(told) == 2)
    for meeting in (met[0], met[1]):
        assert isinstance(meeting.failure, WorkerLostError)
        assert meeting.failure.rank == 2
        assert str(meeting.failure) == f"GPU 2 of machine 0 ({socket.gethostname()}, rank 2) died"
    late: list[CommunicatorError] = []
    met[1].on_failure(late.append)
    assert late == [met[1].failure]
    for meeting in met:
        meeting.close()


def test_local_rank_0_may_die_as_well() -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    met[0]._peers[1].shutdown(socket.SHUT_RDWR)
    eventually(lambda: met[1].failure)  # GPU 0 lives here, and would tell it of GPU 2 before
    met[0]._peers[2].shutdown(socket.SHUT_RDWR)
    eventually(lambda: met[2].failure)
    assert met[1].failure is not None
    assert "GPU 0" in str(met[1].failure)
    for meeting in met:
        meeting.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MismatchError("calls differ"), MismatchError),
        (JobEndedError("an operator ended it"), JobEndedError),
        (WorkerLostError("rank 9 died", rank=9), WorkerLostError),
        ("out of memory", WorkerLostError),
    ],
)
def test_what_one_fails_with_all_fail_with(
    error: CommunicatorError | str, kind: type[CommunicatorError]
) -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    met[1].fail(error)
    met[1].fail("and once more")
    eventually(lambda: met[0].failure and met[2].failure)
    for meeting in met:
        assert type(meeting.failure) is kind
        assert str(meeting.failure) == str(error)
        if isinstance(error, WorkerLostError):
            assert isinstance(meeting.failure, WorkerLostError)
            assert meeting.failure.rank == 9
        meeting.close()


@pytest.mark.parametrize("letter", ["x", "ä", "梯", "\U0001f600", "\0", "\udc80", '"'])
def test_a_long_reason_is_cut_and_heard_by_all(letter: str) -> None:
    """Use any script; a worker that dies after the reason is not missed, as all have failed."""
    met = meetings(1, 3, region_bytes=BYTES)
    met[1].fail("out of memory: " + letter * 20_000)
    eventually(lambda: met[0].failure and met[2].failure)
    for meeting in (met[0], met[2]):
        assert isinstance(meeting.failure, WorkerLostError)
        assert str(meeting.failure).startswith("out of memory: ")
        assert len(str(meeting.failure)) == LONGEST_REASON
        assert str(meeting.failure).endswith("…")
    for meeting in met:
        meeting.close()


@pytest.mark.parametrize("speaker", [0, 1])
@pytest.mark.parametrize(
    "said",
    [
        b"not JSON",
        b"\xff\xfe",
        b"{}",
        b"7",
        b'{"left": 1}',
        b'{"left": {"local_rank": true, "collectives": 1}}',
        b'{"left": {"local_rank": 1, "collectives": -1}}',
        b'{"left": {"local_rank": 3, "collectives": 1}}',
        b'{"left": {"local_rank": 1, "collectives": 1e3}}',
        b'{"left": {"local_rank": 1, "collectives": ' + b"9" * 5000 + b"}}",
        b'{"failed": {"reason": "no kind"}}',
        b'{"failed": {"reason": 7, "kind": "WorkerLostError", "rank": null}}',
        b'{"failed": {"reason": "a", "kind": "WorkerLostError", "rank": null, "more": 1}}',
        b'{"welcome": {}}',
        b'{"parts": {}, "left": {}}',
        b"x" * 100_000,
    ],
    ids=lambda value: str(value)[:60],
)
def test_who_says_what_no_worker_says_has_failed_and_all_hear_it(said: bytes, speaker: int) -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    for peer in met[speaker]._peers.values():
        peer.send(said)
    eventually(lambda: all(meeting.failure for meeting in met))
    for meeting in met:
        assert isinstance(meeting.failure, WorkerLostError)
        assert meeting.failure.rank == speaker
        assert f"GPU {speaker} of machine 0" in str(meeting.failure)
        assert "said what no worker says" in str(meeting.failure)
        meeting.close()


def test_nobody_leaves_for_another() -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    met[1]._peers[0].send(b'{"left": {"local_rank": 2, "collectives": 1}}')
    eventually(lambda: met[2].failure)
    assert "GPU 1 of machine 0" in str(met[2].failure)
    assert not met[2].left
    for meeting in met:
        meeting.close()


def test_a_callback_that_fails_does_not_keep_others_from_hearing_it(caplog: pytest.LogCaptureFixture) -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    heard: list[CommunicatorError] = []

    def fails(error: CommunicatorError) -> None:
        raise ZeroDivisionError

    met[0].on_failure(fails)
    met[0].on_failure(heard.append)
    met[1].fail("out of memory")
    eventually(lambda: heard and met[2].failure)
    assert "a callback failed" in caplog.text
    for meeting in met:
        meeting.close()


def test_who_has_parted_is_not_missed() -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    met[1].close()
    met[0].close()
    time.sleep(0.1)
    assert met[2].failure is None
    met[2].close()


@pytest.mark.slow
def test_memory_and_address_end_with_the_processes() -> None:
    """Check it also with a process that is killed."""
    code = (
        "import os; from host_agent.machine.meeting import Who, meet\n"
        "name = os.environ['MEET']\n"
        "rank = int(os.environ['RANK'])\n"
        "m = meet(name, Who(local_rank=rank, local_size=2, rank=rank, world_size=2), region_bytes=4096, "
        "timeout_s=30)\n"
        "print('met', flush=True)\n"
        "os.kill(os.getpid(), 9) if rank == 1 else None\n"
        "import time\n"
        "while m.failure is None: time.sleep(0.01)\n"
        "print(m.failure, flush=True)\n"
    )
    for _ in range(2):  # a second job under the name is not disturbed
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, "MEET": f"test {os.getpid()}", "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [process.communicate(timeout=60)[0] for process in processes]
        assert said[1] == "met\n"
        assert said[0] == f"met\nGPU 1 of machine 0 ({socket.gethostname()}, rank 1) died\n"
