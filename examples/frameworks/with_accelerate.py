"""A loop of one's own with accelerate: a small network learns to turn its input round.

    p4reduce torch rack --hosts 2 --instead-of gloo -- with_accelerate.py
    torchrun --nproc-per-node 2 with_accelerate.py

accelerate knows no name but Gloo's on CPUs, and takes a process group that is there: without the option,
`torch.distributed.init_process_group("p4reduce")` before the Accelerator is the line that is added.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()

    accelerator = Accelerator(cpu=True)  # without cpu=True each process would train alone
    set_seed(1)
    network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    examples = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(2))
    batches = DataLoader(TensorDataset(examples), batch_size=16)
    model, optimizer, batches = accelerator.prepare(network, optimizer, batches)

    step = 0
    while step < given.steps:
        for (asked,) in batches:
            loss = nn.functional.mse_loss(model(asked), asked.flip(1))
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            mean = accelerator.reduce(loss.detach(), reduction="mean")
            if accelerator.is_main_process:
                print(f"step {step}: loss {mean:.6f}", flush=True)
            if step == given.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
