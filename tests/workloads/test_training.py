"""Training together and alone: the recorded sums are held to their bound, and a wrong sum is found."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from host_agent.communicator import Communicator
from host_agent.quantisation import error_bound
from workloads.training import compare, train

Floats32 = NDArray[np.float32]


@dataclass
class _Meeting:
    """Where ranks that run as threads meet: `off_by` is added to the sum of one element."""

    world_size: int
    off_by: float = 0.0
    parts: dict[int, Floats32] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.world_size)

    def sum(self, rank: int, array: Floats32) -> Floats32:
        self.parts[rank] = array.copy()
        self.barrier.wait()
        total = np.sum([self.parts[r].astype(np.float64) for r in range(self.world_size)], axis=0)
        total[7] += self.off_by
        self.barrier.wait()
        return cast("Floats32", total.astype(np.float32))


@dataclass
class _Counters:
    data_bytes_sent: int = 0


@dataclass
class _Rank:
    """The part of a Communicator that training uses."""

    meeting: _Meeting
    rank: int
    wire: _Counters = field(default_factory=_Counters)

    @property
    def world_size(self) -> int:
        return self.meeting.world_size

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(range(self.world_size))

    def counters(self) -> _Counters:
        return _Counters(self.wire.data_bytes_sent)

    def all_reduce(self, array: Floats32, *, out: Floats32) -> Floats32:
        out[:] = self.meeting.sum(self.rank, array)
        self.wire.data_bytes_sent += array.nbytes
        return out


def _train(meeting: _Meeting, record: Path, *, steps: int) -> list[dict[str, Any]]:
    ranks = [cast("Communicator", _Rank(meeting, rank)) for rank in range(meeting.world_size)]
    with ThreadPoolExecutor(meeting.world_size) as pool:
        futures = [pool.submit(train, rank, steps=steps, seed=1, record=str(record)) for rank in ranks]
        return [future.result() for future in futures]


@pytest.mark.slow
def test_training_together_equals_training_alone(tmp_path: Path) -> None:
    record = tmp_path / "sums.npy"
    answers = _train(_Meeting(3), record, steps=12)
    reference = compare(record, world_size=3, seed=1)
    assert len({answer["digest"] for answer in answers}) == 1
    assert {answer["accuracy"] for answer in answers} == {reference.accuracy}
    assert reference.within_bound
    assert reference.parameter_distance < 1e-5
    assert all(answer["bytes_sent"] == answer["bytes"] for answer in answers)
    assert all(len(answer["seconds"]) == 12 for answer in answers)


@pytest.mark.slow
def test_a_wrong_sum_is_found(tmp_path: Path) -> None:
    record = tmp_path / "sums.npy"
    # More than what quantising gradients of magnitude up to 100 may do.
    wrong = 10 * error_bound(100.0, world_size=3, dtype=np.float32)
    _train(_Meeting(3, off_by=wrong), record, steps=3)
    assert not compare(record, world_size=3, seed=1).within_bound
