"""PyTorch's Gloo all-reduce over TCP: PyTorch's way without RDMA, a yardstick from outside.

PyTorch is imported only here, and only when it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from host_agent.netinfo import find_interface
from host_agent.quantisation import BFLOAT16
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.strategies.queued import QueuedReducer

MISSING: Final = "PyTorch is not installed here: 'make gloo' installs it"
_TIMEOUT: Final = timedelta(minutes=15)


def gloo_missing() -> str:
    """Return why Gloo cannot run; empty if it can."""
    return "" if importlib.util.find_spec("torch") else MISSING


class Gloo(QueuedReducer):
    """A process group of its own over TCP connections. `meeting_place` is a file that all workers see."""

    def __init__(self, meeting_place: Path, *, controller: str, rank: int, world_size: int) -> None:
        if gloo_missing():
            raise WorkloadError(MISSING)
        import torch
        from torch import distributed

        super().__init__(rank=rank, world_size=world_size)
        # Gloo takes the address that the host's name has, unless told the interface.
        os.environ["GLOO_SOCKET_IFNAME"] = find_interface(controller=controller).name
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo",
            store=distributed.FileStore(str(meeting_place), world_size),
            rank=rank,
            world_size=world_size,
            timeout=_TIMEOUT,
        )
        self._distributed = distributed
        self._before = _segments_resent()

    def _sum(self, array: NDArray[Any]) -> None:
        self._distributed.all_reduce(as_torch(array))

    def _barrier(self) -> None:
        self._sum(np.zeros(1, np.int32))

    def retransmissions(self) -> int:
        """Return the TCP segments that this host retransmitted since the group was made."""
        return _segments_resent() - self._before

    def _close(self) -> None:
        with contextlib.suppress(RuntimeError):  # a peer that has gone already
            self._distributed.destroy_process_group()


def as_torch(array: NDArray[Any]) -> Any:
    """Return the torch tensor of the same type in the same memory, so the wire carries the array's bytes."""
    import torch

    if array.dtype == BFLOAT16:  # which NumPy has from elsewhere, and torch does not know
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _segments_resent() -> int:
    """Return RetransSegs (RFC 4022, tcpRetransSegs) of this network namespace."""
    lines = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines()]
    names, values = (line for line in lines if line[0] == "Tcp:")
    return int(values[names.index("RetransSegs")])
