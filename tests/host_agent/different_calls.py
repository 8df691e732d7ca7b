"""Calls that workers may make, drawn at random, and what a rank gets of those that it makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from controller.api.messages import Mode
from host_agent.collectives.plan import cheaper
from host_agent.communicator import Communicator
from host_agent.quantisation import BFLOAT16
from host_agent.wire.aggregation import Kind

ADDABLE: list[np.dtype[Any]] = [np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
PLAIN: list[Any] = [np.int8, np.uint8, np.int64, np.float64, np.complex64]
TEXTS_AND_DATES = ["S4", "S5", "U1", "V4", "M8[s]", "M8[ms]"]
SMALL_FLOATS = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
RECORDS = [[("a", "i4"), ("b", "i4")], [("a", "i4"), ("b", "f4")]]
OTHERS: list[np.dtype[Any]] = [np.dtype(one) for one in (*PLAIN, *TEXTS_AND_DATES, *SMALL_FLOATS, *RECORDS)]
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast")


@dataclass(frozen=True)
class Made:
    """A call. What has no meaning for its kind is None."""

    kind: str
    dtype: np.dtype[Any] | None = None
    elements: int | None = None
    op: str | None = None
    root: int | None = None
    strategy: str | None = None

    def means(self, mode: Mode, world_size: int) -> tuple[Any, ...]:
        """Return what is the same for ranks that have called the same."""
        return self.kind, self.dtype, self.elements, self.op, self.root, self.way(mode, world_size)

    def way(self, mode: Mode, world_size: int) -> str:
        """Return how the call travels."""
        if mode is Mode.RING:
            return "ring"
        if self.strategy not in (None, "auto"):
            return str(self.strategy)
        scaled = self.kind in REDUCING and self.dtype != np.int32
        nbytes = 0 if self.dtype is None else (self.elements or 0) * self.dtype.itemsize
        return cheaper(Kind[self.kind.upper()], nbytes, world_size, scaled=scaled).value

    def words(self, mode: Mode, world_size: int) -> str:
        """Return the words that an error calls it by."""
        what = self.kind if self.op is None else f"{self.kind}({self.op.upper()})"
        if self.dtype is not None:
            what += f" of {self.elements} {self.dtype}"
        if self.root is not None:
            what += f" {'to' if self.kind == 'reduce' else 'from'} rank {self.root}"
        return f"{what} {'by ring' if self.way(mode, world_size) == 'ring' else 'in-network'}"

    def array(self, rank: int) -> np.ndarray[Any, Any]:
        assert self.dtype is not None
        assert self.elements is not None
        values = np.arange(self.elements) % 50 + rank
        if self.dtype in ADDABLE:
            return values.astype(self.dtype)
        return np.resize(values.astype(np.uint8), self.elements * self.dtype.itemsize).view(self.dtype)

    def on(self, c: Communicator, *, later: bool = False) -> Any:
        """Make it; `later`: what it returns is a future."""
        arguments: dict[str, Any] = {}
        if self.op is not None:
            arguments["op"] = self.op
        if self.root is not None:
            arguments["root"] = self.root
        if self.strategy is not None:
            arguments["strategy"] = self.strategy
        what = () if self.elements is None else (self.array(c.rank),)
        return getattr(c, self.kind)(*what, async_op=later, **arguments)

    def check(self, result: Any, rank: int, world_size: int) -> None:
        """Check what rank `rank` got."""
        if self.kind == "barrier":
            assert result is None
            return
        arrays = [self.array(other) for other in range(world_size)]
        if self.kind == "broadcast":
            assert self.root is not None
            assert result.tobytes() == arrays[self.root].tobytes()
        elif self.kind == "all_gather":
            assert result.tobytes() == b"".join(array.tobytes() for array in arrays)
        elif self.kind == "reduce" and rank != self.root:
            assert result is None
        else:
            wide = np.array([array.astype(np.float64) for array in arrays])
            how: Any = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min}[self.op or "sum"]
            expected = how(wide, axis=0)
            if self.op == "avg" and self.dtype == np.int32:
                expected = np.trunc(expected)
            if self.kind == "reduce_scatter":
                expected = np.split(expected, world_size)[rank]
            np.testing.assert_allclose(result.astype(np.float64), expected, rtol=2**-7)


def made(world_size: int, mode: Mode) -> st.SearchStrategy[Made]:
    """Return a strategy for calls. Sizes are few, so that calls that differ in one thing are likely."""
    ways = st.sampled_from(["auto", "ring"] if mode is Mode.RING else ["auto", "ring", "in-network"])
    sizes = st.sampled_from([0, 1, 2, 3, 4, 8, 12, 500, 3000]).map(lambda n: n * world_size)

    @st.composite
    def draw_one(draw: st.DrawFn) -> Made:
        kind = draw(st.sampled_from([*REDUCING, "broadcast", "all_gather", "barrier"]))
        if kind == "barrier":
            return Made(kind)
        return Made(
            kind,
            dtype=draw(st.sampled_from(ADDABLE if kind in REDUCING else ADDABLE + OTHERS)),
            elements=draw(sizes),
            op=draw(st.sampled_from(["sum", "avg", "max", "min"])) if kind in REDUCING else None,
            root=draw(st.integers(0, world_size - 1)) if kind in ROOTED else None,
            strategy=draw(ways),
        )

    return draw_one()


@st.composite
def almost(draw: st.DrawFn, call: Made, world_size: int, mode: Mode) -> Made:
    """Draw a call that differs from `call` in one thing, or in anything."""
    other = draw(made(world_size, mode))
    changes: list[dict[str, Any]] = [
        {name: getattr(other, name)}
        for name in ("dtype", "elements", "op", "root", "strategy")
        if (getattr(call, name) is None) == (getattr(other, name) is None)
        and (name != "dtype" or call.kind not in REDUCING or other.dtype in ADDABLE)
    ]
    changes = [
        change
        for change in changes
        if replace(call, **change).means(mode, world_size) != call.means(mode, world_size)
    ]
    if changes and draw(st.sampled_from([True, True, True, False])):
        return replace(call, **draw(st.sampled_from(changes)))
    return other


@st.composite
def disagreeing(draw: st.DrawFn, world_size: int, mode: Mode) -> list[list[Made]]:
    """Draw each rank's calls: the same up to one in which not all are the same."""
    before = draw(st.lists(made(world_size, mode), max_size=1))
    one = draw(made(world_size, mode))
    other = draw(
        almost(one, world_size, mode).filter(
            lambda call: call.means(mode, world_size) != one.means(mode, world_size)
        )
    )
    odd = draw(st.sets(st.integers(0, world_size - 1), min_size=1, max_size=world_size - 1))
    if draw(st.booleans()):  # in another order
        return [[*before, *((other, one) if rank in odd else (one, other))] for rank in range(world_size)]
    after = draw(st.lists(made(world_size, mode), max_size=1))
    return [[*before, other if rank in odd else one, *after] for rank in range(world_size)]
