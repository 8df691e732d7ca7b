"""Loss on every link, in both directions: all results are exact on all ranks, and nothing hangs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from p4reduce.workloads.team import Team
from soft_switch.faults import FaultKind
from tests.e2e.conftest import all_reduce, rack, unique
from topologies.fabric import Fabric
from topologies.faults import ClusterFaults, PacketFault
from topologies.spine_leaf import SpineLeafOptions
from topologies.state import ClusterState

pytestmark = [pytest.mark.emulation, pytest.mark.timeout(240)]

LOSSES = (0.0001, 0.001, 0.01, 0.05)
WORKERS = 8
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """Yield eight workers in a rack, in a job that the switch sums."""
    with rack(WORKERS) as running, Team(running.state, WORKERS) as team:
        assert {answer["mode"] for answer in team.join("lossy")} == {"in_network"}
        yield team
        team.do("leave")


def sums_under(cluster: ClusterState, team: Team, loss: float, *, strategy: str, largest: int) -> int:
    """Sum while every link loses packets; return how many were lost."""
    faults = ClusterFaults(cluster)
    number = faults.add(PacketFault(link="*", kind=FaultKind.LOSS, probability=loss, seed=1))
    try:
        for seed, (dtype, elements) in enumerate(
            (("int32", largest), ("float32", largest // 3), ("float16", 777), ("int32", 1))
        ):
            all_reduce(
                team, elements=elements, dtype=dtype, strategy=strategy, seed=seed, timeout_s=PATIENCE_S
            )
        return sum(struck for known, _, struck in faults.faults() if known == number)
    finally:
        faults.clear(number)


@pytest.mark.parametrize("strategy", ["in-network", "ring"])
@pytest.mark.parametrize("loss", LOSSES)
def test_eight_workers_are_exact(team: Team, loss: float, strategy: str) -> None:
    largest = 200_003 if loss < 0.05 else 40_003
    lost = sums_under(team.cluster, team, loss, strategy=strategy, largest=largest)
    assert lost > 0 or loss < 0.001


@pytest.fixture(scope="module")
def two_racks() -> Iterator[Team]:
    """Yield four workers, two behind each of two leaves, with two spines."""
    options = SpineLeafOptions(name=f"e2e-{unique()}", spines=2, leaves=2, hosts=4)
    with Fabric(options) as running, Team(running.state, 4) as team:
        assert {answer["mode"] for answer in team.join("lossy")} == {"in_network"}
        yield team
        team.do("leave")


@pytest.mark.parametrize("loss", [0.01, pytest.param(0.05, marks=pytest.mark.long)])
def test_two_racks_are_exact(two_racks: Team, loss: float) -> None:
    """Check them with loss on the links between the switches too."""
    lost = sums_under(two_racks.cluster, two_racks, loss, strategy="in-network", largest=40_003)
    assert lost > 0
