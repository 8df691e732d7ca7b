"""Tensors that `bench.accuracy` sums: constructed ones, and gradients of networks that learn digits.

Rows are the workers' inputs to an all-reduce, in float64; `as_type` makes of them the numbers that a job in
that type would sum. A tensor may be in several buckets, each of which is an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.digits import Descent, Network, load

Rows = NDArray[np.float64]
Tensor = tuple[str, Sequence[Sequence[NDArray[Any]]]]  # its name, and of each bucket what each worker has

NORMAL: Final = "normal"
LAYERS: Final = "32 layers, 1 to 2^-31"
SPREAD: Final = "1 to 2^-40 in each block"
SUBNORMALS: Final = "subnormals"
WORKERS: Final = 32  # that bring rows; a smaller job sums the first ones
LATE_STEPS: Final = 300
SEED: Final = 18
_LAYERS: Final = 32
_LAYER_ELEMENTS: Final = 2048
_ELEMENTS: Final = 32768
_SPREAD: Final = 40
_HUGE: Final = 2.0**20
_SUBNORMAL_BITS: Final = 6  # of the largest subnormals here: in every type they are subnormal
_FLOAT16_TOP: Final = 9  # 32 numbers below 2^9 stay below what float16 ends at


def constructed(dtype: np.dtype[Any]) -> Iterator[Tensor]:
    """Yield the constructed tensors in that type."""
    for number, (name, make) in enumerate(_MAKERS.items()):
        yield name, [as_type(make(np.random.default_rng([SEED, number])), dtype)]
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    most = 2**_SUBNORMAL_BITS
    random = np.random.default_rng([SEED, len(_MAKERS)])
    whole: Rows = random.integers(-most, most, (WORKERS, _ELEMENTS)).astype(np.float64)
    yield SUBNORMALS, [list((whole * float(info.smallest_subnormal)).astype(dtype))]


def digits() -> Iterator[tuple[str, list[Rows]]]:
    """Yield the gradients of `p4reduce.workloads.digits`, of its first step and after `LATE_STEPS`."""
    training, _ = load(seed=SEED)
    shards = [training.shard(rank, WORKERS) for rank in range(WORKERS)]
    network = Network()
    descent = Descent(network.initial(seed=SEED))
    for name, steps in (("first", 0), ("late", LATE_STEPS)):
        for _ in range(steps):
            descent.step(network.gradient(descent.parameters, training) / len(training))
        rows = np.stack([network.gradient(descent.parameters, one) for one in shards])
        yield f"digits, {name}", [rows]


def as_type(rows: Rows, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    """Convert each row to that type; float16 rows are scaled by one power of two, as loss scaling does."""
    if dtype == np.float16:
        largest = float(np.abs(rows).max())
        rows = np.ldexp(rows, _FLOAT16_TOP - int(np.frexp(largest)[1]))
    return [row.astype(np.float32).astype(dtype) for row in rows]


def _layers(random: np.random.Generator) -> Rows:
    magnitudes = np.repeat(2.0 ** -np.arange(_LAYERS), _LAYER_ELEMENTS)
    return random.standard_normal((WORKERS, magnitudes.size)) * magnitudes


def _spread(random: np.random.Generator) -> Rows:
    magnitudes = 2.0 ** -random.uniform(0, _SPREAD, _ELEMENTS)
    return random.standard_normal((WORKERS, _ELEMENTS)) * magnitudes


def _one_huge(random: np.random.Generator) -> Rows:
    rows = random.standard_normal((WORKERS, _ELEMENTS))
    rows[:, _ELEMENTS // 2] = _HUGE
    return rows


def _equal(random: np.random.Generator) -> Rows:
    return np.full((WORKERS, _ELEMENTS), random.uniform(1, 2))


def _normal(random: np.random.Generator) -> Rows:
    return random.standard_normal((WORKERS, _ELEMENTS))


_MAKERS: Final[dict[str, Callable[[np.random.Generator], Rows]]] = {
    NORMAL: _normal,
    LAYERS: _layers,
    SPREAD: _spread,
    "one element 2^20 times as large": _one_huge,
    "all equal": _equal,
}
CONSTRUCTED: Final = (*_MAKERS, SUBNORMALS)
