"""PyTorch's autoload of backends: `init_process_group("p4reduce")` without an import of ours.

Each `import torch` on a machine with p4reduce runs `register`, in data loaders' workers too: it imports
nothing large and raises nothing, as PyTorch could not be imported then.
"""

from __future__ import annotations

import os
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

        torch_recording.begin(os.environ)
        if os.environ.get(CONTROLLER):
            adopt(os.environ)
    except Exception as error:  # noqa: BLE001 (PyTorch's import would fail)
        warnings.warn(f"p4reduce is no backend of torch.distributed here: {error}", stacklevel=2)


def _create(given: Any, options: Any = None) -> Any:
    from p4reduce.torch import gloo_instead
    from p4reduce.torch.process_group import create

    if gloo_instead.wanted(os.environ):
        return gloo_instead.create(given)
    return create(given, options)
