"""Runs that are observed, and what their pages are given."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from p4reduce.simulation.faults.playing import Outcome, run
from p4reduce.simulation.faults.schedule import Schedule
from p4reduce.simulation.sequence.observing import MOST_STEPS, SequenceObserver
from p4reduce.simulation.sequence.page import named, page
from p4reduce.simulation.sequence.steps import Step

EXAMPLES = Path(__file__).parents[4] / "examples" / "protocol"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.json"))


def example(name: str) -> Schedule:
    """Return a schedule that docs/protocol.md names."""
    return Schedule.from_json((EXAMPLES / f"{name}.json").read_text())


def observed(
    schedule: Schedule, *, most: int = MOST_STEPS, from_ns: int | None = None
) -> tuple[Outcome, SequenceObserver]:
    """Observe a run to its end; return its outcome and the observer."""
    observer = SequenceObserver(schedule, most=most, from_ns=from_ns)
    outcome = run(schedule, observer=observer)
    observer.ended(outcome.error)
    return outcome, observer


def steps_of(schedule: Schedule, **options: Any) -> list[Step]:
    """Return the steps that a run's page has."""
    outcome, observer = observed(schedule, **options)
    return list(observer.parts.chosen(failed=bool(outcome.error)).steps)


def page_of(schedule: Schedule, name: str | None = None, **options: Any) -> str:
    """Return a run's page."""
    outcome, observer = observed(schedule, **options)
    return page(named(schedule, name), outcome, observer)


def given(text: str) -> dict[str, Any]:
    """Return what a page's script finds in it."""
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', text)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data
