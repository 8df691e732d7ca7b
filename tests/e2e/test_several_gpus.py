"""Hosts with several GPUs: sums by way of shared memory and planes, on real links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p4reduce.cli.app import run
from p4reduce.workloads.hierarchy import Shape, tensors_per_nic
from p4reduce.workloads.run_file import read
from p4reduce.workloads.strategies import names
from tests.e2e.conftest import unique

pytestmark = [pytest.mark.emulation, pytest.mark.slow]
_HOSTS, _GPUS = 2, 2
_BYTES = 1_200_000
_HEADERS = 1.1  # with acknowledgements and what a barrier sends
_PER_RESENT = 4 * (4096 + 128)  # bytes of a packet that is sent again and of what answers it, at most
_INSIDE = {  # tensors that a GPU gets from the other one
    names.HIERARCHICAL: 1.0,
    names.HIERARCHICAL_PHASES: 1.0,
    names.HIERARCHICAL_RING: 1.0,
    names.FLAT_RING: 1.5,
    names.REDUCE_BROADCAST: 1.0,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_every_strategy_in_a_rack(tmp_path: Path, dtype: str) -> None:
    file = tmp_path / "run.json"
    words = f"compare rack --hosts {_HOSTS} --gpus-per-host {_GPUS} --intra-rate 1gbit --rate 200mbit"
    words += f" --bytes {_BYTES} --strategies all --rounds 1 --dtype {dtype}"
    assert run([*words.split(), "--cluster", f"gpus-{unique()}", "--json", str(file)]) == 0
    found = read(file)
    assert (found.topology.gpus_per_host, found.topology.intra_rate_mbit) == (_GPUS, 1000.0)
    assert [host.rank for host in found.topology.hosts] == [0, 2]
    assert [result.strategy for result in found.results] == list(names.OF_SEVERAL_GPUS)
    shape = Shape(hosts=_HOSTS, gpus_per_host=_GPUS, k=5.0)
    for result in found.results:
        assert result.verified
        assert result.workers == _HOSTS * _GPUS
        assert result.bytes_inside is not None
        # Scales are agreed on, and a barrier is waited for, besides.
        inside = _INSIDE[result.strategy] * _BYTES
        assert inside <= result.bytes_inside <= 1.02 * inside
        carried = tensors_per_nic(result.strategy, shape) * _BYTES
        for link in result.bytes_per_link.values():
            for way in (link.up, link.down):
                assert carried <= way <= carried * _HEADERS + _PER_RESENT * (result.retransmissions or 0)


def test_training_traffic_over_two_racks(tmp_path: Path) -> None:
    """A layer at a time; each sum is checked, element by element."""
    file = tmp_path / "run.json"
    layers = tmp_path / "layers.csv"
    layers.write_text("name,numel,forward_ns,backward_ns\na,100000,100000,200000\nb,30000,100000,200000\n")
    words = f"replay {layers} spine-leaf --hosts 4 --spines 1 --gpus-per-host 2 --rate none --iterations 1"
    words += f" --strategies {names.HIERARCHICAL},{names.FLAT_RING}"
    assert run([*words.split(), "--cluster", f"gpus-{unique()}", "--json", str(file)]) == 0
    found = read(file)
    assert {result.strategy: result.workers for result in found.results} == {
        names.HIERARCHICAL: 8,
        names.FLAT_RING: 8,
    }
    assert all(result.verified for result in found.results)
    assert {span.rank for span in found.timelines[names.HIERARCHICAL]} == set(range(8))


def test_a_sweep_of_sizes_on_some_gpus_of_a_detached_cluster(tmp_path: Path) -> None:
    file, name = tmp_path / "sweep.json", f"gpus-{unique()}"
    assert run(f"up rack --hosts 3 --gpus-per-host 2 --cluster {name} --detach".split()) == 0
    try:
        words = f"allreduce --cluster {name} -b 1K -e 64K -f 4 -n 2 --verify --strategy both --json {file}"
        assert run(words.split()) == 0
        found = json.loads(file.read_text())
        assert (found["workers"], found["gpus_per_host"]) == (6, 2)
        asked = [(size, way) for size in (1024, 4096, 16384, 65536) for way in ("in-network", "ring")]
        assert [(row["bytes"], row["strategy"]) for row in found["sweep"]] == asked
        for row in found["sweep"]:
            assert row["wrong"] == 0
            assert row["algbw_mb_s"] == pytest.approx(row["bytes"] / row["time_us"])
            assert row["busbw_mb_s"] == pytest.approx(row["algbw_mb_s"] * 2 * 5 / 6)
        words = f"allreduce --cluster {name} -b 64K --dtype int64 --op prod --gpus-per-host 1 --verify"
        assert run([*words.split(), "--json", str(file)]) == 0
        found = json.loads(file.read_text())
        assert (found["workers"], found["strategy"], found["integer_sum_exact"]) == (3, "ring", True)
    finally:
        assert run(["down", "--cluster", name]) == 0


def test_a_cluster_file(tmp_path: Path) -> None:
    file, answer = tmp_path / "gpus.yaml", tmp_path / "run.json"
    file.write_text(
        f"name: gpus-{unique()}\n"
        "topology: {kind: rack, hosts: 3, gpus_per_host: 2, intra_rate: 1gbit}\n"
        "jobs:\n  - {name: some, workers: 4}\n  - {name: all}\n"
        "workload:\n  - all_reduce: {bytes: [40000], dtype: [float32, int32], iterations: 2}\n"
    )
    assert run(["run", str(file), "--results", str(answer)]) == 0
    jobs = json.loads(answer.read_text())["jobs"]
    assert [(job["name"], job["workers"], job["hosts"]) for job in jobs] == [
        ("some", 4, ["h1", "h2"]),
        ("all", 6, ["h1", "h2", "h3"]),
    ]
    assert all(job["right"] and not job["collectives_by_ring"] for job in jobs)
