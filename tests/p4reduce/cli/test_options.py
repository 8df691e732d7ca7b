"""Values with a syntax of their own."""

from __future__ import annotations

import io
import pickle
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from p4reduce.cli.detached import start_detached
from p4reduce.cli.options import parse_bytes, parse_host_counts, parse_host_kinds
from topologies.errors import TopologyError
from topologies.options import FabricOptions
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions

EXAMPLE = Path(__file__).parents[3] / "examples" / "soft_switch"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64K", 65536),
        ("64KiB", 65536),
        ("32M", 32 * 2**20),
        ("32mb", 32 * 2**20),
        ("1 G", 2**30),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5M", "1T", "32 MBit"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no size: say 4096, 64K or 32M"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("roce", ("roce",) * 3),
        ("emulated", ("emulated",) * 3),
        ("roce, emulated,roce", ("roce", "emulated", "roce")),
    ],
)
def test_kinds_of_hosts(text: str, kinds: tuple[str, ...]) -> None:
    assert parse_host_kinds(text, hosts=3) == kinds


@pytest.mark.parametrize(
    ("text", "leaves", "counts"), [("8", 2, 8), ("3, 2", 2, (3, 2)), ("7", 1, (7,)), ("1,1,1", 3, (1, 1, 1))]
)
def test_numbers_of_hosts(text: str, leaves: int, counts: int | tuple[int, ...]) -> None:
    assert parse_host_counts(text, leaves=leaves) == counts


@pytest.mark.parametrize(
    "options",
    [
        RackOptions(name="c1", hosts=3, rate_mbit=100.0, controller_options={"window": 4}),
        SpineLeafOptions(name="c2", spines=3, leaves=2, hosts=(3, 2), rate_mbit=0.1, uplink_rate_mbit=None),
        SpineLeafOptions(name="c2", spines=1, leaves=4, hosts=9, rate_mbit=100.0, switch_loss=0.01),
        RackOptions(name="c3", hosts=2, rate_mbit=100.0, gpus_per_host=4, intra_rate_mbit=800.0, tls=True),
        RackOptions(name="c4", hosts=2, gpus_per_host=2, path_mtu=4096, delay_ms=1.5, fault_wires=True),
        RackOptions(name="c5", hosts=2, program=EXAMPLE / "l2.json", p4info=EXAMPLE / "l2.p4info.txtpb"),
    ],
)
def test_a_detached_cluster_is_what_was_asked_for(
    options: FabricOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    process = SimpleNamespace(stdin=given.open("wb"), stderr=io.BytesIO(b"p4reduce: no\n"), wait=lambda: 1)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: process)
    with pytest.raises(TopologyError, match=r"^no$"):
        start_detached(options, progress=print)
    assert pickle.loads(given.read_bytes()) == options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tofu", "'tofu' is no kind of host: say emulated or roce"),
        ("", "'' is no kind of host"),
        ("roce,roce", "2 kinds of host for 3 hosts: say one, or one for each"),
    ],
)
def test_no_kinds_of_hosts(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        parse_host_kinds(text, hosts=3)
