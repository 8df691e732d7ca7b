"""Notes on troubles that are over, one sentence for each kind; and the command that ends injected faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from p4reduce.doctor.facts import Facts
from p4reduce.doctor.findings import Finding, note

KINDS: Final = {
    "has-lost": "packets were lost earlier, and sent again",
    "has-damaged": "packets were damaged earlier (wrong ICRC), dropped and sent again",
    "has-overflowed": "frames found no room in receive rings earlier",
    "unplaced": "packets were dropped as they fit no message of their flow, as after the loss of its first",
    "has-dropped": "packets were dropped earlier that nobody wants",
}


def earlier(code: str, what: str) -> Finding:
    """Note where and how often something happened earlier; `merged` makes one note of all such parts."""
    code = code if code in KINDS else "has-dropped"
    return note(code=code, says=KINDS[code], evidence=(what,))


def merged(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield one finding for each kind."""
    for code, says in KINDS.items():
        parts = [part for finding in found if finding.code == code for part in finding.evidence]
        if parts:
            yield note(code=code, says=f"{says}: {', '.join(parts)}")


def injected(facts: Facts) -> tuple[str, ...]:
    """Return the command that ends injected faults; nothing if none are injected."""
    return ("p4reduce fault clear  (faults are injected on purpose)",) if facts.rules else ()
