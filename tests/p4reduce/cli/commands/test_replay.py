"""`p4reduce replay`: what goes with what, said before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p4reduce.cli import app as cli
from p4reduce.workloads import replay
from tests.topologies.states import cluster_state
from topologies import state

PCAP = b"\xd4\xc3\xb2\xa1" + bytes(20)


@pytest.fixture
def capture(tmp_path: Path) -> str:
    path = tmp_path / "roce.pcap"
    path.write_bytes(PCAP)
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hosts", "8"], "--hosts is of a fabric of its own: say 'rack' or 'spine-leaf' behind WORKLOAD"),
        (["--path-mtu", "4096"], "is of a fabric of its own"),
        (["--speed", "0"], "--speed is of captures, and resnet-50 is none"),
        (["--map", "10.0.0.1=h3"], "--map is of captures"),
        (["ring"], "'ring' is not one of 'rack', 'spine-leaf'"),
        (["rack", "--uplink-rate", "1gbit"], "a rack has no uplinks"),
        (["--iterations", "0"], "'--iterations'"),
        (["--compute-scale", "-1"], "'--compute-scale'"),
        (["--bucket-mb", "inf"], "--bucket-mb inf is no size"),
        (["--dtype"], "Option '--dtype' requires an argument"),
    ],
)
def test_wrong_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["replay", "resnet-50", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("option", ["--strategies", "--batch", "--bucket-mb", "--dtype", "--report"])
def test_a_capture_has_no_layers(option: str, capture: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["replay", capture, option, "1"]) == 2
    assert f"{option} does not go with a capture" in " ".join(
        capsys.readouterr().err.replace("│", " ").split()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet-51"], "'resnet-51' is no workload: take a bundled model (alexnet"),
        (
            ["resnet-50", "--strategies", "fastest"],
            "'fastest' is no strategy; there are in-network, in-network-16bit, ring",
        ),
        (
            ["resnet-50", "rack", "--dtype", "float64"],
            "gradients cannot be 'float64'; there are float32, float16, bfloat16",
        ),
        (["resnet-50", "rack", "--dtype", "int32"], "gradients cannot be 'int32'"),
        (["resnet-50", "--scale-size", "0"], "layers cannot be scaled by 0"),
        (["resnet-50", "--report", "/nowhere/x.html"], "cannot write /nowhere/x.html"),
        (["resnet-50", "rack", "--mtu", "1500"], "path MTU 1500 is none of RoCE's"),
        (
            ["resnet-50", "rack", "--hosts", "32", "--scale-size", "1000"],
            "32 workers with 97492 MiB of gradients",
        ),
        (["resnet-50"], "there is no running cluster"),
    ],
)
def test_errors_are_one_sentence(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    assert cli.run(["replay", *words]) == 1
    complaint = capsys.readouterr().err.strip()
    assert complaint.startswith("p4reduce: ")
    assert message in complaint


def test_what_was_asked_for_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Enough(Exception):
        pass

    def run(*arguments: Any, **named: Any) -> None:
        seen.extend((arguments, named))
        raise Enough

    monkeypatch.setattr(replay, "run", run)
    monkeypatch.setattr(state, "running", lambda name: cluster_state(name))
    words = "replay alexnet --cluster c1 --strategies ring --compute-scale 2 --bucket-mb 0.5 --priority -n 3 "
    words += "--dtype bfloat16"
    assert cli.run([*words.split(), "--selective"]) != 0
    (cluster, hosts, workload, strategies), named = seen
    assert (cluster.name, [host.name for host in hosts], strategies) == ("c1", ["h1", "h2"], ("ring",))
    assert workload.numel == 61_100_840
    assert (workload.dtype, workload.gradient_bytes) == ("bfloat16", 122_201_680)
    assert named["options"] == replay.ReplayOptions(
        iterations=3, bucket_bytes=1 << 19, priority=True, selective=True
    )
    assert named["command"] == (
        "p4reduce replay alexnet --strategies ring --iterations 3 --compute-scale 2.0 --bucket-mb 0.5 "
        "--dtype bfloat16 --priority --selective --cluster c1"
    )
