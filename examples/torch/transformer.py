"""A small transformer learns to write Python, a character after the other, data parallel: plain PyTorch.

What it reads is the source of Python's own argparse module, the last tenth of which it is asked about.

    p4reduce torch rack --hosts 4 -- transformer.py
    torchrun --nproc-per-node 2 transformer.py --backend gloo
"""

import argparse
import inspect

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 64  # characters that it looks back


class Transformer(nn.Module):  # type: ignore[misc]
    """Characters in, the next ones' logits out."""

    def __init__(self, characters: int, *, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.logits = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        here = self.characters(text) + self.places.weight
        return self.logits(self.layers(here, mask=self.mask, is_causal=True))


def windows(text: torch.Tensor, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pieces from anywhere in the text, and the same one character later."""
    begins = torch.randint(len(text) - CONTEXT, (count, 1), generator=generator)
    places = begins + torch.arange(CONTEXT)
    return text[places], text[places + 1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="p4reduce")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="of each process")
    given = parser.parse_args()

    source = inspect.getsource(argparse)
    alphabet = sorted(set(source))
    text = torch.tensor([alphabet.index(character) for character in source])
    learnt, asked = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]

    dist.init_process_group(given.backend)
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(Transformer(len(alphabet)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    own = torch.Generator().manual_seed(rank)  # each process has pieces of its own

    for step in range(1, given.steps + 1):
        before, after = windows(learnt, given.batch, own)
        optimizer.zero_grad()
        loss = criterion(model(before).flatten(0, 1), after.flatten())
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step == given.steps):
            print(f"step {step}: loss {loss.item():.4f}")

    if rank == 0:
        before, after = windows(asked, 100, torch.Generator().manual_seed(0))
        with torch.no_grad():
            right = model.module(before).argmax(-1) == after
        print(f"accuracy: {right.float().mean():.1%} of the next characters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
