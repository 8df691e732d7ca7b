"""Both backends in one process: what p4reduce gives is held to what Gloo gives, and to what is right."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch.distributed as dist

import p4reduce.torch  # noqa: F401 (registers itself)
from tests.torch_suite.gloo import on_the_data_interface


@dataclass
class Pair:
    """The default group is p4reduce's, `gloo` has the same ranks. `spoilt`: they have to be made anew."""

    rank: int
    size: int
    gloo: Any
    store: Any
    timeout: timedelta
    spoilt: bool = False

    def gloo_of(self, ranks: list[int]) -> Any:
        """Return Gloo for some of the ranks; all have to ask for it."""
        with on_the_data_interface():
            return dist.new_group(ranks, backend="gloo", timeout=self.timeout)


Check: TypeAlias = Callable[[Pair], None]


class BesideGloo:
    """Our checks, by name."""

    def __init__(self) -> None:
        from tests.torch_suite.beside_gloo import collectives, groups, training

        self._checks: dict[str, Check] = {**collectives.CHECKS, **groups.CHECKS, **training.CHECKS}
        self._pair: Pair | None = None

    def names(self) -> list[str]:
        return list(self._checks)

    def open(self, store: Any, timeout: timedelta) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("p4reduce", store=store, rank=rank, world_size=size, timeout=timeout)
        self._pair = Pair(rank, size, None, dist.PrefixStore("later", store), timeout)
        self._pair.gloo = self._pair.gloo_of(list(range(size)))

    def run(self, name: str) -> bool:
        assert self._pair is not None
        self._checks[name](self._pair)
        return not self._pair.spoilt

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
