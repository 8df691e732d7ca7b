"""Diagnosis from facts, the most telling finding first. No I/O."""

from __future__ import annotations

from p4reduce.doctor.control import control
from p4reduce.doctor.facts import Facts
from p4reduce.doctor.findings import Diagnosis, Finding, Severity, warning, worst_first
from p4reduce.doctor.jobs import ended, jobs
from p4reduce.doctor.links import links
from p4reduce.doctor.silence import silence


def diagnose(facts: Facts, job: str | None = None) -> Diagnosis:
    """Diagnose the whole cluster, or only `job` and what it may suffer from."""
    ways = list(links(facts))
    infra = [*control(facts), *silence(facts, ways), *ways]
    of_jobs = list(jobs(facts, infra, job))
    over = list(ended(facts, job))
    if job is not None:  # it is what was asked for
        of_jobs, over = [*of_jobs, *over], []
    if job is not None and not of_jobs and all(finding.severity is Severity.NOTE for finding in infra):
        of_jobs = [_unknown(job)]
    findings = _without_repetition([*of_jobs, *infra, *over])
    ordered = worst_first(findings)
    return Diagnosis(verdict=_verdict(facts, ordered), findings=ordered, asked_s=facts.asked_s)


def _verdict(facts: Facts, findings: tuple[Finding, ...]) -> str:
    """Return the worst finding in one sentence; if all is well, the state of the jobs."""
    if findings and findings[0].severity is not Severity.NOTE:
        return f"{findings[0].says}."
    told = [finding.says for finding in findings if finding.job]
    if told:
        return f"All is well: {told[0]}{f' (and {len(told) - 1} more)' if len(told) > 1 else ''}."
    return f"All is well: cluster {facts.cluster.name} runs, and there is no job."


def _unknown(job: str) -> Finding:
    """Report a job that nobody knows: a wrong name, or one that was deleted after it ended (`allreduce`)."""
    return warning(
        code="no-such-job",
        says=f"there is no job {job!r}; the fabric is well",
        evidence=(
            "one that has ended and was deleted, as those of 'p4reduce allreduce' are, is not known any more",
        ),
        do=("p4reduce job list   (the names)",),
    )


def _without_repetition(findings: list[Finding]) -> list[Finding]:
    """Drop findings whose sentence a job's own finding contains word for word."""
    kept: list[Finding] = []
    for finding in findings:
        if not any(finding.says in other.says and other.job and not finding.job for other in kept):
            kept.append(finding)
    return kept
