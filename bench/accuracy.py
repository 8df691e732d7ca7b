"""How near an all-reduce's sum comes to the exact one: in the network, by ring, with one scale a tensor.

    .venv/bin/python -m bench.accuracy --json FILE --figure docs/accuracy.svg --table FILE

No network: the sums are computed by the functions that the native code and the switch are held to bit for bit
in the tests (`quantisation.block_sum`), and by the native code that a ring adds with (`fold`), in its order.
Each is compared with the float64 sum of the same numbers. A tensor comes in float32, float16 and bfloat16;
what a type cannot hold of it is lost before, and no error here. Models need PyTorch; where it is not
installed, they are left out.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from bench import command
from bench.accuracy_figure import RAISED, figure
from bench.accuracy_tensors import CONSTRUCTED, WORKERS, Rows, Tensor, as_type, constructed, digits
from host_agent.collectives.plan import ring_parts
from host_agent.quantisation import (
    BFLOAT16,
    ELEMENT_TYPES,
    Blocks,
    block_exponent,
    block_sum,
    from_fixed,
    max_abs,
    scale_of,
    to_fixed,
)
from host_agent.transport.native import library

DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
WORLD_SIZES: Final = (4, 8, 32)
IN_NETWORK: Final = "in-network"
TWO_RACKS: Final = "in-network, two racks"
RING: Final = "ring"
ONE_SCALE: Final = "one scale a tensor"
METHODS: Final = (IN_NETWORK, TWO_RACKS, RING, ONE_SCALE)
REAL: Final = "all gradients"  # of networks and models, together
STEP: Final = 4  # powers of two that a row by magnitude covers
PATH_MTU: Final = 4096
MESSAGE_PACKETS: Final = 16
_FOLD_SUM: Final = 1
_WORSE: Final = 1.05  # than a ring: by more than what is chance
_LAST: Final = 24  # tables leave out what is below 2^-24
_SHOWN: Final = 8  # workers, in tables for the docs

Sum = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """Errors of one way to sum one tensor, of all elements or those of one magnitude.

    An element's magnitude is its largest contribution's. `of` says what that is set against: the largest in
    the "tensor" or in the "block"; `below` k are those in 2^-k · (2^-STEP, 1] of it. `rms` and `largest` are
    relative to the element's own magnitude, `rms_of_tensor` and `largest_of_tensor` to the tensor's largest.
    `nearer` and `farther` are shares of the elements: than in the ring's sum.
    """

    tensor: str
    dtype: str
    world_size: int
    method: str
    of: str
    below: int
    elements: int
    rms: float
    largest: float
    rms_of_tensor: float
    largest_of_tensor: float
    nearer: float
    farther: float


@dataclass(frozen=True)
class Errors:
    """Of elements that some rank has: their magnitudes, and what those are set against."""

    error: Rows
    own: Rows
    block: Rows
    tensor: Rows

    @classmethod
    def together(cls, parts: Iterable[Errors]) -> Errors:
        """Of several tensors."""
        columns = zip(*((one.error, one.own, one.block, one.tensor) for one in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def of(self, largest: Rows) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Rows by magnitude: k, and which elements."""
        powers = np.floor(-np.log2(self.own / largest) / STEP).astype(int) * STEP
        for power in sorted(set(powers.tolist())):
            yield power, powers == power


def blocks_of(*, half: bool) -> Blocks:
    """As a job cuts a tensor for lanes of 32 bits, or of 16."""
    return Blocks.of(path_mtu=PATH_MTU, message_packets=MESSAGE_PACKETS, half=half)


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether it travels in lanes of 16 bits."""
    return dtype.itemsize == 2


def in_network(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Ranks behind one switch."""
    half = is_half(arrays[0].dtype)
    out, _ = block_sum(arrays, blocks_of(half=half), half=half)
    return out


