"""Training goes on when what it stands on fails: leaves, spines, workers, the controller, its disk.

Every sum of the streams here is compared with the ranks' tensors: one that is wrong by a bit, or that has a
part of a worker and not all of it, is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from controller.api.errors import ControllerError
from p4reduce.workloads.errors import WorkloadError
from tests.e2e.conftest import rack, spine_leaf
from tests.e2e.streaming import PATIENCE_S, streaming, until
from topologies.fabric import Fabric

pytestmark = pytest.mark.emulation

SOON = {
    "heartbeat_interval_s": 0.5,
    "heartbeat_timeout_s": 10.0,
    "lost_timeout_s": 2.0,
    "switch_timeout_s": 3.0,
}


@pytest.fixture(scope="module")
def four() -> Iterator[Fabric]:
    with rack(4, controller_options=SOON) as running:
        yield running


def test_a_job_outlives_its_switch_its_controller_and_a_pause(four: Fabric, tmp_path: Path) -> None:
    with streaming(four, 4, tmp_path / "s", job="outlives") as stream:
        faults = stream.faults
        faults.restart_switch("s1")  # where that takes longer than the timeout, by ring meanwhile
        stream.until_renewed(1, pb.IN_NETWORK)
        stream.more(5)
        assert "switch s1" in stream.info().renewal_reason

        faults.pause_worker("outlives", 2)
        time.sleep(1.5 * SOON["lost_timeout_s"])
        faults.resume_worker("outlives", 2)
        stream.more(5)

        before = stream.info().renewals
        faults.kill_switch("s1")
        stream.until_renewed(before + 1, pb.RING)
        stream.more(5)
        assert "away" in stream.info().mode_reason
        faults.kill_controller()
        stream.more(5)
        faults.restart_controller()
        stream.more(5)
        faults.restart_switch("s1")
        stream.until_renewed(before + 2, pb.IN_NETWORK)
        stream.more(5)
        faults.kill_controller()
        faults.restart_switch("s1")
        faults.restart_controller()
        stream.until_renewed(before + 3, pb.IN_NETWORK)
        stream.more(5)
        for answer in stream.end(0, 1, 2, 3):
            assert {tuple(part["ranks"]) for part in answer["parts"]} == {(0, 1, 2, 3)}
            assert {part["mode"] for part in answer["parts"]} == {"in_network", "ring"}


def test_a_job_across_racks_outlives_a_leaf_a_spine_and_both(tmp_path: Path) -> None:
    patient = {**SOON, "switch_timeout_s": PATIENCE_S}  # so that it waits for what restarts
    with (
        spine_leaf(spines=1, leaves=2, hosts=4, controller_options=patient) as running,
        streaming(running, 4, tmp_path / "l", job="racks", hosts="h1 h3 h2 h4") as stream,
    ):
        faults = stream.faults
        faults.restart_switch("l1")
        stream.until_renewed(1, pb.IN_NETWORK)
        stream.more(5)
        assert "switch l1 was restarted" in stream.info().renewal_reason

        faults.restart_switch("s1")  # it has lost nothing that leaves cannot send once more
        stream.more(5)
        assert (stream.info().renewals, stream.info().mode) == (1, pb.IN_NETWORK)

        faults.kill_switch("s1")
        faults.restart_switch("l2")  # which has forgotten all, and nothing joins the racks
        stream.until_renewed(2, pb.RING)
        stream.more(5)
        assert "no spine joins l1, l2" in stream.info().mode_reason
        faults.restart_switch("s1")
        stream.until_renewed(3, pb.IN_NETWORK)
        stream.more(5)
        for answer in stream.end(0, 1, 2, 3):
            assert [part["mode"] for part in answer["parts"]] == ["in_network", "ring", "in_network"]


def test_an_elastic_job_goes_on_without_its_dead_and_another_names_them(four: Fabric, tmp_path: Path) -> None:
    with streaming(four, 4, tmp_path / "e", job="elastic", elastic=True) as stream:
        stream.kill(1)
        stream.until_renewed(1, pb.IN_NETWORK)
        stream.more(5)
        stream.faults.restart_switch("s1")
        stream.until_renewed(2, pb.IN_NETWORK)
        stream.more(5)
        answers = stream.end(0, 2, 3)
        for rank, answer in enumerate(answers):
            ranks = [part["ranks"] for part in answer["parts"]]
            assert ranks[0] == [0, 1, 2, 3]
            assert [now for before, now in pairwise(ranks) if now != before] == [[0, 2, 3]]
            assert (answer["rank"], answer["world_size"]) == (rank, 3)
        with pytest.raises(WorkloadError, match="killed"):
            stream.answer(1)
    with streaming(four, 4, tmp_path / "n", job="rigid") as stream:
        stream.kill(2)
        for rank in (0, 1, 3):
            error = stream.answer(rank)["error"]
            assert error["kind"] == "WorkerLostError"
            assert "rank 2 (h3, 10.0.0.3) has been without a connection" in error["text"]
            assert "the first message it did not contribute to is" in error["text"]


def test_with_a_full_disk_jobs_go_on_and_new_ones_are_told(four: Fabric, tmp_path: Path) -> None:
    with streaming(four, 2, tmp_path / "d", job="full") as stream:
        stream.faults.fill_disk()
        try:
            with (
                AdminClient(f"unix:{four.state.control_socket}") as admin,
                pytest.raises(ControllerError, match=r"database .* cannot be written"),
            ):
                admin.create_job("new", 2)
            stream.faults.restart_switch("s1")
            stream.until_renewed(1, pb.RING)
            stream.more(5)
        finally:
            stream.faults.free_disk()
        until("it is in the network again", lambda: stream.info().mode == pb.IN_NETWORK)
        stream.more(5)
        stream.faults.fill_disk()
        try:
            stream.faults.kill_controller()
            stream.faults.restart_controller()
            stream.more(5)
            until("it has its workers again", lambda: all(w.connected for w in stream.info().workers))
        finally:
            stream.faults.free_disk()
        stream.more(5)
        stream.end(0, 1)
