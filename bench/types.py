"""Effect of the elements' type, end to end and part by part: python -m bench.types [--json FILE].

    sudo .venv/bin/python -m bench.types --rounds 3 --json types.json

`races`: 32,000,000 bytes a worker over links of 100 Mbit/s, and without a rate, 4 and 8 workers, path MTU
4096: float32, float16, bfloat16, and float32 over 16 bits, beside the ring and Gloo in the same type, in
turns. `lanes`: what the switch takes for a packet of 16 chunks, by how they are added up: the embedded
switch's program alone (the thread's own processor time), and packets a second through a rack, on BMv2 as
well.
`kernels`: elements to lanes and back, on a core, beside a plain copy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from bench import command
from bench.process import aggregate
from bench.rack import bench_on
from controller.config import Target
from host_agent.quantisation import BFLOAT16, ELEMENT_TYPES
from host_agent.transport.native import library
from host_agent.wire.aggregation import Op
from p4reduce.workloads.allreduce import Request
from p4reduce.workloads.compare import Comparison, compare_on, possible
from p4reduce.workloads.run_file import LinkBytes, Result
from p4reduce.workloads.strategies import names
from topologies.fabric import Fabric
from topologies.rack import RackOptions

Row = dict[str, Any]
Work = Callable[[], object]
BYTES: Final = 32_000_000
RATE_MBIT: Final = 100.0
FLOATS: Final = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": BFLOAT16}
BLOCK: Final = 256  # elements of 16 bits that share a scale at path MTU 4096
KERNEL_ELEMENTS: Final = 1 << 16  # what a core's caches hold


def races(rounds: int, console: Console) -> Iterator[Row]:
    """Yield the rows of each type, in the network, by ring and by Gloo."""
    for rate in (RATE_MBIT, None):
        for workers in (4, 8):
            for dtype in FLOATS:
                strategies = [names.IN_NETWORK, names.RING, names.GLOO]
                if dtype == "float32":
                    strategies.insert(1, names.IN_NETWORK_16BIT)
                compared, _ = possible(strategies, asked=False)
                comparison = Comparison(bytes=BYTES, strategies=compared, rounds=rounds, dtype=dtype)
                options = RackOptions(
                    name=f"bench-{os.getpid()}", hosts=workers, path_mtu=4096, rate_mbit=rate
                )
                with console.status("") as status, Fabric(options, progress=status.update) as rack:
                    hosts = rack.state.hosts
                    found = compare_on(rack.state, hosts, comparison, progress=status.update).results
                yield from _rows(found, dtype, [f"{host.name}:{host.switch}" for host in hosts], rate)


def _rows(
    results: Sequence[Result], dtype: str, of_hosts: Sequence[str], rate: float | None
) -> Iterator[Row]:
    seconds = {result.strategy: result.median_s for result in results}
    for result in results:
        sent = [_most(result.bytes_per_link[link]) for link in of_hosts]
        yield {
            "dtype": dtype,
            "workers": result.workers,
            "rate_mbit": rate,
            "strategy": result.strategy,
            "seconds": result.median_s,
            "spread": [result.min_s, result.max_s],
            "bytes_a_byte": max(sent) / result.bytes,
            "to_ring": seconds[names.RING] / result.median_s,
            "to_gloo": seconds[names.GLOO] / result.median_s if names.GLOO in seconds else None,
            "bound": 2 * (result.workers - 1) / result.workers,
            "resent": result.retransmissions,
        }


def _most(link: LinkBytes) -> int:
    return max(link.up, link.down)


def lanes(targets: Sequence[Target], rounds: int) -> Iterator[Row]:
    """Yield the cost of a packet in the switch, by op."""
    for op in (Op.SUM, Op.MAX, Op.SUM_HALF, Op.MAX_HALF):
        for ports in (4, 8):
            row = aggregate(ports, 16, rounds, op=op)
            yield {"target": "program alone", "op": op.name, "workers": ports, "ns": row["ns"]}
    for target in targets:
        with bench_on(target, hosts=4, path_mtu=4096) as bench:
            for dtype in FLOATS:
                size = BYTES if target is Target.EMBEDDED else BYTES // 32
                request = Request(bytes=size, dtype=dtype, seed=3, strategy="in-network")
                for _ in range(rounds):
                    bench.once(request)
                figure = bench.figure(f"lanes {dtype}", request)
                yield {
                    "target": target.value,
                    "op": Op.SUM.name if dtype == "float32" else Op.SUM_HALF.name,
                    "dtype": dtype,
                    "workers": 4,
                    "packets_per_s": figure.packets_per_s,
                    "goodput_mbit_s": figure.goodput_mbit_s,
                }


def kernels(rounds: int) -> Iterator[Row]:
    """Yield GB/s of elements on one core: the best of many, by the thread's own processor time."""
    source, target = np.zeros(4 * KERNEL_ELEMENTS, np.uint8), np.ones(4 * KERNEL_ELEMENTS, np.uint8)
    work: list[tuple[str, str, int, Work]] = [("copy", "", source.nbytes, partial(np.copyto, target, source))]
    for dtype in FLOATS:
        work += _conversions(dtype)
    for name, dtype, nbytes, one in work:
        best = min(_spent(one) for _ in range(10 * rounds))
        yield {"kernel": name, "dtype": dtype, "gb_per_s": nbytes / best / 1e9}


