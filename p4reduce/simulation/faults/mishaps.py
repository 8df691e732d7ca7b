"""Mishaps of a run, and how each breaks something."""

from __future__ import annotations

from p4reduce.simulation.faults.schedule import DATABASE_GONE, ON_WORKERS, Mishap
from p4reduce.simulation.faults.world import World


def happen(world: World, mishap: Mishap) -> None:
    """Let a mishap happen now."""
    scene, kind = world.scene, mishap.kind
    over_ns = scene.clock.now_ns + mishap.lasts_ns
    if kind in ON_WORKERS:
        workers = world.workers[world.job_of(mishap.job)]
        worker = workers[mishap.rank % len(workers)]
        scene.happens(mishap, worker.host.name)
        if kind == "worker-kill":
            world.kill(worker)
        elif kind == "machine-kill":
            for one in world.machine(worker):
                world.kill(one)
        elif kind == "worker-pause":
            worker.stop(over_ns)
        elif kind == "worker-suspend":
            worker.suspend(over_ns)
        elif kind == "clock-jump":
            worker.clock_jumps(mishap.lasts_ns)
        else:
            worker.cut_session(over_ns)
    elif kind == "link-down":
        a, b = mishap.what.split(":")
        scene.happens(mishap, a, b)
        for wire in world.network.both_ways(a, b):
            wire.down += 1
        scene.clock.at(over_ns, _link_up, world, a, b)
    elif kind == "switch-restart":
        node = world.nodes[mishap.what]
        scene.happens(mishap, node.name)
        if node.up:
            node.die()
            scene.clock.at(over_ns, node.start)
    elif kind == "p4runtime-cut":
        node = world.nodes[mishap.what]
        scene.happens(mishap, node.name)
        node.cut_off += 1
        node.cut()
        scene.clock.at(over_ns, _reachable, world, mishap.what)
    else:
        scene.happens(mishap)
        _to_controller(world, kind, over_ns)


def _to_controller(world: World, kind: str, over_ns: int) -> None:
    controller = world.controller
    if kind == "database-backup":
        controller.back_up_database()
    elif kind in ("controller-restart", *DATABASE_GONE):
        if kind == "database-lost":
            controller.lose_database()
        elif kind == "database-restored":
            controller.restore_database()
        world.network.forgot_numbers = controller.forgot
        controller.kill(over_ns)
    elif kind == "controller-second":
        controller.start_second(over_ns)
    elif kind == "controller-pause":
        if controller.current is not None:
            controller.current.stop(over_ns)
    elif kind == "disk-full":
        controller.fill_disk()
        world.clock.at(over_ns, controller.free_disk)
    else:
        raise ValueError(f"there is no fault {kind!r}")


def _link_up(world: World, a: str, b: str) -> None:
    for wire in world.network.both_ways(a, b):
        wire.down -= 1


def _reachable(world: World, name: str) -> None:
    world.nodes[name].cut_off -= 1
