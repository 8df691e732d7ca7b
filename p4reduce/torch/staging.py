"""CUDA tensors through pinned host memory, on a stream of their own.

There was no GPU where this was written: tests run it on a device of their own making, and it has not met a
real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Staging:
    """Of one device. What it starts goes on beside the stream that computes, and waits where it must.

    `cuda`, `pinned`: PyTorch's, in place of which tests have their own. Pinned memory comes from PyTorch's
    cache, which gives none to others that a copy still uses.
    """

    def __init__(self, device: torch.device, *, cuda: Any = torch.cuda, pinned: Any = None) -> None:
        self.device = device
        self._cuda = cuda
        self._pinned = pinned or (lambda shape, dtype: torch.empty(shape, dtype=dtype, pin_memory=True))
        self._stream = cuda.Stream(device)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor on the host, of the same shape, without its elements."""
        buffer: torch.Tensor = self._pinned(tensor.shape, tensor.dtype)
        return buffer

    def fetch(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """A copy on the host, and the event after which it has the elements that the tensor has now."""
        buffer = self.host(tensor)
        self._stream.wait_stream(self._cuda.current_stream(self.device))
        with self._cuda.stream(self._stream):
            buffer.copy_(tensor.detach(), non_blocking=True)
            event = self._cuda.Event()
            event.record(self._stream)
        tensor.record_stream(self._stream)
        return buffer, event

    def bring(self, tensor: torch.Tensor, buffer: torch.Tensor) -> None:
        """Begin to give a tensor the elements of a copy on the host."""
        with self._cuda.stream(self._stream):
            tensor.detach().copy_(buffer, non_blocking=True)
        tensor.record_stream(self._stream)

    @contextmanager
    def working(self) -> Iterator[None]:
        """What PyTorch is told here, its futures say of this stream."""
        with self._cuda.stream(self._stream):
            yield

    def mark(self) -> Any:
        """An event after all that has been begun."""
        event = self._cuda.Event()
        event.record(self._stream)
        return event

    def follow(self, event: Any) -> None:
        """What is computed from now on in this thread comes after the event; the thread goes on."""
        self._cuda.current_stream(self.device).wait_event(event)
