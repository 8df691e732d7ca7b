"""Lightning's Trainer with DDP: a small network learns to turn its input round.

    p4reduce torch rack --hosts 2 --instead-of gloo -- with_lightning.py
    torchrun --nproc-per-node 2 with_lightning.py

Without the option, `strategy=DDPStrategy(process_group_backend="p4reduce")` is the line that changes.
"""

import argparse
import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 16


class Turned(lightning.LightningModule):  # type: ignore[misc]
    """A network that learns to give its input back in reverse."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        (asked,) = batch
        loss = nn.functional.mse_loss(self.network(asked), asked.flip(1))
        mean = self.all_gather(loss.detach()).mean()
        if self.global_rank == 0:
            print(f"step {self.global_step + 1}: loss {mean:.6f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()

    lightning.seed_everything(1, verbose=False)
    examples = torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(2))
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_steps=given.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Turned(), DataLoader(TensorDataset(examples), batch_size=16))


if __name__ == "__main__":
    main()
