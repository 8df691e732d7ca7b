"""Sources that a user may name: a bundled model, or a file of any kind, known by what is in it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.source import is_capture, workload_of
from p4reduce.workloads.traffic.tables import MODELS, bundled
from tests.p4reduce.workloads.traffic.traces import all_reduce, delimited, metadata, node

RECORDED = Path(__file__).parent / "data" / "torch-profiler.json.gz"
CHAKRA = delimited(metadata(), node(1, "backward", duration_us=9), all_reduce(2, "x", 4, after=(1,)))
CHAKRA_JSON = b'{"workload_graph": [{"Id": 1, "NodeType": 7, "comm_type": 0, "comm_size": 12}]}'
PCAP = b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00"
PCAPNG = b"\x0a\x0d\x0d\x0a\x1c\x00\x00\x00"


@pytest.mark.parametrize("model", MODELS)
def test_bundled_models(model: str) -> None:
    assert workload_of(model) == workload_of(model.replace("-", "").upper()) == bundled(model)
    assert workload_of(model, batch=1, teraflops=1.0) == bundled(model, batch=1, teraflops=1.0)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("content", "source", "numel"),
    [
        (b"5,1,2\n", "CSV file", 5),
        (b"\xef\xbb\xbfnumel,forward_ns,backward_ns\r\n5,1,2\r\n", "CSV file", 5),
        (gzip.decompress(RECORDED.read_bytes()), "torch.profiler trace", 407242),
        (CHAKRA, "Chakra execution trace", 1),
        (CHAKRA_JSON, "Chakra execution trace", 3),
    ],
)
def test_files_by_what_is_in_them(
    tmp_path: Path, content: bytes, source: str, numel: int, compressed: bool
) -> None:
    path = tmp_path / ("mine.txt.gz" if compressed else "mine.txt")
    path.write_bytes(gzip.compress(content) if compressed else content)
    workload = workload_of(str(path))
    assert workload.name == "mine"
    assert workload.source.startswith(f"{source} {path}")
    assert workload.numel == numel


@pytest.mark.parametrize("content", [b"5,1,2\n", gzip.decompress(RECORDED.read_bytes()), CHAKRA, CHAKRA_JSON])
def test_gradients_are_of_the_type_that_was_asked_for(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    assert workload_of(str(path)).dtype == "float32"
    assert workload_of(str(path), dtype="BFloat16").dtype == "bfloat16"
    with pytest.raises(
        WorkloadError, match="gradients cannot be 'int32'; there are float32, float16, bfloat16"
    ):
        workload_of(str(path), dtype="int32")


def test_a_models_gradients_may_have_two_bytes() -> None:
    usual, halved = workload_of("resnet-50"), workload_of("resnet-50", dtype="bfloat16")
    assert halved.layers == usual.layers
    assert 2 * halved.gradient_bytes == usual.gradient_bytes


def test_a_file_is_meant_when_it_has_a_name_that_is_only_like_a_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "gpt-2"):
        Path(name).write_text("5,1,2\n")
    assert workload_of("gpt2").numel == 5
    assert workload_of("gpt-2") == bundled("gpt-2")


@pytest.mark.parametrize(
    ("first", "capture"),
    [
        (PCAP, True),
        (PCAP[3::-1], True),
        (b"\x4d\x3c\xb2\xa1", True),
        (b"\xa1\xb2\x3c\x4d", True),
        (PCAPNG, True),
        (b"5,1,2\n", False),
        (b"", False),
    ],
)
def test_captures_are_known(tmp_path: Path, first: bytes, capture: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(first)
    assert is_capture(path) is capture
    if capture:
        with pytest.raises(WorkloadError, match="packet capture, which has no layers"):
            workload_of(str(path))


def test_what_cannot_be_read_is_no_capture(tmp_path: Path) -> None:
    assert not is_capture(tmp_path)
    assert not is_capture(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["lenet", "", ".", "x" * 300])
def test_what_is_no_workload(text: str) -> None:
    with pytest.raises(WorkloadError, match=r"is no workload: take a bundled model \(alexnet, vgg-16"):
        workload_of(text)


def test_files_have_their_own_times(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("5,1,2\n")
    with pytest.raises(WorkloadError, match=r"mine.csv has its own times"):
        workload_of(str(path), batch=4)


@pytest.mark.parametrize("damage", [slice(None, 40), slice(0, -8)])
def test_damaged_compression(tmp_path: Path, damage: slice) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(RECORDED.read_bytes()[damage])
    with pytest.raises(WorkloadError, match=r"trace.json.gz is compressed with gzip, and was cut off"):
        workload_of(str(path))
