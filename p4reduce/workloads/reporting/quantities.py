"""Figures formatted for people. Units are powers of 1000, as in link rates."""

from __future__ import annotations

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def seconds(value: float) -> str:
    """Format seconds: `2.61 s`, `12.3 ms`, `850 µs`."""
    if value >= 1:
        return f"{_three(value)} s"
    if value == 0:
        return "0 s"
    return f"{_three(value * 1e3)} ms" if value >= 1e-3 else f"{_three(value * 1e6)} µs"


def spread(least: float, most: float) -> str:
    """Format a range of seconds: `2.61 to 2.65 s`."""
    low, high = seconds(least).split(), seconds(most).split()
    return f"{low[0]} to {' '.join(high)}" if low[1] == high[1] else f"{' '.join(low)} to {' '.join(high)}"


def size(value: float) -> str:
    """Format bytes: `32.6 MB`."""
    for unit, name in _BYTES:
        if value >= unit:
            return f"{_three(value / unit)} {name}"
    return f"{value:.0f} B"


def rate(mbit_s: float) -> str:
    """Format a rate: `98.0 Mbit/s`."""
    return f"{_three(mbit_s / 1e3)} Gbit/s" if mbit_s >= 1e4 else f"{_three(mbit_s)} Mbit/s"


def times(value: float) -> str:
    """Format a factor: `1.49`."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def share(value: float) -> str:
    """Format a share: `97.9%`."""
    return f"{value:.1%}" if value < 1 else f"{value:.0%}"


def count(value: int) -> str:
    """Format a count: `12,345`."""
    return f"{value:,}"


def _three(value: float) -> str:
    """Format three digits, or more if all are before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
