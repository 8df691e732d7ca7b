"""Tensors of a GPU, on one of our own making: what waits for what. There is none to try it on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: 'make gloo' installs it")
# ruff: noqa: E402 (what is imported here needs PyTorch)

import torch.distributed as dist

from p4reduce.torch.process_group import P4ReduceProcessGroup
from p4reduce.torch.transfer import Staging
from tests.p4reduce.torch.ranks import Ranks

CPU = torch.device("cpu")


class Event:
    """`over` is set when the device has come so far."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.over: threading.Event | None = None

    def record(self, stream: Stream) -> None:
        self.over = stream.reached
        self._cuda.said.append(f"record on {stream.name}")

    def synchronize(self) -> None:
        assert self.over is not None
        assert self.over.wait(30)


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self._cuda, self.name = cuda, name
        self.reached = threading.Event()

    def wait_stream(self, other: Stream) -> None:
        self._cuda.said.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        assert event.over is not None
        self._cuda.said.append(f"{self.name} waits for an event")


class Cuda:
    """A stand-in for `torch.cuda`; `said` is what a device is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.computing = Stream(self, "computing")
        self.copying: Any = None
        self.now = self.computing

    def Stream(self, device: Any) -> Any:
        self.copying = Stream(self, "copying")
        return self.copying

    def Event(self) -> Any:
        return Event(self)

    def current_stream(self, device: Any) -> Any:
        return self.computing

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.said.append(f"on {stream.name}")
        yield


class Tensor(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor in the host's memory; it can be told which streams use it."""

    @staticmethod
    def __new__(cls, data: Any) -> Any:
        return torch.Tensor._make_subclass(cls, data)

    def record_stream(self, stream: Any) -> None:
        stream._cuda.said.append(f"used on {stream.name}")


def staged(cuda: Cuda) -> Staging:
    return Staging(CPU, cuda=cuda, pinned=lambda shape, dtype: torch.empty(shape, dtype=dtype))


def test_a_copy_begins_when_the_tensor_is_computed_and_the_tensor_stays_for_it() -> None:
    cuda = Cuda()
    staging = staged(cuda)
    host, event = staging.fetch(Tensor(torch.arange(4.0)))
    assert host.tolist() == [0, 1, 2, 3]
    assert cuda.said == ["copying waits for computing", "on copying", "record on copying", "used on copying"]
    assert event.over is cuda.copying.reached
    target = Tensor(torch.zeros(4))
    staging.bring(target, host)
    assert target.tolist() == [0, 1, 2, 3]
    staging.follow(staging.mark())
    assert cuda.said[4:] == [
        "on copying",
        "used on copying",
        "record on copying",
        "computing waits for an event",
    ]


def test_a_call_waits_for_its_copy_and_later_ones_wait_behind_it() -> None:
    devices = [Cuda(), Cuda()]

    def work(group: P4ReduceProcessGroup) -> None:
        rank, cuda = group.rank(), devices[group.rank()]
        how = dist.AllreduceOptions()
        on_host = torch.full((3,), rank + 1.0)
        on_device = Tensor(torch.full((3,), rank + 10.0))
        core = group.group
        core._staging[CPU] = staged(cuda)
        plain = core._transfer
        core._transfer = lambda tensors: (  # type: ignore[method-assign]
            type(plain(tensors))(core._staging[CPU] if isinstance(tensors[0], Tensor) else None)
        )
        first = group.allreduce([on_device], how)
        second = group.allreduce([on_host], how)
        assert not first.is_completed()
        assert not second.is_completed()
        assert on_host.tolist() == [rank + 1.0] * 3
        cuda.copying.reached.set()
        first.wait()
        assert cuda.said[-1] == "computing waits for an event"
        second.wait()
        assert on_device.tolist() == [21.0] * 3
        assert on_host.tolist() == [3.0] * 3

    assert Ranks(2).run(work) == [None, None]
