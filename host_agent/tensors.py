"""PyTorch's tensors in calls of a Communicator: a collective of tensors gives tensors.

PyTorch is not imported here: whoever has a tensor has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from host_agent.errors import UsageError
from host_agent.quantisation import BFLOAT16

Back = Callable[[Any], Any]


def as_arrays(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Back | None]:
    """Return arguments with arrays for tensors, and what makes the result a tensor (None: no need).

    An array shares its tensor's memory, unless that is not on the CPU. UsageError for tensors without memory.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return args, kwargs, None
    given, out = args[0] if args else kwargs.get("array"), kwargs.get("out")
    if not isinstance(given, torch.Tensor):
        if isinstance(out, torch.Tensor):
            raise UsageError("out is a tensor, but what is to go into it is none: give two of one kind")
        return args, kwargs, None
    array = _array(torch, given)
    args, kwargs = ((array, *args[1:]), dict(kwargs)) if args else (args, {**kwargs, "array": array})
    if out is not None:
        if not isinstance(out, torch.Tensor):
            raise UsageError("out is no tensor, but what is to go into it is one: give two of one kind")
        if out.device.type != "cpu" or not out.is_contiguous():
            raise UsageError("out has to be a contiguous tensor on the CPU")
        kwargs["out"] = array if out is given else _array(torch, out)

    def back(result: Any) -> Any:
        if result is None or out is not None:
            return None if result is None else out
        words = result.view("int16") if given.dtype is torch.bfloat16 else result
        return torch.from_numpy(words).view(given.dtype).to(given.device)

    return args, kwargs, back


def _array(torch: Any, tensor: Any) -> Any:
    if tensor.layout is not torch.strided:
        raise UsageError(f"tensors that are {tensor.layout} cannot be sent: call to_dense()")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(BFLOAT16)
    try:
        return plain.numpy()
    except TypeError as error:  # float8 and the like
        raise UsageError(f"tensors of {tensor.dtype} cannot be sent: NumPy has no such type") from error


class Mapped(Future[Any]):
    """A future of what `back` makes of another future's result. Cancelling it cancels the other."""

    def __init__(self, of: Future[Any], back: Back) -> None:
        super().__init__()
        self._of, self._back = of, back
        of.add_done_callback(self._done)

    def cancel(self) -> bool:
        return self._of.cancel()

    def running(self) -> bool:
        return self._of.running()

    def _done(self, of: Future[Any]) -> None:
        if of.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
            return
        error = of.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self._back(of.result()))
