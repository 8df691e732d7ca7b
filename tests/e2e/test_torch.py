"""`p4reduce torch` on real racks: scripts train, fail, are interrupted; whatever happens, nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.torch_scripts import EXAMPLES, found_by_pytorch, gone, losses, name
from tests.p4reduce.clusters import Traces, p4reduce, ready, started
from topologies import namespaces
from topologies.processes import wait_until

__all__ = ["found_by_pytorch", "name"]  # fixtures

pytestmark = [pytest.mark.emulation, pytest.mark.slow]
pytest.importorskip("torch", reason="PyTorch is not installed ('make gloo' installs it)")

_LIMIT_S = 120.0


def test_an_example_trains(name: str, tmp_path: Path) -> None:
    """The other one does so in test_torch_compare.py."""
    file = tmp_path / "run.json"
    words = f"torch rack --hosts 2 --rate none --cluster {name} --json {file} --"
    done = p4reduce(*words.split(), str(EXAMPLES / "transformer.py"), "--steps", "30")
    assert done.returncode == 0, done.stderr
    first, *_, last = losses(done.stdout)
    assert last < first
    assert "h1 | accuracy: " in done.stdout
    assert "h2 | " not in done.stdout
    (run,) = json.loads(file.read_text())["runs"]
    assert set(run["bytes_per_link"]) == {"h1:s1", "h2:s1"}
    # At least the gradients of 30 steps: the smaller network has some 100,000 parameters.
    assert min(run["bytes_per_link"]["h2:s1"].values()) > 30 * 4 * 90_000
    assert gone(name)


def test_a_script_runs_on_each_gpu_of_each_host(name: str, tmp_path: Path) -> None:
    """Groups, too: of all GPUs of a host, and of one GPU of each."""
    script = tmp_path / "groups.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('p4reduce')\n"
        "rank, local = dist.get_rank(), int(os.environ['LOCAL_RANK'])\n"
        "inside = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]\n"
        "across = [dist.new_group([0, 2]), dist.new_group([1, 3])][local]\n"
        "found = []\n"
        "for group in (None, inside, across):\n"
        "    tensor = torch.full((1000,), 10.0 ** rank)\n"
        "    dist.all_reduce(tensor, group=group)\n"
        "    found.append(f'{tensor[0].item():g}')\n"
        "print(*found)\n"
        "uneven = dist.new_group([0, 1, 2])\n"
        "if rank < 3:\n"
        "    tensor = torch.full((1000,), 10.0 ** rank)\n"
        "    dist.all_reduce(tensor, group=uneven)\n"
        "    print('uneven', f'{tensor[0].item():g}')\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    words = f"torch rack --hosts 2 --gpus-per-host 2 --rate none --cluster {name} -- {script}"
    done = p4reduce(*words.split())
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    for label, sums in {"h1/0": "11 101", "h1/1": "11 1010", "h2/0": "1100 101", "h2/1": "1100 1010"}.items():
        assert f"{label} | 1111 {sums}" in said
    assert sorted(line for line in said if "uneven" in line) == [
        f"{h} | uneven 111" for h in ("h1/0", "h1/1", "h2/0")
    ]
    assert done.stderr.count("not all machines (of 2 ranks) have as many of its ranks 0, 1, 2") == 1
    assert gone(name)


@pytest.mark.parametrize("example", ["cnn.py", "transformer.py"])
def test_an_example_is_plain_pytorch(example: str) -> None:
    """Check that it runs over Gloo under torchrun, and imports nothing of ours."""
    path = EXAMPLES / example
    assert not re.search(r"^\s*(from|import) p4reduce", path.read_text(), re.MULTILINE)
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node", "1", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-m", *words, "--backend", "gloo", "--steps", "12"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["step 10", "step 12", "accuracy"]


def test_a_profilers_trace_of_a_run_is_replayed(name: str, tmp_path: Path) -> None:
    script, trace, file = (tmp_path / it for it in ("traced.py", "trace.json", "run.json"))
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "dist.init_process_group('p4reduce')\n"
        "network = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 10))\n"
        "model = nn.parallel.DistributedDataParallel(network)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "with torch.profiler.profile(record_shapes=True) as profile:\n"
        "    for _ in range(3):\n"
        "        model(torch.ones(8, 300)).square().mean().backward()\n"
        "        optimizer.step()\n"
        "if dist.get_rank() == 0:\n"
        "    profile.export_chrome_trace(sys.argv[1])\n"
        "dist.destroy_process_group()\n"
    )
    words = f"torch rack --hosts 2 --rate none --cluster {name} --"
    done = p4reduce(*words.split(), str(script), str(trace))
    assert done.returncode == 0, done.stderr
    events = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
    assert events.count("p4reduce:all_reduce") == 3  # one bucket holds all
    words = (
        f"replay {trace} rack --hosts 2 --rate none --cluster {name} --strategies in-network --bucket-mb 0"
    )
    done = p4reduce(*words.split(), "--iterations", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    parameters = (300 * 500, 500, 500 * 10, 10)
    assert {bucket["bytes"] for bucket in found["workload"]["buckets"]} == {4 * n for n in parameters}
    (result,) = found["results"]
    assert result["verified"] is True
    assert gone(name)


def test_one_that_raises_ends_all_and_has_the_last_word(name: str, tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('p4reduce')\n"
        "tensor = torch.ones(1000)\n"
        "dist.all_reduce(tensor)\n"
        "print('summed', tensor[0].item())\n"
        "dist.barrier()  # nobody is ended before it has printed\n"
        "if dist.get_rank() == 1:\n"
        "    raise ValueError('this batch is bad')\n"
        "dist.all_reduce(tensor)\n"
        "print('never')\n"
    )
    done = p4reduce(*f"torch rack --hosts 3 --rate none --cluster {name} --".split(), str(script))
    assert done.returncode == 1
    assert {f"h{number} | summed 3.0" for number in (1, 2, 3)} <= set(done.stdout.splitlines())
    assert "never" not in done.stdout
    error = done.stderr[done.stderr.index("p4reduce: ") :]
    assert error.startswith("p4reduce: h2 (rank 1) failed with exit code 1:\n")
    assert error.splitlines()[-1].endswith("ValueError: this batch is bad")
    assert gone(name)


@pytest.mark.parametrize(
    ("ends", "exit_code", "how"),
    [
        ("os._exit(7)", 7, "failed with exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "was ended by SIGKILL"),
    ],
)
def test_a_script_without_pytorch_runs_and_its_end_is_told(
    ends: str, exit_code: int, how: str, name: str, tmp_path: Path
) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "import os, sys, time\n"
        "print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], sys.argv[1:], flush=True)\n"
        f"if os.environ['RANK'] == '1': {ends}\n"
        "time.sleep(1000)\n"
    )
    words = f"torch spine-leaf --hosts 2 --spines 1 --rate none --cluster {name} --"
    done = p4reduce(*words.split(), str(script), "--cluster", "its own")
    assert done.returncode == exit_code
    assert "h2 | 1 of 2 ['--cluster', 'its own']\n" in done.stdout
    assert f"p4reduce: h2 (rank 1) {how}" in done.stderr
    assert gone(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(name: str, tmp_path: Path, number: signal.Signals) -> None:
    script, marks = tmp_path / "sleeps.py", tmp_path / "marks"
    marks.mkdir()
    script.write_text(
        "import os, subprocess, sys, time\n"
        "subprocess.Popen(['sleep', '1000'])\n"
        "open(os.path.join(sys.argv[1], os.environ['RANK']), 'w').close()\n"
        "time.sleep(1000)\n"
    )
    words = f"torch rack --hosts 2 --rate none --cluster {name} --"
    with started(*words.split(), str(script), str(marks)) as command:
        cluster = ready(name)
        assert wait_until(lambda: len(list(marks.iterdir())) == 2, timeout_s=_LIMIT_S)
        traces = Traces.of(cluster)
        inside = [namespaces.inhabitants(Path(f"/proc/{h.process.pid}/ns/net")) for h in cluster.hosts]
        assert all(len(found) == 3 for found in inside)  # the host's own, the script, what that started
        command.send_signal(number)
        _, complaint = command.communicate(timeout=_LIMIT_S)
    assert command.returncode == 128 + number
    assert "Traceback" not in complaint
    assert traces.left() == []
    assert gone(name)


def test_in_a_part_of_a_running_cluster(name: str, tmp_path: Path) -> None:
    """Check that it stays up, without the job and without processes, also after an interrupted run."""
    done = p4reduce(*f"up rack --hosts 3 --cluster {name} --detach".split())
    assert done.returncode == 0, done.stderr
    try:
        cluster = ready(name)
        script = tmp_path / "sums.py"
        script.write_text(
            "import os, sys, time, torch, torch.distributed as dist\n"
            "dist.init_process_group('p4reduce')\n"
            "tensor = torch.full((1000,), dist.get_rank() + 1.0)\n"
            "dist.all_reduce(tensor)\n"
            "print(dist.get_rank(), tensor[0].item(), flush=True)\n"
            "if 'stay' in sys.argv:\n"
            "    time.sleep(1000)\n"
            "dist.destroy_process_group()\n"
        )
        words = ["torch", "--cluster", name, "--hosts", "h3,h1", "--", str(script)]
        done = p4reduce(*words)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["h1 | 1 3.0", "h3 | 0 3.0"]
        with started(*words, "stay") as command:
            assert command.stdout is not None
            assert sorted(command.stdout.readline() for _ in range(2)) == ["h1 | 1 3.0\n", "h3 | 0 3.0\n"]
            command.send_signal(signal.SIGINT)
            assert command.wait(timeout=_LIMIT_S) == 130
        assert json.loads(p4reduce("job", "list", "--cluster", name, "--json").stdout) == []
        assert list(cluster.workers.iterdir()) == []
        for host in cluster.hosts:
            inside = namespaces.inhabitants(Path(f"/proc/{host.process.pid}/ns/net"))
            assert inside == [host.process]
    finally:
        p4reduce("down", "--cluster", name)
    assert gone(name)


def test_a_cluster_file_with_a_script_beside_other_jobs(name: str, tmp_path: Path) -> None:
    file, results = tmp_path / "jobs.yaml", tmp_path / "results.json"
    (tmp_path / "cnn.py").write_text((EXAMPLES / "cnn.py").read_text())
    file.write_text(
        f"name: {name}\n"
        "topology: {kind: rack, hosts: 3}\n"
        "jobs:\n"
        "  - name: script\n"
        "    tenant: red\n"
        "    hosts: [h3, h1]\n"
        "    workload: [{torch: {script: cnn.py, args: [--steps, 20]}}]\n"
        "  - {name: other, workload: [{all_reduce: {bytes: 64K, iterations: 3}}]}\n"
    )
    done = p4reduce("run", str(file), "--results", str(results))
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())
    assert (found["succeeded"], found["exact"]) == (True, True)
    script, other = found["jobs"]
    assert (script["name"], script["hosts"], script["mode"]) == ("script", ["h3", "h1"], "in-network")
    (step,) = script["steps"]
    assert step["torch"]["script"] == ["cnn.py", "--steps", "20"]
    assert step["iterations"][0]["right"] is None  # which only the script could tell
    assert [one["right"] for one in other["steps"][0]["iterations"]] == [True] * 3
    assert "job script: h3 | accuracy: " in done.stderr
    assert gone(name)


def test_a_cluster_files_script_that_fails_ends_the_run(name: str, tmp_path: Path) -> None:
    file, results = tmp_path / "jobs.yaml", tmp_path / "results.json"
    (tmp_path / "fails.py").write_text("raise ValueError('this batch is bad')\n")
    file.write_text(
        f"name: {name}\n"
        "topology: {kind: rack, hosts: 2}\n"
        "jobs: [{name: fails}]\n"
        "workload: [{torch: {script: fails.py}}]\n"
    )
    done = p4reduce("run", str(file), "--results", str(results))
    assert done.returncode == 1
    assert "p4reduce: job fails: h" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("ValueError: this batch is bad")
    assert json.loads(results.read_text())["succeeded"] is False
    assert gone(name)
