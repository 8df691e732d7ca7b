"""Checks of how a job's workers end: all leave, or are told an error for which there was a reason."""

from __future__ import annotations

from controller.api.messages import Ended
from p4reduce.simulation.faults.deaths import check_told
from p4reduce.simulation.faults.job import JobRun
from p4reduce.simulation.faults.loop import NS
from p4reduce.simulation.faults.schedule import DATABASE_GONE, ON_WORKERS
from p4reduce.simulation.faults.worker import Worker
from p4reduce.simulation.faults.world import World
from p4reduce.simulation.invariant import InvariantError

_FIRST_TRY_S = 0.11  # until a worker whose session broke has tried to resume it for the first time


def check_end(world: World, job: JobRun) -> None:
    """Require that everybody left, or was told an error for which there is a reason."""
    for worker in world.workers[job.number - 1]:
        excuse = _excuse(world, job, worker)
        if worker.state == "dead":
            continue
        if worker.state == "left":
            if worker.collective < len(job.plan.work):
                raise InvariantError(f"{worker} left after {worker.collective} collectives")
            continue
        why = worker.end.reason if isinstance(worker.end, Ended) else worker.end
        if job.failures and not excuse:
            raise InvariantError(f"a connection failed: {job.failures[0]}")
        if not excuse:
            raise InvariantError(f"{worker} was told that its job is over, for no reason: {why}")
        if not why:
            raise InvariantError(f"{worker} was not told why its job is over")
        planes = [world.jobs[plane] for plane in world.schedule.planes(job.number - 1)]
        if world.schedule.differs_at(job.number - 1) is not None:
            continue
        check_told(worker, [death for death in world.deaths if death.worker.job in planes])


def _leaves(world: World, planes: list[int], worker: Worker) -> bool:
    """Return whether a worker has left, or one of another plane has: that plane is over then, and silent."""
    return worker.is_leaving or any(
        other.state in ("leaving", "left") for plane in planes for other in world.workers[plane]
    )


def _excuse(world: World, job: JobRun, worker: Worker) -> str:
    """Return why a worker may be told an error; empty: there is no reason."""
    if world.schedule.differs_at(job.number - 1) is not None:
        return "workers of a machine have called different collectives"
    config = world.scene.config
    planes = world.schedule.planes(job.number - 1)  # what happens to one happens to all
    running_ns = max(world.jobs[plane].running_ns for plane in planes)
    kinds = {m.kind for _, m in world.scene.happened if not m.job or world.job_of(m.job) in planes}
    lost = not kinds.isdisjoint(DATABASE_GONE)
    if lost and (kinds & set(ON_WORKERS) or _leaves(world, planes, worker)):
        return "the database was lost, and not all of the workers were there to say what it had been"
    if lost and "switch-restart" in kinds:
        return "what a switch had to hold was lost with the database, and with the switch"
    if world.controller.second_had_a_switch_s > config.resume_timeout_s:
        return "a controller that its workers cannot reach had its switch for long"
    if job.failures and world.controller.second_had_a_switch_s and "switch-restart" in kinds:
        return "a controller that does not know what a restarted switch had to hold has filled it"
    silent_s = 0.0  # that the controller was away, for however long, excuses nothing
    for at_ns, mishap in world.scene.happened:
        mine = world.job_of(mishap.job) in planes
        if mishap.job and not mine:
            continue
        me = mine and mishap.rank % job.plan_size == worker.joined_as
        lasts_s = mishap.lasts_ns / NS
        if at_ns < running_ns and mishap.kind not in ("worker-pause", "worker-suspend", "link-down"):
            return "it was being set up"
        if mishap.kind in ("worker-kill", "machine-kill") and (not job.plan.elastic or (job.gang and me)):
            return "a worker was killed"
        ends = me or not job.plan.elastic or at_ns < running_ns  # nobody can be lost before it runs
        if mishap.kind in ("worker-pause", "worker-suspend", "session-cut") and ends:
            silent_s += lasts_s
    away_s = silent_s and 2 * silent_s + _FIRST_TRY_S  # it tries again after longer and longer waits
    if away_s > min(config.lost_timeout_s, config.heartbeat_timeout_s):
        return "a worker was silent for long"
    return ""
