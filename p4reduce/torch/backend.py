"""The backend as a `Backend` of PyTorch's: of one device among others ("cpu:p4reduce,cuda:nccl").

Python can derive from that class since 2.14; later releases call it `dist.BackendBase`. Async calls then
return PyTorch's own work, which knows less of a collective than a process group's work does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from host_agent.errors import UsageError
from p4reduce.torch.collectives import Collectives
from p4reduce.torch.group import Group
from p4reduce.torch.process_group import create
from p4reduce.torch.views import DEVICES
from p4reduce.torch_autoload import BACKEND


def backend_base() -> Any:
    """Return PyTorch's class; raise UsageError where it has none."""
    found = getattr(dist, "BackendBase", None)
    if found is not None:
        return found
    base = torch._C._distributed_c10d.Backend
    try:
        type("Probe", (base,), {})(0, 1)
    except TypeError as error:
        raise UsageError(
            f"PyTorch {torch.__version__} has no backends of single devices in Python, 2.14 has: take "
            "'p4reduce' for all devices"
        ) from error
    return base


def backend_class(base: Any = None) -> Any:
    """Return the class of a backend for single devices. `base`: PyTorch's class (None: looked up)."""
    base = base or backend_base()

    class P4ReduceBackend(Collectives, base):  # type: ignore[misc]
        """A backend for single devices, by the collectives of `group`."""

        # PyTorch's own answers would ask this class again.
        supports_splitting = supports_coalescing = supports_time_estimate = False
        _supports_time_estimate = supports_shrinking = supports_reconfigure = supports_window = False

        def __init__(self, group: Group) -> None:
            base.__init__(self, group.rank, group.size)
            self.group = group
            self._options = base.Options(self.getBackendName(), timeout=group.timeout)

        @property
        def options(self) -> Any:
            return self._options

        def _set_sequence_number_for_group(self) -> None:
            """Do nothing: the job numbers its calls."""

        def _get_sequence_number_for_group(self) -> int:
            communicator = self.group.communicator if self.group.size > 1 else None
            return 0 if communicator is None else communicator.statistics().collectives

    return P4ReduceBackend


def register_by_device() -> None:
    """Let "p4reduce" be a backend of single devices from now on, as in "cpu:p4reduce,cuda:nccl".

    Raises UsageError where this PyTorch has no such backends.
    """
    backend_base()
    dist.Backend.register_backend(BACKEND, create_by_device, extended_api=True, devices=list(DEVICES))


def create_by_device(given: Any, options: Any = None) -> Any:
    """Create a backend for single devices from the arguments of `process_group.create`."""
    return create(given, options, kind=backend_class())
