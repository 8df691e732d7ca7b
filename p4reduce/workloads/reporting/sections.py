"""The sections of the page, each with its text, its choice of strategy and the places of its charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from p4reduce.pages.markup import Markup, element, joined
from p4reduce.workloads.reporting import drawing, figures, reading, sampled, timeline
from p4reduce.workloads.reporting.figures import Figure
from p4reduce.workloads.reporting.heading import rates
from p4reduce.workloads.reporting.quantities import count, rate, seconds, share, size, spread, times
from p4reduce.workloads.reporting.reading import name_of
from p4reduce.workloads.run_file import Result, Run

_EMULATED: Final = (
    "Emulated time is not ASIC time: hosts and switches share this machine's processors. What carries "
    "over to a real fabric is bytes on each link, packets, and ratios at equal link rates; that is why "
    "efficiency is given as a fraction of what the links' rate allows. Seconds, and anything measured "
    "without link rates, are this machine's."
)


_ABOUT: Final = {
    "speedup": "Speed-up of each strategy against ring",
    "goodput": "Goodput of each strategy",
    "retransmissions": "Packets sent again with each strategy",
    "timeline": "What each worker did over time",
    "throughput": "How busy each link was over time",
    "slots": "Slots in use over time",
}


class Charts:
    """All figures: those of the whole run, and those of each strategy."""

    def __init__(self, run: Run) -> None:
        whole = {
            "speedup": figures.speedups(run),
            "goodput": figures.goodputs(run),
            "retransmissions": figures.retransmissions(run),
        }
        self.whole: dict[str, Figure] = {name: found for name, found in whole.items() if found is not None}
        self.each: dict[str, dict[str, Figure]] = {
            "timeline": timeline.timelines(run),
            "throughput": sampled.throughputs(run),
            "slots": sampled.slots(run),
        }

    def as_json(self) -> dict[str, object]:
        """Return the figures as the page's program reads them."""
        return {"whole": self.whole, "each": self.each}


def sections(run: Run, charts: Charts) -> list[Markup]:
    """Make all sections for which the run has data."""
    found: list[Markup] = [
        _section("Strategies", _strategies(run), *_skipped(run)),
        _section("Speed-up and goodput", *_speed(run, charts)),
    ]
    if charts.each["timeline"]:
        found.append(_section("Iterations", *_iterations(run, charts)))
    if any(result.bytes_per_link for result in run.results):
        found.append(_section("Bytes on each link", *_links(run)))
    if charts.each["throughput"]:
        found.append(_section("Links over time", *_over_time(run, charts)))
    if charts.each["slots"]:
        found.append(_section("Slots of the switches", *_slots(charts)))
    found.append(_section("Sent again", *_resent(run, charts)))
    found.append(_section("What these figures are", element("p", _EMULATED, class_="statement")))
    found.append(_section("Where they come from", *_environment(run)))
    return found


_COLUMNS: Final[tuple[tuple[str, Callable[[Run, Result], str]], ...]] = (
    ("median", lambda _, result: seconds(result.median_s)),
    ("least to most", lambda _, result: spread(result.min_s, result.max_s)),
    (
        "against ring",
        lambda run, result: _or_dash(reading.speedup(run, result), lambda value: f"{times(value)}×"),
    ),
    ("goodput", lambda _, result: rate(result.goodput_mbit_s)),
    ("of link bound", lambda _, result: _or_dash(result.fraction_of_link_bound, share)),
    ("waiting", lambda _, result: _or_dash(result.exposed_s, seconds)),
    ("busiest link", lambda _, result: _busiest(result)),
    (
        "sent again",
        lambda _, result: "–" if result.retransmissions is None else count(result.retransmissions),
    ),
    ("sums right", lambda _, result: {True: "yes", False: "NO", None: "–"}[result.verified]),
)


