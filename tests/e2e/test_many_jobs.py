"""Several jobs on the same switches: many at once, a queue, and moving into the switch when there is room."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from controller.api.admin import AdminClient
from p4reduce.workloads.team import Team
from tests.e2e.conftest import all_reduce, joined, rack
from topologies.fabric import Fabric

pytestmark = pytest.mark.emulation

PATIENCE_S = 30.0
SEED = 20_161
QUOTA = {"quotas": {"tenants": {"default": {"slots": 256}}}}


def test_sixteen_jobs_at_once_are_all_exact() -> None:
    """2 to 4 workers each, on 8 hosts, starting at any time, with tensors of any size."""
    choice = random.Random(SEED)
    with rack(8) as running, ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        teams = []
        for _ in range(16):
            hosts = choice.choices(running.state.hosts, k=choice.randint(2, 4))
            teams.append(stack.enter_context(Team(running.state, len(hosts), hosts=hosts)))

        def run(number: int, delay_s: float, sizes: list[int]) -> tuple[str, str]:
            team = teams[number]
            time.sleep(delay_s)
            (first, *_) = team.join(f"job-{number}")
            for seed, elements in enumerate(sizes):
                all_reduce(team, elements=elements, dtype=("int32", "float32")[seed % 2], seed=seed)
            team.do("leave")
            return first["mode"], first["mode_reason"]

        jobs = [
            pool.submit(run, number, choice.uniform(0, 2), [choice.randint(1, 200_000) for _ in range(4)])
            for number in range(16)
        ]
        assert {job.result() for job in jobs} == {("in_network", "")}, f"seed {SEED}"
        slots = slots_used(running)
    assert slots == 0


def slots_used(running: Fabric) -> int:
    """Return how many slots jobs still have, once the controller has had time to take them away."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with AdminClient(f"unix:{running.state.control_socket}") as admin:
            used = sum(switch.slots_used for switch in admin.status().switches)
        if used == 0 or time.monotonic() > deadline:
            return used
        time.sleep(0.1)


def test_a_job_without_room_runs_by_ring_and_moves_into_the_switch() -> None:
    """The second of two jobs where there is room for one: exact before, while and after it moves."""
    with rack(4, controller_options=QUOTA) as running, ThreadPoolExecutor() as pool:
        others = running.state.hosts[2:]
        with joined(running, 2, job="first") as first, Team(running.state, 2, hosts=others) as second:
            (answer, *_) = second.join("second")
            assert answer["mode"] == "ring"
            assert "256" in answer["mode_reason"]
            with AdminClient(f"unix:{running.state.control_socket}") as admin:
                waiting = admin.show_job("second").waitlisted
            assert (waiting.position, waiting.reason) == (1, answer["mode_reason"])
            all_reduce(second, elements=10_007, dtype="int32", strategy="ring", seed=1)
            for dtype in ("int32", "float32"):
                all_reduce(first, elements=10_007, dtype=dtype, seed=2)
            # Some of these run by ring, the others in the switch: int32 is exact either way.
            going = pool.submit(all_reduce, second, elements=50_021, dtype="int32", seed=3, repeat=200)
            time.sleep(0.5)
            first.do("leave")
            going.result()
            until_in_network(running, "second")
            before = second.do("statistics")[0]["statistics"]
            all_reduce(second, elements=10_007, dtype="float32", seed=4)
            after = second.do("statistics")[0]["statistics"]
            assert after["in_network"] > before["in_network"]
            assert after["ring"] == before["ring"]
            second.do("leave")
        assert slots_used(running) == 0


def until_in_network(running: Fabric, job: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with AdminClient(f"unix:{running.state.control_socket}") as admin:
            info = admin.show_job(job)
        if info.places:
            assert not info.HasField("waitlisted")
            return
        assert time.monotonic() < deadline, info
        time.sleep(0.1)
