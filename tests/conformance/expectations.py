"""The failures that are known: the table in docs/conformance.md, which readers see, is what the tests use.

An expectation is strict: a sample listed there that passes is a failure as well.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance.md"
ROW = re.compile(r"^\|\s*`(?P<sample>[^`]+)`\s*\|\s*(?P<reason>.+?)\s*\|\s*$")
HEADING = "## Known failures"


def known_failures(document: Path = DOCUMENT) -> dict[str, str]:
    """Return sample and reason of each row of the table under the heading."""
    lines = document.read_text().splitlines()
    if HEADING not in lines:
        raise ValueError(f"{document} has no heading {HEADING!r}")
    result = {}
    for line in lines[lines.index(HEADING) + 1 :]:
        if line.startswith("## "):
            break
        found = ROW.match(line)
        if found is not None:
            result[found["sample"]] = found["reason"]
    return result
