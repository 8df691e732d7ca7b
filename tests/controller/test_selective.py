"""Selective retransmission is on unless a worker asks for go-back-N, or is on an RDMA device."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from controller.api.errors import NotPossibleError
from controller.api.messages import JobSpec
from controller.jobs.specs import Member
from controller.orchestration.planning import require_selective, selective

SPEC = JobSpec(name="j", world_size=3)


def members(*asks: bool | None, device: int | None = None) -> list[Member]:
    """Return members that ask for it, for go-back-N, or for neither; rank `device` is on an RDMA device."""
    return [
        Member(
            rank=rank, mac="02:00:00:00:00:01", ip=IPv4Address("10.0.0.1") + rank, qpn_out=2, psn_out=0,
            qpn_in=3, host=f"h{rank + 1}", selective=asking, rnr_nak=rank == device,
        )
        for rank, asking in enumerate(asks)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asks", "on"),
    [
        ((None, None), True),
        ((True, None), True),
        ((True, True), True),
        ((None, False), False),
        ((True, False), False),
    ],
)
def test_one_worker_is_enough_to_have_go_back_n(asks: tuple[bool | None, ...], on: bool) -> None:
    require_selective(SPEC, members(*asks))
    assert selective(SPEC, members(*asks)) is on


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("asks", [(None, None), (True, False)])
def test_a_job_that_was_created_so_is_so(on: bool, asks: tuple[bool | None, ...]) -> None:
    assert selective(replace(SPEC, selective=on), members(*asks)) is on


@pytest.mark.parametrize("asks", [(None, None), (None, False)])
def test_jobs_with_an_rdma_device_go_back(asks: tuple[bool | None, ...]) -> None:
    joined = members(*asks, device=1)
    require_selective(SPEC, joined)
    assert not selective(SPEC, joined)


@pytest.mark.parametrize(
    ("spec", "asks"),
    [(SPEC, (True, None)), (SPEC, (True, False)), (replace(SPEC, selective=True), (None, None))],
)
def test_such_a_job_cannot_have_it(spec: JobSpec, asks: tuple[bool | None, ...]) -> None:
    with pytest.raises(
        NotPossibleError, match=r"rank 1 \(h2, 10.0.0.2\) is on an RDMA device.*leave 'selective' out"
    ):
        require_selective(spec, members(*asks, device=1))


def test_a_device_that_does_what_the_job_was_created_for() -> None:
    spec = replace(SPEC, selective=False)
    require_selective(spec, members(None, None, device=1))
    assert not selective(spec, members(None, None, device=1))
