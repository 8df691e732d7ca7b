"""Layers and workloads: sums, scaling, and what is refused."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import p4reduce.workloads.traffic
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.model import GRADIENTS, Layer, Workload, gradient_type

WORKLOAD = Workload("two", "a test", (Layer("front", 10, 1_001, 2_000), Layer("back", 5, 300, 600)))


def test_a_workload_is_the_sum_of_its_layers() -> None:
    assert WORKLOAD.numel == 15
    assert WORKLOAD.gradient_bytes == 60
    assert [replace(WORKLOAD, dtype=name).gradient_bytes for name in GRADIENTS] == [60, 30, 30]
    assert (WORKLOAD.forward_ns, WORKLOAD.backward_ns) == (1_301, 2_600)


def test_computing_is_scaled_and_gradients_are_not() -> None:
    half = WORKLOAD.scaled(0.5)
    assert [layer.forward_ns for layer in half.layers] == [500, 150]
    assert [layer.backward_ns for layer in half.layers] == [1_000, 300]
    assert half.numel == WORKLOAD.numel
    nothing = WORKLOAD.scaled(0)
    assert nothing.forward_ns == nothing.backward_ns == 0
    assert WORKLOAD.scaled(1) == WORKLOAD


@pytest.mark.parametrize("factor", [-1, float("nan"), float("inf")])
def test_no_other_scale(factor: float) -> None:
    with pytest.raises(WorkloadError, match="cannot be scaled"):
        WORKLOAD.scaled(factor)


def test_a_layer_that_cannot_be() -> None:
    with pytest.raises(WorkloadError, match="'empty' has 0 elements"):
        Layer("empty", 0, 1, 1)
    with pytest.raises(WorkloadError, match="cannot be negative"):
        Layer("early", 1, -1, 1)
    with pytest.raises(WorkloadError, match="no layers"):
        Workload("none", "a test", ())


@pytest.mark.parametrize("name", ["float64", "int8", "int32", ""])
def test_no_other_type(name: str) -> None:
    with pytest.raises(WorkloadError, match=r"cannot be .*; there are float32, float16, bfloat16"):
        gradient_type(name)
    with pytest.raises(WorkloadError, match="there are float32"):
        replace(WORKLOAD, dtype=name)


def test_names_of_types_are_what_people_type() -> None:
    assert gradient_type("BFloat16") == "bfloat16"


def test_nothing_here_needs_a_cluster_or_torch() -> None:
    """Workloads are read where the command runs, and in the worker: neither has to have PyTorch."""
    allowed = {"p4reduce", "google"}
    standard = {
        "__future__", "bisect", "collections", "csv", "dataclasses", "enum", "gzip", "heapq", "itertools",
        "json", "math", "pathlib", "re", "typing", "zlib",
    }  # fmt: skip
    for path in Path(p4reduce.workloads.traffic.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            roots = {name.partition(".")[0] for name in names}
            assert roots <= allowed | standard, f"{path.name} imports {roots - allowed - standard}"
