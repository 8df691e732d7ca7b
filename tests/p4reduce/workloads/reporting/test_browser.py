"""The page in a headless Chromium: charts are drawn, nothing complains, nothing is asked of a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from p4reduce.workloads.reporting.page import page as report
from p4reduce.workloads.run_file import Run
from tests.p4reduce.pages.browser import Browser, NoBrowserError
from tests.p4reduce.workloads.reporting.hostile import hostile
from tests.p4reduce.workloads.reporting.runs import compared, rack, replayed, spine_leaf

pytestmark = pytest.mark.slow

_MARKS = {  # what a chart of that kind is made of
    "speedup": ".barlayer path, .scatterlayer path.point, .shapelayer path",
    "goodput": ".barlayer path, .scatterlayer path.point",
    "timeline": ".barlayer path",
    "throughput": ".heatmaplayer image",
    "slots": ".scatterlayer path.js-line",
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    directory = tmp_path_factory.mktemp("browser")
    try:
        chromium = Browser(directory / "profile", log=directory / "log")
    except NoBrowserError as error:
        pytest.skip(f"no working headless Chromium: {error}")
    with chromium:
        yield chromium


def test_a_chromium_that_does_not_work_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoBrowserError, match=r"none of chromium, .* is on the PATH"):
        Browser(tmp_path / "profile", log=tmp_path / "log")
    stub = tmp_path / "chromium"
    stub.write_text("#!/bin/sh\necho 'requires the chromium snap to be installed' >&2\nexit 1\n")
    stub.chmod(0o755)
    with pytest.raises(NoBrowserError, match="chromium ended: requires the chromium snap"):
        Browser(tmp_path / "profile", log=tmp_path / "log")


def _opened(browser: Browser, run: Run, path: Path, *, width: int = 1400, scheme: str = "light") -> str:
    path.write_text(report(run), encoding="utf-8")
    browser.events.clear()
    browser.open(path.as_uri(), width=width, scheme=scheme)
    return path.as_uri()


def _marks(browser: Browser, chart: str) -> int:
    found = browser.evaluate(f"document.querySelectorAll('#chart-{chart} :is({_MARKS[chart]})').length")
    assert isinstance(found, int)
    return found


def _asked(browser: Browser) -> set[str]:
    """Return what the page asked for beyond itself: Plotly puts heat maps into images as data."""
    return {url for url in browser.requested() if not url.startswith(("data:", "blob:"))}


def test_all_charts_are_drawn_with_every_strategy(browser: Browser, tmp_path: Path) -> None:
    run = replayed(spine_leaf(8))
    url = _opened(browser, run, tmp_path / "report.html")
    places = browser.evaluate("[...document.querySelectorAll('[data-chart]')].map((e) => e.dataset.chart)")
    assert sorted(places) == sorted(_MARKS)
    drawn = {chart: _marks(browser, chart) for chart in _MARKS}
    assert drawn["speedup"] >= 2 + 12 + 1  # strategies, measurements, the bound
    assert drawn["goodput"] >= 2 + 2
    assert drawn["timeline"] > 8 * 2 * 5  # workers, iterations, buckets
    assert drawn["throughput"] == 1
    assert drawn["slots"] == 2
    fabrics = "[...document.querySelectorAll('svg.fabric')]"
    shown = f"{fabrics}.filter((each) => each.checkVisibility()).map((each) => each.textContent)"
    (before,) = browser.evaluate(shown)
    length = "document.querySelector('#chart-throughput .xaxislayer-above').textContent"
    labels = browser.evaluate(length)
    browser.evaluate("document.querySelector('input[name=strategy-links][value=ring]').click()")
    browser.until(f"{length} !== {labels!r}")  # the ring took longer
    (after,) = browser.evaluate(shown)
    assert "104 MB" in before
    assert "182 MB" in after
    assert _marks(browser, "timeline") > 8 * 2 * 5
    assert browser.evaluate("document.querySelector('input[name=strategy-timeline][value=ring]').checked")
    charts = "[...document.querySelectorAll('.chart')]"
    inside = f"{charts}.map((each) => each.offsetHeight - each.querySelector('svg').clientHeight)"
    assert min(browser.evaluate(inside)) >= 0  # no chart is cut off, or lies on what comes next
    assert browser.complaints() == []
    assert _asked(browser) == {url}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_of_a_narrow_page(browser: Browser, tmp_path: Path, scheme: str) -> None:
    _opened(browser, compared(rack(8)), tmp_path / "report.html", width=600, scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 600
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = browser.evaluate("getComputedStyle(document.querySelector('#chart-goodput .ytick text')).fill")
    lightness = [sum(map(int, colour[4:-1].split(","))) / 765 for colour in (ground, ink)]
    assert (lightness[0] < lightness[1]) == (scheme == "dark")  # also in charts
    assert abs(lightness[0] - lightness[1]) > 0.6
    assert browser.complaints() == []


def test_a_hostile_run_is_only_shown(browser: Browser, tmp_path: Path) -> None:
    url = _opened(browser, hostile(replayed(rack(3))), tmp_path / "report.html")
    assert browser.evaluate("document.title") != "owned"
    assert browser.evaluate("document.querySelectorAll('#report img, header img').length") == 0
    assert "</script><script>" in browser.evaluate("document.querySelector('.subject').textContent")
    assert _marks(browser, "timeline") > 0
    assert browser.complaints() == []
    assert _asked(browser) == {url}