def _strategies(run: Run) -> Markup:
    columns = [column for column in _COLUMNS if column[0] != "waiting" or _replayed(run)]
    head = element("tr", element("th", "strategy", scope="col"), *(_heading(name) for name, _ in columns))
    rows = [
        element(
            "tr",
            element("th", _swatch(result.strategy), name_of(result.strategy), scope="row"),
            *(element("td", show(run, result), data_label=name) for name, show in columns),
        )
        for result in run.results
    ]
    number, times_of = len(run.results[0].seconds), "iteration" if _replayed(run) else "round"
    caption = (
        f"{number} {times_of}{'s' * (number != 1)} of each strategy, interleaved; the slowest worker's time."
    )
    return joined(
        element("p", caption),
        element("div", element("table", head, *rows, class_="stacked"), class_="wide", tabindex=0),
    )


def _replayed(run: Run) -> bool:
    return any(result.exposed_s is not None for result in run.results)


def _heading(text: str) -> Markup:
    return element("th", text, scope="col")


def _swatch(strategy: str) -> Markup:
    return element("span", class_="swatch", style=f"background:{figures.colour(strategy)}")


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "–" if value is None else show(value)


def _busiest(result: Result) -> str:
    most = reading.busiest(result.bytes_per_link)
    return "–" if most is None else f"{size(most.bytes)}, {most.link} {'↑' if most.way == 'up' else '↓'}"


def _skipped(run: Run) -> list[Markup]:
    return [
        element("p", f"{name_of(strategy)} did not run: {why}", class_="note")
        for strategy, why in run.skipped.items()
    ]


def _speed(run: Run, charts: Charts) -> list[Markup]:
    parts = []
    if "speedup" in charts.whole:
        text = (
            "The bar is the ratio of medians, each dot a measurement. A ring sends 2(N−1)/N tensors over "
            "each link, in-network one: the dashed line is the most that this can give."
        )
        if run.workload is not None and run.workload.forward_s + run.workload.backward_s > 0:
            text += " An iteration computes too, so that it gains less."
        parts.append(element("div", element("p", text), _chart("speedup"), class_="half"))
    of_what = "" if run.dtype is None else f", bytes of {run.dtype}"
    text = f"What was summed, a second and worker (headers not counted{of_what})."
    if any(result.link_bound_s for result in run.results):
        text += " The mark is what the links would allow each strategy; the percentage is how near it came."
    parts.append(element("div", element("p", text), _chart("goodput"), class_="half"))
    return [element("div", *parts, class_="halves")]


def _iterations(run: Run, charts: Charts) -> list[Markup]:
    windows = {strategy: timeline.window(run.timelines[strategy]) for strategy in charts.each["timeline"]}
    texts = {strategy: _which(run, strategy, shown) for strategy, shown in windows.items()}
    return [
        element(
            "p",
            "For each worker: above, when it computes and when it only waits for gradients; below, when sums "
            "are under way. Strategies are drawn to the same scale, but for those that take much longer than "
            "the fastest. Drag to look closer, double-click to go back.",
        ),
        _choice("timeline", texts),
        *(element("p", text, class_="note", data_strategy=strategy) for strategy, text in texts.items()),
        _chart("timeline"),
    ]


def _which(run: Run, strategy: str, shown: timeline.Window) -> str:
    result = reading.result_of(run, strategy)
    numbers = range(shown.first, shown.last + 1)
    which = " and ".join(str(number + 1) for number in numbers)
    text = f"{'Iterations' if len(numbers) > 1 else 'Iteration'} {which}"
    if result is None or shown.last >= len(result.seconds):
        return f"{text}, {name_of(strategy)}."
    took = " and ".join(seconds(result.seconds[number]) for number in numbers)
    return f"{text} of {len(result.seconds)}, {name_of(strategy)}: {took}."


def _links(run: Run) -> list[Markup]:
    counted = [result for result in run.results if result.bytes_per_link]
    most = drawing.most_bytes([result.bytes_per_link for result in counted])
    per = "iteration" if run.workload is not None else "all-reduce"
    views = [
        element(
            "div",
            element(
                "div",
                drawing.drawing(
                    run.topology,
                    result.bytes_per_link,
                    title=f"Bytes on each link, {name_of(result.strategy)}",
                    most=most,
                ),
                class_="wide",
                tabindex=0,
            ),
            _link_table(result),
            data_strategy=result.strategy,
        )
        for result in counted
    ]
    return [
        element(
            "p",
            f"Whole frames of one {per}, headers included: ",
            element("span", "↑ towards the switches", class_="up-word"),
            " and ",
            element("span", "↓ from them", class_="down-word"),
            f". Lines are as wide as what they carry, the widest {size(most)}. Hosts have their rank behind "
            "their name.",
        ),
        _choice("links", [result.strategy for result in counted]),
        *views,
    ]


