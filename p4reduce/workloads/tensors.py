"""Seeded tensors that every process can make for every rank, and checks of their reductions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from host_agent.arguments import of_switches, wire_of
from host_agent.collectives.plan import Strategy, Wire
from host_agent.errors import UsageError
from host_agent.quantisation import BFLOAT16, divide, error_bound
from host_agent.wire.aggregation import Reduction
from p4reduce.workloads.errors import WorkloadError

if TYPE_CHECKING:  # it takes native code, which those who only name a type need not wait for
    from p4reduce.workloads.references import Reference

Array = NDArray[Any]
DTYPES: dict[str, np.dtype[Any]] = {
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}
OPERATIONS = {r.name.lower(): r for r in Reduction if r is not Reduction.NONE}
_MAX_BYTES = 1 << 32
_PART = 1 << 20  # elements looked at together: the check's memory stays small


@dataclass(frozen=True, kw_only=True)
class Check:
    """A comparison of a result with NumPy's, at the element nearest to its bound or farthest beyond it.

    `largest_error` is 0 if the whole result is exact. `same_bits`: whether the result has the only bits that
    the protocol allows; None if it allows several, or if nobody said how the result was made.
    """

    exact: bool
    largest_error: float
    bound: float
    same_bits: bool | None = None

    @property
    def passed(self) -> bool:
        """True if the result is as right as the protocol promises."""
        return self.same_bits is not False and (self.exact or self.largest_error <= self.bound)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return an element type by name; WorkloadError lists the names."""
    if name.lower() not in DTYPES:
        raise WorkloadError(f"{name!r} is no element type; there are {', '.join(DTYPES)}")
    return DTYPES[name.lower()]


def elements_of(size: int, dtype: str) -> int:
    """Return the number of elements in `size` bytes; WorkloadError if it is zero, not whole, or too large."""
    each = dtype_of(dtype).itemsize
    if size < each:
        raise WorkloadError(f"{size} bytes are no tensor: at least one element ({each} bytes)")
    if size % each:
        raise WorkloadError(f"{size} bytes are not a whole number of {dtype} elements ({each} bytes)")
    if size >= _MAX_BYTES:
        raise WorkloadError(f"{size} bytes are too many for one all-reduce: less than 4 GiB")
    return size // each


def operation_of(name: str) -> Reduction:
    """Return an operation by name; WorkloadError lists the names."""
    if name.lower() not in OPERATIONS:
        raise WorkloadError(f"{name!r} is no operation; there are {', '.join(OPERATIONS)}")
    return OPERATIONS[name.lower()]


def complaint(check: Mapping[str, Any]) -> str:
    """Describe what is wrong with a result whose `Check` did not pass; `check` has the fields of one."""
    if check["largest_error"] <= check["bound"]:
        return (
            f"off by {check['largest_error']:g}, less than the bound {check['bound']:g}, but not by what the "
            "protocol says: its bits are others"
        )
    return f"off by {check['largest_error']:g}, the bound is {check['bound']:g}"


def added_by_switches(dtype: str, op: str) -> bool:
    """Return whether a switch can make that reduction; others go by ring. WorkloadError: unknown name."""
    return of_switches(dtype_of(dtype), operation_of(op))


def require_wire(wire: str, dtype: np.dtype[Any], op: str) -> None:
    """Raise WorkloadError if such a reduction cannot go over that wire, or if there is no such wire."""
    try:
        wire_of(wire, dtype, operation_of(op))
    except UsageError as error:
        raise WorkloadError(str(error)) from error


def tensor(*, seed: int, rank: int, elements: int, dtype: np.dtype[Any]) -> Array:
    """Make rank `rank`'s random tensor: whole-range integers, or normal floats."""
    parts = [part for _, part in _parts(_PART, seed=seed, rank=rank, elements=elements, dtype=dtype)]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def digest(array: Array) -> str:
    """Return a hash of the array's bits."""
    return hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data, digest_size=16).hexdigest()


