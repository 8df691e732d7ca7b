"""Conclusions from a sweep: the fastest strategies, the thresholds of k, the limits of today's switches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from host_agent.wire.aggregation import MAX_RANKS
from p4reduce.scale.sweep import Cell, Outcome
from p4reduce.workloads import hierarchy
from p4reduce.workloads.strategies import names
from p4reduce.workloads.strategies.names import IN_NETWORK
from p4reduce.workloads.traffic.model import Workload

SIMULATED = "flow"


def name_of(cell: Cell) -> str:
    """Return the model's name, or the sum's size."""
    return cell.what.name if isinstance(cell.what, Workload) else f"{cell.what:,} bytes"


def by_subject(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Group consecutive outcomes by model or size."""
    return [list(group) for _, group in groupby(outcomes, key=lambda one: name_of(one.cell))]


def by_gpus(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Group consecutive outcomes by number of GPUs."""
    return [list(group) for _, group in groupby(outcomes, key=lambda one: one.cell.fabric.gpus)]


def fastest(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome that takes least time; of equals, the first."""
    return min(outcomes, key=lambda outcome: outcome.seconds)


def over(outcomes: Sequence[Outcome], strategy: str, one: Outcome) -> float | None:
    """Return how many times as long as `one` the `strategy` takes; None if it is not among the outcomes."""
    return next((other.seconds / one.seconds for other in outcomes if other.cell.strategy == strategy), None)


def winners(outcomes: Sequence[Outcome]) -> list[str]:
    """Say for one subject which strategy is fastest at which numbers of GPUs."""
    best = [(group[0].cell.fabric.gpus, fastest(group).cell.strategy) for group in by_gpus(outcomes)]
    sentences = []
    for strategy, places in groupby(best, key=lambda place: place[1]):
        gpus = [number for number, _ in places]
        where = f"{gpus[0]}" if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]}"
        sentences.append(f"Simulated: {strategy} is the fastest at {where} GPUs.")
    return sentences


def threshold(outcomes: Sequence[Outcome]) -> str | None:
    """Say from which k on sums by planes beat the flat ring by formula; None if they are not compared."""
    chosen = {one.cell.strategy for one in outcomes}
    if names.FLAT_RING not in chosen or chosen.isdisjoint({names.HIERARCHICAL, names.HIERARCHICAL_PHASES}):
        return None
    shapes = list(dict.fromkeys(one.cell.fabric.shape for one in outcomes))
    if shapes[0].gpus_per_host == 1:
        return None
    said = ", ".join(
        f"{hierarchy.threshold_k(names.HIERARCHICAL_PHASES, shape):.2f} ({shape.gpus} GPUs)"
        for shape in ([shapes[0], shapes[-1]] if len(shapes) > 1 else shapes)
    )
    return (
        f"Formula: hierarchical-phases beats flat-ring from k = {said} on, hierarchical at any k. "
        f"Here k = {shapes[0].k:g}."
    )


def cautions(outcomes: Sequence[Outcome]) -> list[str]:
    """Warn of strategies with more workers behind a leaf than the switch's program takes."""
    said = []
    for strategy in (names.HIERARCHICAL, names.HIERARCHICAL_PHASES, IN_NETWORK):
        workers = max(
            (_behind_a_leaf(one.cell) for one in outcomes if one.cell.strategy == strategy), default=0
        )
        if workers > MAX_RANKS:
            said.append(
                f"{strategy} has up to {workers} workers of a job behind a leaf; today's switch program "
                f"takes {MAX_RANKS}, so this is of a larger one."
            )
    return said


def as_json(outcomes: Sequence[Outcome], *, command: str) -> dict[str, Any]:
    """Return all outcomes and conclusions for JSON; infinite numbers are null."""
    first = outcomes[0].cell
    return {
        "simulated": SIMULATED,
        "command": command,
        "fabric": {
            "gpus_per_host": first.fabric.gpus_per_host,
            "leaf_hosts": first.fabric.leaf_hosts,
            "spines": first.fabric.spines,
            "rate_mbit": first.fabric.rate / 1e6,
            "intra_rate_mbit": first.fabric.intra_rate / 1e6,
            "uplink_rate_mbit": first.fabric.uplink_rate / 1e6,
            "k": first.fabric.shape.k,
            "alpha_s": first.fabric.alpha_s,
            "path_mtu": first.fabric.framing.path_mtu,
            "window": first.fabric.framing.window,
            "message_packets": first.fabric.framing.packets,
        },
        "results": [_result(one) for one in outcomes],
        "fastest": [
            {"what": name_of(best.cell), "gpus": best.cell.fabric.gpus, "strategy": best.cell.strategy}
            for subject in by_subject(outcomes)
            for best in map(fastest, by_gpus(subject))
        ],
        "thresholds": [
            {
                "gpus": shape.gpus,
                "k_in_sequence": _finite(hierarchy.threshold_k(names.HIERARCHICAL_PHASES, shape)),
                "k_in_a_pipeline": _finite(hierarchy.threshold_k(names.HIERARCHICAL, shape)),
            }
            for shape in dict.fromkeys(one.cell.fabric.shape for one in outcomes)
        ],
        "cautions": cautions(outcomes),
    }


def _result(one: Outcome) -> dict[str, Any]:
    cell = one.cell
    workload = cell.what if isinstance(cell.what, Workload) else None
    return {
        "what": name_of(cell),
        "dtype": None if workload is None else workload.dtype,
        "bytes": cell.what if workload is None else workload.gradient_bytes,
        "gpus": cell.fabric.gpus,
        "hosts": cell.fabric.hosts,
        "racks": cell.fabric.racks,
        "strategy": cell.strategy,
        "seconds": one.seconds,
        "formula_s": one.formula_s,
        "bus_gbit_s": one.bus_gbit_s,
        "waiting_s": one.waiting_s,
        "summing_s": one.summing_s,
        "overlap": None if workload is None else cell.overlap,
        "nic_bytes": one.nic_bytes,
    }


def _behind_a_leaf(cell: Cell) -> int:
    machines = min(cell.fabric.hosts, cell.fabric.leaf_hosts)
    return machines * (cell.fabric.gpus_per_host if cell.strategy == IN_NETWORK else 1)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
