"""Notes when a script's steps end and what its losses are, where the launcher asks for it.

It uses PyTorch's hooks for all optimizers and all modules, so that scripts stay as they are. A step is that
of an optimizer; a step inside another counts with it. A loss is the last single number with a gradient that a
module returned (those of torch.nn, models that return theirs), or an output's `loss`. Where there is none (a
function computed the loss, or it was inside a tuple), it is the number that `backward` was called on.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from p4reduce.workloads.torch_runs.record import RECORD


class Recorder:
    """A recorder of steps, which writes `path`, a line a step."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._pid = os.getpid()
        self._steps: list[int] = []  # those under way: how deep on the stack each is called
        self._loss: torch.Tensor | None = None
        self._root: torch.Tensor | None = None  # what the last backward pass began at
        self._backward = torch.autograd.backward
        self._handles: list[Any] = []

    def listen(self) -> None:
        """Hear of every step, module and backward pass from now on."""
        from torch.nn.modules.module import register_module_forward_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._handles = [
            register_optimizer_step_pre_hook(self.begin),
            register_optimizer_step_post_hook(self.end),
            register_module_forward_hook(self.heard),
        ]

        @functools.wraps(self._backward)
        def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            root = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors
            if isinstance(root, torch.Tensor) and root.numel() == 1:
                self._root = root.detach()
            return self._backward(tensors, *arguments, **named)

        torch.autograd.backward = backward

    def close(self) -> None:
        """Hear no more."""
        while self._handles:
            self._handles.pop().remove()
        torch.autograd.backward = self._backward
        self._file.close()

    def begin(self, *_: Any) -> None:
        """Note that an optimizer begins a step. Drop steps that it is not inside of: they have raised."""
        depth = _depth()
        self._steps = [*(step for step in self._steps if step < depth), depth]

    def end(self, *_: Any) -> None:
        """Note that an optimizer has ended a step; write it down unless it is inside another."""
        depth = _depth()
        self._steps = [step for step in self._steps if step < depth]
        if not self._steps and os.getpid() == self._pid:
            loss = self._root if self._loss is None else self._loss
            self._loss = self._root = None
            self.note(ended=time.monotonic(), loss=None if loss is None else loss.item())

    def heard(self, module: Any, given: Any, output: Any) -> None:
        """Keep what a module has returned, if it is a loss."""
        found = getattr(output, "loss", output)
        if isinstance(found, torch.Tensor) and found.dim() == 0 and found.requires_grad:
            self._loss = found.detach()

    def note(self, **noted: Any) -> None:
        """Write it down."""
        self._file.write(json.dumps(noted) + "\n")


def _depth() -> int:
    """Return the stack depth of the caller's caller; hooks before and after a step see the same."""
    depth, frame = 0, sys._getframe(2)
    while (above := frame.f_back) is not None:
        depth, frame = depth + 1, above
    return depth


_recorder: Recorder | None = None


def begin(variables: Mapping[str, str]) -> None:
    """Record, if the environment asks for it."""
    global _recorder
    if _recorder is None and variables.get(RECORD):
        _recorder = Recorder(Path(variables[RECORD]))
        _recorder.listen()


def note(**noted: Any) -> None:
    """Write it down if this process records."""
    if _recorder is not None:
        _recorder.note(**noted)
