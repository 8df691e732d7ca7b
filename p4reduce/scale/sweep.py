"""Many simulations at once: a cell is one workload or size, one number of GPUs and one strategy.

Cells are independent of each other, so any `concurrent.futures.Executor` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from typing import Final

from p4reduce.scale.fabric import Fabric
from p4reduce.scale.iteration import iterate
from p4reduce.scale.strategies import Sizes, simulate
from p4reduce.workloads.bounds import ring_to_in_network
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.hierarchy import tensors_of_time
from p4reduce.workloads.traffic.model import Workload

MAX_BYTES: Final = 2**40


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One simulation: an iteration of a workload, or one sum of so many bytes.

    `piece`: bytes of a plane in a piece of `hierarchical`'s pipeline; None: `default_piece`.
    """

    what: Workload | int
    strategy: str
    fabric: Fabric
    piece: int | None = None
    overlap: bool = True
    floats: bool = True

    def __post_init__(self) -> None:
        message = self.fabric.framing.packets * self.fabric.framing.path_mtu
        if self.piece is not None and self.piece < message:
            raise WorkloadError(
                f"a piece of {self.piece} bytes is less than a message: take {message} or more"
            )
        size = self.what.gradient_bytes if isinstance(self.what, Workload) else self.what
        if not 1 <= size <= MAX_BYTES:
            raise WorkloadError(f"{size} bytes to sum: take 1 to {MAX_BYTES} (1 TiB)")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a cell. `formula_s`: the same time, with sums as in `hierarchy`'s closed forms.

    `waiting_s` and `summing_s` are those of an iteration; `nic_bytes`: on the wire at a NIC, each way.
    """

    cell: Cell
    seconds: float
    formula_s: float
    nic_bytes: float
    waiting_s: float | None = None
    summing_s: float | None = None

    @property
    def bus_gbit_s(self) -> float | None:
        """A sum's bus bandwidth as in nccl-tests: what a flat ring's link would carry, over the time."""
        if isinstance(self.cell.what, Workload):
            return None
        return self.cell.what * 8 / self.seconds * ring_to_in_network(self.cell.fabric.gpus) / 1e9


def run(cell: Cell) -> Outcome:
    """Simulate one cell."""
    fabric = cell.fabric
    tensor_s = tensors_of_time(cell.strategy, fabric.shape) * 8 / fabric.rate
    carried = 0.0

    def formula_s(size: int) -> float:
        return size * tensor_s

    @cache  # DDP's buckets are much alike
    def simulated(size: int) -> tuple[float, float]:
        found = simulate(cell.strategy, Sizes(size=size, floats=cell.floats, piece=cell.piece), fabric)
        return found.seconds, found.nic_bytes

    def sum_s(size: int) -> float:
        nonlocal carried
        seconds, nic_bytes = simulated(size)
        carried += nic_bytes
        return seconds

    if not isinstance(cell.what, Workload):
        return Outcome(cell=cell, seconds=sum_s(cell.what), formula_s=formula_s(cell.what), nic_bytes=carried)
    found = iterate(cell.what, sum_s, overlap=cell.overlap)
    return Outcome(
        cell=cell,
        seconds=found.seconds,
        formula_s=iterate(cell.what, formula_s, overlap=cell.overlap).seconds,
        nic_bytes=carried,
        waiting_s=found.waiting_s,
        summing_s=found.summing_s,
    )


def run_all(cells: Sequence[Cell], executor: Executor | None = None) -> list[Outcome]:
    """Run all cells, and return their outcomes in order; without an executor, run them here in turn."""
    if executor is None:
        return [run(cell) for cell in cells]
    # The largest take longest: whoever is free takes the next, and the short ones fill the end.
    order = sorted(range(len(cells)), key=lambda number: -cells[number].fabric.gpus)
    futures = {number: executor.submit(run, cells[number]) for number in order}
    try:
        return [futures[number].result() for number in range(len(cells))]
    except BaseException:
        for future in futures.values():
            future.cancel()
        raise
