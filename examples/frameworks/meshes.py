"""One small network, trained three times over device meshes: DDP, FSDP2, and tensor parallelism inside FSDP2.

    p4reduce torch rack --hosts 4 --instead-of gloo -- meshes.py
    torchrun --nproc-per-node 4 meshes.py

The meshes name no backend: without the option `init_device_mesh` makes process groups of Gloo's.
"""

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH = 32


def network() -> nn.Sequential:
    """Make a network, the same on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh())


def with_ddp(mesh: DeviceMesh) -> tuple[nn.Module, DeviceMesh]:
    """Give all ranks the whole network, and examples of their own."""
    flat = mesh._flatten("all")
    return DistributedDataParallel(network(), device_mesh=flat), flat


def with_fsdp(mesh: DeviceMesh) -> tuple[nn.Module, DeviceMesh]:
    """Give each rank of a row a part of each layer, and all rows the same (HSDP)."""
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), mesh["data", "model"]._flatten("all")


def with_tensor_parallelism(mesh: DeviceMesh) -> tuple[nn.Module, DeviceMesh]:
    """Let a row's ranks compute each layer together, for the same examples, and rows have other ones."""
    model = parallelize_module(network(), mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["data"]), mesh["data"]


def train(model: nn.Module, examples: DeviceMesh, steps: int) -> list[float]:
    """Return each step's loss, averaged over the ranks of `examples`, which have other ones each."""
    generator = torch.Generator().manual_seed(2)
    asked = torch.randn(8 * examples.size(), WIDTH, generator=generator)
    asked = asked.chunk(examples.size())[examples.get_local_rank()]
    right = asked.flip(1).tanh()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.MSELoss()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = criterion(model(asked), right)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=examples.get_group())
        losses.append(mean.item() / examples.size())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()

    dist.init_process_group()
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "model"))
    kinds: dict[str, Callable[[DeviceMesh], tuple[nn.Module, DeviceMesh]]] = {
        "ddp": with_ddp,
        "fsdp": with_fsdp,
        "tensor": with_tensor_parallelism,
    }
    for name, kind in kinds.items():
        for step, loss in enumerate(train(*kind(mesh), given.steps), start=1):
            if dist.get_rank() == 0:
                print(f"{name} step {step}: loss {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
