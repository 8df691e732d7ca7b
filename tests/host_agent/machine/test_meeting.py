"""The workers of one machine find each other, share memory, and learn at once who died."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from host_agent.errors import (
    CommunicatorError,
    JobEndedError,
    JobRefusedError,
    MismatchError,
    WorkerLostError,
)
from host_agent.machine.meeting import Meeting, Who, meet
from tests.host_agent.machine.machines import meetings

BYTES = 4096


def who(local_rank: int, local_size: int = 2, **how: Any) -> Who:
    whole = {"local_rank": local_rank, "local_size": local_size, "rank": local_rank, "world_size": local_size}
    return Who(**{**whole, **how})


def come(*all_who: Who, timeout_s: float = 5) -> list[Any]:
    """All at once: each one's Meeting, or the error that it got."""
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


def test_who_says_nonsense_is_not_one_of_them() -> None:
    """Any process of the same user may connect."""
    name = str(uuid.uuid4())
    with ThreadPoolExecutor() as pool:
        first = pool.submit(meet, name, who(0), region_bytes=BYTES, timeout_s=20)
        address = None
        while address is None:
            lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
            address = next(
                (words[-1] for words in lines if words[-1].startswith("@p4reduce-") and is_ours(words)), None
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect("\0" + address[1:])
            stranger.send(b"hello?")
            second = pool.submit(meet, name, who(1), region_bytes=BYTES, timeout_s=20)
            met = [first.result(), second.result()]
    for meeting in met:
        meeting.close()


def is_ours(words: list[str]) -> bool:
    """Whether a line of /proc/net/unix is of a socket that this process has."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return any(os.path.exists(link) and os.readlink(link) == f"socket:[{words[6]}]" for link in links)


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
    for peer in met[0]._peers.values():
        peer.shutdown(socket.SHUT_RDWR)
    eventually(lambda: met[1].failure and met[2].failure)
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


def test_who_has_parted_is_not_missed() -> None:
    met = meetings(1, 3, region_bytes=BYTES)
    met[1].close()
    met[0].close()
    time.sleep(0.1)
    assert met[2].failure is None
    met[2].close()


@pytest.mark.slow
def test_memory_and_address_end_with_the_processes() -> None:
    """Also with one that is killed."""
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
