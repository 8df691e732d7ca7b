"""Linux's own RoCE v2 stack as host: all-reduces through the switch, alone and beside our own agent."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from p4reduce.workloads.team import Team
from tests.e2e.conftest import all_reduce
from tests.roce.conftest import MACHINES, hardware_counters, joined_machines, queue_pairs, total_of
from tests.roce.needed import machines
from topologies.fabric import Fabric

pytestmark = [pytest.mark.emulation, pytest.mark.roce, pytest.mark.timeout(900), machines]

_FLOATS = ("float32", "float16", "bfloat16")
_LAST_PSN = 2**24 - 1
_LATE_S = 5.0  # its peers give up after 2, unless they are told to wait


def all_reduce_to_the_bit(team: Team, **request: Any) -> None:
    """Sum floats, and check that the sum has the one value that the protocol allows."""
    for answer in all_reduce(team, racks=team.racks, **request):
        assert answer["check"]["same_bits"]


@pytest.mark.parametrize("workers", [4, *(pytest.param(few, marks=pytest.mark.long) for few in (2, 3))])
def test_machines_all_reduce_exactly(mixed_rack: Fabric, workers: int) -> None:
    with joined_machines(mixed_rack, workers) as team:
        for elements in (1, 1000, 60_001):
            (answer, *_) = all_reduce(team, elements=elements, dtype="int32", seed=elements)
            assert answer["check"]["exact"]
            for dtype in _FLOATS:
                all_reduce_to_the_bit(team, elements=elements, dtype=dtype, seed=elements)


def test_machines_beside_emulated_hosts(mixed_rack: Fabric) -> None:
    with joined_machines(
        mixed_rack, 4, first_host=MACHINES - 2, kinds=("verbs",) * 2 + ("userspace",) * 2
    ) as team:
        for dtype, op in itertools.product(("int32", *_FLOATS), ("sum", "max")):
            all_reduce(team, elements=30_011, dtype=dtype, op=op, seed=3)
        for dtype in _FLOATS:
            all_reduce_to_the_bit(team, elements=30_011, dtype=dtype, seed=4)
        # Ring phases use the same connections; their messages pass the switch untouched.
        all_reduce(team, elements=5003, dtype="int32", strategy="ring", seed=5)
        all_reduce(team, elements=5003, dtype="int32", seed=6)


def test_psns_wrap_inside_a_message(mixed_rack: Fabric) -> None:
    first_psns = [_LAST_PSN - 2, _LAST_PSN - 21, _LAST_PSN - 38]
    with joined_machines(mixed_rack, 3, first_psns=first_psns) as team:
        (answer, *_) = all_reduce(team, elements=60_001, dtype="int32", seed=7)
        assert answer["check"]["exact"]


def test_each_job_begins_with_fresh_queue_pairs(mixed_rack: Fabric) -> None:
    hosts = mixed_rack.state.hosts[:2]
    before = [queue_pairs(mixed_rack, host.name) for host in hosts]
    with Team(mixed_rack.state, 2) as team:
        for round_ in range(3):
            team.join("again", transport="verbs")
            all_reduce(team, elements=5000, dtype="int32", seed=round_)
            team.do("leave")
            assert [queue_pairs(mixed_rack, host.name) for host in hosts] == before
        # A job that ended badly leaves nothing behind either: the ranks ask for different sizes.
        team.join("bad", transport="verbs")
        answers = team.try_(
            "all_reduce", per_rank=[{"elements": 1000}, {"elements": 2000}], dtype="int32", verify=False
        )
        assert [answer["error"]["kind"] for answer in answers] == ["MismatchError"] * 2
        team.do("leave")
        assert [queue_pairs(mixed_rack, host.name) for host in hosts] == before
        team.join("good", transport="verbs")
        all_reduce(team, elements=5000, dtype="int32", seed=9)
        team.do("leave")


@pytest.mark.parametrize("late", [2, pytest.param(0, marks=pytest.mark.long)])
def test_a_late_worker_breaks_nobodys_queue_pair(mixed_rack: Fabric, late: int) -> None:
    """Check that its peers' NICs time out and repeat, and wait, as the switch answers them with RNR NAKs."""
    peers = [host.name for rank, host in enumerate(mixed_rack.state.hosts[:3]) if rank != late]
    before = total_of(hardware_counters(mixed_rack, name) for name in peers)
    with joined_machines(mixed_rack, 3) as team:
        lateness = [{"late_s": _LATE_S if rank == late else 0.0} for rank in range(3)]
        answers = team.do(
            "all_reduce", per_rank=lateness, elements=60_001, dtype="int32", seed=1, verify=True
        )
        assert all(answer["check"]["exact"] for answer in answers)
        all_reduce(team, elements=60_001, dtype="float32", seed=2)
    after = total_of(hardware_counters(mixed_rack, name) for name in peers)
    assert after["rcvd_rnr_err"] > before["rcvd_rnr_err"]
    assert after["retry_exceeded_err"] == before["retry_exceeded_err"]
