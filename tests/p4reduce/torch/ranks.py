"""Process groups of ranks that are threads here: communicators on a simulated fabric, Gloo over loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from host_agent.communicator import Communicator
from p4reduce.torch.group import Group, Options
from p4reduce.torch.process_group import P4ReduceProcessGroup
from tests.host_agent.fakes import FakeRack

CONTROLLER = "127.0.0.1:1"  # nobody calls it


class Ranks:
    """`run` gives each rank its process group, and a thread; `joined`: ranks that have, by job."""

    def __init__(self, size: int, *, options: Options | None = None) -> None:
        self.size = size
        self.options = options or Options(controller=CONTROLLER, job="job")
        self.store = dist.HashStore()
        self.racks: dict[str, FakeRack] = {}
        self.joined: dict[str, set[int]] = {}
        self.lock = threading.Lock()

    def join(self, controller: str, *, job: str, rank: int, world_size: int, **asked: Any) -> Communicator:
        assert controller == CONTROLLER
        with self.lock:
            rack = self.racks.setdefault(job, FakeRack(world_size))
            self.joined.setdefault(job, set()).add(rank)
        return rack.communicators[rank]

    def group(self, rank: int, *, name: str = "0", ranks: Sequence[int] = ()) -> P4ReduceProcessGroup:
        """Return a process group of all ranks, or of some, as `create` makes it."""
        return P4ReduceProcessGroup(
            Group(
                dist.PrefixStore(name, self.store),
                rank=ranks.index(rank) if ranks else rank,
                size=len(ranks) or self.size,
                timeout=timedelta(seconds=30),
                name=name,
                ranks=ranks,
                options=self.options,
                join=self.join,
            )
        )

    def run(self, work: Callable[[P4ReduceProcessGroup], Any]) -> list[Any]:
        """Run `work` on every rank; return what each returned, or raised."""

        def of_rank(rank: int) -> Any:
            group = self.group(rank)
            try:
                return work(group)
            finally:
                group.shutdown()

        return self.each(of_rank)

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """Run `work` in the same way, without a group."""
        results: list[Any] = [None] * self.size

        def target(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except Exception as error:  # noqa: BLE001 (handed to the test, which looks at it)
                results[rank] = error

        threads = [threading.Thread(target=target, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a rank hangs"
        return results
