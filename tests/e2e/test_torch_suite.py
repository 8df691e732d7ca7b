"""PyTorch's own tests of distributed backends, and ours beside Gloo, over p4reduce."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torch_suite.known import KNOWN
from tests.torch_suite.rack import missing, rack, run
from tests.torch_suite.results import Outcome, Result, fails_beside, wrongs
from topologies.fabric import Fabric

_ENOUGH = 60  # tests that Gloo passes: far fewer, and most did not run

run_in_a_rack = [
    pytest.mark.emulation,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing()), reason=missing() or "it can run"),
]


@pytest.fixture(scope="module")
def four() -> Iterator[Fabric]:
    with rack() as running:
        yield running


class TestInARack:
    pytestmark = run_in_a_rack

    def test_what_gloo_passes(self, four: Fabric) -> None:
        gloo, ours = (run(four, "upstream", backend) for backend in ("gloo", "p4reduce"))
        assert sum(one.result is Result.PASSED for one in gloo) >= _ENOUGH
        assert wrongs(gloo, ours, KNOWN, whole=True) == []

    def test_beside_gloo(self, four: Fabric) -> None:
        outcomes = run(four, "beside_gloo", "p4reduce")
        assert len(outcomes) >= _ENOUGH
        assert [one for one in outcomes if one.result is not Result.PASSED] == []


def _outcomes(**results: Result) -> list[Outcome]:
    return [Outcome(name=name, result=result, reason="why") for name, result in results.items()]


def test_a_failure_that_gloo_does_not_have() -> None:
    gloo = _outcomes(a=Result.PASSED, b=Result.PASSED, c=Result.FAILED, d=Result.PASSED)
    ours = _outcomes(a=Result.PASSED, b=Result.HUNG, c=Result.FAILED, d=Result.SKIPPED)
    assert [one.name for one in fails_beside(gloo, ours)] == ["b", "d"]
    assert wrongs(gloo, ours, {}, whole=True) == ["b hung: why", "d skipped: why"]
    assert wrongs(gloo, ours, {"b": "known", "d": "known"}, whole=True) == []


def test_the_list_is_kept_honest() -> None:
    outcomes = _outcomes(a=Result.PASSED)
    assert wrongs(outcomes, outcomes, {"a": "known"}, whole=True) == [
        "a passes, and is listed as one that does not"
    ]
    assert wrongs(outcomes, outcomes, {"b": "known"}, whole=True) == ["b is no test, and is listed"]
    assert wrongs(outcomes, [], {}, whole=True) == ["a did not run"]
