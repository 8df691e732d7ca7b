"""PyTorch's autoload of backends: `init_process_group("p4reduce")` without an import of ours.

Each `import torch` on a machine with p4reduce runs `register`, in data loaders' workers too: it imports
nothing large and raises nothing, as PyTorch could not be imported then.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any

BACKEND = "p4reduce"


def register() -> None:
    """Make the backend known to PyTorch, and, in a job of ours, the launcher's variables. Once is enough."""
    try:
        import torch
        import torch.distributed as dist

        if not dist.is_available() or BACKEND in dist.Backend.backend_list:
            return
        devices = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=devices)
        from p4reduce import torch_recording
        from p4reduce.torch_environment import CONTROLLER, adopt
        from p4reduce.workloads.torch_runs.record import FOR, GLOO

        torch_recording.begin(os.environ)
        if os.environ.get(FOR) == GLOO:
            _take_the_place_of_gloo(torch)
        if os.environ.get(CONTROLLER):
            adopt(os.environ)
    except Exception as error:  # noqa: BLE001 (PyTorch's import would fail)
        warnings.warn(f"p4reduce is no backend of torch.distributed here: {error}", stacklevel=2)


def _take_the_place_of_gloo(torch: Any) -> None:
    """Give scripts p4reduce where they ask for Gloo, or for nothing where there are CPUs alone.

    Some libraries know only backends of names of their own, and let nobody say another.
    """
    c10d = torch.distributed.distributed_c10d
    init, new = c10d.init_process_group, c10d.new_group

    def taken(backend: Any) -> Any:
        named = [
            name.rpartition(":")[::2] for name in str(backend or "").lower().split(",")
        ]  # (device, backend)
        if all(name == "gloo" for _, name in named):
            return BACKEND
        on_cpus = not backend or ("cpu", "gloo") in named
        return BACKEND if on_cpus and not torch.accelerator.is_available() else backend

    @functools.wraps(init)
    def init_process_group(backend: Any = None, *arguments: Any, **named: Any) -> Any:
        return init(taken(backend), *arguments, **named)

    @functools.wraps(new)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *others: Any, **named: Any
    ) -> Any:
        return new(ranks, timeout, backend and taken(backend), *others, **named)  # without: the default's

    for function in (init_process_group, new_group):
        for name in ("torch.distributed", c10d.__name__, "torch.distributed.device_mesh"):
            module = sys.modules.get(name)
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)


def _create(given: Any, options: Any = None) -> Any:
    from p4reduce.torch import gloo_instead
    from p4reduce.torch.process_group import create

    if gloo_instead.wanted(os.environ):
        return gloo_instead.create(given)
    return create(given, options)
