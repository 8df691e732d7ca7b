"""The bundled models: tables of exact parameter shapes and multiply-adds, and what is assumed of their times.

A table (`models/NAME.csv`) says in its header which code it was derived from, what a sample is, and a usual
batch. Times are not measured: a multiply-add is two floating-point operations, a worker sustains a stated
rate, and the backward pass takes twice as long as the forward pass, since it makes two products (for the
gradient of the weights and for that of the inputs) where the forward pass makes one.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.traffic.model import GRADIENTS, Layer, Workload

MODELS: Final = ("alexnet", "vgg-16", "resnet-50", "bert-base", "gpt-2")
TERAFLOPS: Final = 10.0
"""The rate that a worker sustains: two thirds of the float32 peak of an NVIDIA V100 (15.7 TFLOP/s)."""
BACKWARD_OVER_FORWARD: Final = 2
_FOLDER: Final = Path(__file__).parent / "models"
_COLUMNS: Final = ["parameter", "shape", "forward_macs"]


@dataclass(frozen=True)
class Parameter:
    """A row: a tensor and the multiply-adds that a sample takes in the forward pass."""

    name: str
    shape: tuple[int, ...]
    forward_macs: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def module(self) -> str:
        """The module that the tensor belongs to: `features.0` of `features.0.bias`."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Table:
    """A model. `sample` says what one sample of a batch is."""

    name: str
    title: str
    reference: str
    sample: str
    batch: int
    parameters: tuple[Parameter, ...]


def table(name: str) -> Table:
    """Return a bundled model's table. WorkloadError if there is none of that name."""
    if name not in MODELS:
        raise WorkloadError(f"{name!r} is no bundled model: there are {', '.join(MODELS)}")
    lines = (_FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    comments = [line[1:].strip() for line in lines if line.startswith("#")]
    header = dict(comment.split(": ", 1) for comment in comments if ": " in comment)
    rows = list(csv.reader(line for line in lines if not line.startswith("#")))
    if rows[0] != _COLUMNS:
        raise WorkloadError(f"{name}.csv has columns {rows[0]}, not {_COLUMNS}: this installation is damaged")
    parameters = tuple(
        Parameter(parameter, tuple(int(size) for size in shape.split("x")), int(macs))
        for parameter, shape, macs in rows[1:]
    )
    return Table(
        name, header["model"], header["reference"], header["sample"], int(header["batch"]), parameters
    )


def bundled(
    name: str, *, batch: int | None = None, teraflops: float = TERAFLOPS, dtype: str = GRADIENTS[0]
) -> Workload:
    """Return a bundled model as a workload: a layer for each parameter tensor, in forward order.

    `batch` is each worker's (the table's by default); `teraflops` is what a worker sustains, in 10**12
    floating-point operations a second. `dtype` is the gradients', and changes no time of computing.
    """
    model = table(name)
    batch = model.batch if batch is None else batch
    if batch < 1:
        raise WorkloadError(f"a batch of {batch} samples cannot be trained: take 1 or more")
    if not 0 < teraflops < math.inf:
        raise WorkloadError(f"a worker cannot compute at {teraflops} TFLOP/s: take a positive number")
    layers = []
    for _, members in groupby(model.parameters, key=lambda parameter: parameter.module):
        *others, last = _in_forward_order(list(members))
        macs = sum(parameter.forward_macs for parameter in (*others, last))
        forward_ns = round(2 * macs * batch / (teraflops * 1e3))
        layers += [Layer(parameter.name, parameter.numel, 0, 0) for parameter in others]
        layers.append(Layer(last.name, last.numel, forward_ns, BACKWARD_OVER_FORWARD * forward_ns))
    return Workload(
        name,
        f"{model.title}, shapes of {model.reference}; batch of {batch}, each {model.sample}, computed at "
        f"{teraflops:g} TFLOP/s a worker, backward in {BACKWARD_OVER_FORWARD} times forward",
        tuple(layers),
        dtype,
    )


def _in_forward_order(module: list[Parameter]) -> list[Parameter]:
    """Order a module's tensors so that autograd hands over their gradients from the last to the first.

    That is the order of registration (bias first, then weight), but for convolutions the other way round.
    """
    return module[::-1] if len(module[0].shape) == 4 else module
