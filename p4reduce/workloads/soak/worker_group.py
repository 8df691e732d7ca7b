"""A group: workers in some hosts that join one job after the other, and checks of how each job ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any, Final

from controller.api.admin import AdminClient
from controller.api.errors import ControllerError
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.placement import planes_of
from p4reduce.workloads.soak.board import IDLE_S, Board, Running
from p4reduce.workloads.soak.plan import Job, Jobs
from p4reduce.workloads.team import Answer, Team
from topologies.processes import ProcessId
from topologies.state import ClusterState, HostState

_JOIN_S: Final = 60.0
_LIMIT_S: Final = 180.0  # for a round, a join, a leave: longer is a hang
_DELETE_S: Final = 30.0
_DIED: Final = {"died": True}
# What the others of a job hear when a worker is killed.
_OF_A_DEATH: Final = ("WorkerLostError", "JobEndedError", "CommunicatorClosedError")


class HangError(Exception):
    """A worker does not answer."""


class WorkerGroup:
    """A group with a worker in each of `hosts`.

    A host may be there twice by chance; it is there once for each GPU if it is a machine of several.
    """

    def __init__(
        self, number: int, cluster: ClusterState, hosts: Sequence[HostState], jobs: Jobs, board: Board
    ) -> None:
        self._number = number
        self._cluster = cluster
        self._hosts = hosts
        self._jobs = jobs
        self._board = board
        self._team: Team | None = None
        self._pool = ThreadPoolExecutor(len(hosts), thread_name_prefix=f"group-{number}")
        self._started = 0

    @property
    def processes(self) -> dict[str, ProcessId]:
        """Live workers, by their names in reports."""
        team = self._team
        if team is None:
            return {}
        found = {}
        for place, pid in enumerate(team.pids):
            with contextlib.suppress(ProcessLookupError):
                found[f"worker {place} of group {self._number}"] = ProcessId.of(pid)
        return found

    def run(self) -> None:
        """Run jobs until the board says stop."""
        self._board.take_turns(f"group {self._number}", lambda: self._job(self._jobs.next()))

    def terminate(self) -> None:
        """Ask the workers to end, from another thread: calls that wait for one return."""
        team = self._team
        if team is not None:
            team.terminate()

    def close(self) -> None:
        """End the workers."""
        self._replace()
        self._pool.shutdown()

    def _job(self, job: Job) -> None:
        self._started += 1
        name = f"soak-{self._number}-{self._started}"
        # The first group's workers are never killed: they show what grows over all of a soak.
        running = Running(name, set(range(len(job.workers))), job.gpus, spared=self._number == 0)
        try:
            if self._join(job, running):
                self._rounds(job, running)
        finally:
            self._board.ends(running)
            if running.killed:
                self._replace()
            for plane in planes_of(name, job.gpus):
                self._delete(plane)

    def _join(self, job: Job, running: Running) -> bool:
        if self._team is None:
            self._team = Team(self._cluster, len(self._hosts), hosts=self._hosts)
            self._team.__enter__()
        options: dict[str, Any] = {"elastic": True} if job.elastic else {}
        options["selective"] = job.selective
        if job.gpus > 1:
            options["gpus_per_host"] = job.gpus
        answers = self._ask(
            job,
            running.ranks,
            "join",
            lambda rank: {"rank": rank},
            {
                "controller": self._cluster.controller,
                "job": running.name,
                "world_size": len(job.workers),
                "path_mtu": job.path_mtu,
                "join_timeout_s": _JOIN_S,
                **options,
            },
        )
        wrong = _errors(answers)
        if not wrong:
            mode = answers[0]["ok"]["mode"]
            self._board.count(jobs=1, **{f"jobs_begun_{mode}": 1})
            pids = self._team.pids
            running.processes = {rank: ProcessId.of(pids[place]) for rank, place in enumerate(job.workers)}
            self._board.begins(running)
            return True
        if not self._board.disturbed():
            self._board.fail(f"job {running.name} cannot begin: {wrong}")
        self._board.count(jobs_refused=1)
        if len(wrong) < len(answers):
            self._replace()  # some are in the job
        return False

    def _rounds(self, job: Job, running: Running) -> None:
        members = list(range(len(job.workers)))
        for cases in job.rounds:
            alive = sorted(running.ranks)
            answers = self._ask(
                job,
                alive,
                "soak",
                lambda rank: {"identity": rank},
                {"members": members, "cases": [case.as_json() for case in cases], "gpus": job.gpus},
            )
            if self._over(job, running, answers):
                return
            found = [answer["ok"] for rank, answer in answers.items() if rank in running.ranks]
            self._compare(running, found, members)
            members = found[0]["contributors"][-1] if found[0]["contributors"] else members
            self._board.count(
                sums=len(cases),
                bytes_summed=sum(one["bytes"] for one in found),
                left_out=len(job.workers) - len(members),
            )
            if self._board.quiet:
                break
        answers = self._ask(job, sorted(running.ranks), "leave", lambda rank: {}, {})
        if not self._over(job, running, answers):
            self._board.count(jobs_done=1)

    def _over(self, job: Job, running: Running, answers: Mapping[int, Answer]) -> bool:
        """Return whether the job has ended.

        The soak fails unless workers were killed and, if the job is elastic, at most one machine is left.
        """
        wrong = _errors({rank: answer for rank, answer in answers.items() if rank not in running.killed})
        died = sorted(rank for rank, answer in answers.items() if answer is _DIED)
        if not wrong:
            return False
        if set(died) - running.killed:
            self._board.fail(f"job {running.name}: workers {died} ended by themselves: {wrong}")
        elif not running.killed or (job.elastic and len(running.ranks) > job.gpus):
            self._board.fail(f"job {running.name} (elastic: {job.elastic}) failed: {wrong}")
        elif not all(kind in self._kinds_of_a_death() for kind, _ in wrong.values()):
            self._board.fail(
                f"job {running.name} failed otherwise than by the death of {sorted(running.killed)}: {wrong}"
            )
        else:
            self._board.count(jobs_ended_by_a_death=1)
        return True

    def _kinds_of_a_death(self) -> tuple[str, ...]:
        """Return the errors that survivors may get; without a controller, none tells them whom they lack."""
        return (*_OF_A_DEATH, "ControllerUnreachableError") if self._board.disturbed() else _OF_A_DEATH

    def _compare(self, running: Running, found: Sequence[Answer], members: Sequence[int]) -> None:
        for what in ("digests", "contributors"):
            if any(one[what] != found[0][what] for one in found):
                self._board.fail(
                    f"job {running.name}: the ranks' {what} differ: {[one[what] for one in found]}"
                )
        for contributors in found[0]["contributors"]:
            missing = set(members) - set(contributors)
            if missing - running.killed:
                self._board.fail(f"job {running.name}: a sum is without ranks {sorted(missing)}, which live")

    def _ask(
        self,
        job: Job,
        ranks: Sequence[int] | set[int],
        command: str,
        own: Callable[[int], Mapping[str, Any]],
        arguments: Mapping[str, Any],
    ) -> dict[int, Answer]:
        """Return each rank's answer; `_DIED` for a worker that has ended. HangError."""
        asked: dict[int, Future[Answer]] = {
            rank: self._pool.submit(self._one, job.workers[rank], command, {**arguments, **own(rank)})
            for rank in sorted(ranks)
        }
        wait_for(asked.values(), timeout=_LIMIT_S)
        silent = [rank for rank, future in asked.items() if not future.done()]
        if silent:
            said = {rank: _short(future.result()) for rank, future in asked.items() if future.done()}
            raise HangError(
                f"'{command}' of job {self._number}-{self._started} (elastic: {job.elastic}, workers "
                f"{list(job.workers)}): ranks {silent} do not answer within {_LIMIT_S:g} s; "
                f"the others said {said}"
            )
        return {rank: future.result() for rank, future in asked.items()}

    def _one(self, place: int, command: str, arguments: Mapping[str, Any]) -> Answer:
        if self._team is None:
            return _DIED
        try:
            return self._team.try_(command, ranks=[place], timeout_s=2 * _LIMIT_S, **arguments)[0]
        except WorkloadError:
            return _DIED

    def _replace(self) -> None:
        """End the workers; the next job has new ones."""
        if self._team is not None:
            self._team.close()
            self._team = None
            self._board.count(crews_replaced=1)

    def _delete(self, name: str) -> None:
        """Delete a job that is over. The controller may be away for a while."""
        deadline = time.monotonic() + _DELETE_S
        while True:
            try:
                with AdminClient(f"unix:{self._cluster.control_socket}", timeout_s=5) as admin:
                    admin.delete_job(name)
            except ControllerError as error:
                if "no job" in str(error):
                    return
                if time.monotonic() > deadline:
                    self._board.fail(f"job {name} cannot be deleted: {error}")
                    return
                time.sleep(IDLE_S)
            else:
                return


def _errors(answers: Mapping[int, Answer]) -> dict[int, tuple[str, str]]:
    """Return kind and text of each error; a worker that has ended has one, too."""
    found = {}
    for rank, answer in answers.items():
        if answer is _DIED:
            found[rank] = ("WorkloadError", "the worker has ended")
        elif "error" in answer:
            found[rank] = (answer["error"]["kind"], answer["error"]["text"])
    return found


def _short(answer: Answer) -> str:
    return str(answer)[:300]
