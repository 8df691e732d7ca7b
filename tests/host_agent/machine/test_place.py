"""The place where a machine's workers meet: nobody else can be there before them, and hosts do not mix."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from host_agent.errors import JobRefusedError
from host_agent.machine.meeting import Meeting, Who, meet
from host_agent.machine.place import RUNTIME, Place

BYTES: Final = 4096
NOBODY: Final = 65534
_CLONE_NEWNET: Final = 0x40000000


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary directory, which all users enter, where there is no runtime directory."""
    monkeypatch.delenv(RUNTIME, raising=False)
    with tempfile.TemporaryDirectory(prefix="p4r-") as path:
        Path(path).chmod(0o1777)
        monkeypatch.setattr("tempfile.tempdir", path)
        yield Path(path)


def come(name: str, local_rank: int, *, timeout_s: float = 20) -> Meeting:
    who = Who(local_rank=local_rank, local_size=2, rank=local_rank, world_size=2)
    return meet(name, who, region_bytes=BYTES, timeout_s=timeout_s)


def both(name: str, *, timeout_s: float = 20) -> list[Any]:
    """Let two come; return each one's Meeting, or its error."""
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(come, name, rank, timeout_s=timeout_s) for rank in range(2)]
        return [future.exception() or future.result() for future in futures]


def require_met(met: list[Any]) -> None:
    """Check that the meetings share memory, and close them."""
    for meeting in met:
        assert isinstance(meeting, Meeting), meeting
    met[0].regions[0][5] = 77
    assert met[1].regions[0][5] == 77
    for meeting in met:
        meeting.close()


def test_it_is_in_a_directory_that_only_the_user_enters(temporary: Path) -> None:
    require_met(both("a job"))
    (directory,) = temporary.iterdir()
    assert directory.name == f"p4reduce-{os.geteuid()}"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert not [*directory.iterdir()]