def _conversions(dtype: str) -> Iterator[tuple[str, str, int, Work]]:
    """Yield the conversions; each works on arrays that it holds on to."""
    native, n, kind = library(), KERNEL_ELEMENTS, ELEMENT_TYPES[FLOATS[dtype]]
    array = np.random.default_rng(1).standard_normal(n).astype(FLOATS[dtype])
    result, wire, exponents = np.empty_like(array), np.empty(4 * n, np.uint8), np.empty(n, np.uint8)
    starts = np.arange(0, n, BLOCK, dtype=np.uint64)

    def of(name: str, function: str, *arguments: Any) -> tuple[str, str, int, Work]:
        def work() -> None:
            places = (one.ctypes.data if isinstance(one, np.ndarray) else one for one in arguments)
            getattr(native, function)(*places)

        return name, dtype, array.nbytes, work

    yield of("exponents", "p4r_exponents_of_blocks", kind, array, starts, starts.size, n, exponents)
    if dtype == "float32":
        yield of("to 32 bits", "p4r_encode_lanes", kind, 0, array, n, wire, 20, 0)
        yield of("from 32 bits", "p4r_decode_lanes", kind, 0, wire, n, result, 20, 1, 0)
    yield of("to 16 bits", "p4r_encode_half", kind, array, n, wire, 2)
    yield of("from 16 bits", "p4r_decode_half", kind, wire, n, result, 2, 1)
    yield of("from 16 bits, over 8", "p4r_decode_half", kind, wire, n, result, 2, 8)
    yield of("from 16 bits, over 3", "p4r_decode_half", kind, wire, n, result, 2, 3)
    if dtype == "float32":
        yield of("residual", "p4r_leave_residual", result, n, 2)


def _spent(work: Work) -> float:
    """Return the seconds of one of many calls."""
    work()
    began = time.thread_time()
    for _ in range(20):
        work()
    return (time.thread_time() - began) / 20


def show(title: str, rows: Sequence[Row]) -> Table:
    """Return a table for a terminal: a column for each key."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    words = [key for key in keys if isinstance(rows[0].get(key), str)]
    order = [*words, *(key for key in keys if key not in words)]
    return command.table(
        title,
        [key.replace("_", " ") for key in words],
        [key.replace("_", " ") for key in order[len(words) :]],
        ([_shown(row.get(key)) for key in order] for row in rows),
    )


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    if isinstance(value, list):
        return " to ".join(_shown(one) for one in value)
    return "" if value is None else str(value)


def main() -> None:
    """Run the parts asked for, show and write them."""
    parser = command.parser(__doc__)
    command.add_parts(parser, ("races", "lanes", "kernels"))
    parser.add_argument("--rounds", type=int, default=3, help="how often each runs")
    arguments = parser.parse_args()
    console = command.console(160)
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "races": lambda: races(arguments.rounds, console),
        "lanes": lambda: lanes(command.targets(console), arguments.rounds),
        "kernels": lambda: kernels(arguments.rounds),
    }
    found: dict[str, list[Row]] = {}
    for part in arguments.parts:
        rows = list(parts[part]())
        found[part] = rows
        console.print(show(part, rows))
    command.write(arguments.json, found)


if __name__ == "__main__":
    main()
