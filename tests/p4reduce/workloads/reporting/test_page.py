"""The page as text: it loads nothing, nothing of a run file is markup, runs that do not fit are refused."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from p4reduce.workloads import run_file
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.reporting.page import page
from p4reduce.workloads.reporting.reading import checked
from p4reduce.workloads.run_file import Run
from tests.p4reduce.workloads.reporting.hostile import HOSTILE, hostile
from tests.p4reduce.workloads.reporting.runs import compared, rack, replayed, spine_leaf


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts that Plotly is told, which it takes for HTML too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave Plotly's code out, so that a page is quick to search."""
    import plotly.offline

    monkeypatch.setattr(plotly.offline, "get_plotlyjs", lambda: "/* Plotly */")


def _tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(text)
    return parser.tags


@pytest.mark.usefixtures("without_plotly")
def test_nothing_of_a_run_file_becomes_markup() -> None:
    run = hostile(replayed(rack(3)))
    text = page(run)
    tags = _tags(text)
    assert [tag for tag, _ in tags].count("script") == 3  # the data, Plotly, the page's own
    assert "img" not in {tag for tag, _ in tags}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert html.escape(HOSTILE) in text  # it is there, as text
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text)
    assert data is not None
    ours = re.compile("<br>|<extra></extra>")
    assert not [text for text in _strings(json.loads(data[1])) if "<" in ours.sub("", text)]


@pytest.mark.usefixtures("without_plotly")
def test_only_its_own_scripts_may_run_and_nothing_is_loaded() -> None:
    text = page(compared(rack(4)))
    policy = next(
        attributes["content"]
        for tag, attributes in _tags(text)
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    for script in re.findall(r"<script>(.*?)</script>", text, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not [name for _, attributes in _tags(text) for name in attributes if name in ("src", "href")]
    assert "http:" not in text
    assert "https:" not in text


@pytest.mark.usefixtures("without_plotly")
def test_the_page_has_what_was_promised() -> None:
    text = page(replayed(spine_leaf(8)))
    for part in (
        "It pays",
        "times as fast as ring with 8 workers",
        "2(N−1)/N = 1.75",
        "resnet-50: 102 MB of gradients in 161 layers, float32",
        "pays here for float32",
        "headers not counted, bytes of float32",
        "<dt>elements</dt><dd>float32</dd>",
        "Emulated time is not ASIC time",
        "ratios at equal link rates",
        "2 cores, AMD EPYC",
        "p4reduce replay resnet-50",
        'data-chart="timeline"',
        'data-chart="slots"',
        'data-chart="throughput"',
        'data-chart="speedup"',
        'data-chart="goodput"',
        "No packet had to be sent again",
    ):
        assert part in text


@pytest.mark.usefixtures("without_plotly")
def test_what_a_run_has_not_the_page_has_not() -> None:
    run = compared(rack(4), strategies=("gloo",), sampled=False)
    text = page(run.model_copy(update={"skipped": {"in-network": "no room"}}))
    for part in ("timeline", "slots", "throughput", "speedup"):
        assert f'data-chart="{part}"' not in text
    assert "in-network did not run: no room" in text
    assert "<dt>elements</dt>" not in page(run.model_copy(update={"dtype": None}))
    assert "Nobody counted" in text


def test_plotly_itself_is_in_it() -> None:
    text = page(compared(rack(2)))
    assert 3_000_000 < len(text) < 8_000_000
    assert "plotly.js v" in text


def _broken(change: str) -> dict[str, Any]:
    document = compared(rack(2), strategies=("in-network", "ring")).as_json()
    result, fabric = document["results"][0], document["topology"]
    changes: dict[str, Callable[[], Any]] = {
        "none": lambda: document.update(results=[], skipped={"gloo": "no PyTorch"}),
        "twice": lambda: document["results"].append(dict(result)),
        "timeless": lambda: result.update(seconds=[1.0, 0.0]),
        "empty": lambda: result.update(bytes=0),
        "unknown link": lambda: result["bytes_per_link"].update({"h9:s1": {"up": 1, "down": 1}}),
        "unknown sample": lambda: document["samples"]["ring"][0]["links"].update(
            {"x:y": {"up": 1, "down": 1}}
        ),
        "lost host": lambda: fabric["hosts"][0].update(switch="s7"),
        "loose link": lambda: fabric["links"].append("h1:s1:s1"),
    }
    changes[change]()
    return document


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("none", "no results to report (gloo: no PyTorch)"),
        ("twice", "results of 'in-network': there are two"),
        ("timeless", "results of 'in-network': a time is not above 0"),
        ("empty", "2 workers and 0 bytes measure nothing"),
        ("unknown link", "the topology has no link 'h9:s1'"),
        ("unknown sample", "samples of 'ring': the topology has no link 'x:y'"),
        ("lost host", "host 'h1' is behind 's7'"),
        ("loose link", "link 'h1:s1:s1' does not join"),
    ],
)
def test_runs_that_do_not_fit_together_are_refused(change: str, says: str) -> None:
    run = Run.model_validate(_broken(change))
    with pytest.raises(WorkloadError, match=re.escape(says)):
        checked(run)


@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_times_that_are_no_numbers_are_refused(value: str, tmp_path: Path) -> None:
    document = compared(rack(2)).as_json()
    document["results"][0]["median_s"] = float(value)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    with pytest.raises(WorkloadError, match=r"results\.0\.median_s"):
        run_file.read(path)
