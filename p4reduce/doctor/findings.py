"""A diagnosis as data: what was found, how bad it is, what speaks for it, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from p4reduce.live.faults import Severity as Severity  # findings have it from here


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing. `code` is for programs, and stays; `says` is a sentence without its full stop.

    `where`: the host ("h3"), switch ("s1") or link ("h3:s1") at fault; `rank` of `job`, where it is one's.
    """

    code: str
    severity: Severity
    says: str
    job: str = ""
    where: str = ""
    rank: int | None = None
    evidence: tuple[str, ...] = ()
    do: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        lists = {"evidence": list(self.evidence), "do": list(self.do)}
        return {**vars(self), "severity": self.severity.name.lower(), **lists}


error: Final = partial(Finding, severity=Severity.ERROR)
warning: Final = partial(Finding, severity=Severity.WARNING)
note: Final = partial(Finding, severity=Severity.NOTE)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The verdict in one sentence, and all findings, the most telling first."""

    verdict: str
    findings: tuple[Finding, ...] = ()
    asked_s: float = 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found that is worse than a note."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def codes(self) -> tuple[str, ...]:
        """Of all findings."""
        return tuple(finding.code for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verdict": self.verdict,
            "is_healthy": self.is_healthy,
            "findings": [finding.to_json() for finding in self.findings],
            "asked_s": round(self.asked_s, 3),
        }


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity; among equals, as they came: causes are looked for before what they cause."""
    return tuple(sorted(findings, key=lambda finding: finding.severity))
