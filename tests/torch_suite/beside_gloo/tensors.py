"""Tensors to try collectives with: of each type and layout, the same in each call, others on each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import torch

from host_agent.quantisation import Blocks

TYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
        *(torch.bool, torch.complex64),
    )
}
# Of float32, with what a job on the embedded switch has.
_BORDER: Final = Blocks.of(path_mtu=4096, message_packets=16, half=False).message_elements
Make: TypeAlias = Callable[[torch.dtype, int], torch.Tensor]


def elements(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return seeded elements. Floats have both signs and many magnitudes; products of four stay finite."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + count)
    if dtype.is_complex:
        return torch.complex(*torch.randn(2, count, generator=generator)).to(dtype)
    if dtype.is_floating_point:
        found = torch.randn(count, generator=generator, dtype=torch.float64)
        return (found * 2.0 ** torch.randint(-3, 3, (count,), generator=generator)).to(dtype)
    return torch.randint(0, 1 << 20, (count,), generator=generator).to(dtype)


def _in_order(*shape: int) -> Make:
    """Return a maker of contiguous tensors."""
    count = int(torch.Size(shape).numel())
    return lambda dtype, seed: elements(count, dtype, seed).reshape(shape)


# Contiguous ones, which any collective takes.
SHAPES: Final[dict[str, Make]] = {
    "0-dim": _in_order(),
    "empty": _in_order(3, 0),
    "1": _in_order(1),
    "3 x 5": _in_order(3, 5),
    **{str(size): _in_order(size) for size in (1023, _BORDER - 1, _BORDER, _BORDER + 1, 3 * _BORDER + 17)},
}
LONG: Final = (str(_BORDER), str(3 * _BORDER + 17))  # with one operation of each sort
LAYOUTS: Final[dict[str, Make]] = {
    "every second": lambda dtype, seed: elements(62, dtype, seed)[::2],
    "columns": lambda dtype, seed: elements(70, dtype, seed).reshape(7, 10)[:, 3:6],
    "transposed": lambda dtype, seed: elements(35, dtype, seed).reshape(5, 7).t(),
    "channels last": lambda dtype, seed: (
        elements(120, dtype, seed).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    ),
    "later in its storage": lambda dtype, seed: elements(40, dtype, seed)[7:],
}
EXPANDED: Final[dict[str, Make]] = {
    "expanded": lambda dtype, seed: elements(5, dtype, seed).reshape(1, 5).expand(4, 5),
}
