"""A training that ends with its first step: plain PyTorch, for bench.torch_start."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="p4reduce")
    dist.init_process_group(parser.parse_args().backend)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.Adam(model.parameters())
    nn.functional.cross_entropy(model(torch.randn(32, 784)), torch.randint(10, (32,))).backward()
    optimizer.step()
    print(f"first step at {time.monotonic()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
