"""Selective retransmission is on where all workers take part in it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from controller.api.messages import JobSpec
from controller.jobs.specs import Member
from controller.orchestration.planning import selective

SPEC = JobSpec(name="j", world_size=3)


def members(*asks: bool) -> list[Member]:
    return [
        Member(
            rank=rank, mac="02:00:00:00:00:01", ip=IPv4Address("10.0.0.1") + rank, qpn_out=2, psn_out=0,
            qpn_in=3, host=f"h{rank + 1}", selective=asking,
        )
        for rank, asking in enumerate(asks)
    ]  # fmt: skip


@pytest.mark.parametrize(("asks", "on"), [((True, True), True), ((True, False), False), ((False,), False)])
def test_all_workers_have_to_ask_for_it(asks: tuple[bool, ...], on: bool) -> None:
    assert selective(SPEC, members(*asks)) == (on, "")


def test_or_the_job_was_created_so() -> None:
    assert selective(replace(SPEC, selective=True), members(True, False)) == (True, "")


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, selective=True)])
def test_not_with_an_rdma_device_and_a_reason_is_given(spec: JobSpec) -> None:
    joined = members(True, True)
    joined[1] = replace(joined[1], rnr_nak=True)
    on, why_not = selective(spec, joined)
    assert not on
    assert "rank 1 (h2, 10.0.0.2) is on an RDMA device" in why_not
