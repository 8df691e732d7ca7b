"""The page in a headless Chromium: it plays, by hand and by itself; on a desk and a phone, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p4reduce.simulation.faults.drawing import draw
from p4reduce.simulation.faults.schedule import Schedule
from tests.p4reduce.pages.browser import Browser, NoBrowserError
from tests.p4reduce.simulation.sequence.shown import example, given, page_of

pytestmark = pytest.mark.slow

KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "f": 70, " ": 32}
COUNT = "document.querySelector('#count').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    directory = tmp_path_factory.mktemp("browser")
    try:
        chromium = Browser(directory / "profile", log=directory / "log")
    except NoBrowserError as error:
        pytest.skip(f"no working headless Chromium: {error}")
    with chromium:
        yield chromium


class Page:
    """A page that is open."""

    def __init__(
        self, browser: Browser, path: Path, schedule: Schedule, *, step: int | None = None, **look: Any
    ) -> None:
        text = page_of(schedule)
        self.run = given(text)
        self.path = path / "page.html"
        self.path.write_text(text)
        self.browser = browser
        browser.call("Page.navigate", url="about:blank")  # another step of the same page would not be loaded
        browser.events.clear()
        browser.open(self.path.as_uri() + ("" if step is None else f"#{step}"), **look)

    def at(self) -> int:
        """Return the current step."""
        return int(self.browser.evaluate(COUNT).split(" / ")[0])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = {"key": key, "windowsVirtualKeyCode": KEYS[key]}
            self.browser.call("Input.dispatchKeyEvent", type=kind, **code)

    def text(self, selector: str) -> str:
        found = self.browser.evaluate(f"document.querySelector({selector!r})?.innerText ?? ''")
        assert isinstance(found, str)
        return found

    def count(self, selector: str) -> int:
        found = self.browser.evaluate(f"document.querySelectorAll({selector!r}).length")
        assert isinstance(found, int)
        return found

    def step_of(self, rule: str, nth: int = 0) -> int:
        """Return the number of the nth step by that rule, as the page counts."""
        return [n for n, step in enumerate(self.run["steps"], 1) if step.get("rule") == rule][nth]

    def go(self, step: int) -> None:
        self.browser.evaluate(
            f"(() => {{ const s = document.querySelector('#slider'); s.value = {step - 1};"
            " s.dispatchEvent(new Event('input')); })()"
        )
        assert self.at() == step

    def check(self) -> None:
        """Check that a console would show nothing wrong, and that nothing was asked of a network."""
        assert self.browser.complaints() == []
        asked = {url.partition("#")[0] for url in self.browser.requested()}
        assert asked <= {self.path.as_uri(), "about:blank"}


def test_it_begins_with_the_first_packet_and_goes_by_keys_and_slider(
    browser: Browser, tmp_path: Path
) -> None:
    page = Page(browser, tmp_path, example("lost-result"))
    steps = page.run["steps"]
    first = next(n for n, step in enumerate(steps, 1) if step["kind"] == "sends")
    assert page.at() == first
    assert "h1-1 sends m0.0 First, m0.1 Last, m1.0 Only" in page.text("#now")
    page.press("ArrowRight")
    assert page.at() == first + 1
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert page.at() == first - 1
    page.press("End")
    assert page.at() == len(steps)
    page.press("ArrowRight")
    assert page.at() == len(steps)
    page.press("Home")
    assert page.at() == 1
    page.press("f")
    assert page.at() == next(n for n, step in enumerate(steps, 1) if step.get("fault"))
    assert "✕" in page.text("#now")  # one of its packets is lost
    page.go(20)
    assert browser.evaluate("location.hash") == "#20"
    page.check()


def test_slots_show_tag_bitmap_and_sums_at_the_current_step(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path, example("plain-sum"))
    page.go(page.step_of("1 claim") - 1)
    assert "All are empty." in page.text("#slots")
    page.go(page.step_of("1 claim", 1))
    touched = ".slot.touched"
    assert page.text(touched).splitlines()[:2] == ["m0.1", "slot 1"]
    assert page.count(f"{touched} .bits i.in") == 1
    first = list(map(int, page.text(f"{touched} .numbers").removesuffix("…").split()))
    page.go(page.step_of("2 add", 1))
    added = list(map(int, page.text(f"{touched} .numbers.added").removeprefix("+").split()))
    second = list(map(int, page.text(f"{touched} .numbers:not(.added)").removesuffix("…").split()))
    assert second == [a + b for a, b in zip(first, added, strict=True)]
    assert page.count(f"{touched} .bits i.in") == 2
    page.go(page.step_of("2 complete", 1))
    assert "sum" in page.text(touched)
    assert page.count(".slot") == 3
    page.go(page.step_of("1 claim"))  # and back
    assert page.count(".slot") == 1
    page.check()


def test_the_rule_that_a_packet_met_is_named_and_told(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path, example("lost-result"))
    page.go(page.step_of("4 replay"))
    assert "by rule “4 replay”" in page.text("#now")
    assert "it goes on to flow r's receiver alone, with the stored sum" in page.text("#now .five")
    row = page.text("#rule")
    assert "holds\nsum – the sum of all workers" in row
    assert "counts\nreplayed" in row
    assert page.browser.evaluate("document.querySelector('.mark.current text').textContent") == "4 replay"
    page.check()


def test_a_click_on_a_packet_shows_its_headers(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path, example("plain-sum"))
    page.go(page.step_of("2 complete"))
    arrows = page.run["arrows"]
    wanted = next(
        n
        for n, arrow in enumerate(arrows)
        if page.run["packets"][arrow[4]][1] == "sum m0.0 First" and arrow[1] == "h1-2"
    )
    label = f"document.querySelector('.arrow[data-arrow=\"{wanted}\"] text').getBoundingClientRect()"
    x, y = browser.evaluate(
        f"(() => {{ const b = {label}; return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    packet = page.text("#packet")
    assert packet.startswith("sum m0.0 First\n\nl1 → h1-2, sent at ")
    assert "0x40 made by a switch" in packet
    assert "flags\n0x01 RESULT" in packet
    assert page.count(f'.arrow.chosen[data-arrow="{wanted}"]') == 2  # the line and its label
    page.check()


def test_it_plays_by_itself_until_it_is_paused(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path, example("plain-sum"))
    browser.evaluate("document.querySelector('#speed').value = '4'")
    began = page.at()
    page.press(" ")
    assert browser.evaluate("document.querySelector('#play').getAttribute('aria-label')") == "Pause"
    browser.until(f"parseInt({COUNT}) > {began + 3}")
    page.press(" ")
    assert browser.evaluate("document.querySelector('#play').getAttribute('aria-label')") == "Play"
    stopped = page.at()
    browser.evaluate("new Promise((done) => setTimeout(done, 700))")
    assert page.at() == stopped
    page.press("End")
    page.press(" ")  # again, from the beginning
    assert page.at() < stopped
    page.check()


def test_faults_are_marked(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path, example("lost-result"))
    assert page.count("#ticks i:not(.done)") == 1
    page.press("f")
    assert page.count(".arrow.struck .cross") == 2
    restarts = Page(browser, tmp_path, example("switch-that-restarts"))
    restarts.press("f")
    assert "fault: switch-restart l1" in restarts.text("#now")
    assert restarts.count(".away") == 1
    assert "All are empty." in restarts.text("#slots")
    restarts.check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["lost-result", "two-racks"])
def test_it_can_be_read_on_a_phone(browser: Browser, tmp_path: Path, scheme: str, name: str) -> None:
    page = Page(browser, tmp_path, example(name), step=34, width=390, height=844, scheme=scheme)
    assert page.at() == 34
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    words = (
        "[...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() && !e.childElementCount)"
    )
    sizes = (
        f"{words}.filter((e) => e.textContent.trim()).map((e) => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert browser.evaluate(f"Math.min(...{sizes})") >= 10
    buttons = "[...document.querySelectorAll('.player button')].map((e) => e.getBoundingClientRect())"
    assert browser.evaluate(f"Math.min(...{buttons}.map((box) => Math.min(box.width, box.height)))") >= 40
    assert browser.evaluate(f"Math.max(...{buttons}.map((box) => box.bottom))") <= 844  # always in reach
    ground = browser.evaluate("getComputedStyle(document.querySelector('.diagram')).backgroundColor")
    ink = browser.evaluate("getComputedStyle(document.querySelector('.head.host text')).fill")
    lightness = [sum(map(int, colour[4:-1].split(","))) / 765 for colour in (ground, ink)]
    assert (lightness[0] < lightness[1]) == (scheme == "dark")
    assert abs(lightness[0] - lightness[1]) > 0.6
    # What happens is in sight, also where the fabric is wider than the phone.
    dot = "document.querySelector('.mark.current, .dot:not(.later)').getBoundingClientRect()"
    assert browser.evaluate(f"{dot}.width") > 0
    page.check()


def test_a_long_run_can_be_gone_through(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path, draw(17))
    last = len(page.run["steps"])
    assert last > 800
    for step in (last, 1, last // 2):
        page.go(step)
        assert page.count(".arrow") < 700  # no more is drawn than is near
        assert page.run["steps"][step - 1]["said"][0] in page.text("#now")
    page.check()


def test_wherever_a_run_is_every_step_can_be_shown(browser: Browser, tmp_path: Path) -> None:
    page = Page(browser, tmp_path, example("two-racks"))
    for step in range(1, len(page.run["steps"]) + 1):
        page.go(step)
        assert page.run["steps"][step - 1]["said"][0] in page.text("#now")
    page.check()
