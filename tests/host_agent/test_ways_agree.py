"""Ways by ring and by switch, with one or several GPUs a machine: the same finite numbers, the same NaN."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from controller.api.messages import Mode
from host_agent.communicator import RingFallbackWarning
from host_agent.front import Collectives
from host_agent.quantisation import BFLOAT16
from tests.host_agent.beyond import has_the_one_nan, large, nans, rounded_once
from tests.host_agent.fakes import FakeRack
from tests.host_agent.machine.machines import Machines

Array = NDArray[Any]
WORLD = 4
FLOATS = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
WAYS = ["switch", "ring", "two GPUs, switch", "two GPUs, ring"]
SIZES = {"together": 100, "small": 3000, "large": 140_000}  # of what a ring keeps, and more than that
Group = FakeRack | Machines


@pytest.fixture
def group() -> Iterator[Callable[[str], Group]]:
    """Makes four workers that sum one way."""
    made: list[Machines] = []

    def make(way: str) -> Group:
        mode = Mode.RING if way.endswith("ring") else Mode.IN_NETWORK
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RingFallbackWarning)
            if not way.startswith("two"):
                return FakeRack(WORLD, mode=mode, reason="no free slots" if mode is Mode.RING else "")
            made.append(Machines(WORLD // 2, 2, mode=mode))
            return made[-1]

    yield make
    for one in made:
        one.close()


def same(results: list[Any]) -> Array:
    """Return what all ranks got alike."""
    for result in results:
        if isinstance(result, Exception):
            raise result
        assert result.tobytes() == results[0].tobytes()
    found: Array = results[0]
    return found


def sizes_of(way: str) -> list[str]:
    return ["together", "small", "large"] if way == "ring" else ["together", "small"]


WAYS_AND_SIZES = [(way, size) for way in WAYS for size in sizes_of(way)]


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in-place"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("way", "size"), WAYS_AND_SIZES)
def test_an_average_is_finite_where_its_type_can_hold_it(
    group: Callable[[str], Group], way: str, size: str, dtype: np.dtype[Any], in_place: bool
) -> None:
    arrays = large(np.random.default_rng(1), WORLD, SIZES[size], dtype, averaged=True)
    expected = rounded_once(arrays, divisor=WORLD)
    assert np.isfinite(expected).all()

    def work(c: Collectives) -> Array:
        mine = arrays[c.rank].copy()
        return c.all_reduce(mine, "avg", out=mine if in_place else None)

    assert same(group(way).run(work)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [50, 3000])
def test_an_average_of_60000_and_40000(group: Callable[[str], Group], size: int) -> None:
    mine = [60_000.0, 40_000.0, 60_000.0, 40_000.0]
    for way in WAYS:
        found = same(group(way).run(lambda c: c.all_reduce(np.full(size, mine[c.rank], np.float16), "avg")))
        assert found.tobytes() == np.full(size, 50_000.0, np.float16).tobytes(), way


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_an_infinity_is_one_elements_alone(
    group: Callable[[str], Group], way: str, dtype: np.dtype[Any]
) -> None:
    """Check that its block's other elements are what they are without it."""
    arrays = large(np.random.default_rng(2), WORLD, 3000, dtype, averaged=True)
    arrays[1][700], arrays[2][2999] = np.inf, -np.inf
    found = same(group(way).run(lambda c: c.all_reduce(arrays[c.rank], "avg")))
    assert found.tobytes() == rounded_once(arrays, divisor=WORLD).tobytes()
    assert np.flatnonzero(~np.isfinite(found)).tolist() == [700, 2999]


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_rings_sum_may_go_beyond_its_type_on_the_way(
    group: Callable[[str], Group], dtype: np.dtype[Any], size: str
) -> None:
    arrays = large(np.random.default_rng(3), WORLD, SIZES[size], dtype, averaged=False)
    arrays[0][[1, 90]], arrays[1][90], arrays[2][2] = np.inf, -np.inf, np.nan
    expected = rounded_once(arrays)
    assert np.flatnonzero(~np.isfinite(expected)).tolist() == [1, 2, 90]
    found = same(group("ring").run(lambda c: c.all_reduce(arrays[c.rank])))
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("elements", [40, 40_000])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_ranks_part_of_a_rings_average(
    group: Callable[[str], Group], dtype: np.dtype[Any], elements: int
) -> None:
    size = WORLD * elements
    arrays = large(np.random.default_rng(4), WORLD, size, dtype, averaged=True)
    arrays[3][[0, 1, size // 2, size - 1]] = 1.0, np.inf, np.nan, 2.0
    rack = group("ring")
    found = np.concatenate(rack.run(lambda c: c.reduce_scatter(arrays[c.rank], "avg", strategy="ring")))
    assert found.tobytes() == rounded_once(arrays, divisor=WORLD).tobytes()


def test_more_than_is_added_at_a_time(group: Callable[[str], Group], monkeypatch: pytest.MonkeyPatch) -> None:
    """Add infinities, which are added in 64-bit floats, by the part."""
    monkeypatch.setattr("host_agent.collectives.ring.AT_ONCE", 1000)
    for way in ("ring", "switch", "two GPUs, switch"):
        arrays = large(np.random.default_rng(5), WORLD, 3333, np.dtype(np.float32), averaged=True)
        for block in range(0, 3333, 32):
            arrays[1][block] = np.nan
        found = same(group(way).run(lambda c: c.all_reduce(arrays[c.rank], "avg")))  # noqa: B023
        assert found.tobytes() == rounded_once(arrays, divisor=WORLD).tobytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.float64)], ids=str)
def test_every_way_makes_the_same_nan(group: Callable[[str], Group], dtype: np.dtype[Any], way: str) -> None:
    """Add NaNs with any sign and payload, in whatever order they meet, and Inf - Inf."""
    workers = group(way)
    for size in (50, 3001):
        arrays = [np.ones(size, dtype) for _ in range(WORLD)]
        odd = nans(dtype)
        for rank in range(WORLD):
            mine = arrays[rank]
            mine[rank:30:WORLD] = np.resize(odd, mine[rank:30:WORLD].size)  # one rank's
            mine[30:40] = np.resize(np.roll(odd, rank), 10)  # all ranks'
            mine[40] = np.inf if rank % 2 else -np.inf
        for op in ("sum", "avg", "prod", "max", "min"):
            found = same(workers.run(lambda c: c.all_reduce(arrays[c.rank], op)))  # noqa: B023
            bad = 41 if op in ("sum", "avg") else 40
            assert np.isnan(found[:bad]).all(), op
            assert not np.isnan(found[bad:]).any(), op
            assert has_the_one_nan(found), op
