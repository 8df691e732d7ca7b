"""PyTorch over p4reduce: `torch.distributed.init_process_group("p4reduce")`.

Importing this registers the backend; PyTorch does so by itself where its autoload of backends is on.
"""

from __future__ import annotations

import os

# Data loaders fork. Their processes use no gRPC, which would warn of each of them. It reads this when
# it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from p4reduce.torch.backend import register_by_device
from p4reduce.torch.group import Group, Options
from p4reduce.torch.hooks import InNetwork, in_network_16bit_hook, in_network_hook
from p4reduce.torch.process_group import P4ReduceProcessGroup
from p4reduce.torch_autoload import register

__all__ = [
    "Group",
    "InNetwork",
    "Options",
    "P4ReduceProcessGroup",
    "in_network_16bit_hook",
    "in_network_hook",
    "register_by_device",
]

register()