def test_it_is_in_the_users_runtime_directory_where_there_is_one(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = temporary / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv(RUNTIME, str(runtime))
    with Place("a job") as place:
        assert place.directory == runtime / "p4reduce"
    require_met(both("a job"))


@pytest.mark.emulation
def test_another_users_runtime_directory_is_not_taken(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set another user's directory in the environment, as `sudo -E` hands it on."""
    runtime = temporary / "run"
    runtime.mkdir(mode=0o700)
    os.chown(runtime, NOBODY, NOBODY)
    monkeypatch.setenv(RUNTIME, str(runtime))
    with Place("a job") as place:
        assert place.directory == temporary / f"p4reduce-{os.geteuid()}"


@pytest.mark.parametrize("squatted", ["link", "open", "file"])
def test_a_directory_that_is_not_private_is_refused(temporary: Path, squatted: str) -> None:
    at = temporary / f"p4reduce-{os.geteuid()}"
    if squatted == "link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        at.symlink_to(temporary / "elsewhere")
    elif squatted == "open":
        at.mkdir()
        at.chmod(0o777)
    else:
        at.touch()
    wrong = {"link": "it is a symbolic link", "open": "its mode is 777", "file": "Not a directory"}[squatted]
    for error in both("a job"):
        assert isinstance(error, JobRefusedError)
        assert str(at) in str(error)
        assert wrong in str(error)
        assert f"set {RUNTIME} to" in str(error)


@pytest.mark.emulation
def test_another_users_directory_is_refused(temporary: Path) -> None:
    at = temporary / f"p4reduce-{os.geteuid()}"
    at.mkdir(mode=0o700)
    os.chown(at, NOBODY, NOBODY)
    for error in both("a job"):
        assert isinstance(error, JobRefusedError)
        assert f"{at}: it belongs to user {NOBODY}" in str(error)


_SQUATTER: Final = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
    listener.bind(sys.argv[1].replace("@", chr(0)))
    listener.listen(8)
    print("listens", flush=True)
    while True:
        peer, _ = listener.accept()
        print(*socket.recv_fds(peer, 4096, 8)[:2], flush=True)
"""


def squatter(address: str) -> subprocess.Popen[str]:
    """Start another user's process that listens at an address."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SQUATTER, address, str(NOBODY)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listens\n"
    return process


def said_by(process: subprocess.Popen[str]) -> str:
    process.kill()
    return process.communicate()[0]


@pytest.mark.emulation
def test_nobody_can_wait_for_them_where_they_meet() -> None:
    """Let another user listen where the job's name leads: it must not be given the workers' memory."""
    name = str(uuid.uuid4())
    digest = hashlib.sha256(f"{os.getuid()}\n{name}".encode()).hexdigest()[:32]
    process = squatter(f"@p4reduce-{digest}")
    try:
        require_met(both(name, timeout_s=5))
    finally:
        said = said_by(process)
    assert not said


@pytest.mark.emulation
def test_a_listener_of_another_user_is_told_nothing(temporary: Path) -> None:
    """Check it even if the listener came into the directory."""
    with Place("a job") as place:
        place.directory.chmod(0o777)
        process = squatter(str(place))
        place.directory.chmod(0o700)
    try:
        with pytest.raises(JobRefusedError, match=f"user {NOBODY} listens there, and this worker's is 0"):
            come("a job", 1)
    finally:
        said = said_by(process)
    assert "hello" not in said


@pytest.mark.emulation
def test_a_visitor_of_another_user_gets_nothing(temporary: Path) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(come, "a job", 0)
        with Place("a job") as place:
            while not (path := Path(str(place))).exists():
                time.sleep(0.01)
            place.directory.chmod(0o777)
            path.chmod(0o777)
        code = (
            "import os, socket, sys; os.setuid(65534)\n"
            "with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:\n"
            "    s.connect(sys.argv[1]); print(s.recv(4096))"
        )
        said = subprocess.run(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, check=True, timeout=60
        )
        assert said.stdout == "b''\n"
        place.directory.chmod(0o700)
        assert not first.done()
        second = come("a job", 1)
        require_met([first.result(), second])


@pytest.mark.emulation
def test_hosts_that_are_namespaces_of_one_machine_do_not_meet_each_other(temporary: Path) -> None:
    """Use namespaces that share their files."""
    libc = ctypes.CDLL(None, use_errno=True)
    met: dict[tuple[int, int], Any] = {}

    def host(number: int) -> None:
        """Meet in a network namespace of this thread's own."""
        assert libc.unshare(_CLONE_NEWNET) == 0

        namespace = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"

        def work(rank: int) -> None:
            with open(namespace) as own:
                assert libc.setns(own.fileno(), _CLONE_NEWNET) == 0
            met[number, rank] = come("a job", rank)

        workers = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    hosts = [threading.Thread(target=host, args=(number,)) for number in range(2)]
    for one in hosts:
        one.start()
    for one in hosts:
        one.join()
    for number in range(2):
        met[number, 0].regions[0][0] = 50 + number
    for number in range(2):
        assert met[number, 1].regions[0][0] == 50 + number
        require_met([met[number, rank] for rank in range(2)])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_who_is_killed_while_it_waits_leaves_nothing_that_is_in_the_way(temporary: Path, rank: int) -> None:
    code = (
        "import sys, tempfile\n"
        "from host_agent.machine.meeting import Who, meet\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "who = Who(local_rank=int(sys.argv[2]), local_size=2, rank=int(sys.argv[2]), world_size=2)\n"
        "print('comes', flush=True)\n"
        "meet('a job', who, region_bytes=4096, timeout_s=60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(temporary), str(rank)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "comes\n"
    if rank == 0:
        with Place("a job") as place:
            while not Path(str(place)).exists():
                time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    require_met(both("a job"))
    (directory,) = temporary.iterdir()
    assert not [*directory.iterdir()]


def test_a_second_job_of_the_name_waits_until_the_first_has_met(temporary: Path) -> None:
    with Place("a job") as place, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        place.listen(first, 1, time.monotonic() + 20)
        with pytest.raises(JobRefusedError, match="others of a job of the same name are still meeting"):
            come("a job", 0, timeout_s=0.1)
        assert Path(str(place)).exists()
        place.remove()
    require_met(both("a job"))


def test_a_long_way_is_no_hindrance(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a directory whose path is longer than the 107 bytes that a Unix socket's may have."""
    deep = temporary / ("d" * 120)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv(RUNTIME, str(deep))
    require_met(both("a job"))
