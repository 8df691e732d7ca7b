"""Workers that stream sums while something happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from p4reduce.workloads.team import Team
from topologies.fabric import Fabric
from topologies.faults import ClusterFaults

PATIENCE_S = 60.0
PAUSE_S = 0.005  # after each sum, in which other processes come to their turn

ELEMENTS = 40_000


class Stream:
    """A job that adds up without end, in one thread a rank, as each may end in another way."""

    def __init__(self, running: Fabric, team: Team, directory: Path, job: str, pause_s: float) -> None:
        self.running = running
        self.team = team
        self.job = job
        self.directory = directory
        self.faults = ClusterFaults(running.state)
        self._pause_s = pause_s
        self._pool = ThreadPoolExecutor(team.size)
        self._futures: list[Future[list[dict[str, Any]]]] = []
        self._dead: set[int] = set()

    def begin(self) -> None:
        self._futures = [
            self._pool.submit(
                self.team.try_,
                "stream",
                ranks=[rank],
                elements=ELEMENTS,
                seed=3,
                directory=str(self.directory),
                pause_s=self._pause_s,
                timeout_s=PATIENCE_S * 3,
            )
            for rank in range(self.team.size)
        ]
        self.more(5)

    def progress(self) -> int:
        """Return how far the furthest rank is."""
        files = self.directory.glob("progress-*")
        return max((int(file.read_text()) for file in files), default=0)

    def more(self, sums: int) -> None:
        goal = self.progress() + sums
        live = [future for rank, future in enumerate(self._futures) if rank not in self._dead]
        until(f"{sums} more sums", lambda: self.progress() >= goal or any(f.done() for f in live))
        assert self.progress() >= goal, [f.result() for f in live if f.done()]

    def kill(self, rank: int) -> None:
        self._dead.add(rank)
        self.faults.kill_worker(self.job, rank)

    def end(self, *ranks: int) -> list[dict[str, Any]]:
        """End the sums, and return what these ranks came to: each exact to the end, and alike."""
        (self.directory / "stop").touch()
        answers = [self.answer(rank) for rank in ranks]
        for answer in answers:
            assert "ok" in answer, answer
        assert len({str((a["ok"]["collectives"], a["ok"]["world_size"])) for a in answers}) == 1, answers
        return [answer["ok"] for answer in answers]

    def answer(self, rank: int) -> dict[str, Any]:
        return self._futures[rank].result(PATIENCE_S)[0]

    def info(self) -> pb.JobInfo:
        with AdminClient(f"unix:{self.running.state.control_socket}") as admin:
            return admin.show_job(self.job)

    def until_renewed(self, times: int, mode: Any) -> None:
        def so() -> bool:
            info = self.info()
            return info.renewals >= times and not info.renewing and info.mode == mode

        until(f"{times} renewals, {pb.Mode.Name(mode)}", so)


def until(what: str, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"not so within {PATIENCE_S:g} s: {what}"
        time.sleep(0.1)


@contextmanager
def streaming(
    running: Fabric,
    workers: int,
    directory: Path,
    *,
    job: str,
    hosts: str = "",
    pause_s: float = PAUSE_S,
    **arguments: Any,
) -> Iterator[Stream]:
    """Yield a stream; `hosts`: the workers', in order of rank. `pause_s`: after each sum."""
    directory.mkdir(exist_ok=True)
    chosen = [running.state.host(name) for name in hosts.split()]
    with Team(running.state, workers, hosts=chosen) as team:
        team.join(job, **arguments)
        stream = Stream(running, team, directory, job, pause_s)
        try:
            stream.begin()
            yield stream
        finally:
            (directory / "stop").touch()
            team.close()
