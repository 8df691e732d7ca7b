"""A worker that was killed, and what those that are told of it have to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controller.api.messages import Ended, Mode
from controller.serials import furthest
from simulation.faults.loop import NS
from simulation.rack import InvariantError

if TYPE_CHECKING:
    from simulation.faults.job import JobRun
    from simulation.faults.worker import Worker

_HARMLESS = {"worker-kill", "link-down"}  # to the controller, its sessions and what switches hold
_ELSEWHERE = {"switch-restart", "p4runtime-cut"}  # nobody is told that a job is over for these


@dataclass
class Death:
    """Where a worker stood in `generation`, if it had come so far.

    It had contributed to all messages before `least`, and not to `awaited`, the first for which others of its
    rack were known to wait before anybody could be told (None: there is none).
    """

    worker: Worker
    rank: int
    generation: int
    running: bool
    mode: Mode
    least: int = 0
    sent: int = 0
    awaited: int | None = None

    @classmethod
    def of(cls, worker: Worker) -> Death:
        """Of a worker that is about to be killed."""
        job, endpoint = worker.job, worker.endpoint
        running = job.running_ns <= worker.world.clock.now_ns
        if endpoint is None:
            return cls(worker, worker.rank, 0, running, worker.mode)
        generation = endpoint.config.generation
        peers = [peer.endpoint.position() for peer in job.of_generation(generation) if peer.endpoint]
        received = furthest([peer.received_messages for peer in peers])
        own = endpoint.position()
        least = furthest([own.acked_messages, received])
        death = cls(worker, worker.rank, generation, running, worker.mode, least, own.sent_messages)
        worker.world.clock.after(round(worker.world.config.lost_timeout_s * NS / 2), death.look)
        return death

    def look(self) -> None:
        """Which messages others of its rack have contributed to, and it had not even sent."""
        for tag, inside in self.worker.world.nodes[self.worker.host.switch].plane.inside.values():
            generation, message = tag
            if generation == self.generation and message >= self.sent and self.rank not in inside:
                self.awaited = message if self.awaited is None else min(message, self.awaited)

    def check(self, who: str, ended: Ended) -> None:
        """`who` was told that the job is over because of it: which rank, host and first missing message."""
        host, reason = self.worker.host.name, ended.reason
        wrong = ""
        if ended.host != host or f"rank {self.rank}" not in reason or host not in reason:
            wrong = f"it was rank {self.rank} on {host}"
        elif self._is_known():
            message = ended.first_message
            if message is None:
                if self.awaited is not None:
                    wrong = f"it had not contributed to message {self.awaited}, for which others waited"
                elif "it had contributed to all" not in reason and "has no sums of the job" not in reason:
                    wrong = "what it had contributed to was there to be read"
            elif f"did not contribute to is {message}" not in reason:
                wrong = f"the reason does not say message {message}"
            elif message < self.least:
                wrong = f"it had contributed to all messages before {self.least}"
            elif self.awaited is not None and message > self.awaited:
                wrong = f"it had not contributed to message {self.awaited}"
        if wrong:
            raise InvariantError(
                f"{who} was told of a dead worker's end: {reason!r} (rank {ended.rank}, host {ended.host}, "
                f"first message {ended.first_message}); but {wrong}"
            )

    def _is_known(self) -> bool:
        """Whether switches had, and could be asked for, what it had contributed."""
        job = self.worker.job
        happened = {mishap.kind for _, mishap in job.world.happened}
        in_network = self.running and self.generation != 0 and self.mode is Mode.IN_NETWORK
        return in_network and job.newest <= self.generation and happened <= _HARMLESS


def check_told(job: JobRun, worker: Worker) -> None:
    """What a worker was told, whose job is over, of those that were killed."""
    deaths = {death.rank: death for death in job.deaths}
    if not deaths or job.plan.elastic:
        return
    end = worker.end
    death = deaths.get(end.rank) if isinstance(end, Ended) and end.rank is not None else None
    if death is not None and isinstance(end, Ended):
        death.check(str(worker), end)
        return
    happened = {mishap.kind for _, mishap in job.world.happened}
    if all(death.running for death in job.deaths) and happened <= _HARMLESS | _ELSEWHERE:
        raise InvariantError(f"{worker} was told that its job is over, and not by whose death: {end}")
