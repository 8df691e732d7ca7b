"""The main job, end to end, in small."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from controller.config import Target
from p4reduce.workloads.demo import DemoOptions, run
from topologies import namespaces
from topologies.switches import BMV2

pytestmark = [pytest.mark.emulation, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    directory = tempfile.mkdtemp(prefix="p4r-")  # not tmp_path: a socket's path is short
    monkeypatch.setenv("P4REDUCE_STATE_DIR", directory)
    yield
    assert os.listdir(directory) == []
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("switch", "workers"),
    [
        (Target.EMBEDDED, 2),
        (Target.EMBEDDED, 4),
        pytest.param(
            Target.BMV2,
            3,
            marks=[
                pytest.mark.bmv2,
                pytest.mark.skipif(shutil.which(BMV2) is None, reason=f"no {BMV2} on the PATH"),
            ],
        ),
    ],
)
def test_demo(switch: Target, workers: int) -> None:
    name = f"d{os.getpid()}"
    phases: list[str] = []
    options = DemoOptions(cluster=name, switch=switch, workers=workers, steps=25, race_bytes=2**20, repeat=1)
    report = run(options, progress=phases.append)
    found = report.as_json()
    assert found["switch"] == switch.value
    assert found["workers"] == workers
    assert found["accuracy"] == found["reference_accuracy"] > 0.5
    assert found["ranks_bitwise_equal"]
    assert found["integer_sum_exact"]
    assert found["training"]["within_bound"]
    # Each host sends its tensor once, the ring 2(N-1)/N of it; headers and resent packets come on top.
    assert found["in_network"]["bytes_sent_per_host"] >= 2**20
    assert found["ring"]["bytes_sent_per_host"] >= 2 * (workers - 1) / workers * 2**20
    counters = found["counters"]
    assert counters["aggregated"] == workers * counters["completed"] > 0
    assert counters["bad_icrc"] == counters["mismatch"] == counters["foreign"] == 0
    assert phases[0] == "bringing up the rack"
    assert not namespaces.exists(f"p4r-{name}")
