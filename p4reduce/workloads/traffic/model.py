"""A workload: what one training iteration computes and which gradients it leaves to be summed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.tensors import dtype_of

GRADIENTS: Final = ("float32", "float16", "bfloat16")
"""The element types that gradients may have."""


@dataclass(frozen=True)
class Layer:
    """A gradient tensor and the computing that belongs to it, on one worker.

    `forward_ns` comes right after the parameters were needed, `backward_ns` right before the gradient is
    ready. Of the tensors of one module (weight and bias), the last has the times of all, so that none is
    ready, or needed, at another time than the others.
    """

    name: str
    numel: int
    forward_ns: int
    backward_ns: int

    def __post_init__(self) -> None:
        if self.numel < 1:
            raise WorkloadError(f"layer {self.name!r} has {self.numel} elements: there must be at least one")
        if self.forward_ns < 0 or self.backward_ns < 0:
            raise WorkloadError(
                f"layer {self.name!r} takes {self.forward_ns} ns forward and {self.backward_ns} ns backward: "
                "a time cannot be negative"
            )


@dataclass(frozen=True)
class Workload:
    """Layers in forward order: the first is the nearest to the input, the last has its gradient first.

    `source` says where sizes and times are from, and what was assumed. `dtype` is that of all gradients.
    """

    name: str
    source: str
    layers: tuple[Layer, ...]
    dtype: str = GRADIENTS[0]

    def __post_init__(self) -> None:
        gradient_type(self.dtype)
        if not self.layers:
            raise WorkloadError(f"workload {self.name!r} has no layers")

    @property
    def numel(self) -> int:
        """Elements of all gradients."""
        return sum(layer.numel for layer in self.layers)

    @property
    def element_bytes(self) -> int:
        return dtype_of(self.dtype).itemsize

    @property
    def gradient_bytes(self) -> int:
        """Number of bytes that an iteration leaves to be summed."""
        return self.numel * self.element_bytes

    @property
    def forward_ns(self) -> int:
        return sum(layer.forward_ns for layer in self.layers)

    @property
    def backward_ns(self) -> int:
        return sum(layer.backward_ns for layer in self.layers)

    def scaled(self, factor: float) -> Workload:
        """Return the same model with all computing `factor` times as long; 0 leaves communication alone."""
        if not 0 <= factor < float("inf"):
            raise WorkloadError(f"computing cannot be scaled by {factor}: take 0 or a positive number")
        return replace(
            self,
            layers=tuple(
                replace(
                    layer,
                    forward_ns=round(layer.forward_ns * factor),
                    backward_ns=round(layer.backward_ns * factor),
                )
                for layer in self.layers
            ),
        )


def gradient_type(name: str) -> str:
    """Return an element type that gradients may have, by name. WorkloadError lists them."""
    if name.lower() not in GRADIENTS:
        raise WorkloadError(f"gradients cannot be {name!r}; there are {', '.join(GRADIENTS)}")
    return name.lower()


def type_of_trace(recorded: Collection[str], asked: str | None, *, where: str) -> str:
    """Return the type that a trace's gradients are played as: the recorded one, if there is one.

    `asked` is for traces that do not tell, and for those with gradients of several types or of one that is
    not summed here. WorkloadError where it contradicts, or is needed and missing.
    """
    chosen = None if asked is None else gradient_type(asked)
    found = " and ".join(sorted(recorded))
    if not recorded:
        return chosen or GRADIENTS[0]
    if chosen is None:
        if len(recorded) == 1 and found in GRADIENTS:
            return found
        raise WorkloadError(
            f"{where} has gradients of {found}: a replay has one of {', '.join(GRADIENTS)} for all, say "
            "which (--dtype)"
        )
    if chosen not in recorded and set(recorded) <= set(GRADIENTS):
        raise WorkloadError(
            f"{where} recorded gradients of {found}, not {chosen}: leave --dtype out, or write its layers as "
            "CSV, which has no type of its own"
        )
    return chosen
