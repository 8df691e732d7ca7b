"""Deaths of workers, and the checks of what other workers are told of them."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from controller.api.messages import Ended, Mode
from controller.jobs.serials import furthest
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.node import GhostSwitch
from p4reduce.simulation.faults.worker import Worker
from p4reduce.simulation.invariant import InvariantError

_HARMLESS = {
    "worker-kill",
    "machine-kill",
    "link-down",
}  # to the controller, its sessions and what switches hold
_ELSEWHERE = {"switch-restart", "p4runtime-cut"}  # nobody is told that a job is over for these


@dataclass
class Death:
    """A killed worker's position in `generation`, if it had come so far.

    It had contributed to all messages before `least`, and not to `awaited`, the first for which others of its
    rack were known to wait before anybody could be told (None: there is none).
    """

    worker: Worker
    leaf: GhostSwitch
    rank: int
    generation: int
    running: bool
    mode: Mode
    least: int = 0
    sent: int = 0
    awaited: int | None = None

    @classmethod
    def of(cls, worker: Worker, leaf: GhostSwitch) -> Death:
        """Note the position of a worker behind that leaf that is about to be killed."""
        job, endpoint, scene = worker.job, worker.endpoint, worker.scene
        running = job.running_ns <= scene.clock.now_ns
        if endpoint is None:
            return cls(worker, leaf, worker.rank, 0, running, worker.mode)
        generation = endpoint.config.generation
        peers = [peer.endpoint.position() for peer in job.generations[generation].up() if peer.endpoint]
        received = furthest([peer.received_messages for peer in peers])
        own = endpoint.position()
        least = furthest([own.acked_messages, received])
        death = cls(worker, leaf, worker.rank, generation, running, worker.mode, least, own.sent_messages)
        scene.clock.after(round(scene.config.lost_timeout_s * NS / 2), death.find_awaited)
        return death

    def find_awaited(self) -> None:
        """Find the first message that others of its rack have contributed to, and it had not even sent."""
        for tag, inside in self.leaf.inside.values():
            generation, message = tag
            if generation == self.generation and message >= self.sent and self.rank not in inside:
                self.awaited = message if self.awaited is None else min(message, self.awaited)

    def check(self, who: str, ended: Ended, happened: Set[str]) -> None:
        """Check what `who` was told of its death: which rank, host and first missing message."""
        host, reason = self.worker.host.name, ended.reason
        wrong = ""
        if ended.host != host or f"rank {self.rank}" not in reason or host not in reason:
            wrong = f"it was rank {self.rank} on {host}"
        elif self._is_known(happened):
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

    def _is_known(self, happened: Set[str]) -> bool:
        """Return whether switches had what it had contributed, and could be asked for it."""
        in_network = self.running and self.generation != 0 and self.mode is Mode.IN_NETWORK
        return in_network and self.worker.job.newest <= self.generation and happened <= _HARMLESS


def _check_gang_told(worker: Worker, deaths: list[Death], happened: Set[str]) -> None:
    """Check that a worker of its gang was told of a death by machine and local rank.

    The controller tells it, or the dead worker's machine.
    """
    if not all(death.running for death in deaths) or not happened <= _HARMLESS | _ELSEWHERE:
        return
    own, end = worker.job.gang, worker.end
    assert own is not None
    dead = {}
    for death in deaths:
        gang = death.worker.job.gang
        assert gang is not None
        dead[gang.plane, death.rank] = f"GPU {gang.plane} of machine {death.rank} ({death.worker.host.name}"
    if not isinstance(end, Ended) or end.rank is None:
        if any(name in str(end) for name in dead.values()):
            return
    elif dead.get((own.plane if end.plane is None else end.plane, end.rank), "nobody") in end.reason:
        return
    raise InvariantError(f"{worker} was told that its gang is over, and not by whose death: {end}")


def _check_machine_told(worker: Worker, deaths: list[Death]) -> None:
    """Check that workers of a machine that an elastic gang goes on without hear which GPU died."""
    if worker.job.gang is None or not deaths or not all(death.running for death in deaths):
        return
    happened = {mishap.kind for _, mishap in worker.scene.happened}
    why = worker.end.reason if isinstance(worker.end, Ended) else str(worker.end)
    planes = [death.worker.job.gang.plane for death in deaths if death.worker.job.gang is not None]
    named = any(f"GPU {plane} of machine" in why for plane in planes) and worker.host.name in why
    if not named and happened <= _HARMLESS | _ELSEWHERE:
        raise InvariantError(f"{worker} was told that its job goes on without it, not by whose death: {why}")


def check_told(worker: Worker, deaths: list[Death]) -> None:
    """Check what a worker whose job is over was told of its job's killed workers."""
    if not deaths:
        return
    if worker.job.plan.elastic:
        _check_machine_told(worker, [death for death in deaths if death.worker.host is worker.host])
        return
    end, happened = worker.end, {mishap.kind for _, mishap in worker.scene.happened}
    if worker.job.gang is not None:
        _check_gang_told(worker, deaths, happened)
        return
    for death in reversed(deaths):
        if isinstance(end, Ended) and end.rank is not None and death.rank == end.rank:
            death.check(str(worker), end, happened)
            return
    if all(death.running for death in deaths) and happened <= _HARMLESS | _ELSEWHERE:
        raise InvariantError(f"{worker} was told that its job is over, and not by whose death: {end}")