def _link_table(result: Result) -> Markup:
    rows = [
        element(
            "tr",
            element("th", link, scope="row"),
            element("td", size(moved.up)),
            element("td", times(moved.up / result.bytes)),
            element("td", size(moved.down)),
            element("td", times(moved.down / result.bytes)),
        )
        for link, moved in result.bytes_per_link.items()
    ]
    headings = ("link", "up", "in tensors", "down", "in tensors")
    return element(
        "details",
        element("summary", "As a table"),
        element(
            "div",
            element("table", element("tr", *(_heading(text) for text in headings)), *rows),
            class_="wide",
            tabindex=0,
        ),
    )


def _over_time(run: Run, charts: Charts) -> list[Markup]:
    text = "How busy each link was each way (whole frames: goodput and headers); at the right its mean."
    turn = "a turn of its own" if run.kind == "replay" else "the round that warms up"
    text += f" Looked at in {turn}, which is not timed."
    if len(run.topology.links) > sampled.MOST_LINKS:
        text += f" The {sampled.MOST_LINKS} busiest links of {len(run.topology.links)}."
    return [element("p", text), _choice("throughput", charts.each["throughput"]), _chart("throughput")]


def _slots(charts: Charts) -> list[Markup]:
    text = (
        "Aggregators that hold a sum to which some worker has not contributed yet, of those that the job has "
        "on all switches."
    )
    return [element("p", text), _choice("slots", charts.each["slots"]), _chart("slots")]


def _resent(run: Run, charts: Charts) -> list[Markup]:
    if "retransmissions" in charts.whole:
        return [_chart("retransmissions")]
    counted = [name_of(result.strategy) for result in run.results if result.retransmissions is not None]
    if not counted:
        return [element("p", "Nobody counted what was sent again.")]
    return [element("p", f"No packet had to be sent again ({', '.join(counted)}).")]


def _environment(run: Run) -> list[Markup]:
    fabric = run.topology
    rows = [
        ("command", element("code", run.command)),
        ("started", run.started),
        ("machine", run.machine),
        ("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items()) or "–"),
        (
            "fabric",
            f"{fabric.kind}, {len(fabric.hosts)} hosts, {_switches(len(fabric.switches))} ({fabric.target})",
        ),
        ("links", f"{rates(run)}, path MTU {fabric.path_mtu}"),
    ]
    if run.dtype is not None:
        rows.append(("elements", run.dtype))
    work = run.workload
    if work is not None:
        order = "front layers first" if work.priority else "as they become ready"
        rows += [
            ("workload", f"{work.name} ({work.source})"),
            (
                "gradients",
                f"{size(work.gradient_bytes)} in {work.layers} layers, {len(work.buckets)} buckets, {order}",
            ),
            ("computing", f"forward {seconds(work.forward_s)}, backward {seconds(work.backward_s)}"),
        ]
    pairs = [part for name, value in rows for part in (element("dt", name), element("dd", value))]
    return [element("dl", *pairs)]


def _switches(number: int) -> str:
    return "1 switch" if number == 1 else f"{number} switches"


def _section(title: str, *children: Markup) -> Markup:
    return element("section", element("h2", title), *children)


def _chart(name: str) -> Markup:
    return element(
        "div",
        class_="chart",
        id=f"chart-{name}",
        data_chart=name,
        role="figure",
        aria_label=_ABOUT[name],
    )


def _choice(group: str, strategies: Iterable[str]) -> Markup:
    """Make the choice of the strategy to show; all such choices of the page move together."""
    options = [
        element(
            "label",
            element("input", type="radio", name=f"strategy-{group}", value=strategy),
            element("span", _swatch(strategy), name_of(strategy)),
        )
        for strategy in strategies
    ]
    return element("fieldset", element("legend", "Strategy", class_="unseen"), *options, class_="choice")
