"""A short soak; `make soak` is the long one. A failure prints its seed, and the last faults."""

from __future__ import annotations

import os

import pytest

from p4reduce.workloads.soak.running import SoakOptions, soak
from tests.e2e.conftest import unique

pytestmark = [pytest.mark.emulation, pytest.mark.slow, pytest.mark.timeout(600)]

SEED = int(os.environ.get("P4REDUCE_SOAK_SEED", "7"))
SECONDS = 25.0


def test_mixed_jobs_under_changing_faults_are_exact_and_leave_nothing() -> None:
    options = SoakOptions(
        name=f"soak-{unique()}", seconds=SECONDS, seed=SEED, hosts=4, crews=3, calm_s=SECONDS
    )
    outcome = soak(options)
    assert not outcome.complaints, f"seed {SEED}: " + "\n".join(outcome.complaints)
    assert outcome.figures["sums"] > 0
    assert sum(outcome.faults.values()) > 0
