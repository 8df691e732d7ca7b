"""A worker's death is noticed at once, whatever it has forked: a data loader, for instance."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from controller.api import controller_pb2 as pb
from host_agent.errors import WorkerLostError
from host_agent.machine.meeting import Who, meet
from tests.host_agent.machine.machines import meetings
from tests.host_agent.test_controller_session import STARTED, Controller, Conversation, script
from tests.host_agent.waiting import eventually

ROOT: Final = Path(__file__).parents[2]

# A worker's program: it is in its job, and then forks a child, which says who it is and lives on.
_FORKS: Final = """
import multiprocessing, os, sys, time

def lives_on():
    print(os.getpid(), flush=True)
    time.sleep(600)

def fork():
    multiprocessing.get_context("fork").Process(target=lives_on).start()
    time.sleep(600)
"""
_IN_A_MACHINE: Final = f"""{_FORKS}
from host_agent.machine.meeting import Who, meet
who = Who(local_rank=int(sys.argv[2]), local_size=3, rank=int(sys.argv[2]), world_size=3)
met = meet(sys.argv[1], who, region_bytes=4096, timeout_s=60)
fork()
"""
_WITH_A_CONTROLLER: Final = f"""{_FORKS}
from host_agent.controller_session import ControllerSession
from tests.host_agent.test_controller_session import REQUEST
session = ControllerSession(sys.argv[1])
session.join(REQUEST, timeout_s=60)
session.up(timeout_s=60)
fork()
"""


class Forking:
    """A process that has forked a child."""

    def __init__(self, program: str, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        self.child = 0

    def wait_for_child(self) -> None:
        assert self._process.stdout is not None
        self.child = int(self._process.stdout.readline())

    def is_childs_parent_dead(self) -> bool:
        """Tell whether the child's parent is dead, and the child is not."""
        os.kill(self.child, 0)
        return self._process.poll() is not None

    def die(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.die()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self.child:
            os.kill(self.child, signal.SIGKILL)


@pytest.fixture
def forking() -> Iterator[Callable[..., Forking]]:
    """Starts such processes; afterwards they and their children are killed."""
    started: list[Forking] = []

    def start(program: str, *arguments: str, **environment: str) -> Forking:
        started.append(Forking(program, *arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_the_workers_of_its_machine_hear_that_it_died(forking: Any, rank: int) -> None:
    name = str(uuid.uuid4())
    process = forking(_IN_A_MACHINE, name, str(rank))
    whose = [Who(local_rank=one, local_size=3, rank=one, world_size=3) for one in range(3) if one != rank]
    with ThreadPoolExecutor() as pool:
        met = [*pool.map(lambda who: meet(name, who, region_bytes=4096, timeout_s=60), whose)]
    process.wait_for_child()
    assert not any(meeting.failure for meeting in met)
    process.die()
    eventually(lambda: all(meeting.failure for meeting in met))
    assert process.is_childs_parent_dead()
    for meeting in met:
        assert isinstance(meeting.failure, WorkerLostError)
        assert meeting.failure.rank == rank
        meeting.close()


@pytest.mark.slow
@pytest.mark.parametrize("support", ["0", "1"])
def test_the_controller_hears_that_it_died(forking: Any, support: str) -> None:
    """Break its stream, long before its heartbeats have been missing for too long.

    `support`: whether gRPC looks after forks itself. Where it does, it may not in the middle of a call.
    """
    ended = threading.Event()

    def play(talk: Conversation) -> Iterator[pb.ControllerMessage]:
        talk.context.add_callback(ended.set)
        yield from script(*STARTED)(talk)
        for _ in talk.requests:
            pass

    controller = Controller(play)
    try:
        process = forking(_WITH_A_CONTROLLER, controller.address, GRPC_ENABLE_FORK_SUPPORT=support)
        process.wait_for_child()
        assert not ended.is_set()
        process.die()
        assert ended.wait(60)
        assert process.is_childs_parent_dead()
    finally:
        controller.server.stop(None)


def test_a_child_that_closes_what_it_has_of_its_parent_harms_nobody() -> None:
    """Close it in the child, as its interpreter may when it ends."""
    met = meetings(1, 2, region_bytes=4096)
    child = os.fork()
    if not child:
        for meeting in met:
            meeting.leave(7)
            meeting.fail("a child")
            meeting.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    met[0].leave(1)
    met[1].leave(2)
    eventually(lambda: met[0].left == {1: 2} and met[1].left == {0: 1})
    for meeting in met:
        assert meeting.failure is None
        meeting.close()


def test_a_child_keeps_all_other_connections(tmp_path: Path) -> None:
    """Check also a connection that has the number of the session's connection."""
    code = (
        "import os, socket, sys\n"
        "from host_agent.forks import connections_not_for_children\n"
        "listeners = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]\n"
        "names = [listener.getsockname() for listener in listeners]\n"
        "mine, other = (socket.create_connection(name) for name in names)\n"
        "class Owner: pass\n"
        "owner = Owner()\n"
        "connections_not_for_children(owner, f'localhost:{names[0][1]}')\n"
        "if not os.fork():\n"
        "    assert other.getpeername() == names[1]\n"
        "    assert os.readlink(f'/proc/self/fd/{mine.fileno()}') == '/dev/null'\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "assert mine.getpeername() == names[0]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)
