"""Looks at the fabric while a strategy ran: how busy its links were, and how full its slots."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal

from p4reduce.workloads.reporting import reading
from p4reduce.workloads.reporting.figures import INK, Figure, axis, beside, figure, plain
from p4reduce.workloads.reporting.quantities import rate
from p4reduce.workloads.run_file import LinkBytes, Run, Sample

_WAYS: Final[tuple[Literal["up", "down"], ...]] = ("up", "down")
_ARROWS: Final = {"up": "↑", "down": "↓"}
# Between samples that are so many times further apart than usual, something else was measured.
_GAP: Final = 4.0
_MOST_COLUMNS: Final = 300
MOST_LINKS: Final = 24  # fit on a screen


def throughputs(run: Run) -> dict[str, Figure]:
    """Plot for each strategy how busy each link was each way over time: a row a way, a column a look."""
    return {
        strategy: _throughput(run, samples)
        for strategy, samples in run.samples.items()
        if samples and samples[-1].at_s > 0 and any(sample.links for sample in samples)
    }


def slots(run: Run) -> dict[str, Figure]:
    """Plot for each strategy with slots how many hold an incomplete sum, and how many it has."""
    return {
        strategy: _slots(samples)
        for strategy, samples in run.samples.items()
        if any(sample.slots_allocated or sample.slots_open for sample in samples)
    }


def busiest_links(run: Run, samples: Sequence[Sample]) -> list[str]:
    """Return links that all samples have, in the topology's order; of many, those that carried most."""
    names = [name for name in run.topology.links if all(name in sample.links for sample in samples)]
    last = samples[-1].links
    by_bytes = sorted(names, key=lambda name: last[name].up + last[name].down, reverse=True)
    most = set(by_bytes[:MOST_LINKS])
    return [name for name in names if name in most]


def thinned(samples: Sequence[Sample], *, most: int = _MOST_COLUMNS) -> list[Sample]:
    """Return at most `most` samples with the first and the last; one at 0 s without bytes is added."""
    first = samples[0]
    if first.at_s > 0:
        none = {name: LinkBytes(up=0, down=0) for name in first.links}
        samples = [first.model_copy(update={"at_s": 0.0, "links": none}), *samples]
    if len(samples) <= most:
        return list(samples)
    return [samples[round(place * (len(samples) - 1) / (most - 1))] for place in range(most)]


def _throughput(run: Run, samples: Sequence[Sample]) -> Figure:
    rated = run.topology.rate_mbit is not None
    kept = thinned(samples)
    names = busiest_links(run, kept)
    rows = [(name, way) for name in reversed(names) for way in reversed(_WAYS)]
    gaps = _too_long(kept)
    speeds = [
        [
            None if gap else _mbit(before, after, name, way)
            for (before, after), gap in zip(pairwise(kept), gaps, strict=True)
        ]
        for name, way in rows
    ]
    shown = [
        [None if speed is None else round(_share(run, name, speed) if rated else speed, 2) for speed in row]
        for (name, _), row in zip(rows, speeds, strict=True)
    ]
    labels = [plain(f"{name} {_ARROWS[way]}") for name, way in rows]
    means = [
        statistics.fmean(speed for speed in row if speed is not None) if any(row) else 0.0 for row in speeds
    ]
    heat = {
        "type": "heatmap",
        "x": [sample.at_s for sample in kept],
        "y": labels,
        "z": shown,
        "zmin": 0,
        **({"zmax": 100} if rated else {}),
        "colorscale": [[0, "var(--heat-0)"], [0.5, "var(--heat-1)"], [1, "var(--heat-2)"]],
        "colorbar": {
            "orientation": "h",
            "y": 1.0,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
            "len": 0.6,
            "thickness": 10,
            "xpad": 0,
            "ypad": 4,
            "ticksuffix": "%" if rated else "",
            "nticks": 5,
            "title": {
                "text": "of the link's rate" if rated else "Mbit/s",
                "side": "top",
                "font": {"size": 12},
            },
            "outlinewidth": 0,
        },
        "hovertemplate": f"%{{y}} at %{{x:.1f}} s: %{{z:.3~r}}{'%' if rated else ' Mbit/s'}<extra></extra>",
        "ygap": 2,
    }
    return figure(
        [heat],
        height=126 + 18 * len(rows),
        margin={"l": 8, "r": 84, "t": 56, "b": 36},
        xaxis=axis("", ticksuffix=" s", showgrid=False, range=[0, kept[-1].at_s]),
        yaxis=axis("", type="category", showgrid=False, tickfont={"size": 11}, dtick=1),
        annotations=beside(labels, [rate(mean) for mean in means], size=11),
    )


def _slots(samples: Sequence[Sample]) -> Figure:
    kept = thinned(samples)
    at = [sample.at_s for sample in kept]
    used = {
        "type": "scatter",
        "mode": "lines",
        "name": f"holding a sum in the making (at most {max(sample.slots_open for sample in samples):,})",
        "x": at,
        "y": [sample.slots_open for sample in kept],
        "line": {"color": "var(--in-network)", "width": 2, "shape": "hv"},
        "fill": "tozeroy",
        "fillcolor": "var(--slots)",
    }
    has = {
        "type": "scatter",
        "mode": "lines",
        "name": f"allocated ({max(sample.slots_allocated for sample in samples):,})",
        "x": at,
        "y": [sample.slots_allocated for sample in kept],
        "line": {"color": INK, "width": 2, "dash": "dash", "shape": "hv"},
    }
    return figure(
        [used, has],
        height=260,
        showlegend=True,
        hovermode="x unified",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": INK}},
        xaxis=axis("seconds", range=[0, kept[-1].at_s]),
        yaxis=axis("slots", rangemode="tozero"),
    )


def _mbit(before: Sample, after: Sample, name: str, way: Literal["up", "down"]) -> float:
    moved: int = getattr(after.links[name], way) - getattr(before.links[name], way)
    return max(0, moved) * 8 / max(after.at_s - before.at_s, 1e-9) / 1e6


def _share(run: Run, name: str, speed: float) -> float:
    return 100 * speed / (reading.rate_of(run, name) or 1.0)


def _too_long(samples: Sequence[Sample]) -> list[bool]:
    steps = [after.at_s - before.at_s for before, after in pairwise(samples)]
    usual = statistics.median(steps)
    return [step > _GAP * usual for step in steps]
