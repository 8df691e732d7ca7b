"""Plotly figures as JSON. Colours are CSS variables of the page, which knows whether it is dark.

Texts from a run file go through `plain`: Plotly reads text as HTML, though only a small part of it.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Final

from p4reduce.workloads.bounds import ring_to_in_network
from p4reduce.workloads.reporting import reading
from p4reduce.workloads.reporting.quantities import rate, seconds, share, times
from p4reduce.workloads.reporting.reading import name_of
from p4reduce.workloads.run_file import Result, Run

Figure = dict[str, Any]

INK: Final = "var(--ink)"
MUTED: Final = "var(--muted)"
LINES: Final = "var(--lines)"
_COLOURED: Final = frozenset(reading.NAMES)
_LONGEST_TEXT: Final = 28
_SHORT: Final = {"parameter-server-switch": "p. server + switch", "gloo": "Gloo"}


def plain(text: str) -> str:
    """Escape text so that Plotly shows it letter by letter, and cut it if it is too long."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    if len(shown) > _LONGEST_TEXT:
        shown = f"{shown[: _LONGEST_TEXT - 1]}…"
    return html.escape(shown, quote=False)


def colour(strategy: str) -> str:
    """Return a strategy's colour, the same in all charts."""
    return f"var(--{strategy})" if strategy in _COLOURED else "var(--other)"


def speedups(run: Run) -> Figure | None:
    """Plot speed-ups over ring: a bar a strategy, a dot a measurement, the bound. None without a ring."""
    ring = reading.ring_of(run)
    if ring is None:
        return None
    results = _upwards(run)
    workers = reading.workers(run)
    bound = ring_to_in_network(workers)
    ratios = [ring.median_s / result.median_s for result in results]
    bars = _bars(results, ratios)
    dots = _dots(results, [[ring.median_s / value for value in result.seconds] for result in results], "×")
    texts = [f"{times(ratio)}×" for ratio in ratios]
    figure = _horizontal(
        [bars, dots], f"times as fast as ring ({workers} workers{_of_type(run)})", results, texts
    )
    _upright(figure, bound, f"2(N−1)/N = {times(bound)}")
    links = reading.rate_bound(run)
    if links is not None and abs(links - bound) > 0.02 * bound:
        _upright(figure, links, f"these links: {times(links)}", below=True)
    return figure


def goodputs(run: Run) -> Figure:
    """Plot each strategy's Mbit/s, and the rate that its links allow."""
    results = _upwards(run)
    bars = _bars(results, [result.goodput_mbit_s for result in results])
    bounded = [result for result in results if result.link_bound_s]
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": [result.bytes * 8 / (result.link_bound_s or 1) / 1e6 for result in bounded],
        "y": [_label(result) for result in bounded],
        "marker": {"symbol": "line-ns-open", "size": 26, "color": INK, "line": {"width": 2, "color": INK}},
        "hoverinfo": "text",
        "text": [
            f"the links allow {rate(result.bytes * 8 / (result.link_bound_s or 1) / 1e6)}"
            for result in bounded
        ],
        "showlegend": False,
    }
    texts = [_goodput(result) for result in results]
    traces = [bars, *([marks] if bounded else [])]
    return _horizontal(traces, f"goodput per worker in Mbit/s{_of_type(run)}", results, texts)


def retransmissions(run: Run) -> Figure | None:
    """Plot retransmitted packets; None if there were none."""
    results = [result for result in _upwards(run) if result.retransmissions is not None]
    if not any(result.retransmissions for result in results):
        return None
    resent = [result.retransmissions or 0 for result in results]
    bars = _bars(results, [float(each) for each in resent])
    return _horizontal([bars], "packets sent again", results, [f"{each:,}" for each in resent])


def figure(traces: list[Figure], *, height: int, **layout: Any) -> Figure:
    """Make a figure with the layout that all figures share."""
    return {
        "data": traces,
        "layout": {
            "height": height,
            "margin": {"l": 8, "r": 24, "t": 28, "b": 44},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": INK, "size": 13, "family": "system-ui, sans-serif"},
            "hoverlabel": {"bgcolor": "var(--surface)", "bordercolor": LINES, "font": {"color": INK}},
            "showlegend": False,
            **layout,
        },
    }


