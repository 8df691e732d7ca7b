"""The backend as a `Backend` of PyTorch's, on a stand-in where the installed release has none for Python."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
# ruff: noqa: E402 (what is imported here needs PyTorch)

import torch.distributed as dist

from host_agent.errors import UsageError
from p4reduce.torch.backend import backend_base, backend_class
from tests.p4reduce.torch.ranks import Ranks

# What C++ calls, by the names of torch/csrc/distributed/c10d/py/PyBackend.hpp in 2.14.
# fmt: off
CALLED = [
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "all_gather_single",
    "allgather_coalesced", "all_gather_single_coalesced", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "all_to_all_single", "alltoall", "send",
    "recv", "recv_anysource", "barrier", "monitored_barrier", "getBackendName", "shutdown", "abort",
    "set_timeout", "_set_sequence_number_for_group", "_get_sequence_number_for_group",
]
ASKED = [
    "supports_splitting", "supports_coalescing", "supports_time_estimate", "supports_shrinking",
    "supports_reconfigure", "supports_window",
]
# fmt: on


class StandIn:
    """Base class as PyTorch documents it: made with rank and size; its own answers ask the derived class."""

    class Options:
        def __init__(self, backend: str, timeout: timedelta) -> None:
            self.backend, self.timeout = backend, timeout

    def __init__(self, rank: int, size: int) -> None:
        self.made_with = (rank, size)

    def __getattr__(self, name: str) -> Any:
        raise RecursionError(name)


def test_it_has_all_that_is_called_and_the_core_does_it() -> None:
    ranks = Ranks(2)
    kind = backend_class(StandIn)

    def work(group: Any) -> None:
        backend = kind(group.group)
        assert backend.made_with == (group.rank(), 2)
        assert backend.getBackendName() == backend.options.backend == "p4reduce"
        assert backend.options.timeout == timedelta(seconds=30)
        for name in CALLED:
            assert callable(getattr(backend, name))
        assert not any(getattr(backend, name) for name in ASKED)
        tensor = torch.ones(3)
        backend.allreduce([tensor], dist.AllreduceOptions()).wait()
        assert tensor.tolist() == [2.0] * 3
        backend.barrier(dist.distributed_c10d.BarrierOptions()).wait()
        assert backend._get_sequence_number_for_group() == 2

    assert ranks.run(work) == [None, None]


def test_where_pytorch_has_none_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def __init__(self) -> None:
            raise TypeError("no constructor defined")

    monkeypatch.delattr(dist, "BackendBase", raising=False)
    monkeypatch.setattr(torch._C._distributed_c10d, "Backend", Closed)
    with pytest.raises(UsageError, match="take 'p4reduce' for all devices"):
        backend_base()
    monkeypatch.setattr(dist, "BackendBase", StandIn, raising=False)
    assert backend_base() is StandIn
