"""`p4reduce top` and `p4reduce metrics`: what they print, and what they refuse."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from p4reduce.cli import app as cli
from tests.p4reduce.clusters import must, ready, started
from tests.p4reduce.live import clusters
from topologies.processes import wait_until


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Record a cluster that is there on paper: nobody answers."""
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    cluster = clusters.fabric("c1")
    cluster.directory.mkdir()
    cluster.save()


@pytest.mark.parametrize("command", [["top"], ["top", "--once"], ["top", "--json"], ["metrics"]])
def test_a_cluster_that_is_not_there(
    command: list[str], recorded: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*command, "--cluster", "nope"]) == 1
    assert "there is no running cluster 'nope' (but c1)" in capsys.readouterr().err


def test_top_without_a_terminal(recorded: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["top", "--cluster", "c1"]) == 1
    assert "'p4reduce top' needs a terminal: use --once or --json" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "-1", "1e9", "often"])
def test_intervals_that_cannot_be(interval: str, recorded: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["top", "--interval", interval]) == 2
    assert "--interval" in capsys.readouterr().err


def test_addresses_that_cannot_be(recorded: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["metrics", "--listen", "9464"]) == 1
    assert "'9464' is no address for metrics: say HOST:PORT" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert cli.run(["metrics", "--listen", where]) == 1
    assert f"cannot serve metrics on {where}: Address already in use" in capsys.readouterr().err


def test_a_cluster_of_which_nothing_answers_is_told(
    recorded: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["metrics"]) == 0
    found = list(text_string_to_metric_families(capsys.readouterr().out))
    (up,) = [family for family in found if family.name == "p4reduce_up"]
    assert {sample.labels["component"]: sample.value for sample in up.samples} == {
        "cluster": 1,
        "controller": 0,
        "switch": 0,
    }


@pytest.mark.slow
def test_other_commands_do_not_pay_for_it() -> None:
    code = """
import sys
from p4reduce.cli import app as cli
assert cli.run(["--help"]) == 0  # which all modules of commands are imported for
print([m for m in ("p4reduce.cli.commands.top", "textual", "prometheus_client") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['p4reduce.cli.commands.top']"


@pytest.mark.emulation
@pytest.mark.usefixtures("own_state")
def test_a_cluster_at_work(name: str) -> None:
    must("up", "rack", "--hosts", "2", "--rate", "100mbit", "--cluster", name, "--detach")
    cluster = ready(name)
    with started("allreduce", "--bytes", "4M", "--repeat", "300") as work:
        assert wait_until(lambda: len(list(cluster.metrics.glob("agent-*.sock"))) == 2, timeout_s=60)
        seen = json.loads(must("top", "--json"))
        with started("metrics", "--listen", f"unix:{cluster.directory}/m.sock") as serving:
            assert wait_until((cluster.directory / "m.sock").exists, timeout_s=60)
            serving.send_signal(signal.SIGINT)
            assert serving.wait(20) == 0
        text = must("metrics")
        work.send_signal(signal.SIGINT)
        work.wait(60)
    (job,) = seen["jobs"]
    assert (job["state"], job["sums_by"], job["workers"], job["slots"]) == ("running", "network", 2, 256)
    assert [row["mbit_s"] > 1 for row in seen["flows"]] == [True, True]
    assert [0.01 < row["up_utilisation"] < 1.2 for row in seen["links"]] == [True, True]
    assert all(host["collectives"] > 0 for host in seen["hosts"])
    assert not [fault for fault in seen["faults"] if fault["severity"] == "error"]
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {sample.value for sample in found["p4reduce_up"].samples} == {1}
    assert {sample.labels["rank"] for sample in found["p4reduce_agent_collectives"].samples} == {"0", "1"}
    assert len(found["p4reduce_process_cpu_seconds"].samples) == 2  # the controller's and the switch's
