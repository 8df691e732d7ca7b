"""The backend as a `ProcessGroup` of PyTorch's, which all of its releases let Python derive from."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from p4reduce.torch.collectives import Collectives
from p4reduce.torch.group import Group, Options, default_group
from p4reduce.torch.views import DEVICES


class P4ReduceProcessGroup(Collectives, dist.ProcessGroup):  # type: ignore[misc]
    """The group that `init_process_group("p4reduce")` and `new_group` make, for tensors of all devices."""

    def __init__(self, group: Group) -> None:
        dist.ProcessGroup.__init__(self, group.rank, group.size)
        self.group = group
        self._name, self._desc = group.name, ""
        # What C++ asks for by device, and what has no name in Python.
        custom = dist.ProcessGroup.BackendType.CUSTOM
        for device in DEVICES if torch.cuda.is_available() else ("cpu",):
            self._register_backend(torch.device(device), custom, group.gloo.group)
        self._set_default_backend(custom)

    def rank(self) -> int:
        return self.group.rank

    def size(self) -> int:
        return self.group.size

    def get_group_store(self) -> dist.Store:
        return self.group.store

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc


def create(given: Any, options: Any = None, *, kind: Any = P4ReduceProcessGroup) -> Any:
    """Create a `kind` for `register_backend`'s extended API: `given` is a DistributedBackendOptions.

    Without options, a group has those of the default group, which is made first.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options has to be p4reduce.torch.Options, not {type(options).__name__}")
    ranks = list(given.global_ranks_in_group)
    default = default_group() if ranks else None
    return kind(
        Group(
            given.store,
            rank=given.group_rank,
            size=given.group_size,
            timeout=given.timeout,
            name=str(given.group_id),
            ranks=ranks,
            options=options or (Options() if default is None else default.options),
        )
    )
