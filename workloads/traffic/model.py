"""A workload: what one training iteration computes and which gradients it leaves to be summed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from workloads.errors import WorkloadError

ELEMENT_BYTES: Final = 4  # gradients are float32


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

    @property
    def gradient_bytes(self) -> int:
        return self.numel * ELEMENT_BYTES


@dataclass(frozen=True)
class Workload:
    """Layers in forward order: the first is the nearest to the input, the last has its gradient first.

    `source` says where sizes and times are from, and what was assumed.
    """

    name: str
    source: str
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise WorkloadError(f"workload {self.name!r} has no layers")

    @property
    def numel(self) -> int:
        """Elements of all gradients."""
        return sum(layer.numel for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        """What an iteration leaves to be summed, as float32."""
        return self.numel * ELEMENT_BYTES

    @property
    def forward_ns(self) -> int:
        return sum(layer.forward_ns for layer in self.layers)

    @property
    def backward_ns(self) -> int:
        return sum(layer.backward_ns for layer in self.layers)

    def scaled(self, factor: float) -> Workload:
        """The same with all computing `factor` times as long; 0 leaves communication alone."""
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
