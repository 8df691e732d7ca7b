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
from p4reduce.workloads.tensors import dtype_of
from p4reduce.workloads.training import compare, train
from tests.host_agent.fakes import FakeRack

Array = NDArray[Any]
TYPES = ("float32", "float16", "bfloat16")


@dataclass
class _Meeting:
    """A sum of ranks that run as threads: `off_by` is added to the sum of one element."""

    world_size: int
    off_by: float = 0.0
    ring: bool = False  # added up in the type itself
    parts: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.world_size)

    def sum(self, rank: int, array: Array) -> Array:
        self.parts[rank] = array.copy()
        self.barrier.wait()
        kind = array.dtype if self.ring else np.dtype(np.float64)
        total = np.zeros(array.size, kind)
        for r in range(self.world_size):
            total = total + self.parts[r].astype(kind)
        total[7] += np.asarray(self.off_by, kind)
        self.barrier.wait()
        return total.astype(array.dtype)


@dataclass
class _Counters:
    data_bytes_sent: int = 0


@dataclass
class _Statistics:
    ring: int = 0


@dataclass
class _Rank:
    """The part of a Communicator that training uses."""

    meeting: _Meeting
    rank: int
    wire: _Counters = field(default_factory=_Counters)
    made: _Statistics = field(default_factory=_Statistics)

    @property
    def world_size(self) -> int:
        return self.meeting.world_size

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(range(self.world_size))

    def counters(self) -> _Counters:
        return _Counters(self.wire.data_bytes_sent)

    def statistics(self) -> _Statistics:
        return _Statistics(self.made.ring)

    def all_reduce(self, array: Array, *, out: Array, **how: Any) -> Array:
        assert how == {"wire": "full", "feedback": None}
        out[:] = self.meeting.sum(self.rank, array)
        self.wire.data_bytes_sent += array.nbytes
        self.made.ring += self.meeting.ring
        return out


def _train(meeting: _Meeting, record: Path, *, steps: int, dtype: str = "float32") -> list[dict[str, Any]]:
    ranks = [cast("Communicator", _Rank(meeting, rank)) for rank in range(meeting.world_size)]
    with ThreadPoolExecutor(meeting.world_size) as pool:
        futures = [
            pool.submit(train, rank, steps=steps, seed=1, dtype=dtype, record=str(record)) for rank in ranks
        ]
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
@pytest.mark.parametrize("ring", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_of_any_type_are_held_to_its_bound(tmp_path: Path, dtype: str, ring: bool) -> None:
    record = tmp_path / "sums.npy"
    answers = _train(_Meeting(8, ring=ring), record, steps=12, dtype=dtype)
    assert len({answer["digest"] for answer in answers}) == 1
    assert {answer["by_ring"] for answer in answers} == {ring}
    assert answers[0]["bytes"] == 9610 * dtype_of(dtype).itemsize
    reference = compare(record, world_size=8, seed=1, dtype=dtype, by_ring=ring)
    assert reference.within_bound
    assert answers[0]["accuracy"] == pytest.approx(reference.accuracy, abs=0.02)


@pytest.mark.slow
def test_gradients_over_16_bits_are_held_to_their_bound_and_not_to_float32s(tmp_path: Path) -> None:
    """Check them with error feedback, by real communicators."""
    record = tmp_path / "sums.npy"
    answers = FakeRack(4).run(lambda c: train(c, steps=8, seed=1, wire="16bit", record=str(record)))
    assert len({answer["digest"] for answer in answers}) == 1
    reference = compare(record, world_size=4, seed=1, wire="16bit")
    assert reference.within_bound
    assert reference.worst_share > 0.05
    assert answers[0]["accuracy"] == pytest.approx(reference.accuracy, abs=0.02)
    assert not compare(record, world_size=4, seed=1).within_bound


@pytest.mark.slow
def test_a_wire_of_16_bits_makes_no_difference_to_types_that_have_no_more() -> None:
    full = FakeRack(2).run(lambda c: train(c, steps=2, seed=1, dtype="bfloat16"))
    half = FakeRack(2).run(lambda c: train(c, steps=2, seed=1, dtype="bfloat16", wire="16bit"))
    assert {answer["digest"] for answer in full} == {answer["digest"] for answer in half}


@pytest.mark.slow
def test_what_was_rounded_to_fewer_bits_is_not_within_the_bound_of_more(tmp_path: Path) -> None:
    record = tmp_path / "sums.npy"
    _train(_Meeting(3), record, steps=3, dtype="bfloat16")
    assert not compare(record, world_size=3, seed=1, dtype="float16").within_bound
    assert not compare(record, world_size=3, seed=1).within_bound


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_a_wrong_sum_is_found(tmp_path: Path, dtype: str) -> None:
    record = tmp_path / "sums.npy"
    # More than what quantising gradients of magnitude up to 100 may do.
    half = dtype != "float32"
    wrong = 10 * error_bound(100.0, world_size=3, dtype=dtype_of(dtype), half=half)
    _train(_Meeting(3, off_by=wrong), record, steps=3, dtype=dtype)
    assert not compare(record, world_size=3, seed=1, dtype=dtype).within_bound
