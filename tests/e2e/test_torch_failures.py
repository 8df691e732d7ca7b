"""Training with PyTorch when something goes wrong: all hear of it, nothing hangs, what can go on does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import rack
from topologies import launch
from topologies.fabric import Fabric
from topologies.faults import ClusterFaults

pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")

pytestmark = pytest.mark.emulation

_ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
SOON = {
    "heartbeat_interval_s": 0.5,
    "heartbeat_timeout_s": 10.0,
    "lost_timeout_s": 2.0,
    "switch_timeout_s": 3.0,
}
SCRIPT = """
import os, signal, sys, threading, time, zlib
import torch, torch.distributed as dist
import p4reduce.torch

mode, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("p4reduce")
rank = dist.get_rank()
torch.set_num_threads(1)
if mode == "apart":
    group = dist.new_group([0, 1])
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        dist.all_reduce(torch.ones(3), group=group)
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 1))
model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def strike(gradient):  # in the middle of the backward pass
    if rank == 1 and step == 2:
        if mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "error":
            raise ValueError("my own error")
        if mode == "late":
            time.sleep(12)
    if mode == "late" and rank == 0 and step == 2:  # from here on it waits for rank 1
        threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

net[2].weight.register_hook(strike)
torch.manual_seed(rank)
data = torch.utils.data.TensorDataset(torch.randn(32 * steps, 300))
loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2 if mode == "forks" else 0)
for step, (batch,) in enumerate(loader):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} {loss.item():.6f}", flush=True)
    if mode == "slow":
        time.sleep(0.1)
flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
print("digest", zlib.crc32(flat.numpy().tobytes()), flush=True)
if mode != "slow":
    dist.destroy_process_group()
"""


class Run:
    """The script on each host. `said`: what each printed, errors too; `codes`: how each ended."""

    def __init__(self, running: Fabric, directory: Path, mode: str, steps: int) -> None:
        script = directory / "train.py"
        script.write_text(SCRIPT)
        self.state = running.state
        self.paths = [directory / f"{host.name}.txt" for host in self.state.hosts]
        self.processes = []
        for rank, (host, path) in enumerate(zip(self.state.hosts, self.paths, strict=True)):
            environment = {
                "PYTHONPATH": str(_ROOT),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(self.state.hosts)),
                "MASTER_ADDR": self.state.hosts[0].management_ip,
                "MASTER_PORT": "29500",
                "P4REDUCE_CONTROLLER": self.state.controller,
                "P4REDUCE_JOB": mode,
            }
            with path.open("wb") as file:
                self.processes.append(
                    launch.start(
                        self.state,
                        host,
                        [sys.executable, str(script), mode, str(steps)],
                        env=environment,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )

    def wait(self) -> list[int]:
        """Wait, and return the exit codes. A rank that is there for longer hangs."""
        until = time.monotonic() + PATIENCE_S
        try:
            return [process.wait(until - time.monotonic()) for process in self.processes]
        finally:
            launch.stop(self.state, self.processes)

    @property
    def said(self) -> list[str]:
        return [path.read_text() for path in self.paths]


@pytest.fixture(scope="module")
def three() -> Iterator[Fabric]:
    with rack(3, controller_options=SOON) as running:
        yield running


def digests(run: Run) -> set[str]:
    return {line for said in run.said for line in said.splitlines() if line.startswith("digest")}


def test_who_is_killed_is_named_by_all_others(three: Fabric, tmp_path: Path) -> None:
    run = Run(three, tmp_path, "killed", 5)
    codes = run.wait()
    assert codes[1] == -9
    for rank in (0, 2):
        assert codes[rank] == 1, run.said[rank]
        assert "WorkerLostError: rank 1 (h2" in run.said[rank]
        assert "step 1" in run.said[rank]
        assert "step 2" not in run.said[rank]


def test_who_is_killed_before_its_groups_first_collective_is_named_too(three: Fabric, tmp_path: Path) -> None:
    """Time-outs of PyTorch's groups are half an hour."""
    run = Run(three, tmp_path, "apart", 1)
    assert run.wait() == [1, -9, 1]
    for rank in (0, 2):
        assert "WorkerLostError: rank 1 (h2" in run.said[rank]


def test_the_error_of_one_rank_is_told_to_all(three: Fabric, tmp_path: Path) -> None:
    run = Run(three, tmp_path, "error", 5)
    assert run.wait() == [1, 1, 1]
    for said in run.said:
        assert "ValueError: my own error" in said
    for rank in (0, 2):
        assert "rank 1: its process ended with ValueError" in run.said[rank]


def test_ctrl_c_ends_a_rank_that_waits_for_others_inside_of_pytorch(three: Fabric, tmp_path: Path) -> None:
    run = Run(three, tmp_path, "late", 5)
    codes = run.wait()
    assert codes[0] in (-2, 1, 130), run.said[0]
    assert "KeyboardInterrupt" in run.said[0]
    assert codes[2] == 1
    assert "rank 0: " in run.said[2]
    assert "interrupted" in run.said[2]


@pytest.mark.long
def test_the_interpreter_ends_where_data_loaders_have_forked(three: Fabric, tmp_path: Path) -> None:
    run = Run(three, tmp_path, "forks", 4)
    assert run.wait() == [0, 0, 0], run.said
    assert len(digests(run)) == 1


def test_training_goes_on_when_the_switch_restarts(three: Fabric, tmp_path: Path) -> None:
    """Check also that the interpreter ends without destroy_process_group()."""
    steps = 60
    run = Run(three, tmp_path, "slow", steps)
    until = time.monotonic() + PATIENCE_S
    while "step 10 " not in run.said[0]:
        assert time.monotonic() < until, run.said
        time.sleep(0.05)
    ClusterFaults(three.state).restart_switch("s1")
    assert run.wait() == [0, 0, 0], run.said
    assert len(digests(run)) == 1
    for said in run.said:
        assert f"step {steps - 1} " in said
