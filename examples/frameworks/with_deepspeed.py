"""DeepSpeed with ZeRO: a small network learns to turn its input round.

    p4reduce torch rack --hosts 2 --instead-of gloo -- with_deepspeed.py
    torchrun --nproc-per-node 2 with_deepspeed.py

DeepSpeed asks for Gloo on CPUs: without the option, `deepspeed.init_distributed("p4reduce")` is the line that
changes.
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

WIDTH = 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stage", type=int, default=2, help="of ZeRO: what is sharded")
    parser.add_argument("--local_rank", type=int, help="DeepSpeed's launcher gives it")
    given = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
    settings = {
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": given.stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=settings)

    examples = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(2))
    batches = examples.view(-1, dist.get_world_size(), 16, WIDTH)[:, dist.get_rank()]
    for step in range(1, given.steps + 1):
        asked = batches[step % len(batches)]
        loss = nn.functional.mse_loss(engine(asked), asked.flip(1))
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
