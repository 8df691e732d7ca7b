"""PyTorch's tensors as the agent's arrays: the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from host_agent.quantisation import BFLOAT16

DEVICES: Final = ("cpu", "cuda")
_NUMPY: Final = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: BFLOAT16,
    torch.int32: np.dtype(np.int32),
}


def require_dense(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raise TypeError unless all tensors are strided and on one device, a CPU or a CUDA GPU."""
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"{what}: p4reduce takes dense tensors, not {tensor.layout}: call to_dense(), or keep "
                "gradients dense (Embedding(sparse=False))"
            )
        if tensor.device.type not in DEVICES:
            raise TypeError(
                f"{what}: p4reduce takes tensors on {' or '.join(DEVICES)}, not on {tensor.device}"
            )
        if tensor.device != tensors[0].device:
            raise TypeError(f"{what}: tensors on {tensors[0].device} and {tensor.device} in one call")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy where its memory does not hold its elements one behind the other."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def numbers(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the memory of a `dense` tensor as a flat array, for types that switches sum."""
    return raw(tensor).view(_NUMPY[tensor.dtype])


def raw(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the memory of a `dense` tensor of any type, as bytes."""
    return np.asarray(_Memory(tensor))


class _Memory:
    """A tensor's memory for NumPy. `Tensor.numpy()` would forbid for ever to resize its storage (FSDP)."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._kept = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (tensor.numel() * tensor.element_size(),),
            "data": (tensor.data_ptr(), False),
        }


def fill(tensor: torch.Tensor, array: NDArray[Any]) -> None:
    """Give a tensor the elements of an array of as many bytes, in their order."""
    tensor = tensor.detach()
    into = tensor if _is_dense(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype)
    raw(into)[...] = array.reshape(-1).view(np.uint8)
    if into is not tensor:
        tensor.copy_(into)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
