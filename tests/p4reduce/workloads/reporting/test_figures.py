"""Figures are ones that Plotly takes, and show what the run has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from p4reduce.workloads.reporting import figures, sampled, timeline
from p4reduce.workloads.reporting.drawing import drawing, most_bytes
from p4reduce.workloads.reporting.sections import Charts
from p4reduce.workloads.run_file import LinkBytes, Run, Sample, Span
from tests.p4reduce.workloads.reporting.runs import compared, rack, replayed, spine_leaf


def _all(run: Run) -> Iterator[figures.Figure]:
    charts = Charts(run)
    yield from charts.whole.values()
    for own in charts.each.values():
        yield from own.values()


@pytest.mark.parametrize(
    "run",
    [
        compared(rack(4)),
        compared(rack(3, rate_mbit=None), sampled=False),
        replayed(spine_leaf(8), iterations=1),
        compared(rack(2), strategies=("gloo",)),
    ],
)
def test_plotly_takes_them(run: Run) -> None:
    from plotly.graph_objects import Figure

    for figure in _all(run):
        Figure(figure)  # raises ValueError at whatever it does not know


def test_the_bound_is_drawn_in() -> None:
    figure = figures.speedups(compared(rack(8)))
    assert figure is not None
    (line,) = figure["layout"]["shapes"]
    assert line["x0"] == line["x1"] == 1.75
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    assert "2(N−1)/N = 1.75" in texts
    assert "1.00×" in texts


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", None])
def test_the_type_is_named(dtype: str | None) -> None:
    run = compared(rack(4), dtype=dtype)
    speedups = figures.speedups(run)
    assert speedups is not None
    titles = [one["layout"]["xaxis"]["title"]["text"] for one in (speedups, figures.goodputs(run))]
    behind = "" if dtype is None else f", {dtype}"
    assert titles == [f"times as fast as ring (4 workers{behind})", f"goodput per worker in Mbit/s{behind}"]


def test_narrow_uplinks_have_a_bound_of_their_own() -> None:
    run = compared(spine_leaf(8))
    run.results[0] = run.results[0].model_copy(update={"link_bound_s": 4.0})
    figure = figures.speedups(run)
    assert figure is not None
    assert [line["x0"] for line in figure["layout"]["shapes"]] == [1.75, pytest.approx(1.12, abs=0.01)]


def test_no_ring_no_speed_up() -> None:
    assert figures.speedups(compared(rack(4), strategies=("in-network", "gloo"))) is None


def test_every_measurement_is_a_dot() -> None:
    run = compared(rack(4), strategies=("in-network", "ring"), rounds=3)
    figure = figures.speedups(run)
    assert figure is not None
    ring = run.results[1]
    assert sorted(figure["data"][1]["x"]) == sorted(
        ring.median_s / value for result in run.results for value in result.seconds
    )


def test_what_was_sent_again_is_drawn_if_there_was_any() -> None:
    run = compared(rack(4))
    assert figures.retransmissions(run) is None
    run.results[0] = run.results[0].model_copy(update={"retransmissions": 12})
    figure = figures.retransmissions(run)
    assert figure is not None
    assert max(figure["data"][0]["x"]) == 12


def test_text_is_text_to_plotly() -> None:
    assert figures.plain("<b>a&b</b>") == "&lt;b&gt;a&amp;b&lt;/b&gt;"
    assert figures.plain("a\x00\nb\u202ec") == "a  b c"
    assert figures.plain("x" * 100) == "x" * 27 + "…"


def _spans(lengths: list[float]) -> list[Span]:
    found, at = [], 0.0
    for iteration, length in enumerate(lengths):
        found.append(_span("compute", at, at + length, iteration=iteration))
        at += length
    return found


def _span(kind: Any, start: float, end: float, *, iteration: int = 0, what: str = "forward x") -> Span:
    return Span(rank=0, iteration=iteration, kind=kind, what=what, start_s=start, end_s=end)


@pytest.mark.parametrize(
    ("lengths", "shown"), [([1, 3, 2, 9], (1, 2)), ([1, 9, 2], (1, 2)), ([5], (0, 0)), ([3, 1, 2], (1, 2))]
)
def test_the_median_iteration_is_shown_with_a_neighbour(lengths: list[float], shown: tuple[int, int]) -> None:
    window = timeline.window(_spans(lengths))
    assert (window.first, window.last) == shown


def test_layers_that_touch_are_one_bar_and_forward_is_not_backward() -> None:
    run = replayed(rack(2), strategies=("ring",), iterations=1, layers=50, buckets=2)
    compute, communicate, _ = timeline.timelines(run)["ring"]["data"]
    assert compute["text"] == ["forward", "backward"] * 2
    assert sum(compute["x"]) == pytest.approx(2 * 2.7, rel=0.02)
    assert len(communicate["x"]) == 4


def test_sums_at_the_same_time_lie_beside_each_other() -> None:
    run = replayed(rack(2), strategies=("ring",), iterations=1)
    run.timelines["ring"] = [_span("communicate", 0, 2, what="a"), _span("communicate", 1, 3, what="b")]
    _, communicate, _ = timeline.timelines(run)["ring"]["data"]
    assert len(set(communicate["y"])) == 2


def test_all_timelines_have_one_scale() -> None:
    found = timeline.timelines(replayed(rack(4)))
    assert len({tuple(figure["layout"]["xaxis"]["range"]) for figure in found.values()}) == 1


def _sample(at: float, up: int, *, slots: int = 0) -> Sample:
    return Sample(
        at_s=at, links={"h1:s1": LinkBytes(up=up, down=0)}, slots_open=slots, slots_allocated=2 * slots
    )


def test_rates_are_shares_of_the_links() -> None:
    run = compared(rack(2), strategies=("in-network",), sampled=False)
    # 1.25 MB in a second are 10 Mbit/s, a tenth of the link; then nothing; then nobody looked for a while.
    ups = [(1.0, 1_250_000), (2.0, 1_250_000), (3.0, 1_250_000), (30.0, 2_500_000), (31.0, 2_500_000)]
    run.samples["in-network"] = [_sample(at, up) for at, up in ups]
    (heat,) = sampled.throughputs(run)["in-network"]["data"]
    assert heat["y"] == ["h1:s1 ↓", "h1:s1 ↑"]
    assert heat["z"][1] == [10.0, 0.0, 0.0, None, 0.0]
    assert heat["x"] == [0.0, 1.0, 2.0, 3.0, 30.0, 31.0]


def test_one_look_at_the_start_shows_no_rate() -> None:
    run = compared(rack(2), strategies=("in-network",), sampled=False)
    run.samples["in-network"] = [_sample(0.0, 0)]
    assert sampled.throughputs(run) == {}


def test_slots_are_shown_where_there_are_any() -> None:
    run = compared(rack(2), strategies=("in-network", "ring"), sampled=False)
    run.samples["in-network"] = [_sample(at / 5, at, slots=at) for at in range(1, 5)]
    run.samples["ring"] = [_sample(1.0, 5)]
    found = sampled.slots(run)
    assert list(found) == ["in-network"]
    used, allocated = found["in-network"]["data"]
    assert max(used["y"]) == 4
    assert max(allocated["y"]) == 8


def test_many_samples_are_thinned() -> None:
    thin = sampled.thinned([_sample(float(at), at) for at in range(1000)], most=10)
    assert len(thin) == 10
    assert (thin[0].at_s, thin[-1].at_s) == (0.0, 999.0)


def test_the_drawing_has_every_link_both_ways_as_wide_as_its_bytes() -> None:
    run = compared(spine_leaf(8))
    links = run.results[0].bytes_per_link
    svg = drawing(run.topology, links, title="t", most=most_bytes([links]))
    assert svg.count('class="up"') == svg.count('class="down"') == len(run.topology.links) == 12
    assert 'stroke-width="12.00"' in svg  # the busiest
    assert "↑ 32.6 MB" in svg
    for box in ("s1", "s2", "l1", "l2", "h1 · 0", "h8 · 7"):
        assert f">{box}</text>" in svg


def test_links_without_bytes_and_hosts_without_workers_are_drawn_so() -> None:
    fabric = rack(3)
    fabric.hosts[2] = fabric.hosts[2].model_copy(update={"rank": None})
    svg = drawing(fabric, {}, title="t", most=0)
    assert svg.count('class="idle"') == 3
    assert svg.count("host unused") == 1


def test_the_largest_fabric_is_drawn() -> None:
    fabric = spine_leaf(64, leaves=8, spines=4)
    svg = drawing(fabric, {link: LinkBytes(up=1, down=1) for link in fabric.links}, title="t", most=1)
    assert svg.count('class="up"') == 64 + 32


def test_of_many_links_the_busiest_are_shown() -> None:
    run = compared(spine_leaf(64, leaves=8, spines=4), strategies=("in-network", "ring"))
    (heat,) = sampled.throughputs(run)["ring"]["data"]
    assert len(heat["y"]) == 2 * sampled.MOST_LINKS


def test_a_strategy_that_takes_for_ever_has_a_scale_of_its_own() -> None:
    run = replayed(rack(4))
    run.timelines["gloo"] = [_span("compute", 0, 1000)]
    ends = {name: figure["layout"]["xaxis"]["range"][1] for name, figure in timeline.timelines(run).items()}
    assert ends["in-network"] == ends["ring"] < 100 < ends["gloo"]
