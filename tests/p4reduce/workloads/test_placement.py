"""Places of a job's workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.placement import gpus_of, labels_of, place, place_on, planes_of
from tests.topologies.states import cluster_state, fabric_state

RACKS = {"l1": ["h1", "h2", "h3"], "l2": ["h4"], "l3": ["h5", "h6"]}


@pytest.mark.parametrize(
    ("asked", "hosts"),
    [
        ({}, ["h1", "h2", "h3", "h4", "h5", "h6"]),
        ({"workers": 4}, ["h1", "h2", "h3", "h4"]),
        ({"placement": "spread"}, ["h1", "h4", "h5", "h2", "h6", "h3"]),
        ({"placement": "spread", "workers": 3}, ["h1", "h4", "h5"]),
        ({"placement": "1,0,2"}, ["h1", "h5", "h6"]),
        ({"placement": "1, 0, 2", "workers": 3}, ["h1", "h5", "h6"]),
        ({"hosts": ["h6", "h1"]}, ["h6", "h1"]),
        ({"hosts": ["h6", "h1"], "workers": 2, "placement": "spread"}, ["h6", "h1"]),
    ],
)
def test_placements(asked: dict[str, object], hosts: list[str]) -> None:
    assert place_on(RACKS, **asked) == hosts  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"workers": 7}, "7 workers do not fit 6 hosts: a job has one worker a host"),
        ({"workers": 0}, "0 workers do not fit 6 hosts"),
        ({"placement": "tight"}, "'tight' is no placement: say packed, spread, or how many"),
        ({"placement": "1,2"}, r"a number of workers for each leaf \(0: none\), 2 do not fit 3 leaves"),
        ({"placement": "1,2,1"}, "2 workers do not fit leaf l2, which has 1 hosts"),
        ({"placement": "1,1,1", "workers": 4}, "4 workers are not the 3 of the placement"),
        ({"placement": "0,0,0"}, "a placement without workers is none"),
        ({"hosts": ["h9"]}, "there is no host 'h9', there are h1, h2"),
        ({"hosts": ["h1", "h1"]}, "host h1 is named twice"),
        ({"hosts": ["h1"], "workers": 2}, "2 workers do not fit the 1 hosts that are named"),
    ],
)
def test_no_placements(asked: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        place_on(RACKS, **asked)  # type: ignore[arg-type]


@given(st.integers(1, 6), st.sampled_from(("packed", "spread")))
def test_no_host_has_two_workers(workers: int, placement: str) -> None:
    hosts = place_on(RACKS, workers=workers, placement=placement)
    assert len(set(hosts)) == workers


def test_on_a_cluster() -> None:
    fabric = fabric_state("c1", hosts=(2, 2))
    assert [host.name for host in place(fabric, placement="spread")] == ["h1", "h3", "h2", "h4"]
    assert [host.name for host in place(cluster_state("c1"))] == ["h1", "h2"]


def test_each_gpu_of_a_host_has_a_worker() -> None:
    four = cluster_state("c1", gpus_per_host=4)
    ranks = place(four)
    assert [host.name for host in ranks] == ["h1"] * 4 + ["h2"] * 4
    assert gpus_of(four, ranks) == 4
    assert labels_of(four, ranks)[3:5] == ["h1/3", "h2/0"]
    assert [host.name for host in place(four, workers=4)] == ["h1"] * 4
    assert [host.name for host in place(four, gpus_per_host=2, hosts=["h2"])] == ["h2", "h2"]
    assert labels_of(four, place(four, gpus_per_host=1)) == ["h1", "h2"]


def test_workers_that_share_a_host_with_one_gpu_are_a_plain_job() -> None:
    plain = cluster_state("c1")
    one, other = plain.hosts
    assert gpus_of(plain, [one, one, other]) == 1
    assert labels_of(plain, [one, one, other]) == ["h1", "h1", "h2"]


def test_a_job_is_known_by_its_planes() -> None:
    assert planes_of("j", 1) == ["j"]
    assert planes_of("j", 3) == ["j/0", "j/1", "j/2"]


def test_workers_that_do_not_fit_the_gpus() -> None:
    two = cluster_state("c1", gpus_per_host=2)
    with pytest.raises(WorkloadError, match="3 workers do not fill hosts with 2 GPUs each: take a multiple"):
        place(two, workers=3)
    with pytest.raises(WorkloadError, match=r"4 workers a host do not fit cluster c1.*up --gpus-per-host 4"):
        place(two, gpus_per_host=4)
    one, other = two.hosts
    for ranks in ([one, other, one, other], [one, one, other]):
        with pytest.raises(WorkloadError, match="consecutive ranks, the same number on each: h1, "):
            gpus_of(two, ranks)
