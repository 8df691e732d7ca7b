"""Outcomes of the checks, and those that p4reduce fails and Gloo passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Result(str, Enum):
    """Result of a check, on all ranks together. `HUNG`: a watchdog, or a signal, ended a process."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    HUNG = "hung"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One check. `reason`: of the first rank that has one."""

    name: str
    result: Result
    reason: str = ""
    seconds: float = 0.0


def worst(said: Sequence[tuple[Result, str]]) -> tuple[Result, str]:
    """Merge all ranks' results: any failure is one; a test that some skip is passed by those that ran it."""
    for rank, (result, reason) in enumerate(said):
        if result is Result.FAILED:
            return result, f"rank {rank}: {reason}"
    passed = [one for one in said if one[0] is Result.PASSED]
    return passed[0] if passed else said[0]


def fails_beside(gloo: Iterable[Outcome], ours: Iterable[Outcome]) -> list[Outcome]:
    """Return what Gloo passes and p4reduce does not: skipping what Gloo passes is no pass."""
    passed = {one.name for one in gloo if one.result is Result.PASSED}
    return [one for one in ours if one.name in passed and one.result is not Result.PASSED]


def wrongs(
    gloo: Sequence[Outcome], ours: Sequence[Outcome], known: Mapping[str, str], *, whole: bool
) -> list[str]:
    """Return sentences on what is not as it should be: empty where all is well.

    `known`: names of tests that p4reduce may fail, with why. One that it passes does not belong there.
    `whole`: no check was left out on purpose.
    """
    failing = {one.name: one for one in fails_beside(gloo, ours)}
    passing = {one.name for one in ours if one.result is Result.PASSED}
    ran = {one.name for one in ours}
    return [
        *(f"{name} {one.result.value}: {one.reason}" for name, one in failing.items() if name not in known),
        *(f"{name} passes, and is listed as one that does not" for name in known if name in passing),
        *(f"{name} is no test, and is listed" for name in known if whole and name not in ran),
        *(f"{one.name} did not run" for one in gloo if one.name not in ran),
    ]
