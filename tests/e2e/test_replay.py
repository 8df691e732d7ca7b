"""Training traffic on a real rack: what goes over the links, and how much of it hides behind computing."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4reduce.cli import app as cli
from p4reduce.workloads import replay
from p4reduce.workloads.replay import ReplayOptions, run
from p4reduce.workloads.run_file import Result, Run, read
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.gloo import gloo_missing
from p4reduce.workloads.traffic.model import Layer, Workload
from tests.e2e.conftest import rack

pytestmark = pytest.mark.emulation
needs_torch = pytest.mark.skipif(bool(gloo_missing()), reason=gloo_missing())

# 1.2 MB in four layers; 60 ms forward, 120 ms back.
MODEL = Workload("toy", "made up", tuple(Layer(f"l{n}", 75_000, 15_000_000, 30_000_000) for n in range(4)))
STRATEGIES = ("in-network", "ring")


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the looks: nobody studies these charts."""
    monkeypatch.setattr(replay, "_LOOK_S", 0.3)


def _by_name(found: Run) -> tuple[Result, Result]:
    switched, ringed = found.results
    assert (switched.strategy, ringed.strategy) == STRATEGIES
    return switched, ringed


def test_what_goes_over_the_links_and_what_hides_behind_computing() -> None:
    with rack(4, rate_mbit=100.0, path_mtu=4096) as running:
        found, first = (
            run(
                running.state,
                running.state.hosts,
                MODEL,
                STRATEGIES,
                options=ReplayOptions(iterations=4, bucket_bytes=0, priority=priority),
                progress=lambda text: None,
                command="",
            )
            for priority in (False, True)
        )
    for one in (found, first):
        switched, ringed = _by_name(one)
        for host in one.topology.hosts:
            # Headers, acknowledgements and barriers on top of one tensor, or of 2(N-1)/N; and what is sent
            # again where a worker on a busy machine comes late.
            for result, least, most in ((switched, 1.0, 1.3), (ringed, 1.5, 1.8)):
                assert result.retransmissions is not None
                again = result.retransmissions * (4096 + 128) / MODEL.gradient_bytes
                sent = result.bytes_per_link[f"{host.name}:s1"].up / MODEL.gradient_bytes
                assert least < sent < most + again
        for result in (switched, ringed):
            assert len(result.seconds) == 4
            assert result.verified
            assert result.min_s >= 0.18  # nobody is faster than what computes
            assert result.exposed_s is not None
            assert 0 < result.exposed_s < result.max_s
            iterations = {span.iteration for span in one.timelines[result.strategy]}
            assert iterations <= {0, 1, 2, 3}
            assert len(iterations) == (2 if one is first else 1)
            summed = [span for span in one.timelines[result.strategy] if span.kind == "communicate"]
            assert {(span.rank, span.what) for span in summed} == {
                (rank, f"bucket {bucket}") for rank in range(4) for bucket in range(4)
            }
        assert one.samples["in-network"][-1].links["h1:s1"].up > MODEL.gradient_bytes
        assert one.samples["in-network"][-1].slots_allocated == 256
        assert one.workload is not None
        assert [bucket.first for bucket in one.workload.buckets] == [3, 2, 1, 0]
    assert Run.model_validate(first.as_json()) == first


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_fabric_of_its_own(tmp_path: Path, dtype: str) -> None:
    layers = tmp_path / "layers.csv"
    layers.write_text("numel,forward_ns,backward_ns\n5000,1000000,2000000\n70000,1000000,2000000\n")
    result, report = tmp_path / "run.json", tmp_path / "run.html"
    words = (
        f"replay {layers} rack --strategies in-network,ring --iterations 2 --dtype {dtype} --hosts 2 "
        f"--json {result} --report {report}"
    )
    assert cli.run(words.split()) == 0
    found = read(result)
    assert (found.kind, found.command, found.topology.kind) == ("replay", f"p4reduce {words}", "rack")
    assert found.workload is not None
    assert found.workload.gradient_bytes == (300_000 if dtype == "float32" else 150_000)
    assert found.dtype == dtype
    assert "layers" in report.read_text()
    assert f"gradients in 2 layers, {dtype}" in report.read_text()


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(each, marks=pytest.mark.long) for each in ("float16", "float32"))]
)
def test_every_strategy_in_each_type(tmp_path: Path, dtype: str) -> None:
    """Check that each sums every element of every bucket to the only number that it can be."""
    size = 4 if dtype == "float32" else 2
    layers, result = tmp_path / "layers.csv", tmp_path / "run.json"
    layers.write_text("numel,forward_ns,backward_ns\n50001,0,0\n70000,0,0\n300000,0,0\n")
    words = (
        f"replay {layers} rack --hosts 3 --rate none --strategies all --iterations 2 --bucket-mb 0.2 "
        f"--dtype {dtype} --json {result}"
    )
    assert cli.run(words.split()) == 0
    found = read(result)
    assert found.dtype == dtype
    assert found.workload is not None
    assert sum(bucket.bytes for bucket in found.workload.buckets) == 420_001 * size
    assert len(found.workload.buckets) > 1
    left_out = set() if dtype == "float32" else {names.IN_NETWORK_16BIT}
    assert [one.strategy for one in found.results] == [name for name in names.ALL if name not in left_out]
    for one in found.results:
        assert one.verified
        assert one.bytes == 420_001 * size
