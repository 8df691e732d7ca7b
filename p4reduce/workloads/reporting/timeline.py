"""The timeline: each worker's median iteration and the next, all strategies to one scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from p4reduce.workloads.reporting.figures import Figure, axis, figure, plain
from p4reduce.workloads.reporting.quantities import seconds
from p4reduce.workloads.run_file import Run, Span

# Computing is cut into layers, too many and too thin to draw: pieces that touch are drawn as one.
_TOUCHING: Final = 0.002  # of what is shown
_SHOWN: Final = 2
# Strategies that take so many times as long as the fastest would leave no room for it.
_MUCH_SLOWER: Final = 2.5
_MOST_LANES: Final = 4
_UPPER: Final = (0.08, 0.46)  # of a worker's row: where it computes or waits; below, its sums
_LOWER: Final = (0.50, 0.92)


@dataclass(frozen=True)
class Window:
    """The iterations that are shown, with their beginning and end."""

    first: int
    last: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class _Piece:
    kind: str
    what: str
    start_s: float
    end_s: float
    lane: int = 0


_COLOURS: Final = {"compute": "var(--compute)", "communicate": "var(--communicate)", "wait": "var(--wait)"}
# Shapes as well as colours, for who cannot tell the colours apart.
_PATTERNS: Final = {"compute": "", "communicate": "", "wait": "/"}


def timelines(run: Run) -> dict[str, Figure]:
    """Plot a timeline for each strategy that has one."""
    windows = {strategy: window(spans) for strategy, spans in run.timelines.items() if spans}
    lengths = {strategy: each.end_s - each.start_s for strategy, each in windows.items()}
    near = [length for length in lengths.values() if length <= _MUCH_SLOWER * min(lengths.values())]
    return {
        strategy: _drawn(run, run.timelines[strategy], shown, max(lengths[strategy], *near))
        for strategy, shown in windows.items()
    }


def window(spans: Sequence[Span]) -> Window:
    """Choose the median iteration and the next one, or the previous one if there is no next."""
    ends: dict[int, tuple[float, float]] = {}
    for span in spans:
        first, last = ends.get(span.iteration, (span.start_s, span.end_s))
        ends[span.iteration] = min(first, span.start_s), max(last, span.end_s)
    by_length = sorted(ends, key=lambda iteration: ends[iteration][1] - ends[iteration][0])
    median = by_length[len(by_length) // 2]
    iterations = sorted(ends)
    place = max(0, min(iterations.index(median), len(iterations) - _SHOWN))
    shown = iterations[place : place + _SHOWN]
    return Window(shown[0], shown[-1], min(ends[one][0] for one in shown), max(ends[one][1] for one in shown))


def _drawn(run: Run, spans: Sequence[Span], shown: Window, longest: float) -> Figure:
    ranks = sorted({span.rank for span in spans})
    rows = {rank: len(ranks) - 1 - place for place, rank in enumerate(ranks)}
    own = [span for span in spans if shown.first <= span.iteration <= shown.last]
    traces = []
    for kind in _COLOURS:
        pieces = [
            (rank, piece)
            for rank in ranks
            for piece in _pieces(
                (span for span in own if span.rank == rank and span.kind == kind),
                touching=_TOUCHING * longest,
            )
        ]
        traces.append(_bars(kind, pieces, rows, shown))
    names = {host.rank: host.name for host in run.topology.hosts if host.rank is not None}
    height = 52 if len(ranks) <= 12 else 30
    return figure(
        traces,
        height=96 + height * len(ranks),
        barmode="overlay",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"color": "var(--ink)"}},
        uniformtext={"minsize": 10, "mode": "hide"},
        xaxis=axis(
            f"seconds since iteration {shown.first + 1} began", range=[0, longest * 1.01], fixedrange=False
        ),
        yaxis=axis(
            "",
            tickvals=[rows[rank] + 0.5 for rank in ranks],
            ticktext=[
                plain(f"rank {rank} ({names[rank]})" if rank in names else f"rank {rank}") for rank in ranks
            ],
            range=[0, len(ranks)],
            showgrid=False,
        ),
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": row,
                "y1": row,
                "line": {"color": "var(--lines)", "width": 1},
            }
            for row in range(len(ranks) + 1)
        ],
    )


def _bars(kind: str, pieces: Sequence[tuple[int, _Piece]], rows: dict[int, int], shown: Window) -> Figure:
    low, high = _LOWER if kind == "communicate" else _UPPER
    lanes = {rank: 1 + max(piece.lane for own, piece in pieces if own == rank) for rank, _ in pieces}
    tall = [(high - low) / lanes[rank] for rank, _ in pieces]
    middles = [
        rows[rank] + 1 - low - each * (piece.lane + 0.5)
        for (rank, piece), each in zip(pieces, tall, strict=True)
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "base": [piece.start_s - shown.start_s for _, piece in pieces],
        "x": [piece.end_s - piece.start_s for _, piece in pieces],
        "y": middles,
        "width": [each * 0.94 for each in tall],
        "marker": {
            "color": _COLOURS[kind],
            "line": {"width": 0.5, "color": "var(--surface)"},
            "pattern": {"shape": _PATTERNS[kind], "size": 6, "fgcolor": "var(--ink)", "fillmode": "overlay"},
        },
        "text": [plain(piece.what) if kind != "wait" else "" for _, piece in pieces],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": "var(--on-colour)"},
        "textangle": 0,
        "hoverinfo": "text",
        "hovertext": [
            f"rank {rank}, {kind}: {plain(piece.what)}<br>{seconds(piece.end_s - piece.start_s)}"
            for rank, piece in pieces
        ],
    }


def _pieces(spans: Iterable[Span], *, touching: float) -> list[_Piece]:
    """Join spans of one kind and rank that touch, and put those that overlap in lanes."""
    pieces: list[_Piece] = []
    free: list[float] = []
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        same = span.kind != "communicate" and pieces and span.start_s - pieces[-1].end_s <= touching
        if same and _about(pieces[-1].what) == _about(span.what):
            last = pieces.pop()
            pieces.append(_Piece(span.kind, _about(span.what), last.start_s, max(last.end_s, span.end_s)))
            continue
        lane = next((lane for lane, end in enumerate(free) if end <= span.start_s), len(free))
        if span.kind != "communicate":
            lane = 0
        lane = min(lane, _MOST_LANES - 1)
        free[lane : lane + 1] = [span.end_s]
        pieces.append(_Piece(span.kind, span.what, span.start_s, span.end_s, lane))
    return pieces


def _about(what: str) -> str:
    """Return the first word: `forward conv1` is about forward."""
    return what.partition(" ")[0]
