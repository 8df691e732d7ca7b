"""Spine-leaf clusters by the command line, and cluster files from bring-up to results."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.p4reduce.clusters import Traces, must, p4reduce, ready, started
from topologies.processes import wait_until

pytestmark = [pytest.mark.emulation, pytest.mark.usefixtures("own_state")]

# With one spine, so that what is counted does not depend on the order in which sums come back.
_UP = ("up", "spine-leaf", "--spines", "1", "--leaves", "2", "--rate", "200mbit", "--detach")
_FILE = """\
topology: {kind: spine-leaf, spines: 1, leaves: 2, hosts: 3}
jobs:
  - {name: spanning, tenant: red}
  - {name: inside, tenant: blue, hosts: [h1, h2], start_after_s: 0.2}
workload:
  - all_reduce: {bytes: [4, 64K], dtype: [int32, float32], iterations: 2}
"""


def links_of(cluster: str) -> dict[str, dict[str, Any]]:
    """Return `show links` by name."""
    return {row["link"]: row for row in json.loads(must("show", "links", "--cluster", cluster, "--json"))}


def test_each_gradient_byte_crosses_an_uplink_once_each_way(name: str) -> None:
    size = 1 << 20
    must(*_UP, "--hosts", "4", "--cluster", name)
    traces = Traces.of(ready(name))
    words = ("allreduce", "--bytes", str(size), "--dtype", "int32", "--verify", "--json", "-")
    found = json.loads(must(*words, "--strategy", "both"))
    assert found["integer_sum_exact"]
    assert found["hosts"] == ["h1", "h2", "h3", "h4"]
    switched = {row["link"]: row for row in found["links"]["in_network"]}
    assert set(switched) == {"l1:s1", "l2:s1"}
    # On a busy machine packets are sent again, and answered again.
    again = 4 * found["counters"]["retransmissions"] * (found["path_mtu"] + 128)
    for row in switched.values():
        assert size < row["bytes_up"] < 1.2 * size + again
        assert size < row["bytes_down"] < 1.2 * size + again
    # A ring over two racks: 2(N-1)/N of the tensor leaves each rack once.
    assert all(row["bytes_up"] > 1.4 * size for row in found["links"]["ring"])

    inside = json.loads(must(*words, "--hosts", "h3,h4"))
    assert all(row["bytes_up"] + row["bytes_down"] < 0.1 * size for row in inside["links"]["in_network"])
    one_a_rack = json.loads(must(*words, "--placement", "spread", "--workers", "2"))
    assert one_a_rack["hosts"] == ["h1", "h3"]
    assert one_a_rack["integer_sum_exact"]

    peers = {(row["switch"], row["port"]): row["peer"] for row in json.loads(must("show", "ports", "--json"))}
    assert peers[("l1", 101)] == "s1 port 1"
    must("down")
    assert traces.left() == []


def test_a_link_goes_down_and_up_again(name: str) -> None:
    must(*_UP[:3], "2", *_UP[4:], "--hosts", "2", "--cluster", name)
    ready(name)
    assert all(row["is_up"] for row in links_of(name).values())
    assert must("link", "down", "s1:l1") == "link l1:s1: down\n"
    assert {link: row["is_up"] for link, row in links_of(name).items()} == {
        "l1:s1": False,
        "l1:s2": True,
        "l2:s1": True,
        "l2:s2": True,
    }
    assert wait_until(lambda: links_of(name)["l1:s1"]["usable"] is False, timeout_s=20)
    found = json.loads(must("allreduce", "--bytes", "64K", "--dtype", "int32", "--verify", "--json", "-"))
    assert found["integer_sum_exact"]
    assert found["in_network"] is not None
    must("link", "up", "l1:s1")
    assert wait_until(lambda: bool(links_of(name)["l1:s1"]["usable"]), timeout_s=20)
    assert "has no link 'l1:s9', it has l1:s1" in p4reduce("link", "up", "l1:s9").stderr


@pytest.mark.roce
def test_a_roce_host_reaches_another_rack(name: str) -> None:
    must(*_UP, "--hosts", "2", "--host-kind", "roce,emulated", "--cluster", name)
    assert "2 received" in must("exec", "h1", "--", "ping", "-c", "2", "10.0.2.1")
    found = json.loads(must("allreduce", "--bytes", "64K", "--dtype", "int32", "--verify", "--json", "-"))
    assert found["integer_sum_exact"]
    assert found["in_network"] is not None


@pytest.fixture
def file(tmp_path: Path, name: str) -> Path:
    """Return a cluster file."""
    path = tmp_path / "c.yaml"
    path.write_text(f"name: {name}\n{_FILE}")
    return path


def test_a_file_runs_headless(file: Path, name: str, tmp_path: Path) -> None:
    must("run", str(file), "--results", str(tmp_path))
    found = json.loads((tmp_path / f"{name}.results.json").read_text())
    assert (found["succeeded"], found["exact"], found["error"]) == (True, True, None)
    assert [job["name"] for job in found["jobs"]] == ["spanning", "inside"]
    spanning, inside = found["jobs"]
    assert (spanning["tenant"], spanning["hosts"]) == ("red", ["h1", "h2", "h3"])
    assert inside["start_s"] >= 0.2
    for job in found["jobs"]:
        assert [len(step["iterations"]) for step in job["steps"]] == [2] * 4
        for step in job["steps"]:
            for one in step["iterations"]:
                assert one["right"]
                assert one["exact"] or step["all_reduce"]["dtype"] == "float32"
    assert {row["link"] for row in found["links"]} == {"l1:s1", "l2:s1"}
    assert sum(row["bytes_up"] for row in found["links"]) > 2 * 64 * 1024
    assert len(found["versions"]["program_sha256"]) == 64
    assert found["configuration"]["topology"]["spines"] == 1
    assert "no cluster is running" in must("down")


def test_a_kept_cluster_is_still_up(file: Path, name: str, tmp_path: Path) -> None:
    done = p4reduce("run", str(file), "--results", str(tmp_path / "r.json"), "--keep")
    assert done.returncode == 0, done.stderr
    assert f"'p4reduce down {name}'" in done.stderr
    assert [job["phase"] for job in json.loads(must("job", "list", "--json"))] == ["ended"] * 2
    assert must("down") == f"cluster {name}: down\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_results_and_nothing_else(
    file: Path, name: str, tmp_path: Path, number: signal.Signals
) -> None:
    file.write_text(file.read_text().replace("iterations: 2", "iterations: 100000"))
    results = tmp_path / "r.json"
    with started("run", str(file), "--results", str(results)) as run:
        cluster = ready(name)
        assert wait_until(lambda: cluster.workers.is_dir() and any(cluster.workers.iterdir()), timeout_s=60)
        traces = Traces.of(cluster)
        run.send_signal(number)
        _, complaint = run.communicate(timeout=60)
    assert run.returncode == 128 + number
    assert "Traceback" not in complaint
    assert traces.left() == []
    found = json.loads(results.read_text())
    assert (found["succeeded"], found["error"]) == (False, "interrupted")


def test_a_run_that_takes_too_long(file: Path, tmp_path: Path) -> None:
    endless = "iterations: 100000, late_s: {0: 0.1}"
    file.write_text(file.read_text().replace("iterations: 2", endless) + "timeout_s: 20\n")
    done = p4reduce("run", str(file), "--results", str(tmp_path / "r.json"))
    assert done.returncode == 1
    assert "p4reduce: not done after 20 s (timeout_s): inside, spanning" in done.stderr
    assert not json.loads((tmp_path / "r.json").read_text())["succeeded"]
    assert "no cluster is running" in must("down")


def test_up_with_a_file_creates_its_jobs(file: Path, name: str) -> None:
    must("up", str(file), "--detach")
    jobs = {job["name"]: job for job in json.loads(must("job", "list", "--json"))}
    assert {job: (row["world_size"], row["tenant"]) for job, row in jobs.items()} == {
        "spanning": (3, "red"),
        "inside": (2, "blue"),
    }
    must("down", "--cluster", name)


def test_a_mistake_in_a_file_is_said_before_anything_starts(file: Path, name: str) -> None:
    file.write_text(file.read_text().replace("hosts: [h1, h2]", "hosts: [h1, h9]"))
    for command in ("run", "up"):
        done = p4reduce(command, str(file))
        assert done.returncode == 1
        assert f"p4reduce: {file}, line 5, jobs[1].hosts: there is no host 'h9'" in done.stderr
    assert os.listdir(os.environ["P4REDUCE_STATE_DIR"]) == []
