"""Real processes go on adding up while their controller is stopped, dead, or on an empty database.

It is away for longer than workers had, before they went on without it, with times made short.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api import controller_pb2 as pb
from controller.api.errors import UnreachableError
from p4reduce.cli.controlling import ClusterAdmin
from tests.e2e.conftest import rack
from tests.e2e.streaming import streaming, until
from topologies import disk
from topologies.fabric import Fabric

pytestmark = pytest.mark.emulation

SHORT = {
    "heartbeat_interval_s": 0.5,
    "heartbeat_timeout_s": 3.0,
    "lost_timeout_s": 2.0,
    "resume_timeout_s": 6.0,
}
# A worker notices after heartbeat_timeout_s, and gave up resume_timeout_s and one more attempt later.
AWAY_S = 2 * SHORT["heartbeat_timeout_s"] + SHORT["resume_timeout_s"] + 4.0


@pytest.fixture(scope="module")
def two() -> Iterator[Fabric]:
    with rack(2, controller_options=SHORT) as running:
        yield running


def test_a_job_does_not_need_its_controller(two: Fabric, tmp_path: Path) -> None:
    with streaming(two, 2, tmp_path / "s", job="alone", pause_s=0.05) as stream:
        faults, generation = stream.faults, stream.info().generation

        def is_back() -> bool:
            try:
                info = stream.info()
            except UnreachableError:
                return False
            return len(info.workers) == 2 and all(worker.connected for worker in info.workers)

        faults.pause_controller()
        with (
            ClusterAdmin(two.state) as admin,
            pytest.raises(UnreachableError, match=r"is stopped \(SIGSTOP\)"),
        ):
            admin.list_jobs()
        time.sleep(AWAY_S)
        stream.more(5)
        faults.resume_controller()
        until("both are back", is_back)

        faults.kill_controller()
        time.sleep(AWAY_S)
        stream.more(5)
        database = disk.database(two.state.directory)
        for file in database.parent.glob(f"{database.name}*"):
            file.unlink()
        faults.restart_controller()
        time.sleep(SHORT["resume_timeout_s"] + SHORT["heartbeat_timeout_s"])  # nobody is missed
        until("both are back in a job that the new database did not know", is_back)
        stream.more(5)
        info = stream.info()
        assert (info.generation, info.mode, info.renewals) == (generation, pb.IN_NETWORK, 0)
        stream.end(0, 1)
