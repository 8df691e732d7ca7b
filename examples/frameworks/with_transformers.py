"""transformers' Trainer: a tiny GPT-2, made of its configuration, learns to count.

    p4reduce torch rack --hosts 2 --instead-of gloo -- with_transformers.py
    torchrun --nproc-per-node 2 with_transformers.py

Trainer makes its process group by accelerate: without the option,
`torch.distributed.init_process_group("p4reduce")` before TrainingArguments is the line that is added.
"""

import argparse
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

WORDS, LENGTH = 32, 12


class Counting(Dataset):  # type: ignore[misc]
    """Sequences that count on from some number, round and round."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        words = (number + torch.arange(LENGTH)) % WORDS
        return {"input_ids": words, "labels": words}


class Losses(TrainerCallback):  # type: ignore[misc]
    """A callback that prints the loss that Trainer logs: all ranks' mean since it last did."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}: loss {float(logs['loss']):.6f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()

    set_seed(1)
    shape = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory,
            use_cpu=True,  # without it each process would train alone
            max_steps=given.steps,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=1,
        )
        trainer = Trainer(GPT2LMHeadModel(shape), arguments, train_dataset=Counting(), callbacks=[Losses()])
        trainer.train()


if __name__ == "__main__":
    main()
