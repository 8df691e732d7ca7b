"""Workers in the hosts of a cluster, one for each host or GPU, and commands that they carry out together."""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from p4reduce.workloads.errors import WorkerFailedError, WorkloadError
from p4reduce.workloads.placement import gpus_of, planes_of
from topologies import launch
from topologies.state import ClusterState, HostState

Answer = dict[str, Any]
DEFAULT_TIMEOUT_S = 300.0
_GRACE_S = 60.0  # for the others, once a worker has failed: they may wait for it


class Team:
    """`workers` processes of `p4reduce.workloads.worker`. A context manager.

    Rank r is in the r-th of `hosts` (default: the cluster's hosts). A host that occurs several times has
    several GPUs.
    """

    def __init__(self, cluster: ClusterState, workers: int, *, hosts: Sequence[HostState] = ()) -> None:
        chosen = list(hosts or cluster.hosts)
        if not 1 <= workers <= len(chosen):
            raise WorkloadError(
                f"{workers} workers do not fit cluster {cluster.name}, which has {len(chosen)} hosts"
            )
        self.gpus_per_host = gpus_of(cluster, chosen[:workers])
        self.cluster = cluster
        self.size = workers
        self.job = ""
        self.lost: dict[int, str] = {}  # of an elastic job: workers that ended, by the rank they joined with
        self._elastic = False
        self._hosts = chosen[:workers]
        self._processes: list[subprocess.Popen[str]] = []
        self._complaints = [tempfile.TemporaryFile() for _ in range(workers)]  # noqa: SIM115 (`close` does)

    def __enter__(self) -> Team:
        try:
            for rank in range(self.size):
                self._processes.append(
                    launch.start(
                        self.cluster,
                        self._hosts[rank],
                        [launch.python(self._hosts[rank]), "-m", "p4reduce.workloads.worker"],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=self._complaints[rank],
                    )
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        launch.stop(self.cluster, self._processes)
        for file in self._complaints:
            file.close()

    def join(self, job: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, **arguments: Any) -> list[Answer]:
        """Let all workers join `job`. `elastic=True`: workers that end from then on are left out (`lost`).

        Workers' interpreters start first. Workers then try to join for nine tenths of the time that is left
        of `timeout_s`, so a worker that cannot join says why before the time is up.
        """
        self.job, self._elastic = job, bool(arguments.get("elastic"))
        until = time.monotonic() + timeout_s
        self.do("ready", timeout_s=timeout_s)
        left_s = max(0.0, until - time.monotonic())
        return self.do(
            "join",
            timeout_s=left_s,
            join_timeout_s=0.9 * left_s,
            per_rank=[{"rank": rank} for rank in range(self.size)],
            controller=self.cluster.controller,
            job=job,
            world_size=self.size,
            **self._machines(),
            **arguments,
        )

    @property
    def jobs(self) -> list[str]:
        """The controller's names of the job: with several GPUs a host, those of its planes."""
        return planes_of(self.job, self.gpus_per_host)

    def _machines(self) -> dict[str, Any]:
        if self.gpus_per_host == 1:
            return {}
        rate = self.cluster.intra_rate_mbit
        return {
            "gpus_per_host": self.gpus_per_host,
            "intra_rate_bit_s": None if rate is None else rate * 1e6,
        }

    def do(
        self,
        command: str,
        *,
        per_rank: Sequence[Mapping[str, Any]] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **arguments: Any,
    ) -> list[Answer]:
        """Let all workers carry out `command`; `per_rank` adds arguments.

        Returns the answers of all that live, in order of the ranks that they joined with. Raises
        WorkerFailedError for the first error of a worker.
        """
        answers = self.try_(command, per_rank=per_rank, timeout_s=timeout_s, **arguments)
        _raise_first(dict(enumerate(answers)))
        return [answer["ok"] for answer in answers]

    def try_(
        self,
        command: str,
        *,
        per_rank: Sequence[Mapping[str, Any]] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ranks: Sequence[int] | None = None,
        **arguments: Any,
    ) -> list[Answer]:
        """Do as `do` for `ranks` (all), but return errors as answers.

        An answer is {"ok": ...} or {"error": {"kind", "text"}}.
        """
        chosen = range(self.size) if ranks is None else ranks
        for place, rank in enumerate(chosen):
            own = dict(per_rank[place]) if per_rank else {}
            if rank not in self.lost:
                self._tell(rank, {"do": command, **arguments, **own})
        return self._hear(chosen, command, time.monotonic() + timeout_s)

    def terminate(self) -> None:
        """Ask the processes to end; calls that wait for an answer fail then. Any thread may call it."""
        for process in self._processes:
            process.terminate()

    @property
    def racks(self) -> list[list[int]]:
        """The ranks behind each leaf."""
        leaves = dict.fromkeys(host.switch for host in self._hosts)
        return [[rank for rank, host in enumerate(self._hosts) if host.switch == leaf] for leaf in leaves]

    @property
    def pids(self) -> list[int]:
        """The workers' processes, by rank."""
        return [process.pid for process in self._processes]

    def kill(self, rank: int) -> None:
        """End one worker without a word, as a crash does."""
        self._processes[rank].kill()
        self._processes[rank].wait()

    def _tell(self, rank: int, command: dict[str, Any]) -> None:
        stdin = self._processes[rank].stdin
        if stdin is None:
            raise WorkloadError(f"worker {rank} takes no commands")
        try:
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()
        except BrokenPipeError as error:
            self._note_end(rank, f"worker {rank} has ended", error)

    def _note_end(self, rank: int, what: str, error: Exception | None = None) -> None:
        """Note that a worker has ended. WorkloadError, unless the job goes on without it."""
        self._note_lost(rank, what, self._last_words(rank), error)

    def _note_lost(self, rank: int, what: str, words: str, error: Exception | None = None) -> None:
        if not self._elastic or len(self.lost) + 1 == self.size:
            raise WorkloadError(f"{what}: {words}") from error
        self.lost[rank] = words

    def _is_left_out(self, answer: Answer) -> bool:
        """Return whether an elastic job has gone on without a worker, as another GPU of its machine died."""
        lost = answer.get("error", {}).get("kind") == "WorkerLostError"
        return lost and self._elastic and self.gpus_per_host > 1

    def _hear(self, ranks: Sequence[int], command: str, deadline: float) -> list[Answer]:
        answers: dict[int, Answer] = {}
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                stdout = self._processes[rank].stdout
                if stdout is not None and rank not in self.lost:
                    selector.register(stdout, selectors.EVENT_READ, rank)
            while any(rank not in answers and rank not in self.lost for rank in ranks):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    _raise_first(answers)
                    silent = ", ".join(
                        str(rank) for rank in ranks if rank not in answers and rank not in self.lost
                    )
                    raise WorkloadError(f"'{command}': no answer from worker {silent} in time")
                for key, _ in ready:
                    line = key.fileobj.readline()  # type: ignore[union-attr]
                    if not line:
                        self._note_end(key.data, f"'{command}': worker {key.data} ended")
                        selector.unregister(key.fileobj)
                        continue
                    selector.unregister(key.fileobj)
                    answer = json.loads(line)
                    if self._is_left_out(answer):
                        self._note_lost(key.data, f"'{command}': worker {key.data}", answer["error"]["text"])
                        continue
                    answers[key.data] = answer
                    if "error" in answer:
                        deadline = min(deadline, time.monotonic() + _GRACE_S)
        if ranks and not answers:
            ended = "; ".join(f"worker {rank} ended: {self.lost[rank]}" for rank in ranks)
            raise WorkloadError(f"'{command}': {ended}")
        return [answers[rank] for rank in ranks if rank in answers]

    def _last_words(self, rank: int) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._processes[rank].wait(timeout=1.0) in (-signal.SIGKILL, 128 + signal.SIGKILL):
                return "it was killed (SIGKILL); the machine may have run out of memory"
        file = self._complaints[rank]
        file.seek(0)
        lines = file.read().decode(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "it said nothing"


def _raise_first(answers: Mapping[int, Answer]) -> None:
    """Raise WorkerFailedError if one of the answers is an error."""
    for rank, answer in answers.items():
        if "error" in answer:
            raise WorkerFailedError(rank, answer["error"]["kind"], answer["error"]["text"])
