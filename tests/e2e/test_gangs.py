"""Hosts with several GPUs at the controller: slots for all planes or none, and who is named in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from p4reduce.workloads.placement import place
from p4reduce.workloads.team import Team
from tests.e2e.conftest import all_reduce, rack
from topologies.fabric import Fabric
from topologies.faults import ClusterFaults

pytestmark = pytest.mark.emulation

PATIENCE_S = 30.0


@contextmanager
def gang(
    running: Fabric, job: str, *, workers: int = 4, **how: Any
) -> Iterator[tuple[Team, list[dict[str, Any]]]]:
    """Yield a team on the GPUs of the first hosts, and what each worker was told when it joined."""
    hosts = place(running.state, workers=workers)
    with Team(running.state, workers, hosts=hosts) as team:
        yield team, team.join(job, **how)


def shown(running: Fabric, job: str) -> pb.JobInfo:
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        return admin.show_job(job)


def test_planes_share_a_fate() -> None:
    """A second gang gets smaller regions, as there are no others; a third none, for all of its planes."""
    quotas = {"quotas": {"tenants": {"default": {"slots": 400}}}}
    with (
        rack(2, gpus_per_host=2, controller_options=quotas) as running,
        gang(running, "first") as (first, told),
        gang(running, "second") as (second, later),
    ):
        assert [answer["mode"] for answer in (*told, *later)] == ["in_network"] * 8
        sizes = {
            name: {place.slots for plane in shown(running, name).planes for place in plane.places}
            for name in ("first", "second")
        }
        assert sizes == {"first": {128}, "second": {64}}
        with gang(running, "third") as (third, last):
            assert [answer["mode"] for answer in last] == ["ring"] * 4
            assert "tenant default has 384 of its 400 slots, the gang needs 128" in last[0]["mode_reason"]
            info = shown(running, "third")
            assert (info.spec.world_size, len(info.planes), info.waitlisted.position) == (4, 2, 1)
            all_reduce(third, elements=20_011, dtype="int32", seed=1)
            second.do("leave")
            until(lambda: shown(running, "third").mode == pb.IN_NETWORK)
            assert [plane.mode for plane in shown(running, "third").planes] == [pb.IN_NETWORK] * 2
            all_reduce(third, elements=20_011, dtype="float32", seed=2)
            third.do("leave")
        all_reduce(first, elements=20_011, dtype="float32", seed=3)
        first.do("leave")


def test_a_gpu_that_dies_is_named_by_its_machine_to_everybody() -> None:
    with (
        rack(2, gpus_per_host=2) as running,
        gang(running, "train") as (team, _),
        ThreadPoolExecutor() as pool,
    ):
        all_reduce(team, elements=1000, dtype="int32", seed=1)
        going = pool.submit(
            team.try_,
            "all_reduce",
            ranks=[0, 1, 2],
            elements=1000,
            dtype="int32",
            seed=2,
            timeout_s=PATIENCE_S,
        )
        time.sleep(0.3)
        ClusterFaults(running.state).kill_worker("train/1", 1)
        answers = going.result()
        for answer in answers:
            assert answer["error"]["kind"] == "WorkerLostError", answer
            assert "GPU 1 of machine 1 (" in answer["error"]["text"], answer
        info = shown(running, "train")
        assert (info.phase, len(info.planes)) == (pb.ENDED, 2)
        assert "GPU 1 of machine 1 (" in info.ended.reason
        with AdminClient(f"unix:{running.state.control_socket}") as admin:
            admin.delete_job("train")
            assert admin.list_jobs() == []


def test_an_elastic_gang_goes_on_without_the_machine_of_a_gpu_that_dies() -> None:
    """Kill a GPU during a sum, which the others make anew. The machine's other GPU hears which one died."""
    with (
        rack(3, gpus_per_host=2) as running,
        gang(running, "train", workers=6, elastic=True) as (team, _),
        ThreadPoolExecutor() as pool,
    ):
        whole = all_reduce(team, elements=300_000, dtype="int32", seed=1)
        going = pool.submit(
            team.try_, "all_reduce", ranks=[0, 1, 2, 3, 4], elements=300_000, dtype="int32", seed=1
        )
        time.sleep(0.3)
        ClusterFaults(running.state).kill_worker("train/1", 2)
        answers = going.result()
        assert [sorted(answer) for answer in answers] == [["ok"]] * 4, answers
        digests = {answer["ok"]["digest"] for answer in answers}
        assert len(digests) == 1
        assert digests != {answer["digest"] for answer in whole}
        assert list(team.lost) == [4]
        assert "GPU 1 of machine 2 (" in team.lost[4]
        later = team.do("all_reduce", elements=300_000, dtype="int32", seed=1)
        assert {answer["digest"] for answer in later} == digests
        assert sorted(team.lost) == [4, 5]
        planes = shown(running, "train").planes
        assert [(plane.mode, plane.renewals) for plane in planes] == [(pb.IN_NETWORK, 1)] * 2
        assert [len(plane.workers) for plane in planes] == [2, 2]
        team.do("leave")


def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
