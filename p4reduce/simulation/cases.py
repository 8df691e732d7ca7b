"""One collective of all ranks: its inputs, its steps on a rank, and the check of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from host_agent.collectives import in_network, ring
from host_agent.collectives.plan import SMALL_BYTES, Call, Steps, Wire
from host_agent.quantisation import ELEMENT_TYPES, divide, error_bound, max_abs
from host_agent.wire.aggregation import Reduction

Array = NDArray[Any]
DTYPES = list(ELEMENT_TYPES)
REDUCTIONS = [Reduction.SUM, Reduction.AVG, Reduction.MAX, Reduction.MIN]
RING_DTYPES = [np.dtype(np.int64), np.dtype(np.float64)]  # of which no switch adds any


@dataclass(frozen=True)
class Case:
    """A collective: the function `name` of `module` (ring or in_network), on `elements` of `dtype` a rank."""

    module: str
    name: str
    dtype: np.dtype[Any]
    elements: int
    reduction: Reduction = Reduction.SUM
    root: int = 0
    non_finite: bool = False
    half: bool = False  # floats of 32 bits travel through the switch in 16
    scaled: bool = False  # small floats, too, and do not go whole
    small: bool = False  # integers of two digits, for people who add them up

    @property
    def wire(self) -> Wire:
        """The width of floats on the wire."""
        return Wire.HALF if self.half else Wire.FULL

    def inputs(self, world_size: int, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        size = self.elements * world_size if self.name == "reduce_scatter" else self.elements
        if self.dtype.kind == "i":
            limits = np.iinfo(self.dtype)
            least, most = (1, 99) if self.small else (limits.min, limits.max)
            drawn = [rng.integers(least, most, size, endpoint=True) for _ in range(world_size)]
            return [one.astype(self.dtype) for one in drawn]
        scale = np.exp2(rng.integers(-20, 3))
        arrays = [(rng.standard_normal(size) * scale).astype(self.dtype) for _ in range(world_size)]
        if self.non_finite and size:
            arrays[self.root % world_size][0] = np.inf
            arrays[0][-1] = np.nan
        return arrays

    def output(self, world_size: int) -> Array:
        size = self.elements * world_size if self.name == "all_gather" else self.elements
        return np.full(size, 99, self.dtype)

    def call(self, rank: int, world_size: int, number: int = 0, ring: tuple[int, ...] = ()) -> Call:
        adds = self.name in ("all_reduce", "reduce_scatter")
        reduction = self.reduction if adds else Reduction.NONE
        return Call(
            rank=rank,
            world_size=world_size,
            collective=number,
            reduction=reduction,
            ring=ring,
            wire=self.wire,
            small_bytes=0 if self.scaled else SMALL_BYTES,
        )

    def steps(self, call: Call, array: Array, out: Array) -> Steps[Any]:
        module: Any = in_network if self.module == "in_network" else ring
        if self.name == "barrier":
            return module.barrier(call)  # type: ignore[no-any-return]
        if self.name == "broadcast":
            return module.broadcast(call, array, out, root=self.root % call.world_size)  # type: ignore[no-any-return]
        run: Callable[..., Steps[Any]] = getattr(module, self.name)
        return run(call, array, out)

    def check_reduction(self, inputs: list[Array], result: Array) -> None:
        with np.errstate(all="ignore"):
            if self.reduction in (Reduction.MAX, Reduction.MIN):
                pick: Any = np.maximum if self.reduction is Reduction.MAX else np.minimum
                wide = as64 if self.dtype.kind != "i" else np.asarray  # bfloat16's NaN is not NumPy's
                np.testing.assert_array_equal(wide(result), wide(pick.reduce(inputs)))
                return
            fold = np.multiply if self.reduction is Reduction.PROD else np.add
            if self.dtype.kind == "i":
                total = fold.reduce(inputs, dtype=self.dtype)
                np.testing.assert_array_equal(
                    result, divide(total, len(inputs)) if self.reduction is Reduction.AVG else total
                )
                return
            if self.reduction is Reduction.PROD:
                product = np.multiply.reduce([array.astype(np.longdouble) for array in inputs])
                limits = ml_dtypes.finfo(self.dtype)  # type: ignore[no-untyped-call]
                apart = np.abs(result.astype(np.longdouble) - product)
                least = 64 * float(limits.smallest_normal)  # below, bits are lost
                assert (apart <= len(inputs) * float(limits.eps) * np.abs(product) + least).all()
                return
            exact = np.sum([as64(array) for array in inputs], axis=0)
            if self.reduction is Reduction.AVG:
                exact /= len(inputs)
            finite = np.isfinite(exact)
            np.testing.assert_array_equal(np.isnan(as64(result)), np.isnan(exact))
            assert (as64(result)[~finite & ~np.isnan(exact)] == exact[~finite & ~np.isnan(exact)]).all()
            errors = np.abs(as64(result) - exact)[finite]
            assert errors.max(initial=0) <= self.bound(inputs)

    def bound(self, inputs: list[Array]) -> float:
        finite = [np.where(np.isfinite(array), array, np.zeros(1, self.dtype)) for array in inputs]
        largest = max((float(max_abs(array)) for array in finite), default=0.0)
        by_switch = error_bound(
            largest,
            world_size=len(inputs),
            dtype=self.dtype,
            reduction=self.reduction,
            half=self.wire.halves(self.dtype),
            racks=len(inputs),
        )
        if self.module == "in_network" and not self.non_finite:
            return by_switch
        eps = {8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-7}[self.dtype.itemsize]  # ring: one rounding an addition
        by_ring = len(inputs) ** 2 * max(largest, 2.0**-20) * eps
        return max(by_switch, by_ring) if self.module == "in_network" else by_ring


def as64(array: Array) -> NDArray[np.float64]:
    return array.astype(np.float64)


def same_bits(left: Array, right: Array) -> None:
    assert left.tobytes() == right.tobytes()
