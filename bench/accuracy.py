"""Accuracy of an all-reduce's sum: in the network, by ring, and with one scale a tensor.

    .venv/bin/python -m bench.accuracy --json FILE --figure docs/accuracy.svg --table FILE

No network: the sums are computed by the functions that the native code and the switch are held to bit for bit
in the tests (`quantisation.block_sum`), and by the native code that a ring adds with (`fold`), in its order.
Each is compared with the float64 sum of the same numbers. A tensor comes in float32, float16 and bfloat16;
what a type cannot hold of it is lost before, and no error here. Models need PyTorch; where it is not
installed, they are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench import command
from bench.accuracy_rows import (
    DTYPES,
    IN_NETWORK,
    METHODS,
    ONE_SCALE,
    REAL,
    RING,
    STEP,
    TWO_RACKS,
    Row,
    figure,
    markdown,
    show,
    worse,
)
from bench.accuracy_tensors import WORKERS, Rows, Tensor, as_type, constructed, digits
from host_agent.collectives.plan import ring_parts
from host_agent.quantisation import (
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

WORLD_SIZES: Final = (4, 8, 32)
PATH_MTU: Final = 4096
MESSAGE_PACKETS: Final = 16
_FOLD_SUM: Final = 1

Sum = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True)
class Errors:
    """The errors of elements that some rank has, their magnitudes, and the largest of block and tensor."""

    error: Rows
    own: Rows
    block: Rows
    tensor: Rows

    @classmethod
    def together(cls, parts: Iterable[Errors]) -> Errors:
        """Join the errors of several tensors."""
        columns = zip(*((one.error, one.own, one.block, one.tensor) for one in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def of(self, largest: Rows) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Yield rows by magnitude: k, and a mask of the elements."""
        powers = np.floor(-np.log2(self.own / largest) / STEP).astype(int) * STEP
        for power in sorted(set(powers.tolist())):
            yield power, powers == power


def blocks_of(*, half: bool) -> Blocks:
    """Return the blocks into which a job cuts a tensor for lanes of 32 bits, or of 16."""
    return Blocks.of(path_mtu=PATH_MTU, message_packets=MESSAGE_PACKETS, half=half)


def is_half(dtype: np.dtype[Any]) -> bool:
    """Tell whether the type travels in lanes of 16 bits."""
    return dtype.itemsize == 2


def in_network(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Sum ranks behind one switch."""
    half = is_half(arrays[0].dtype)
    out, _ = block_sum(arrays, blocks_of(half=half), half=half)
    return out


def in_two_racks(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Sum ranks of which half are behind each of two leaves, whose sums a spine adds."""
    ranks = range(len(arrays))
    racks = (ranks[: len(arrays) // 2], ranks[len(arrays) // 2 :])
    half = is_half(arrays[0].dtype)
    out, _ = block_sum(arrays, blocks_of(half=half), half=half, racks=racks)
    return out


def ring(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Sum by ring: part p begins at rank p, and each rank after it adds its own, in the tensor's type."""
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
    """Sum in fixed point with a scale for the whole tensor, as in releases before block scales."""
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
    """Return the ways for a type: fixed point has the same bits with one rack or two."""
    return METHODS if is_half(dtype) else tuple(one for one in METHODS if one != TWO_RACKS)


def errors(arrays: Sequence[NDArray[Any]], method: str) -> Errors:
    """Return the errors of one tensor's sum."""
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
    """Yield the figures of all elements, then by magnitude."""
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
    """Yield rows of each tensor, its buckets taken as one, and of all of them under the name `together`."""
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
    """Yield rows of every constructed tensor, every real one, and the real ones together; in all types."""
    for dtype in dtypes:
        made = list(constructed(dtype))
        typed: list[Tensor] = [(name, [as_type(rows, dtype) for rows in buckets]) for name, buckets in real]
        for world_size in world_sizes:
            yield from measure(made, dtype, world_size)
            yield from measure(typed, dtype, world_size, together=REAL)


def main() -> None:
    """Run the benchmark, show its results and write them."""
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


if __name__ == "__main__":
    main()