def axis(title: str, **more: Any) -> Figure:
    """Make an axis with its title."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": MUTED}, "standoff": 10},
        "gridcolor": LINES,
        "zeroline": False,
        "linecolor": LINES,
        "automargin": True,
        "fixedrange": True,
        **more,
    }


def beside(labels: Sequence[str], texts: Sequence[str], *, size: int) -> list[Figure]:
    """Make texts at the right of the rows with those labels."""
    return [
        {
            "xref": "paper",
            "x": 1,
            "xanchor": "left",
            "xshift": 6,
            "y": label,
            "text": text,
            "showarrow": False,
            "font": {"size": size, "color": INK},
        }
        for label, text in zip(labels, texts, strict=True)
    ]


def _of_type(run: Run) -> str:
    """Return the type that was summed, for titles: a figure may be shown without its page."""
    return "" if run.dtype is None else f", {plain(run.dtype)}"


def _upwards(run: Run) -> list[Result]:
    """Return the results in reverse: Plotly draws from below, so the file's first result comes out on top."""
    return list(reversed(run.results))


def _label(result: Result) -> str:
    return plain(_SHORT.get(result.strategy, name_of(result.strategy)))


def _goodput(result: Result) -> str:
    text = f"{result.goodput_mbit_s:,.1f}" if result.goodput_mbit_s < 100 else f"{result.goodput_mbit_s:,.0f}"
    fraction = result.fraction_of_link_bound
    return f"{text} ({share(fraction)})" if fraction is not None else text


def _bars(results: list[Result], values: list[float]) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": [_label(result) for result in results],
        "marker": {"color": [colour(result.strategy) for result in results]},
        "hoverinfo": "text",
        "hovertext": [
            f"{_label(result)}: median {seconds(result.median_s)} "
            f"({seconds(result.min_s)} to {seconds(result.max_s)})"
            for result in results
        ],
        "width": 0.66,
    }


def _dots(results: list[Result], values: list[list[float]], unit: str) -> Figure:
    """Make a dot for each measurement, so that the spread shows."""
    pairs = [(_label(result), value) for result, own in zip(results, values, strict=True) for value in own]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [value for _, value in pairs],
        "y": [label for label, _ in pairs],
        "marker": {
            "color": "var(--surface)",
            "size": 7,
            "opacity": 0.9,
            "line": {"color": INK, "width": 1.5},
        },
        "hoverinfo": "text",
        "text": [f"one measurement: {times(value)}{unit}" for _, value in pairs],
        "showlegend": False,
    }


def _horizontal(traces: list[Figure], title: str, results: list[Result], texts: list[str]) -> Figure:
    """Make horizontal bars; their figures stand in a column of their own, where nothing covers them."""
    return figure(
        traces,
        height=92 + 40 * len(results),
        margin={"l": 8, "r": 22 + 7 * max(map(len, texts)), "t": 28, "b": 44},
        bargap=0.3,
        xaxis=axis(title, rangemode="tozero"),
        yaxis=axis("", ticks="", showgrid=False, type="category"),
        shapes=[],
        annotations=beside([_label(result) for result in results], texts, size=13),
    )


def _upright(figure: Figure, at: float, text: str, *, below: bool = False) -> None:
    """Add a dashed line at `at`, with its meaning."""
    figure["layout"]["shapes"].append(
        {
            "type": "line",
            "x0": at,
            "x1": at,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": INK, "width": 2, "dash": "dash" if not below else "dot"},
        }
    )
    figure["layout"]["annotations"].append(
        {
            "x": at,
            "yref": "paper",
            "y": 1,
            "yanchor": "bottom",
            "xanchor": "right" if below else "center",
            "text": text,
            "showarrow": False,
            "font": {"color": INK, "size": 13},
        }
    )
