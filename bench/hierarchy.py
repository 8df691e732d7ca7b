"""Hosts with several GPUs, measured beside the closed forms: python -m bench.hierarchy [--json FILE].

    sudo .venv/bin/python -m bench.hierarchy --rounds 3 --json hierarchy.json

`rack`: four hosts of four GPUs, links of 100 Mbit/s, channels inside of k = 1, 2, 4 and 8 times that,
32,000,000 bytes of float32, every strategy in turns. `spine-leaf`: the same in two racks over a spine, k = 2.
A row has how many times as long the flat ring takes, by formula too, and what the busiest NIC carried in
one direction, beside the strategy's bytes with the protocol's headers, acknowledgements and scales. After
it the k from which on phases one after the other beat the flat ring, between the measured ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from rich.console import Console

from bench import command
from controller.slots.admission import plane_slots, shrink
from host_agent.quantisation import Blocks
from host_agent.wire.headers import Aeth
from p4reduce.scale.fabric import Framing
from p4reduce.workloads.compare import Comparison, compare_on
from p4reduce.workloads.hierarchy import Shape, tensors_per_nic, threshold_k
from p4reduce.workloads.placement import place
from p4reduce.workloads.run_file import Result
from p4reduce.workloads.strategies import names
from topologies.fabric import Fabric
from topologies.links import ETHERNET_OVERHEAD
from topologies.options import FabricOptions
from topologies.rack import RackOptions
from topologies.spine_leaf import SpineLeafOptions

Row = dict[str, Any]
BYTES: Final = 32_000_000
HOSTS, GPUS = 4, 4
RATE_MBIT: Final = 100.0
PATH_MTU: Final = 4096
WORD: Final = 4
SCALE_BYTES: Final = 2  # of each block, which all workers agree on first
KS: Final = {"rack": (1.0, 2.0, 4.0, 8.0), "spine-leaf": (2.0,)}


def options_of(part: str, k: float, rate_mbit: float) -> FabricOptions:
    """Return the options of a fabric of four hosts."""
    common: dict[str, Any] = {
        "name": f"bench-{os.getpid()}",
        "path_mtu": PATH_MTU,
        "rate_mbit": rate_mbit,
        "gpus_per_host": GPUS,
        "intra_rate_mbit": k * rate_mbit,
    }
    if part == "rack":
        return RackOptions(hosts=HOSTS, **common)
    return SpineLeafOptions(spines=1, leaves=2, hosts=HOSTS, **common)


def measure(
    part: str, k: float, *, rounds: int, size: int, rate_mbit: float, console: Console
) -> Iterator[Row]:
    """Yield a row for each strategy."""
    comparison = Comparison(bytes=size, strategies=names.OF_SEVERAL_GPUS, rounds=rounds)
    options = options_of(part, k, rate_mbit)
    with console.status("") as status, Fabric(options, progress=status.update) as fabric:
        hosts = place(fabric.state)
        found = compare_on(fabric.state, hosts, comparison, progress=status.update).results
        nics = {f"{host.name}:{host.switch}" for host in hosts}
    ring = next(result for result in found if result.strategy == names.FLAT_RING)
    for result in found:
        yield _row(part, k, result, ring, nics)


def _row(part: str, k: float, result: Result, ring: Result, nics: set[str]) -> Row:
    shape = Shape(hosts=HOSTS, gpus_per_host=GPUS, k=k)
    tensors = tensors_per_nic(result.strategy, shape)
    carried = max(
        way for name in nics for way in (result.bytes_per_link[name].up, result.bytes_per_link[name].down)
    )
    formula = (ring.link_bound_s or 0.0) / (result.link_bound_s or 1.0)
    ratio = ring.median_s / result.median_s
    return {
        "fabric": part,
        "k": k,
        "strategy": result.strategy,
        "seconds": result.median_s,
        "spread": [result.min_s, result.max_s],
        "flat_ring_takes": ratio,
        "by_formula": formula,
        "off": ratio / formula - 1,
        "nic_tensors": carried / result.bytes,
        "formula_tensors": tensors,
        "nic_off": carried / _with_headers(result.strategy, tensors * result.bytes) - 1,
        "inside_tensors": (result.bytes_inside or 0) / result.bytes,
        "resent": result.retransmissions,
    }


def _with_headers(strategy: str, size: float) -> float:
    """Return the bytes on the wire for so many of data, with an acknowledgement of each message.

    Planes have smaller messages, and agree on the blocks' scales first.
    """
    framing = Framing(path_mtu=PATH_MTU, ethernet_bytes=ETHERNET_OVERHEAD)
    if strategy in names.BY_PLANES:
        slots = plane_slots(framing.window, framing.packets, GPUS)
        window, packets = shrink(framing.window, framing.packets, slots, fixed=(False, False))
        framing = replace(framing, window=window, packets=packets)
        blocks = Blocks.of(path_mtu=PATH_MTU, message_packets=packets, half=False)
        size *= 1 + SCALE_BYTES / (blocks.block_elements * WORD)
    acknowledgement = framing.packet_bytes - PATH_MTU + Aeth.SIZE
    return framing.wire_bytes(size) * (1 + acknowledgement / (framing.packets * framing.packet_bytes))


def crossing(rows: Sequence[Row]) -> float | None:
    """Return the k at which phases take as long as the flat ring, on a line between two measured ones."""
    points = [
        (row["k"], row["flat_ring_takes"])
        for row in rows
        if row["fabric"] == "rack" and row["strategy"] == names.HIERARCHICAL_PHASES
    ]
    for (low, before), (high, after) in pairwise(points):
        if before < 1 <= after:
            # Times are linear in 1/k.
            share = (1 / before - 1) / (1 / before - 1 / after)
            return float(1 / (1 / low + share * (1 / high - 1 / low)))
    return None


def show(rows: Sequence[Row]) -> Any:
    """Return a table for a terminal."""
    return command.table(
        f"{BYTES:,} bytes of float32, {HOSTS} hosts of {GPUS} GPUs",
        ["fabric", "k", "strategy"],
        ["time", "flat ring takes", "by formula", "off", "NIC carried", "by formula", "off", "sent again"],
        (
            (
                row["fabric"],
                f"{row['k']:g}",
                row["strategy"],
                f"{row['seconds']:.3f} s ({row['spread'][0]:.3f} to {row['spread'][1]:.3f})",
                f"{row['flat_ring_takes']:.2f}",
                f"{row['by_formula']:.2f}",
                f"{row['off']:+.1%}",
                f"{row['nic_tensors']:.3f}",
                f"{row['formula_tensors']:.3f}",
                f"{row['nic_off']:+.1%}",
                str(row["resent"]),
            )
            for row in rows
        ),
    )


def main() -> None:
    """Run the parts asked for, show and write them."""
    parser = command.parser(__doc__)
    command.add_parts(parser, KS)
    parser.add_argument("--rounds", type=int, default=3, help="how often each runs")
    parser.add_argument("--rate", type=float, default=RATE_MBIT, help="of the hosts' links, Mbit/s")
    parser.add_argument("--bytes", type=int, default=BYTES, help="of the tensor")
    arguments = parser.parse_args()
    console = command.console(160)
    rows: list[Row] = []
    for part in arguments.parts:
        for k in KS[part]:
            how = {"rounds": arguments.rounds, "size": arguments.bytes, "rate_mbit": arguments.rate}
            rows += measure(part, k, console=console, **how)
            console.print(show(rows[-len(names.OF_SEVERAL_GPUS) :]))
    found = crossing(rows)
    expected = threshold_k(names.HIERARCHICAL_PHASES, Shape(hosts=HOSTS, gpus_per_host=GPUS, k=1.0))
    said = "at no measured k" if found is None else f"from k = {found:.2f}"
    console.print(f"phases one after the other beat the flat ring {said}; by formula from k = {expected:.2f}")
    command.write(arguments.json, {"rows": rows, "crossing_k": found, "crossing_k_by_formula": expected})


if __name__ == "__main__":
    main()
