"""What may break, how it breaks, and whom that excuses."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from simulation.faults.control import ControllerProcess
from simulation.faults.loop import NS
from simulation.faults.schedule import DATABASE_GONE, ON_WORKERS, Mishap

if TYPE_CHECKING:
    from simulation.faults.job import JobRun
    from simulation.faults.worker import Worker
    from simulation.faults.world import World

_FIRST_TRY_S = 0.11  # until a worker whose session broke has tried to resume it for the first time


def happen(world: World, mishap: Mishap) -> None:
    """At its time."""
    where = f"job {mishap.job}, rank {mishap.rank}" if mishap.job else mishap.what
    world.note(f"fault: {mishap.kind} {where}")
    over_ns = world.clock.now_ns + mishap.lasts_ns
    kind = mishap.kind
    if kind in ON_WORKERS:
        worker = world.jobs[(mishap.job - 1) % len(world.jobs)].workers
        one = worker[mishap.rank % len(worker)]
        if kind == "worker-kill":
            one.kill()
        elif kind == "worker-pause":
            one.stop(over_ns)
        else:
            one.cut_session(over_ns)
    elif kind == "link-down":
        a, b = mishap.what.split(":")
        for name in (f"{a}>{b}", f"{b}>{a}"):
            world.wires[name].down += 1
        world.clock.at(over_ns, _link_up, world, a, b)
    elif kind == "switch-restart":
        node = world.nodes[mishap.what]
        if node.up:
            node.die()
            world.clock.at(over_ns, node.start)
    elif kind == "p4runtime-cut":
        node = world.nodes[mishap.what]
        node.cut_off += 1
        node.cut()
        world.clock.at(over_ns, _reachable, world, mishap.what)
    elif kind == "database-backup":
        world.back_up_database()
    elif kind in ("controller-restart", *DATABASE_GONE):
        if kind == "database-lost":
            world.lose_database()
        elif kind == "database-restored":
            world.restore_database()
        if world.controller is not None:
            world.controller.kill()
            world.past.append(world.controller)
            world.controller = None
            world.clock.at(over_ns, _start_controller, world)
    elif kind == "controller-pause":
        if world.controller is not None:
            world.controller.stop(over_ns)
    elif kind == "disk-full":
        _fill(world.store.connection)
        world.clock.at(over_ns, _free, world)
    else:
        raise ValueError(f"there is no fault {kind!r}")


def _link_up(world: World, a: str, b: str) -> None:
    for name in (f"{a}>{b}", f"{b}>{a}"):
        world.wires[name].down -= 1


def _reachable(world: World, name: str) -> None:
    world.nodes[name].cut_off -= 1


def _start_controller(world: World) -> None:
    if world.controller is None:
        world.controller = ControllerProcess(world, world.store)


def _fill(db: sqlite3.Connection) -> None:
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages}")


def _free(world: World) -> None:
    world.store.connection.execute("PRAGMA max_page_count = 1073741823")


def excuse(world: World, job: JobRun, worker: Worker) -> str:
    """Why a worker may be told an error; empty: there is nothing."""
    config = world.config
    kinds = {
        m.kind for _, m in world.happened if not m.job or (m.job - 1) % len(world.jobs) == job.number - 1
    }
    lost = not kinds.isdisjoint(DATABASE_GONE)
    if lost and (kinds & set(ON_WORKERS) or worker.is_leaving):
        return "the database was lost, and not all of the workers were there to say what it had been"
    if lost and "switch-restart" in kinds:
        return "what a switch had to hold was lost with the database, and with the switch"
    silent_s = 0.0  # that the controller was away, for however long, excuses nothing
    for at_ns, mishap in world.happened:
        mine = (mishap.job - 1) % len(world.jobs) == job.number - 1
        if mishap.job and not mine:
            continue
        me = mine and mishap.rank % job.plan_size == worker.joined_as
        lasts_s = mishap.lasts_ns / NS
        if at_ns < job.running_ns and mishap.kind not in ("worker-pause", "link-down"):
            return "it was being set up"
        if mishap.kind == "worker-kill" and not job.plan.elastic:
            return "a worker was killed"
        ends = me or not job.plan.elastic or at_ns < job.running_ns  # nobody can be lost before it runs
        if mishap.kind in ("worker-pause", "session-cut") and ends:
            silent_s += lasts_s
    away_s = silent_s and 2 * silent_s + _FIRST_TRY_S  # it tries again after longer and longer waits
    if away_s > min(config.lost_timeout_s, config.heartbeat_timeout_s):
        return "a worker was silent for long"
    return ""
