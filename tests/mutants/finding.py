"""Look for mutants: by tests, by scopes and by seeds, each in a process that is forked from this one.

This process has imported what the steps need of other people's code, and nothing of ours: a child imports
that anew, with the mutant in it, so that the tests of one file take half a second. Where a child takes five
times as much processor time as it does without a mutant, it hangs: the mutant is found.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

from tests.mutants.making import Mutant

ROOT: Final = Path(__file__).parents[2]
OURS: Final = ("bench", "controller", "host_agent", "p4reduce", "p4src", "soft_switch", "topologies")
LEAST_CPU_S: Final = 3.0
LEAST_WALL_S: Final = 120.0
_FORK: Final = multiprocessing.get_context("fork")


class StepError(Exception):
    """A step fails without any mutant, or cannot be taken: nothing can be said of mutants by it."""


class Step(Protocol):
    """One way to look for a mutant. `kind`: its column in the score."""

    @property
    def kind(self) -> str: ...

    def play(self) -> str:
        """Return what has found the mutant, or an empty string if nothing has."""
        ...


@dataclass(frozen=True)
class Tests:
    """Tests of pytest, until the first that fails. `options`: further ones of pytest."""

    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    marks: str = "not emulation and not slow and not long and not roce"
    kind: str = "tests"

    def play(self) -> str:
        import pytest

        failed: list[str] = []

        class Listener:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    failed.append(report.nodeid)

        # A test's example that failed for one mutant is none of another's, and everybody draws alike.
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", self.marks]
        # Nobody reads why: to rewrite a file, to quote its source, or to collect what raises when it is
        # deleted, takes longer than its tests.
        options += ["--assert=plain", "--tb=no", "-p", "no:unraisableexception"]
        options += ["--hypothesis-profile=quick", "--hypothesis-seed=0", *self.options, *self.paths]
        code = pytest.main(options, plugins=[Listener()])
        if code == pytest.ExitCode.NO_TESTS_COLLECTED or code == pytest.ExitCode.USAGE_ERROR:
            raise StepError(f"pytest {' '.join(options)} has no test to run")
        return failed[0] if failed else "" if code == pytest.ExitCode.OK else "an import fails"


@dataclass(frozen=True)
class Scope:
    """Every order of a small job (`p4reduce simulate-faults --exhaustive`)."""

    name: str
    kind: str = "scopes"

    def play(self) -> str:
        from p4reduce.simulation.exhaustive.catalogue import explorer_of, scope_of

        wrong = explorer_of(scope_of(self.name)).explore().wrong
        return f"{self.name}: {wrong}" if wrong else ""


@dataclass(frozen=True)
class Seeds:
    """Jobs and faults that are drawn (`p4reduce simulate-faults --seeds`)."""

    first: int
    last: int
    kind: str = "seeds"

    def play(self) -> str:
        from p4reduce.simulation.faults.targets import play_seeds

        for seed in range(self.first, self.last + 1):
            for failure in play_seeds("model", [seed]).failures:
                return f"seed {failure.seed}: {failure.error}"
        return ""


@dataclass
class Verdict:
    """Verdict on a mutant. `found_by`: the kind of the step that found it, empty for none."""

    mutant: Mutant
    found_by: str = ""
    evidence: str = ""
    cpu_s: float = 0.0


@dataclass
class _Running:
    verdict: Verdict
    steps: Sequence[Step]
    number: int
    process: BaseProcess
    hears: Connection
    started: float = field(default_factory=time.monotonic)


class Finder:
    """Runs steps on mutants, several processes at once; `need` has each step's processor time without any."""

    def __init__(self, processes: int, say: Callable[[Verdict], None]) -> None:
        self.processes = processes
        self.say = say
        self.need: dict[Step, float] = {}

    def measure(self, steps: Sequence[Step]) -> None:
        """Play each step without a mutant: it has to find nothing. Then import what it imported of others."""
        for step in steps:
            if step in self.need:
                continue
            running = self._start(Verdict(_NOTHING), (step,), 0)
            try:
                found, self.need[step], names = running.hears.recv()
            except EOFError:
                found, names = "the process ends", []
            finally:
                _end(running.process)
            if found:
                raise StepError(f"{step} finds something without any mutant: {found}")
            for name in names:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)

    def find(self, mutants: Sequence[Mutant], steps: Sequence[Step]) -> list[Verdict]:
        """Look for each, by one step after the other, until one finds it."""
        verdicts = [Verdict(mutant) for mutant in mutants]
        gc.collect()
        gc.freeze()  # a child's collector has nothing to look for in what this process holds
        waiting, running = list(reversed(verdicts)), list[_Running]()
        try:
            while waiting or running:
                while waiting and len(running) < self.processes:
                    running.append(self._start(waiting.pop(), steps, 0))
                wait([each.hears for each in running], timeout=1.0)
                running = [after for each in running if (after := self._after(each)) is not None]
        finally:
            for each in running:
                _end(each.process)
        return verdicts

    def _start(self, verdict: Verdict, steps: Sequence[Step], number: int) -> _Running:
        step = steps[number]
        limit = LEAST_CPU_S + 5 * self.need[step] if step in self.need else None
        hears, tells = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_child, args=(step, verdict.mutant, limit, tells))
        process.start()
        tells.close()
        return _Running(verdict, steps, number, process, hears)

    def _after(self, each: _Running) -> _Running | None:
        """Return the same while it runs, then its next step, or None if there is nothing more to run."""
        step, verdict = each.steps[each.number], each.verdict
        if each.hears.poll():
            try:
                found, cpu_s, _ = each.hears.recv()
            except EOFError:  # its limit of processor time has come, or it crashed
                found, cpu_s = f"{step}: the process ends", 0.0
        elif time.monotonic() - each.started > LEAST_WALL_S + 40 * self.need[step]:
            found, cpu_s = f"{step}: it hangs", 0.0
        else:
            return each
        _end(each.process)
        verdict.cpu_s += cpu_s
        if found:
            verdict.found_by, verdict.evidence = step.kind, found
        elif each.number + 1 < len(each.steps):
            return self._start(verdict, each.steps, each.number + 1)
        self.say(verdict)
        return None


_NOTHING: Final = Mutant("", 0, "none", lambda: None)


def _end(process: BaseProcess) -> None:
    """End a process with whatever it has started."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _child(step: Step, mutant: Mutant, limit_s: float | None, tells: Connection) -> None:
    os.setpgid(0, 0)
    if limit_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s)))
    with tempfile.TemporaryFile() as output:  # of pytest, which nobody reads
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        mutant.change()
        found = step.play()
    except BaseException as error:  # noqa: BLE001  whatever a mutant breaks has found it
        found = f"{step}: {error!r}"
    others = [name for name in sys.modules if name.partition(".")[0] not in (*OURS, "tests", "__main__")]
    tells.send((found, time.process_time(), others))
    os._exit(0)


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has a module made of a changed tree."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(self.path))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        ast.fix_missing_locations(self.tree)
        exec(compile(self.tree, self.path, "exec"), module.__dict__)


def import_changed(path: Path, tree: ast.Module) -> None:
    """Give this tree to whoever imports that file of ours from now on."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert name not in sys.modules, f"{name} has been imported already"
    sys.meta_path.insert(0, _Changed(name, path, tree))
