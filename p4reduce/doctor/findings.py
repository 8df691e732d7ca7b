"""A diagnosis as data: each finding, how bad it is, its evidence, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from p4reduce.live.faults import Severity as Severity  # findings have it from here


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding. `code` is for programs and stays the same; `says` is a sentence without its full stop.

    `where`: the host ("h3"), switch ("s1") or link ("h3:s1") at fault; `rank`: the rank of `job` at fault, if
    it is one's fault.
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
        """Return the finding for programs."""
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
        """True if no finding is worse than a note."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of all findings."""
        return tuple(finding.code for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis for programs."""
        return {
            "verdict": self.verdict,
            "is_healthy": self.is_healthy,
            "findings": [finding.to_json() for finding in self.findings],
            "asked_s": round(self.asked_s, 3),
        }


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort by severity; equals keep their order, in which causes come before their effects."""
    return tuple(sorted(findings, key=lambda finding: finding.severity))
