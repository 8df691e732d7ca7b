"""All-reduces through a switch: every size of job, path MTU, element type and operation, on every target."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from controller.api.admin import AdminClient
from controller.config import Target
from p4reduce.workloads.team import Team
from p4reduce.workloads.tensors import dtype_of
from p4reduce.workloads.training import compare
from tests.e2e.conftest import TARGETS, all_reduce, joined, rack
from topologies.fabric import Fabric
from topologies.switches import BMV2

pytestmark = pytest.mark.emulation

DTYPES = ("int32", "float32", "float16", "bfloat16")
OPERATIONS = ("sum", "avg", "max", "min")
SIZES = (1, 2, 63, 64, 65, 191, 192, 193, 1000, 4097, 100_003)


@pytest.fixture(scope="module", params=TARGETS)
def sixteen(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    """Yield sixteen hosts whose links carry any path MTU, on each target."""
    with rack(16, target=request.param, path_mtu=4096) as running:
        yield running


@pytest.fixture(scope="module")
def team(four: Fabric) -> Iterator[Team]:
    """Yield four workers in a job, whose collectives follow each other."""
    with joined(four, 4) as members:
        yield members


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16])
def test_any_number_of_workers(workers: int, sixteen: Fabric) -> None:
    with joined(sixteen, workers, job=f"of-{workers}", path_mtu=1024) as team:
        all_reduce(team, elements=20_011, dtype="int32", seed=workers)
        all_reduce(team, elements=20_011, dtype="float32", op="avg", seed=workers)


@pytest.mark.parametrize("path_mtu", [256, 512, 1024, 2048, 4096])
def test_every_path_mtu(path_mtu: int, sixteen: Fabric) -> None:
    with joined(sixteen, 3, job=f"mtu-{path_mtu}", path_mtu=path_mtu) as team:
        for elements in SIZES:
            all_reduce(team, elements=elements, dtype="int32", seed=elements)


def test_two_jobs_at_once_do_not_disturb_each_other(sixteen: Fabric) -> None:
    with Team(sixteen.state, 4) as team, Team(sixteen.state, 4, hosts=sixteen.state.hosts[4:]) as other:
        for job, members in (("one", team), ("two", other)):
            assert {answer["mode"] for answer in members.join(job)} == {"in_network"}
        with ThreadPoolExecutor() as pool:
            both = [
                pool.submit(all_reduce, members, elements=100_003, dtype="int32", seed=seed)
                for seed, members in enumerate((team, other))
            ]
            digests = {future.result()[0]["digest"] for future in both}
        assert len(digests) == 2
        for members in (team, other):
            members.do("leave")


def test_every_element_type_and_operation(team: Team) -> None:
    for seed, (dtype, op) in enumerate(itertools.product(DTYPES, OPERATIONS)):
        for elements in (1, 777, 30_001):
            (first, *_) = all_reduce(team, elements=elements, dtype=dtype, op=op, seed=seed, racks=team.racks)
            exact = dtype == "int32" or op in ("max", "min")
            assert first["check"]["exact" if exact else "same_bits"]


def test_results_and_counters_do_not_depend_on_the_switch() -> None:
    """The same tensors in the same messages through both targets: the same bits, the same counters."""
    if shutil.which(BMV2) is None:
        pytest.skip(f"{BMV2} is not on the PATH: there is nothing to compare with")
    digests, counted = [], []
    for target in Target:
        with rack(4, target=target) as running:
            with AdminClient(f"unix:{running.state.control_socket}") as admin:
                admin.create_job("same", world_size=4, window=4, message_packets=4)
            with joined(running, 4, job="same") as team:
                digests.append(
                    [all_reduce(team, elements=20_021, dtype=dtype, seed=9)[0]["digest"] for dtype in DTYPES]
                )
                counted.append(
                    [
                        {
                            name: rank[name]
                            for name in ("aggregated", "completed", "mismatch", "bad_icrc", "passed")
                        }
                        for rank in summed_per_rank(running, "same")
                    ]
                )
    assert digests[0] == digests[1]
    # Who completes a sum is a matter of timing; how many there are is not.
    totals = [{name: sum(rank[name] for rank in ranks) for name in ranks[0]} for ranks in counted]
    assert totals[0] == totals[1]
    assert totals[0]["aggregated"] == 4 * totals[0]["completed"] > 0


@pytest.mark.long
def test_thirty_two_megabytes() -> None:
    with rack(4, path_mtu=4096) as running, joined(running, 4) as team:
        (answer, *_) = all_reduce(team, elements=8_000_000, dtype="float32", seed=3)
        # Each host sends its tensor once, but for what is repeated: the ring would take half as much again.
        repeated = answer["retransmissions"] * (4096 + 128)
        assert 32_000_000 < answer["bytes_sent"] < 1.1 * 32_000_000 + repeated


def test_inf_and_nan_come_through(team: Team) -> None:
    answers = team.do(
        "all_reduce",
        per_rank=[{"special": {"3": float("inf")}}, {"special": {"5": float("nan")}}, {}, {}],
        elements=1000,
        dtype="float32",
    )
    assert answers[0]["special"]["3"] == "inf"
    assert answers[1]["special"]["5"] == "nan"
    assert len({answer["digest"] for answer in answers}) == 1
    all_reduce(team, elements=1000, dtype="float32")  # and the switch goes on


def test_ring_over_the_same_connections(team: Team) -> None:
    for dtype, op in itertools.product(DTYPES, OPERATIONS):
        (first, *_) = all_reduce(
            team, elements=10_007, dtype=dtype, op=op, strategy="ring", seed=2, racks=team.racks
        )
        exact = dtype == "int32" or op in ("max", "min")
        assert first["check"]["exact" if exact else "same_bits"]
        whole = 10_007 * dtype_of(dtype).itemsize
        repeated = first["retransmissions"] * (1024 + 128)
        assert 1.5 * whole < first["bytes_sent"] < 2 * whole + repeated
    # Back and forth: the two ways share queue pairs and message numbers.
    all_reduce(team, elements=10_007, dtype="int32", seed=4)
    all_reduce(team, elements=10_007, dtype="int32", strategy="ring", seed=5)


@pytest.mark.parametrize(
    ("dtype", "wire"), [*((dtype, "full") for dtype in DTYPES[1:]), ("float32", "16bit")]
)
def test_training_with_gradients_of_each_type(team: Team, dtype: str, wire: str, tmp_path: Path) -> None:
    record = tmp_path / "sums.npy"
    how: dict[str, Any] = {"seed": 1, "dtype": dtype, "wire": wire}
    answers = team.do("train", steps=5, record=str(record), **how)
    assert len({answer["digest"] for answer in answers}) == 1
    assert answers[0]["bytes"] == 9610 * dtype_of(dtype).itemsize
    assert compare(record, world_size=4, by_ring=answers[0]["by_ring"], **how).within_bound


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_float32_over_16_bits_has_the_bits_of_the_reference(team: Team, op: str) -> None:
    for elements in (500, 30_001):
        how: dict[str, Any] = {"elements": elements, "dtype": "float32", "op": op, "seed": 1}
        (first, *_) = all_reduce(team, **how, racks=team.racks, wire="16bit")
        assert first["check"]["same_bits"]
        (full, *_) = all_reduce(team, **how, racks=team.racks)
        assert (first["digest"] == full["digest"]) == (elements == 500)  # small ones go whole


def test_one_job_after_the_other_uses_the_switch_anew(four: Fabric) -> None:
    for round_ in range(3):
        with joined(four, 3, job="again") as team:
            all_reduce(team, elements=5000, dtype="int32", seed=round_)
        with joined(four, 2, job="again") as team:
            all_reduce(team, elements=5000, dtype="float32", seed=round_)


def test_losses_in_the_switch_are_repaired() -> None:
    with rack(4, switch_loss=0.01) as running, joined(running, 4, job="lossy") as team:
        answers = all_reduce(team, elements=200_003, dtype="int32", seed=6)
        assert sum(answer["retransmissions"] for answer in answers) > 0
        all_reduce(team, elements=200_003, dtype="float32", seed=7)
        all_reduce(team, elements=20_003, dtype="float32", strategy="ring", seed=8)
        repaired = summed_per_rank(running, "lossy")
        assert sum(rank["duplicate"] + rank["replayed"] + rank["stale"] for rank in repaired) > 0


def summed_per_rank(running: Fabric, job: str) -> list[dict[str, int]]:
    """Return what the switch counted for each rank, in packets."""
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        flows = sorted(admin.counters(job), key=lambda flow: flow.rank)
    return [{name: value.packets for name, value in flow.counters.items()} for flow in flows]
