"""p4c's samples for v1model with their STF scripts, each a test; docs/conformance.md lists the failures."""

from __future__ import annotations

import pytest

from tests.conformance import expectations
from tests.conformance.running import judge
from tests.conformance.samples import Sample, missing, more, sources, yardstick

WHY_NOT = missing()
KNOWN = expectations.known_failures()

pytestmark = [pytest.mark.slow, pytest.mark.p4c]


def all_samples() -> list[Sample]:
    root = sources()
    return [] if WHY_NOT is not None or root is None else [*yardstick(root), *more(root)]


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_the_list_of_failures_names_samples() -> None:
    assert set(KNOWN) <= {sample.name for sample in all_samples()}


@pytest.mark.parametrize(
    "sample",
    all_samples()
    or [pytest.param(None, id="none", marks=pytest.mark.skip(reason=WHY_NOT or "there are no samples"))],
    ids=lambda sample: getattr(sample, "name", None),
)
def test_sample(sample: Sample) -> None:
    if sample.why_not is not None:
        pytest.skip(sample.why_not)
    verdict = judge(sample)
    if sample.name in KNOWN:
        assert not verdict.passed, f"it passes: take it out of {expectations.DOCUMENT.name}"
        pytest.xfail(KNOWN[sample.name])
    assert verdict.passed, f"{verdict.stage}: {verdict.reason}"
