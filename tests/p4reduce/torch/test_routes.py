"""Ways that collectives take: the network or Gloo."""

from __future__ import annotations

import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
# ruff: noqa: E402 (what is imported here needs PyTorch)

import torch.distributed as dist

from host_agent.wire.aggregation import Reduction
from p4reduce.torch.routes import Routes, goes_by_job, operation_of

OPS = dist.ReduceOp.RedOpType.__members__


def test_the_network_sums_four_types() -> None:
    by_job = {
        (dtype, op)
        for dtype in (*map(torch.zeros(1).to, (torch.float16, torch.bfloat16, torch.float32)),)
        for op in OPS
        if goes_by_job(dtype.dtype, op)
    }
    assert len(by_job) == 3 * 4
    for dtype in (torch.float64, torch.int64, torch.int16, torch.uint8, torch.bool, torch.complex64):
        assert not any(goes_by_job(dtype, op) for op in OPS)
    assert {op for op in OPS if goes_by_job(torch.int32, op)} == {"SUM", "AVG", "MAX", "MIN"}


@pytest.mark.parametrize("name", ["SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"])
def test_operations_have_their_names_in_both_forms(name: str) -> None:
    kind = OPS[name]
    assert operation_of(kind) == name
    assert operation_of(dist.ReduceOp(kind)) == name
    options = dist.AllreduceOptions()
    options.reduceOp = kind
    assert operation_of(options.reduceOp) == name


def test_what_goes_by_gloo_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    routes = Routes("7")
    sums = [torch.zeros(2), torch.zeros(2)]
    assert routes.reduction("all_reduce", sums, dist.ReduceOp.AVG) is Reduction.AVG
    assert not routes.by_gloo
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert (
                routes.reduction("all_reduce", [torch.zeros(2, dtype=torch.int64)], dist.ReduceOp.SUM) is None
            )
        assert routes.reduction("all_reduce", sums, dist.ReduceOp.PRODUCT) is None
    assert routes.by_gloo == {"all_reduce int64 SUM": 3, "all_reduce float32 PRODUCT": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "process group 7: no switch adds that: all_reduce int64 SUM goes by Gloo over TCP",
        "process group 7: no switch adds that: all_reduce float32 PRODUCT goes by Gloo over TCP",
    ]


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (torch.int16, dist.ReduceOp.SUM),
        (torch.float8_e4m3fn, dist.ReduceOp.MAX),
        (torch.bool, dist.ReduceOp.AVG),
    ],
)
def test_what_nobody_adds_is_refused_and_does_not_go_by_gloo(
    dtype: Any, op: Any, caplog: pytest.LogCaptureFixture
) -> None:
    routes = Routes("7")
    with caplog.at_level(logging.WARNING), pytest.raises(TypeError, match="convert the tensor"):
        routes.reduction("all_reduce", [torch.zeros(2).to(dtype)], op)
    assert not routes.by_gloo
    assert not caplog.records
