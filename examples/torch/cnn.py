"""A convolutional network learns scikit-learn's handwritten digits, data parallel: plain PyTorch.

p4reduce torch rack --hosts 4 -- cnn.py
torchrun --nproc-per-node 2 cnn.py --backend gloo
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,437 images of 8 by 8 pixels to learn from, 360 to be asked about."""
    images, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    numbers = torch.tensor(labels)
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(0))
    learnt, asked = order[360:], order[:360]
    return TensorDataset(pictures[learnt], numbers[learnt]), TensorDataset(pictures[asked], numbers[asked])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="p4reduce")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="of each process")
    given = parser.parse_args()

    dist.init_process_group(given.backend)
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    learnt, asked = digits()
    sampler: DistributedSampler = DistributedSampler(learnt, seed=1)
    batches = DataLoader(learnt, given.batch, sampler=sampler, drop_last=True)

    step, epoch = 0, 0
    while step < given.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for pictures, numbers in batches:
            optimizer.zero_grad()
            loss = criterion(model(pictures), numbers)
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and (step % 10 == 0 or step == given.steps):
                print(f"step {step}: loss {loss.item():.4f}")
            if step == given.steps:
                break

    if rank == 0:
        pictures, numbers = asked.tensors
        with torch.no_grad():
            right = model.module(pictures).argmax(1) == numbers
        print(f"accuracy: {right.float().mean():.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
