"""Drawn faults on a running cluster, one after the other."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Container
from typing import Final

from p4reduce.workloads.soak.board import IDLE_S, Board
from p4reduce.workloads.soak.plan import PACKETS, RESTARTS, FaultPlan, Step
from topologies.errors import TopologyError
from topologies.faults import ClusterFaults, PacketFault

_PATIENCE_S: Final = 60.0
# Workers have 30 s to come back to a controller that was restarted (`resume_timeout_s`). One that never runs
# for so long cannot find out who is dead.
_CONTROLLER_RUNS_S: Final = 45.0


class FaultRunner:
    """Carries out a plan's steps. `gentle` is true while no restarts and no killed workers are allowed."""

    def __init__(self, plan: FaultPlan, faults: ClusterFaults, board: Board) -> None:
        self.gentle = False
        self._plan = plan
        self._faults = faults
        self._board = board
        self._controller_stays_until = 0.0

    def run(self) -> None:
        """Run steps until the board says stop."""
        who = f"faults ({self._plan.name})"
        self._board.take_turns(who, lambda: self._step(self._plan.next(but=self._not_now())))

    def _not_now(self) -> Container[str]:
        if self.gentle:
            return (*RESTARTS, "kill-worker")
        return ("controller",) if time.monotonic() < self._controller_stays_until else ()

    def _step(self, step: Step) -> None:
        self._board.step(f"{self._plan.name} {step}", step.kind)
        if step.kind in PACKETS:
            self._packets(step)
        elif step.kind in ("pause-worker", "kill-worker"):
            self._worker(step)
        else:
            self._other(step)
        self._wait(step.pause_s)

    def _packets(self, step: Step) -> None:
        fault = PacketFault.decode({"link": step.target, "kind": step.kind, **step.arguments})
        try:
            number = self._faults.add(fault)
        except TopologyError:
            self._board.count(faults_without_a_place=1)  # the other plan has paused that switch
            return
        self._wait(step.hold_s)
        for known, _, struck in self._faults.faults():
            if known == number:
                self._board.count(packets_struck=struck)
        self._insist(lambda: self._faults.clear(number))

    def _worker(self, step: Step) -> None:
        kill = step.kind == "kill-worker"
        found = self._board.victim(step.arguments["choice"], kill=kill)
        if found is None:
            return
        job, rank, process = found  # by process: an elastic job numbers those that are left anew
        self._board.note(f"  that is rank {rank} of {job}")
        if kill:
            process.signal(signal.SIGKILL)
            return
        process.signal(signal.SIGSTOP)
        try:
            self._wait(step.hold_s)
        finally:
            process.signal(signal.SIGCONT)

    def _other(self, step: Step) -> None:
        faults, target = self._faults, step.target
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "link": (lambda: faults.set_link(target, up=False), lambda: faults.set_link(target, up=True)),
            "switch": (lambda: faults.kill_switch(target), lambda: faults.restart_switch(target)),
            "pause-switch": (lambda: faults.pause_switch(target), lambda: faults.resume_switch(target)),
            "controller": (faults.kill_controller, faults.restart_controller),
            "pause-controller": (faults.pause_controller, faults.resume_controller),
            "disk": (faults.fill_disk, faults.free_disk),
        }
        begin, end = ways[step.kind]
        self._board.disturb(step.hold_s)
        begin()
        try:
            self._wait(step.hold_s)
        finally:
            self._insist(end)
            self._board.disturb(0)
            if step.kind == "controller":
                self._controller_stays_until = time.monotonic() + _CONTROLLER_RUNS_S

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._board.quiet:
            time.sleep(min(0.05, seconds))

    def _insist(self, end: Callable[[], object]) -> None:
        """End a fault, and try again for up to `_PATIENCE_S` if that fails."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                end()
            except TopologyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(IDLE_S)
            else:
                return
