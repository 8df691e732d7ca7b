"""`torch.compile` of what calls collectives: values and graph breaks are those of Gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
# ruff: noqa: E402 (what is imported here needs PyTorch)

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import p4reduce.torch  # noqa: F401  (it registers the backend)
from p4reduce import torch_environment as environment

pytestmark = pytest.mark.slow


def of_tensor(call: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a compiled function in which there is that call."""

    def run(compiler: str) -> Any:
        def function(tensor: Any) -> Any:
            work = call(tensor)
            if work is not None:
                work.wait()
            return tensor * 2

        return torch.compile(function, backend=compiler)(torch.arange(4.0)).tolist()

    return run


def into_parts(tensor: Any) -> None:
    parts = [torch.empty(4)]
    dist.all_gather(parts, tensor)
    tensor.copy_(parts[0])


def into_one(tensor: Any) -> None:
    whole = torch.empty(4)
    dist.all_gather_into_tensor(whole, tensor)
    tensor.copy_(whole)


def scattered(tensor: Any) -> None:
    part = torch.empty(4)
    dist.reduce_scatter_tensor(part, tensor)
    tensor.copy_(part)


def exchanged(tensor: Any) -> None:
    part = torch.empty(4)
    dist.all_to_all_single(part, tensor)
    tensor.copy_(part)


def trained(model: nn.Module) -> list[float]:
    """Return the losses of three steps."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.linspace(-1, 1, 64).reshape(4, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def net(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Linear(8, 4)]
    return nn.Sequential(*layers)


def sharded(compiler: str) -> list[float]:
    model = net()
    fully_shard(model)
    return trained(torch.compile(model, backend=compiler))


RUNS: dict[str, Callable[[str], Any]] = {
    "all_reduce": of_tensor(dist.all_reduce),
    "all_reduce, later": of_tensor(lambda tensor: dist.all_reduce(tensor, async_op=True)),
    "reduce": of_tensor(lambda tensor: dist.reduce(tensor, 0)),
    "broadcast": of_tensor(lambda tensor: dist.broadcast(tensor, 0)),
    "broadcast, later": of_tensor(lambda tensor: dist.broadcast(tensor, 0, async_op=True)),
    "all_gather": of_tensor(into_parts),
    "all_gather_into_tensor": of_tensor(into_one),
    "reduce_scatter_tensor": of_tensor(scattered),
    "all_to_all_single": of_tensor(exchanged),
    "barrier": of_tensor(lambda tensor: dist.barrier()),
    "DDP, compiled": lambda compiler: trained(
        torch.compile(DistributedDataParallel(net()), backend=compiler)
    ),
    "DDP of what is compiled": lambda compiler: trained(
        DistributedDataParallel(torch.compile(net(), backend=compiler))
    ),
    "DDP with buffers": lambda compiler: trained(
        torch.compile(DistributedDataParallel(net(norm=True)), backend=compiler)
    ),
    "FSDP2": sharded,
}


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(environment.CONTROLLER, "127.0.0.1:1")  # nobody calls it for a group of one
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def by(backend: str, run: Callable[[str], Any], compiler: str) -> tuple[Any, int]:
    """Return the result, and how many graph breaks there were."""
    torch._dynamo.utils.counters.clear()
    dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    try:
        return run(compiler), sum(torch._dynamo.utils.counters["graph_break"].values())
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()


@pytest.mark.parametrize("name", RUNS)
def test_values_and_graph_breaks_are_gloos(name: str) -> None:
    assert by("p4reduce", RUNS[name], "aot_eager") == by("gloo", RUNS[name], "aot_eager")
