"""A script as a job of a cluster file: its processes join the job of that name, as the file has set it up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from controller.api.admin import AdminClient
from controller.api.messages import Mode
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.torch_runs.ranks import Line
from p4reduce.workloads.torch_runs.running import Status, run
from p4reduce.workloads.torch_runs.script import Script
from topologies.state import ClusterState, HostState

Result = dict[str, Any]
Progress = Callable[[str], None]


class ScriptJob:
    """A job whose workers are the processes of a script, one in each of `hosts`."""

    def __init__(self, cluster: ClusterState, hosts: Sequence[HostState], script: Script, job: str) -> None:
        self._cluster, self._hosts, self._script, self._job = cluster, hosts, script, job
        self._ended = threading.Event()

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._hosts)

    def terminate(self) -> None:
        """End the script: `run` raises WorkloadError. Any thread may call this."""
        self._ended.set()

    def run(self, progress: Progress) -> Result:
        """Run it to its end. WorkloadError with the words of the process that failed.

        Only the script knows whether its sums were right, so that `right` is None. `mode` is empty where it
        has not joined the job.
        """

        def on_line(line: Line) -> None:
            progress(f"job {self._job}: {line.host} | {line.text}")

        def on_status(_: Status) -> None:
            if self._ended.is_set():
                raise WorkloadError("the script was ended")

        ran = run(
            self._cluster, self._hosts, self._script, on_line=on_line, on_status=on_status, job=self._job
        )
        if ran.failure is not None:
            raise WorkloadError(str(ran.failure))
        with AdminClient(f"unix:{self._cluster.control_socket}") as admin:
            known = admin.show_job(self._job)
        return {
            **{key: getattr(known, key) for key in ("job_id", "generation", "window", "message_packets")},
            "mode": Mode(known.mode).name.lower().replace("_", "-") if known.mode else "",
            "mode_reason": known.mode_reason,
            "workers_left": self.size,
            "steps": [
                {
                    "torch": {"script": list(self._script.words), "links": _plain(ran.links)},
                    "iterations": [{"seconds": ran.seconds, "right": None, "workers": self.size}],
                }
            ],
        }


def _plain(links: Any) -> dict[str, Any]:
    return {name: bytes_.model_dump() for name, bytes_ in links.items()}
