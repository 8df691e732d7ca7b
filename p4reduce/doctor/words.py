"""Words and numbers of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p4reduce.doctor.findings import Diagnosis, Finding, Severity

_HEADINGS = {Severity.ERROR: "Also wrong", Severity.WARNING: "Also", Severity.NOTE: "Good to know"}


def seconds(value: float) -> str:
    """Format a duration: 12.3 s, 4 min, 0.04 s."""
    if value >= 600:
        return f"{value / 60:.0f} min"
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.1f} s" if value >= 0.1 else f"{value:.2f} s"


def ago(value: float | None) -> str:
    """Format the time since something: "3.1 s ago", "never"."""
    return "never" if value is None else f"{seconds(value)} ago"


def rank(number: int, host: str, plane: int | None = None) -> str:
    """Name a rank: rank 2 (h3); in a plane, GPU 1 of machine 2 (h3)."""
    name = f"rank {number}" if plane is None else f"GPU {plane} of machine {number}"
    return f"{name} ({host})" if host else name


def ranks(numbers: Iterable[int], of: str = "rank") -> str:
    """Name several ranks: rank 2; ranks 0, 1 and 3; machines 0 and 1."""
    words = [str(number) for number in sorted(numbers)]
    return f"{of}{'s' if len(words) > 1 else ''} {listed(words)}"


def gpus(machine: int, planes: Sequence[int], host: str) -> str:
    """Name GPUs of a machine: GPUs 0 and 2 of machine 1 (h2)."""
    return f"{ranks(planes, 'GPU')} of machine {machine}{f' ({host})' if host else ''}"


def listed(words: Sequence[str]) -> str:
    """Join words as in a sentence: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nobody"


def count(number: int, what: str) -> str:
    """Format a number of things: 1 frame, 2 frames."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def capital(sentence: str) -> str:
    """Give a sentence a capital first letter."""
    return sentence[:1].upper() + sentence[1:]


def lines(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Format a diagnosis for people: each line with its style ("" for plain)."""
    found = list(diagnosis.findings)
    style = "green" if diagnosis.is_healthy else "bold red"
    if found and found[0].severity is Severity.WARNING:
        style = "bold yellow"
    shown = [(diagnosis.verdict, style)]
    if found and found[0].says in diagnosis.verdict:
        shown += _body(found.pop(0))
    heading = None
    for finding in found:
        if finding.severity is not heading:
            heading = finding.severity
            shown.append((f"{_HEADINGS[heading]}:", "bold"))
        shown.append((f"- {finding.says}", ""))
        shown += _body(finding)
    return shown


def _body(finding: Finding) -> list[tuple[str, str]]:
    return [
        *((f"    {line}", "dim") for line in finding.evidence),
        *((f"  -> {line}", "cyan") for line in finding.do),
    ]
