"""Jobs with workers in several racks: any placement, what crosses the uplinks, spines and links that fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from controller.api.admin import AdminClient
from controller.config import Target
from p4reduce.workloads.team import Team
from tests.e2e.conftest import PATH_MTU, TARGETS, all_reduce, spine_leaf
from topologies.fabric import Fabric

pytestmark = pytest.mark.emulation

PATIENCE_S = 30.0
ELEMENTS = 250_000  # a megabyte of int32
FRAME_OVERHEAD = 14 + 20 + 8 + 20 + 4  # Ethernet, IPv4, UDP, tree header, ICRC


@contextmanager
def placed(running: Fabric, names: str, *, job: str, **arguments: Any) -> Iterator[Team]:
    """Yield a team with a worker on each named host, in order of rank, in a job that the switches sum."""
    hosts = [running.state.host(name) for name in names.split()]
    with Team(running.state, len(hosts), hosts=hosts) as team:
        for answer in team.join(job, **arguments):
            assert (answer["mode"], answer["mode_reason"]) == ("in_network", "")
        yield team
        team.do("leave")


def sent_up_and_down(running: Fabric) -> dict[str, tuple[int, int]]:
    """Return bytes that each link has carried, leaf to spine and back."""
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        return {f"{link.a}:{link.b}": (link.a_to_b.bytes, link.b_to_a.bytes) for link in admin.links()}


def grown(running: Fabric, before: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    after = sent_up_and_down(running)
    return {name: (after[name][0] - up, after[name][1] - down) for name, (up, down) in before.items()}


@pytest.fixture(scope="module", params=TARGETS)
def two_racks(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    """Yield two spines, two leaves with three hosts each: h1 to h3 behind l1, h4 to h6 behind l2."""
    with spine_leaf(spines=2, leaves=2, hosts=6, switch=request.param) as running:
        yield running


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param("h1 h4", id="one-a-rack"),
        pytest.param("h1 h2 h4 h5", id="even"),
        pytest.param("h1 h4 h2 h5 h3", id="uneven-and-mixed"),
        pytest.param("h1 h2 h3 h6", id="one-apart"),
        pytest.param("h1 h1 h4", id="two-workers-in-a-host"),
    ],
)
def test_any_placement_is_exact(two_racks: Fabric, hosts: str) -> None:
    with placed(two_racks, hosts, job="placed") as team:
        all_reduce(team, elements=20_011, dtype="int32", seed=1)
        for op in ("avg", "max"):
            all_reduce(team, elements=20_011, dtype="float32", op=op, seed=2)
        all_reduce(team, elements=5_003, dtype="float32", strategy="ring", seed=3)
        all_reduce(team, elements=777, dtype="int32", seed=4)


def test_a_job_in_one_rack_needs_no_spine(two_racks: Fabric) -> None:
    with placed(two_racks, "h1 h2 h3", job="local") as team:
        before = sent_up_and_down(two_racks)
        all_reduce(team, elements=20_011, dtype="int32", seed=1)
        quiet = 20_011 * 4 // 10  # probes go on
        assert all(up < quiet and down < quiet for up, down in grown(two_racks, before).values())


def test_each_uplink_carries_each_byte_once_in_each_direction() -> None:
    """Against ring all-reduce by the same workers on the same links."""
    with (
        spine_leaf(spines=1, leaves=2, hosts=8) as running,
        placed(running, " ".join(f"h{i}" for i in range(1, 9)), job="bytes") as team,
    ):
        carried, resent = {}, {}
        for strategy in ("in-network", "ring"):
            before = sent_up_and_down(running)
            answers = all_reduce(team, elements=ELEMENTS, dtype="int32", strategy=strategy, seed=1)
            carried[strategy] = grown(running, before)
            resent[strategy] = sum(answer["retransmissions"] for answer in answers)
        packets = -(-ELEMENTS * 4 // PATH_MTU)
        once = packets * (PATH_MTU + FRAME_OVERHEAD)
        for up, down in carried["in-network"].values():
            # And a header for each 16 packets, acknowledgements, the barrier, probes; what was sent again.
            allowed = 1.10 * once + 4 * resent["in-network"] * (PATH_MTU + FRAME_OVERHEAD)
            assert ELEMENTS * 4 < up < allowed
            assert ELEMENTS * 4 < down < allowed
        for up, down in carried["ring"].values():
            assert min(up, down) > 1.6 * ELEMENTS * 4  # 2 (N - 1) / N = 1.75 of it, both ways


@pytest.mark.parametrize("target", TARGETS)
def test_a_rack_of_one_and_many_leaves(target: Target) -> None:
    with (
        spine_leaf(spines=2, leaves=4, hosts=(1, 2, 1, 3), switch=target) as running,
        placed(running, "h7 h1 h2 h3 h4 h5 h6", job="uneven") as team,
    ):
        all_reduce(team, elements=20_021, dtype="int32", seed=1)
        all_reduce(team, elements=20_021, dtype="float32", seed=2)
        all_reduce(team, elements=20_021, dtype="float32", strategy="ring", seed=3)


def test_two_jobs_that_share_a_leaf() -> None:
    with (
        spine_leaf(spines=2, leaves=3, hosts=6) as running,
        placed(running, "h1 h2 h3", job="left") as left,
        placed(running, "h4 h3 h5 h6", job="right") as right,
        ThreadPoolExecutor() as pool,
    ):
        both = [
            pool.submit(all_reduce, team, elements=300_007, dtype="int32", seed=seed, repeat=3)
            for seed, team in enumerate((left, right))
        ]
        assert len({future.result()[0]["digest"] for future in both}) == 2


def running_job(
    pool: ThreadPoolExecutor, team: Team, elements: int, repeat: int
) -> Future[list[dict[str, Any]]]:
    return pool.submit(all_reduce, team, elements=elements, dtype="int32", seed=1, repeat=repeat)


def until(what: str, true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"not so within {PATIENCE_S:g} s: {what}"
        time.sleep(0.1)


def moved(running: Fabric) -> int:
    """Return bytes that have gone up so far, over all links."""
    return sum(up for up, _ in sent_up_and_down(running).values())


def states(running: Fabric) -> dict[str, bool]:
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        return {f"{link.a}:{link.b}": link.up for link in admin.links()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("what", ["spine", pytest.param("uplink", marks=pytest.mark.long)])
def test_what_fails_is_left_and_used_again(what: str, target: Target) -> None:
    """Check it in the middle of all-reduces, for each of two spines in turn: so one of them was in use."""
    elements, repeat = (ELEMENTS, 60) if target is Target.EMBEDDED else (ELEMENTS // 4, 4)
    with (
        spine_leaf(spines=2, leaves=2, hosts=4, switch=target) as running,
        placed(running, "h1 h2 h3 h4", job="fails") as team,
        ThreadPoolExecutor() as pool,
    ):
        all_reduce(team, elements=1000, dtype="int32")
        for spine in ("s1", "s2"):
            going = running_job(pool, team, elements, repeat)
            start = moved(running)
            until("the job moves", lambda start=start: moved(running) > start + elements)
            if what == "spine":
                running.faults.kill_switch(spine)
            else:
                running.faults.set_link(f"l1:{spine}", up=False)
            gone = [f"l1:{spine}"] if what == "uplink" else [f"l1:{spine}", f"l2:{spine}"]
            until(f"{gone} are down", lambda gone=gone: not any(states(running)[name] for name in gone))
            assert len(going.result()) == 4
            all_reduce(team, elements=20_011, dtype="float32", seed=2)
            all_reduce(team, elements=20_011, dtype="float32", strategy="ring", seed=3)
            if what == "spine":
                running.faults.restart_switch(spine)
            else:
                running.faults.set_link(f"l1:{spine}", up=True)
            until("all is up again", lambda: all(states(running).values()))
            all_reduce(team, elements=20_011, dtype="float32", seed=4)