def in_two_racks(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Half of the ranks behind each of two leaves, whose sums a spine adds."""
    ranks = range(len(arrays))
    racks = (ranks[: len(arrays) // 2], ranks[len(arrays) // 2 :])
    half = is_half(arrays[0].dtype)
    out, _ = block_sum(arrays, blocks_of(half=half), half=half, racks=racks)
    return out


def ring(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Part p begins at rank p; each rank after it adds its own, in the tensor's type."""
    size, out = len(arrays), np.empty_like(arrays[0])
    for first, part in enumerate(ring_parts(out.size, size)):
        total = arrays[first][part].copy()
        for step in range(1, size):
            own = arrays[(first + step) % size][part].copy()
            library().p4r_fold(
                _FOLD_SUM, ELEMENT_TYPES[own.dtype], own.ctypes.data, total.ctypes.data, own.size
            )
            total = own
        out[part] = total
    return out


def one_scale(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Fixed point with a scale for the whole tensor, as in releases before block scales."""
    scale = scale_of(max(block_exponent(array) for array in arrays), len(arrays), half=False)
    total = np.add.reduce([to_fixed(array, scale) for array in arrays], dtype=np.int32)
    return from_fixed(total, scale, arrays[0].dtype)


WAYS: Final[dict[str, Sum]] = {
    IN_NETWORK: in_network,
    TWO_RACKS: in_two_racks,
    RING: ring,
    ONE_SCALE: one_scale,
}


def methods(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Fixed point has the same bits with one rack or two."""
    return METHODS if is_half(dtype) else tuple(one for one in METHODS if one != TWO_RACKS)


def errors(arrays: Sequence[NDArray[Any]], method: str) -> Errors:
    """Of one tensor's sum."""
    wide = np.stack(arrays).astype(np.float64)
    exact, own = wide.sum(axis=0), np.abs(wide).max(axis=0)
    block = np.empty_like(own)
    for place in blocks_of(half=is_half(arrays[0].dtype)).slices(own.size):
        block[place] = max_abs(own[place])
    error = np.abs(WAYS[method](arrays).astype(np.float64) - exact)
    there = own > 0
    tensor = np.full(own.size, max_abs(own))
    return Errors(error[there], own[there], block[there], tensor[there])


def rows_of(
    found: Errors, ring: Errors, *, tensor: str, dtype: str, world_size: int, method: str
) -> Iterator[Row]:
    """The figures of all elements, then by magnitude."""
    relative, of_tensor = found.error / found.own, found.error / found.tensor

    def row(of: str, below: int, chosen: NDArray[np.bool_]) -> Row:
        return Row(
            tensor=tensor,
            dtype=dtype,
            world_size=world_size,
            method=method,
            of=of,
            below=below,
            elements=int(chosen.sum()),
            rms=_rms(relative[chosen]),
            largest=float(relative[chosen].max()),
            rms_of_tensor=_rms(of_tensor[chosen]),
            largest_of_tensor=float(of_tensor[chosen].max()),
            nearer=float(np.mean(found.error[chosen] < ring.error[chosen])),
            farther=float(np.mean(found.error[chosen] > ring.error[chosen])),
        )

    yield row("all", 0, np.ones(found.own.size, bool))
    for of, largest in (("tensor", found.tensor), ("block", found.block)):
        for power, chosen in found.of(largest):
            yield row(of, power, chosen)


def _rms(values: Rows) -> float:
    return float(np.sqrt(np.mean(values**2)))


def measure(
    tensors: Sequence[Tensor], dtype: np.dtype[Any], world_size: int, *, together: str | None = None
) -> Iterator[Row]:
    """Rows of each tensor, of its buckets as of one; and of all of them under the name `together`."""
    rings = [_errors_of(buckets, RING, world_size) for _, buckets in tensors]
    for method in methods(dtype):
        rows = partial(rows_of, dtype=str(dtype), world_size=world_size, method=method)
        found = rings if method == RING else [_errors_of(b, method, world_size) for _, b in tensors]
        for (name, _), one, ring in zip(tensors, found, rings, strict=True):
            yield from rows(one, ring, tensor=name)
        if together is not None:
            yield from rows(Errors.together(found), Errors.together(rings), tensor=together)


def _errors_of(buckets: Sequence[Sequence[NDArray[Any]]], method: str, world_size: int) -> Errors:
    return Errors.together(errors(arrays[:world_size], method) for arrays in buckets)


def all_rows(
    real: Sequence[tuple[str, Sequence[Rows]]],
    world_sizes: Sequence[int],
    dtypes: Sequence[np.dtype[Any]] = DTYPES,
) -> Iterator[Row]:
    """Every constructed tensor, every real one, and the real ones together; in all types."""
    for dtype in dtypes:
        made = list(constructed(dtype))
        typed: list[Tensor] = [(name, [as_type(rows, dtype) for rows in buckets]) for name, buckets in real]
        for world_size in world_sizes:
            yield from measure(made, dtype, world_size)
            yield from measure(typed, dtype, world_size, together=REAL)


def worse(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows of sums in the network whose error is larger than the ring's, which is the second one."""
    rings = {_place(row): row for row in rows if row.method == RING}
    pairs = [(row, rings[_place(row)]) for row in rows if row.method in (IN_NETWORK, TWO_RACKS)]
    return [(row, ring) for row, ring in pairs if row.rms > _WORSE * ring.rms]


def _place(row: Row) -> tuple[str, str, int, str, int]:
    return row.tensor, row.dtype, row.world_size, row.of, row.below


def power_of_ten(value: float, *, digits: int = 1) -> str:
    """As 4.1·10⁻⁸."""
    if value == 0:
        return "0"
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}·10{str(int(exponent)).translate(RAISED)}" if int(exponent) else mantissa


def markdown(rows: Sequence[Row]) -> str:
    """The tables of docs/accuracy.md, of `_SHOWN` workers where they do not say of how many."""
    shown = [row for row in rows if row.world_size == _SHOWN]
    everything = [row for row in rows if row.tensor == REAL]
    made = [row for row in shown if row.tensor in CONSTRUCTED]
    trained = [row for row in shown if row.tensor not in CONSTRUCTED]
    return "\n".join(
        [
            *_beside_ring([row for row in everything if row.of == "all"]),
            *_by_tensor([row for row in made if row.of == "all"], lambda row: (row.rms, row.largest)),
            *_by_tensor(
                [row for row in trained if row.of == "all"],
                lambda row: (row.rms_of_tensor, row.largest_of_tensor),
            ),
            *_by_magnitude([row for row in trained if (row.tensor, row.of) == (REAL, "tensor")]),
            *_by_magnitude([row for row in trained if (row.tensor, row.of) == (REAL, "block")]),
            *_by_workers([row for row in everything if row.of == "block"]),
        ]
    )


def _beside_ring(rows: Sequence[Row]) -> list[str]:
    lines = _head("type", "workers", "nearer than by ring", "farther", "two racks: nearer", "farther", left=1)
    for dtype, size in dict.fromkeys((row.dtype, row.world_size) for row in rows):
        own = {r.method: r for r in rows if (r.dtype, r.world_size) == (dtype, size)}
        shares = [
            f"{share:.2%}"
            for method in (IN_NETWORK, TWO_RACKS)
            if method in own
            for share in (own[method].nearer, own[method].farther)
        ]
        lines.append(_line(dtype, str(size), *shares, *[""] * (4 - len(shares))))
    return [*lines, ""]


def _by_tensor(rows: Sequence[Row], figures: Callable[[Row], tuple[float, float]]) -> list[str]:
    lines = _head("type", "tensor", *METHODS, left=2)
    for dtype, name in dict.fromkeys((row.dtype, row.tensor) for row in rows):
        own = {row.method: row for row in rows if (row.dtype, row.tensor) == (dtype, name)}
        cells = [_cell(own.get(method), own[RING], figures) for method in METHODS]
        lines.append(_line(dtype, name, *cells))
    return [*lines, ""]


def _by_magnitude(rows: Sequence[Row]) -> list[str]:
    lines = _head("type", f"of the {rows[0].of}'s largest" if rows else "", "elements", *METHODS, left=2)
    for dtype, below in dict.fromkeys((row.dtype, row.below) for row in _upper(rows)):
        own = {row.method: row for row in rows if (row.dtype, row.below) == (dtype, below)}
        cells = [_cell(own.get(m), own[RING], lambda row: (row.rms, row.largest)) for m in METHODS]
        lines.append(_line(dtype, _magnitude(below), _share(own[RING], rows), *cells))
    return [*lines, ""]


def _by_workers(rows: Sequence[Row]) -> list[str]:
    sizes = sorted({row.world_size for row in rows} - {_SHOWN})
    lines = _head(
        *("type", "of the block's largest"),
        *(f"{size} workers: {what}" for size in sizes for what in ("elements", IN_NETWORK, RING)),
        left=2,
    )
    for dtype, below in dict.fromkeys((row.dtype, row.below) for row in _upper(rows)):
        own = {(r.world_size, r.method): r for r in rows if (r.dtype, r.below) == (dtype, below)}
        cells = []
        for size in sizes:
            ring, ours = own.get((size, RING)), own.get((size, IN_NETWORK))
            if ring is None or ours is None:
                cells += ["", "", ""]
                continue
            cells.append(_share(ring, rows))
            cells += [_cell(one, ring, lambda row: (row.rms, row.largest)) for one in (ours, ring)]
        lines.append(_line(dtype, _magnitude(below), *cells))
    return [*lines, ""]


def _upper(rows: Sequence[Row]) -> list[Row]:
    """Where elements are worth a line, by magnitude."""
    return sorted((row for row in rows if row.below < _LAST), key=lambda row: (_order(row.dtype), row.below))


def _order(dtype: str) -> int:
    return [str(one) for one in DTYPES].index(dtype)


def _share(row: Row, rows: Sequence[Row]) -> str:
    place = (row.dtype, row.world_size, row.method)
    total = sum(one.elements for one in rows if (one.dtype, one.world_size, one.method) == place)
    return f"{row.elements / total:.2%}"


def _magnitude(below: int) -> str:
    ends = [f"2{str(-power).translate(RAISED)}" if power else "1" for power in (below, below + STEP)]
    return " to ".join(ends)


def _cell(row: Row | None, ring: Row, figures: Callable[[Row], tuple[float, float]]) -> str:
    """RMS, in brackets the largest. Bold where the RMS is larger than the ring's."""
    if row is None:
        return ""
    (rms, largest), (limit, _) = figures(row), figures(ring)
    text = f"**{power_of_ten(rms)}**" if rms > _WORSE * limit else power_of_ten(rms)
    return f"{text} ({power_of_ten(largest, digits=0)})"


def _head(*headings: str, left: int) -> list[str]:
    return [_line(*headings), _line(*(["---"] * left), *(["---:"] * (len(headings) - left)))]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def show(rows: Sequence[Row]) -> Table:
    """For people: all elements of each tensor."""
    whole = {(r.dtype, r.world_size, r.tensor, r.method): r for r in rows if r.of == "all"}

    def error(*place: Any) -> str:
        return f"{whole[place].rms:.1e}" if place in whole else ""

    return command.table(
        "RMS error relative to an element's largest contribution, float64 is exact",
        ("type", "workers", "tensor"),
        METHODS,
        (
            (dtype, str(size), name, *(error(dtype, size, name, method) for method in METHODS))
            for dtype, size, name in dict.fromkeys(place[:3] for place in whole)
        ),
    )


def main() -> int:
    """Run, show and write it."""
    parser = command.parser(__doc__, draws=True)
    parser.add_argument(
        "--workers", type=lambda text: [int(word) for word in text.split(",")], default=WORLD_SIZES,
        help=f"numbers of workers, separated by commas, 2 to {WORKERS}",
    )  # fmt: skip
    arguments = parser.parse_args()
    if not all(2 <= size <= WORKERS for size in arguments.workers):
        parser.error(f"argument --workers: 2 to {WORKERS}, not {arguments.workers}")
    console = command.console(140)
    real = list(digits())
    if importlib.util.find_spec("torch") is None:
        console.print("PyTorch is not installed (sudo make gloo): its models' gradients are left out")
    else:
        from bench.accuracy_models import models

        with console.status("models learn"):
            real += models()
    with console.status("sums"):
        rows = list(all_rows(real, arguments.workers))
    console.print(show(rows))
    ours = sum(row.method in (IN_NETWORK, TWO_RACKS) for row in rows)
    console.print(
        f"{len(worse(rows))} of {ours} rows of sums in the network have a larger RMS error than the ring's"
    )
    command.write(arguments.json, {"path_mtu": PATH_MTU, "rows": [asdict(row) for row in rows]})
    command.write_text(arguments.table, lambda: markdown(rows))
    command.write_text(arguments.figure, lambda: figure(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
