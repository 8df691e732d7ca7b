"""`p4reduce compare`: every strategy on real links, and what they carried."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from p4reduce.cli.app import run
from p4reduce.workloads.run_file import Result, read
from p4reduce.workloads.strategies import names
from tests.e2e.conftest import unique

pytestmark = [pytest.mark.emulation, pytest.mark.slow]
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed ('make gloo' installs it)")
_BYTES = 1_200_000
_HEADERS = 1.1  # with acknowledgements and what a barrier sends
_PER_RESENT = 4 * (4096 + 128)  # bytes of a packet that is sent again and of what answers it, at most


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.long), "bfloat16"])
def test_every_strategy_in_a_rack(tmp_path: Path, dtype: str) -> None:
    file, workers = tmp_path / "run.json", 3
    words = f"compare rack --hosts {workers} --rate none --bytes {_BYTES} --strategies all --rounds 1"
    words += f" --dtype {dtype}"
    assert run([*words.split(), "--cluster", f"compare-{unique()}", "--json", str(file)]) == 0
    found = read(file)
    assert found.dtype == dtype
    fitting = [name for name in names.ALL if dtype == "float32" or name != names.IN_NETWORK_16BIT]
    assert [result.strategy for result in found.results] == fitting
    assert set(found.skipped) == set(names.ALL) - set(fitting)
    # Tensors over the link of a worker that is not the server: 2(N-1)/N by ring, one in the network.
    sent = {names.IN_NETWORK: 1, names.RING: 4 / 3, names.GLOO: 4 / 3, names.PARAMETER_SERVER_SWITCH: 2}
    sent[names.IN_NETWORK_16BIT] = 0.5
    for result in found.results:
        assert result.verified
        assert result.workers == workers
        assert result.bytes == _BYTES
        assert result.seconds == [result.median_s] == [result.min_s] == [result.max_s]
        assert result.goodput_mbit_s == pytest.approx(_BYTES * 8 / result.median_s / 1e6)
        assert set(result.bytes_per_link) == {"h1:s1", "h2:s1", "h3:s1"}
        for way in (result.bytes_per_link["h2:s1"].up, result.bytes_per_link["h2:s1"].down):
            if result.strategy in sent:
                assert_carried(way, _BYTES * sent[result.strategy], result)
    by_name = {result.strategy: result for result in found.results}
    server = by_name[names.PARAMETER_SERVER].bytes_per_link["h1:s1"]
    assert min(server.up, server.down) >= 2 * _BYTES  # of each of the other two


@pytest.mark.parametrize("dtype", ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_in_two_racks_with_rates(tmp_path: Path, dtype: str) -> None:
    """Check numbers of two bytes too: a rack's sum is rounded, and the workers hold theirs to those bits."""
    file = tmp_path / "run.json"
    words = (
        f"compare spine-leaf --hosts 4 --spines 1 --bytes {_BYTES} --strategies in-network,ring --rounds 1"
    )
    words += f" --dtype {dtype}"
    if dtype == "float32":
        words = words.replace("in-network,ring", "in-network,ring,in-network-16bit")
    assert run([*words.split(), "--cluster", f"compare-{unique()}", "--json", str(file)]) == 0
    switched, ring, *over_16_bits = read(file).results
    for result in over_16_bits:
        assert result.link_bound_s == pytest.approx(_BYTES * 4 / 100e6)
        assert_carried(result.bytes_per_link["l1:s1"].up, _BYTES / 2, result)
    assert switched.link_bound_s == pytest.approx(_BYTES * 8 / 100e6)
    assert ring.link_bound_s == pytest.approx(1.5 * _BYTES * 8 / 100e6)
    for result, once in ((switched, _BYTES), (ring, 1.5 * _BYTES)):
        assert result.link_bound_s is not None
        assert result.fraction_of_link_bound is not None
        assert 0 < result.fraction_of_link_bound <= 1
        assert result.median_s >= result.link_bound_s
        for link in ("l1:s1", "l2:s1", "h1:l1"):
            carried = result.bytes_per_link[link]
            assert_carried(carried.up, once, result)
            assert_carried(carried.down, once, result)


def assert_carried(carried: float, once: float, result: Result) -> None:
    """Assert that a link carried what it must once; packets that a busy machine sent again are counted."""
    assert result.retransmissions is not None
    assert once <= carried < _HEADERS * once + _PER_RESENT * result.retransmissions


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            "rack --strategies in-network,rings",
            "'rings' is no strategy; there are in-network, in-network-16bit, ring",
        ),
        ("rack --strategies ring,ring", "ring is given twice"),
        ("rack --bytes 3", "3 bytes are no tensor: at least one element (4 bytes)"),
        ("rack --bytes 6", "6 bytes are not a whole number of float32 elements"),
        (
            "rack --dtype float16 --strategies in-network-16bit,ring",
            "strategy in-network-16bit: it is for float32, and float16 was asked for",
        ),
        ("rack --dtype float16 --bytes 3", "3 bytes are not a whole number of float16 elements (2 bytes)"),
        ("rack --dtype bfloat16 --bytes 1", "1 bytes are no tensor: at least one element (2 bytes)"),
        ("rack --dtype float64 --strategies in-network,ring", "strategy in-network: no switch adds float64"),
        ("rack --dtype=", "'' is no element type; there are int32, int64, float32, float64"),
        ("rack --dtype float16,bfloat16", "'float16,bfloat16' is no element type; there are int32, int64"),
        ("rack --dtype int8", "'int8' is no element type; there are int32, int64, float32, float64"),
        (
            "rack --workload resnet-50 --dtype int32",
            "gradients cannot be 'int32'; there are float32, float16, bfloat16",
        ),
        ("rack --workload resnet-50 --bytes 4", "--bytes is of single tensors"),
        ("rack --hosts 3,3", "is no number of hosts"),
        ("rack --uplink-rate 1gbit", "a rack has no uplinks"),
        ("spine-leaf --hosts 1,2,3", "3 numbers of hosts for 2 leaves"),
        ("ring --hosts 4", "ring"),
        ("rack --mtu 1500", "path MTU"),
        ("rack --json /nowhere/run.json", "/nowhere"),
    ],
)
def test_wrong_input_is_told_before_anything_starts(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *words.split()]) != 0
    assert complaint in " ".join(capsys.readouterr().err.split())
