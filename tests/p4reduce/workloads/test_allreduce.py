"""Requests, and putting the workers' answers together."""

from __future__ import annotations

from typing import Any

import pytest

from p4reduce.workloads.allreduce import Request, outcome, require_right, run, sizes_of
from p4reduce.workloads.errors import VerificationError, WorkloadError
from tests.topologies.states import cluster_state, host_state


def _answer(**changes: Any) -> dict[str, Any]:
    return {
        "seconds": [1.0, 2.0, 3.0],
        "digest": "same",
        "bytes_sent": 1100.0,
        "retransmissions": 0,
        "duplicates": 0,
        "by_ring": 0,
        "ring_reason": "",
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": 0}, "0 bytes are no tensor: at least one element"),
        ({"bytes": 6}, "6 bytes are not a whole number of float32 elements"),
        ({"bytes": 3, "dtype": "bfloat16"}, "3 bytes are not a whole number of bfloat16"),
        ({"dtype": "float8"}, "no element type"),
        ({"op": "xor"}, "no operation"),
        ({"repeat": 0}, "at least once"),
        ({"bytes": 2**32}, "less than 4 GiB"),
    ],
)
def test_requests_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"bytes": 64, **changes}
    with pytest.raises(WorkloadError, match=message):
        Request(**fields).elements()


def test_elements() -> None:
    assert Request(bytes=64).elements() == 16
    assert Request(bytes=64, dtype="float16").elements() == 32


def test_the_slowest_worker_counts() -> None:
    answers = [_answer(), _answer(seconds=[4.0, 1.0, 1.0], bytes_sent=1200.0, retransmissions=3, by_ring=2)]
    found = outcome(answers, Request(bytes=1000, repeat=3))
    assert found.timing.median_s == 3.0  # of 4, 2, 3
    assert found.timing.goodput_mbit_s == pytest.approx(1000 * 8 / 3.0 / 1e6)
    assert found.timing.bytes_sent_per_host == 1200
    assert found.retransmissions == 3
    assert found.by_ring == 2
    assert found.equal
    assert found.passed is None
    assert found.exact is None
    require_right(found, "a sum")


def test_workers_that_differ() -> None:
    found = outcome([_answer(), _answer(digest="other")], Request(bytes=1000))
    with pytest.raises(VerificationError, match="the sum: the workers' results differ from each other"):
        require_right(found, "the sum")


def test_a_wrong_result() -> None:
    check = {"exact": False, "passed": False, "largest_error": 0.5, "bound": 0.125}
    found = outcome([_answer(check=check), _answer()], Request(bytes=1000))
    assert found.passed is False
    with pytest.raises(VerificationError, match=r"the sum: off by 0\.5, the bound is 0\.125"):
        require_right(found, "the sum")


def test_tensors_that_memory_does_not_hold_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("topologies.launch.start", start)
    cluster = cluster_state("c1", hosts=[host_state(index) for index in range(1, 4097)])
    with pytest.raises(
        WorkloadError, match=r"4096 workers .* need about .* GiB are free: ask for fewer bytes"
    ):
        run(cluster, Request(bytes=2**32 - 4))


def test_the_sizes_of_a_sweep() -> None:
    assert sizes_of(1024, 8192, 2) == [1024, 2048, 4096, 8192]
    assert sizes_of(1000, 1000, 10) == [1000]
    assert sizes_of(8, 100, 3) == [8, 24, 72]
    with pytest.raises(WorkloadError, match="from 8 to 4 bytes has no size: --end is the largest"):
        sizes_of(8, 4, 2)
    with pytest.raises(WorkloadError, match="a factor of 1 does not grow: take 2, say"):
        sizes_of(8, 16, 1)