def check(
    result: Array,
    *,
    seed: int,
    world_size: int,
    reduction: Reduction,
    strategy: Strategy = Strategy.IN_NETWORK,
    ranks: Sequence[int] = (),
    reference: Reference | None = None,
    wire: Wire = Wire.FULL,
) -> Check:
    """Compare the reduction of all ranks' tensors (or of `ranks`, `world_size` of them) with NumPy's.

    Integers, MAX and MIN have to be equal. Float sums in the network have to keep `quantisation.error_bound`.
    Floats that are added or multiplied in floating point ("ring"), in whatever order, have to keep
    `_bounds_of_additions` or `_bounds_of_products`. With a `reference`, the bits have to equal its bits.
    """
    dtype, elements = result.dtype, result.size
    chosen = ranks or range(world_size)
    if not of_switches(dtype, reduction):
        strategy = Strategy.RING
    if _must_be_equal(dtype, reduction):
        reference = None  # there is nothing else that it could be
    part = _PART if reference is None else -(-_PART // reference.step(dtype)) * reference.step(dtype)
    parts = [_parts(part, seed=seed, rank=r, elements=elements, dtype=dtype) for r in chosen]
    divisor = world_size if reduction is Reduction.AVG else 1
    same_bits = None if reference is None else True
    exact, worst, largest = True, 0.0, 0.0
    nearest = (0.0, 0.0, 0.0)  # by ring: what share of its bound an error is, the error, the bound
    for pieces in zip(*parts, strict=True):
        start = pieces[0][0]
        inputs = [piece for _, piece in pieces]
        found = result[start : start + inputs[0].size]
        expected = _expected(inputs, reduction)
        wide = expected.dtype if expected.dtype.kind == "f" else np.dtype(np.longdouble)  # all of 64 bits
        difference = np.abs(found.astype(wide) - expected.astype(wide)).astype(np.float64)
        worst = float(np.maximum(worst, difference.max(initial=0.0)))  # a NaN stays
        exact = exact and bool(np.array_equal(found.astype(expected.dtype), expected))
        if reference is not None:
            right = reference.result(inputs, start=start, elements=elements, divisor=divisor)
            same_bits = same_bits and found.tobytes() == right.tobytes()
        if not _must_be_equal(dtype, reduction):
            widened = [np.abs(piece.astype(np.float64)) for piece in inputs]
            largest = max(largest, *(float(piece.max()) for piece in widened))
            if strategy is Strategy.RING:
                bounds_of = _bounds_of_products if reduction is Reduction.PROD else _bounds_of_additions
                bounds = bounds_of(widened, dtype, reduction)
                nearest = max(nearest, _nearest(difference, bounds))
    if _must_be_equal(dtype, reduction):
        return Check(exact=exact, largest_error=worst, bound=0.0)
    if strategy is Strategy.RING:
        return Check(exact=exact, largest_error=nearest[1], bound=nearest[2], same_bits=same_bits)
    bound = error_bound(
        largest,
        world_size=world_size,
        dtype=dtype,
        reduction=reduction,
        half=wire.halves(dtype),
        racks=world_size,
    )
    return Check(exact=exact, largest_error=worst, bound=bound, same_bits=same_bits)


def _parts(
    part: int, *, seed: int, rank: int, elements: int, dtype: np.dtype[Any]
) -> Iterator[tuple[int, Array]]:
    """Yield a tensor in pieces of `part` elements, with their starts; `part` does not change the tensor."""
    random = np.random.default_rng([seed, rank])
    for start in range(0, elements, part):
        size = min(part, elements - start)
        if dtype.kind == "i":
            limits = np.iinfo(dtype)
            yield start, random.integers(limits.min, limits.max, size, dtype=dtype.type, endpoint=True)
        elif dtype == np.float64:
            yield start, random.standard_normal(size)
        else:
            yield start, random.standard_normal(size, dtype=np.float32).astype(dtype)


def _expected(inputs: list[Array], reduction: Reduction) -> Array:
    """Reduce in the tensors' own type if that is exact, else in floats of more bits."""
    dtype = inputs[0].dtype
    if reduction in (Reduction.MAX, Reduction.MIN):
        pick = np.maximum if reduction is Reduction.MAX else np.minimum
        own = inputs if dtype.itemsize == 8 else [piece.astype(np.float64) for piece in inputs]
        extreme: Array = pick.reduce(own)
        return extreme
    fold = np.multiply if reduction is Reduction.PROD else np.add
    if dtype.kind == "i":
        total: Array = fold.reduce(inputs, dtype=dtype)  # wraps
        return divide(total, len(inputs)) if reduction is Reduction.AVG else total
    wide = np.longdouble if dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        exact: Array = fold.reduce([piece.astype(wide) for piece in inputs])
    return exact / len(inputs) if reduction is Reduction.AVG else exact


def _must_be_equal(dtype: np.dtype[Any], reduction: Reduction) -> bool:
    return dtype.kind == "i" or reduction in (Reduction.MAX, Reduction.MIN)


def _bounds_of_products(
    magnitudes: list[NDArray[np.float64]], dtype: np.dtype[Any], reduction: Reduction
) -> NDArray[np.float64]:
    """Return the most that each element of a product of N floats may be off, in any order of multiplication.

    It is (1 + u)^(N - 1) - 1 of the product, plus the loss by underflow, which later factors enlarge.
    """
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    others, product = len(magnitudes) - 1, np.multiply.reduce(magnitudes)
    largest = np.maximum.reduce([*magnitudes, np.ones_like(product)])
    lost = float(info.smallest_subnormal) * others * largest**others
    bounds: NDArray[np.float64] = np.expm1(others * np.log1p(float(info.eps) / 2)) * product + lost
    return bounds


def _bounds_of_additions(
    magnitudes: list[NDArray[np.float64]], dtype: np.dtype[Any], reduction: Reduction
) -> NDArray[np.float64]:
    """Return the most that each element of a sum of N floats may be off, in any order of addition.

    It is (N - 1) u times the sum of the magnitudes, u half a unit in the last place [C.-P. Jeannerod, S. M.
    Rump: Improved Error Bounds for Inner Products in Floating-Point Arithmetic, 2013]. Additions lose nothing
    to underflow. An average is rounded once more.
    """
    summands, total = len(magnitudes), np.add.reduce(magnitudes)
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    unit = float(info.eps) / 2
    added: NDArray[np.float64] = (summands - 1) * unit * total
    if reduction is not Reduction.AVG:
        return added
    divided: NDArray[np.float64] = (added + unit * (total + added)) / summands
    return divided + float(info.smallest_subnormal) / 2


def _nearest(errors: NDArray[np.float64], bounds: NDArray[np.float64]) -> tuple[float, float, float]:
    """Find the error that is the largest share of its bound; return the share, the error and the bound."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(errors == 0, 0.0, errors / bounds)
    place = int(np.argmax(np.where(np.isnan(shares), np.inf, shares)))
    return float(np.nan_to_num(shares[place], nan=np.inf)), float(errors[place]), float(bounds[place])
