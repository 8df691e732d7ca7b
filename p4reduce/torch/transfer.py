"""One collective's tensors on their way to arrays in host memory, and back.

There was no GPU where this was written: tests run `Staging` on a device of their own making, and it has not
met a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray

from p4reduce.torch.views import dense, fill


class Staging:
    """CUDA tensors of one device through pinned host memory, on a stream of their own.

    What it starts goes on beside the stream that computes, and waits where it must.

    `cuda`, `pinned`: PyTorch's, in place of which tests have their own. Pinned memory comes from PyTorch's
    cache, which gives none to others that a copy still uses.
    """

    def __init__(self, device: torch.device, *, cuda: Any = torch.cuda, pinned: Any = None) -> None:
        self.device = device
        self._cuda = cuda
        self._pinned = pinned or (lambda shape, dtype: torch.empty(shape, dtype=dtype, pin_memory=True))
        self._stream = cuda.Stream(device)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor on the host, of the same shape and type, without the elements."""
        buffer: torch.Tensor = self._pinned(tensor.shape, tensor.dtype)
        return buffer

    def fetch(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Begin a copy to the host; return it, and the event after which it has the present elements."""
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
        """Make this stream current: futures that are completed meanwhile wait for its work."""
        with self._cuda.stream(self._stream):
            yield

    def mark(self) -> Any:
        """Return an event after all that has been begun."""
        event = self._cuda.Event()
        event.record(self._stream)
        return event

    def follow(self, event: Any) -> None:
        """Have the GPU run later work of this thread after the event; the thread itself does not wait."""
        self._cuda.current_stream(self.device).wait_event(event)


class Transfer:
    """A collective's transfers. A CPU's tensors are used as they are; a GPU's (`staging`) are copied."""

    def __init__(self, staging: Staging | None) -> None:
        self._staging = staging
        self._events: list[Any] = []
        self._done: Any = None

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor contiguous in host memory; its elements are there once `ready()` has returned."""
        if self._staging is None:
            return dense(tensor)
        copy, event = self._staging.fetch(tensor)
        self._events.append(event)
        return copy

    @property
    def ready(self) -> Callable[[], None] | None:
        """A function that waits until the elements are there; None where they are already."""
        events = self._events
        if not events:
            return None

        def wait() -> None:
            for event in events:
                event.synchronize()

        return wait

    def back(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """Give `tensor` what the collective has left in its `host`."""
        if self._staging is not None:
            self._staging.bring(tensor, host)
        elif host.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(host)

    def fill(self, tensor: torch.Tensor, array: NDArray[Any]) -> None:
        """Give it the elements of an array of as many bytes, in their order."""
        if self._staging is None:
            fill(tensor, array)
            return
        host = self._staging.host(tensor)
        fill(host, array)
        self._staging.bring(tensor, host)

    def end(self) -> None:
        """Mark that all results have been given."""
        if self._staging is not None:
            self._done = self._staging.mark()

    def follow(self) -> None:
        """Have the GPU run later work of this thread after the results are there."""
        if self._staging is not None and self._done is not None:
            self._staging.follow(self._done)

    @property
    def devices(self) -> list[torch.device]:
        """The devices whose streams futures have to know."""
        return [] if self._staging is None else [self._staging.device]

    def telling(self) -> AbstractContextManager[None]:
        """Return the context in which futures are to be completed."""
        return nullcontext() if self._staging is None else self._staging.working()
