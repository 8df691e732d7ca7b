"""One collective's tensors on their way to arrays in host memory, and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray

from p4reduce.torch.staging import Staging
from p4reduce.torch.views import dense, fill


class Transfer:
    """Tensors on the CPU stay where they are; those of a GPU (`staging`) are copied there and back."""

    def __init__(self, staging: Staging | None) -> None:
        self._staging = staging
        self._events: list[Any] = []
        self._done: Any = None

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, contiguous and in host memory; its elements are there when `ready` has returned."""
        if self._staging is None:
            return dense(tensor)
        copy, event = self._staging.fetch(tensor)
        self._events.append(event)
        return copy

    @property
    def ready(self) -> Callable[[], None] | None:
        """Returns when the elements are there; None where they are already."""
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
        """All results have been given."""
        if self._staging is not None:
            self._done = self._staging.mark()

    def follow(self) -> None:
        """What is computed from now on in this thread comes after that."""
        if self._staging is not None and self._done is not None:
            self._staging.follow(self._done)

    @property
    def devices(self) -> list[torch.device]:
        """Whose streams futures have to know."""
        return [] if self._staging is None else [self._staging.device]

    def telling(self) -> AbstractContextManager[None]:
        """Futures are completed in this."""
        return nullcontext() if self._staging is None else self._staging.working()
