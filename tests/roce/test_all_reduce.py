"""Linux's own RoCE v2 stack as host: all-reduces through the switch, alone and beside our own agent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from host_agent.quantisation import Blocks, block_sum, round_once
from tests.e2e.conftest import all_reduce
from tests.roce.conftest import MACHINES, hardware_counters, joined_machines, queue_pairs, total_of
from tests.roce.needed import machines
from topologies.rack import Rack
from workloads.team import Team
from workloads.tensors import digest, dtype_of, tensor

pytestmark = [pytest.mark.emulation, pytest.mark.roce, pytest.mark.timeout(900), machines]

_FLOATS = ("float32", "float16", "bfloat16")
_WHOLE_BYTES = 8192
_LAST_PSN = 2**24 - 1
_LATE_S = 5.0  # its peers give up after 2, unless they are told to wait


def the_sum(team: Team, *, seed: int, elements: int, dtype: str) -> str:
    """The digest of the one sum of floats that the protocol allows, by the reference implementation."""
    kind = dtype_of(dtype)
    tensors = [tensor(seed=seed, rank=rank, elements=elements, dtype=kind) for rank in range(team.size)]
    if sum(one.nbytes for one in tensors) <= _WHOLE_BYTES:  # they travel as they are
        total = np.zeros(elements, np.float64)
        for one in tensors:
            total += one.astype(np.float64)
        return digest(round_once(total, kind))
    ready, half = team.joined[0], kind.itemsize == 2
    blocks = Blocks.of(path_mtu=ready["path_mtu"], message_packets=ready["message_packets"], half=half)
    found, special = block_sum(tensors, blocks, half=half)
    assert not special.any()
    return digest(found)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_machines_all_reduce_exactly(mixed_rack: Rack, workers: int) -> None:
    with joined_machines(mixed_rack, workers) as team:
        for elements in (1, 1000, 60_001):
            (answer, *_) = all_reduce(team, elements=elements, dtype="int32", seed=elements)
            assert answer["check"]["exact"]
            for dtype in _FLOATS:
                (answer, *_) = all_reduce(team, elements=elements, dtype=dtype, seed=elements)
                assert answer["digest"] == the_sum(team, seed=elements, elements=elements, dtype=dtype)


def test_machines_beside_emulated_hosts(mixed_rack: Rack) -> None:
    with joined_machines(
        mixed_rack, 4, first_host=MACHINES - 2, kinds=("verbs",) * 2 + ("userspace",) * 2
    ) as team:
        for dtype, op in itertools.product(("int32", *_FLOATS), ("sum", "max")):
            all_reduce(team, elements=30_011, dtype=dtype, op=op, seed=3)
        for dtype in _FLOATS:
            (answer, *_) = all_reduce(team, elements=30_011, dtype=dtype, seed=4)
            assert answer["digest"] == the_sum(team, seed=4, elements=30_011, dtype=dtype)
        # Ring phases use the same connections; their messages pass the switch untouched.
        all_reduce(team, elements=5003, dtype="int32", strategy="ring", seed=5)
        all_reduce(team, elements=5003, dtype="int32", seed=6)


def test_psns_wrap_inside_a_message(mixed_rack: Rack) -> None:
    first_psns = [_LAST_PSN - 2, _LAST_PSN - 21, _LAST_PSN - 38]
    with joined_machines(mixed_rack, 3, first_psns=first_psns) as team:
        (answer, *_) = all_reduce(team, elements=60_001, dtype="int32", seed=7)
        assert answer["check"]["exact"]


def test_each_job_begins_with_fresh_queue_pairs(mixed_rack: Rack) -> None:
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


@pytest.mark.parametrize("late", [0, 2])
def test_a_late_worker_breaks_nobodys_queue_pair(mixed_rack: Rack, late: int) -> None:
    """Its peers' NICs time out and repeat; the switch answers them with RNR NAKs, and they wait."""
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
