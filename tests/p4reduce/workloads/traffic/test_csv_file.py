"""CSV files: with names or without, with a header or without, and what is said of mistakes."""

from __future__ import annotations

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.csv_file import from_text
from p4reduce.workloads.traffic.model import Layer, Workload


def _read(text: str) -> Workload:
    return from_text(text, name="mine", where="mine.csv")


@pytest.mark.parametrize(
    "text",
    [
        "9408,1200000,2400000\n2048000,300000,600000\n",
        "numel,forward_ns,backward_ns\n9408,1200000,2400000\n2048000,300000,600000",
        "# measured\n\nNumel, forward_ns, backward_ns\r\n9408, 1.2e6, 2400000 # a\r\n2048000,3e5,6e5\r\n",
        "backward_ns,forward_ns,numel\n2400000,1200000,9408\n600000,300000,2048000\n",
    ],
)
def test_without_names(text: str) -> None:
    workload = _read(text)
    assert workload.layers == (
        Layer("layer-0", 9408, 1_200_000, 2_400_000),
        Layer("layer-1", 2_048_000, 300_000, 600_000),
    )
    assert workload.source == "CSV file mine.csv"


@pytest.mark.parametrize("header", ["", "name,numel,forward_ns,backward_ns\n"])
def test_with_names(header: str) -> None:
    workload = _read(f'{header}conv1,10,1,2\n"fc, the last",5,0,0\n')
    assert [layer.name for layer in workload.layers] == ["conv1", "fc, the last"]
    assert workload.numel == 15


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "mine.csv has no layers: each line is numel,forward_ns,backward_ns"),
        ("numel,forward_ns,backward_ns\n", "no layers"),
        ("1,2\n", "mine.csv, line 1: 2 columns: each line is"),
        ("numel,forward_ns\n", "line 1: columns are numel, forward_ns, not numel, forward_ns, backward_ns"),
        ("numel,forward_ns,backward_ns,flops\n", "line 1: columns are"),
        ("1,2,3\n\n1,2\n", "line 3: 2 columns instead of 3"),
        ("1,2,3\n1.5,2,3\n", "line 2: numel is '1.5', which is no whole number"),
        ("1,fast,3\n", "line 1: forward_ns is 'fast', which is no number"),
        ("1,2,inf\n", "line 1: backward_ns is 'inf'"),
        ("0,2,3\n", "line 1: layer 'layer-0' has 0 elements"),
        ("x" * 200_000, "line 1: field larger than field limit"),
        ("1,2,-3\n", "line 1: .* cannot be negative"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        _read(text)
