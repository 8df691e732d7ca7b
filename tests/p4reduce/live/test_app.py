"""The live view in a terminal: what it shows, its keys, and that nothing makes it end but its user."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import TabbedContent

from controller.api.errors import UnreachableError
from p4reduce.live.app import Help, Rows, Top, Words
from p4reduce.live.asking import ClusterGoneError
from p4reduce.live.reading import Answer, Reading
from tests.p4reduce.live import clusters
from tests.p4reduce.live.clusters import flow, job, reading

pytestmark = pytest.mark.slow  # a screen each

Test = Callable[[Top, "Pilot[None]"], Awaitable[None]]


class Source:
    """Says what it is told to say."""

    name = "c1"

    def __init__(self) -> None:
        self.says: Reading | Exception = reading()
        self.asked = 0
        self.closed = False

    def ask(self) -> Reading:
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def close(self) -> None:
        self.closed = True


def played(test: Test, *, source: Source | None = None, size: tuple[int, int] = (80, 24)) -> Source:
    """Run the view, and a user before it."""
    asked = source or Source()

    async def play() -> None:
        app = Top(asked, interval_s=0.1)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: asked.asked > 1)
            await test(app, pilot)

    asyncio.run(play())
    assert asked.closed
    return asked


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    for _ in range(500):
        await pilot.pause(0.01)
        with contextlib.suppress(ValueError):  # the view is not open yet
            if condition():
                return
    raise AssertionError("it does not come")


def words(app: Top, name: str) -> str:
    return app.screen_stack[0].query_one(f"#{name}", Words).text


def table(app: Top, name: str) -> Rows:
    """Return the table `name` of the view that is open."""
    views = app.query_one("#views", TabbedContent)
    (found,) = views.get_pane(views.active).query(f"Rows.{name}").results(Rows)
    return found


def column(rows: Rows, number: int = 0) -> list[str]:
    return [str(rows.get_row_at(row)[number]) for row in range(rows.row_count)]


def screen(app: Top) -> list[str]:
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]


def test_the_overview_fits_80_by_24() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "q quit" in screen(app)[-1] and table(app, "links").row_count == 8)
        shown = screen(app)
        text = "\n".join(shown)
        assert len(shown) == 24
        assert all(len(line.rstrip()) <= 80 for line in shown)
        assert "c1: 2 leaves 2 spines" in shown[0]
        assert "no errors" in shown[1]
        for word in (
            "train",
            "running",
            "network",
            "2/2",
            "3/768",
            "60.0",
            "h1:l1",
            "100%",
            "Faults",
            "sent again",
        ):
            assert word in text, word

    played(test)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(160, 50), (20, 5)])
def test_any_size(size: tuple[int, int]) -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        for number in range(1, 8):
            await pilot.press(str(number))
            await pilot.pause()
        assert len(screen(app)) == size[1]

    played(test, size=size)


def test_views() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        views = app.query_one("#views", TabbedContent)

        async def goes(key: str, to: str) -> None:
            await until(pilot, lambda: isinstance(app.focused, Rows))
            await pilot.press(key)
            await until(pilot, lambda: views.active == to)

        assert views.active == "overview"
        for name in ("jobs", "flows", "links", "switches", "hosts", "faults", "overview"):
            await goes("right", name)
        await goes("left", "faults")
        await goes("left", "hosts")
        await goes("1", "overview")
        await pilot.press("6")
        await until(pilot, lambda: column(table(app, "hosts")) == ["h1", "h2", "h3", "h4"])

    played(test)


def test_tab_goes_through_the_tables_of_the_overview() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: isinstance(app.focused, Rows))
        seen = []
        for _ in range(3):
            assert isinstance(app.focused, Rows)
            seen.append(app.focused.table.name)
            await pilot.press("tab")
        assert seen == ["jobs", "links", "faults"]

    played(test)


def test_sorting() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: table(app, "links").row_count > 0)
        await pilot.press("3")
        await until(pilot, lambda: table(app, "flows").row_count == 3)
        rows = table(app, "flows")
        for _ in range(6):
            await pilot.press("s")
        await until(pilot, lambda: "Mbit/s▼" in [str(head.label) for head in rows.columns.values()])
        assert column(rows, 5) == ["80.0", "40.0", "–"]
        await pilot.press("S")
        await until(pilot, lambda: column(rows, 5) == ["40.0", "80.0", "–"])

    played(test)


@pytest.mark.slow
def test_the_cursor_stays_on_its_row() -> None:
    source = Source()

    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: table(app, "links").row_count > 0)
        await pilot.press("2")
        source.says = reading(jobs=[job("b"), job("c")])
        await until(pilot, lambda: column(table(app, "jobs")) == ["b", "c"])
        await pilot.press("down")
        source.says = reading(jobs=[job("a"), job("b"), job("c")])
        await until(pilot, lambda: column(table(app, "jobs")) == ["a", "b", "c"])
        assert table(app, "jobs").cursor_row == 2

    played(test, source=source)


@pytest.mark.slow
def test_values_change_in_place() -> None:
    source = Source()

    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: table(app, "links").row_count > 0)
        await pilot.press("3")
        await until(pilot, lambda: column(table(app, "flows"), 5) == ["80.0", "40.0", "–"])
        flows = [flow("l1", 0, aggregated=3_000), flow("l2", 1), flow("s1", 0)]
        source.says = reading(flows=Answer(2.0, flows, Answer(1.0, [flow("l1", 0, aggregated=1_000)])))
        await until(pilot, lambda: column(table(app, "flows"), 5) == ["16.0", "–", "–"])

    played(test, source=source)


def test_in_pause_nothing_is_asked() -> None:
    source = Source()

    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: table(app, "links").row_count > 0)
        await pilot.press("p")
        await until(pilot, lambda: "PAUSED" in words(app, "status"))
        await pilot.pause(0.05)
        before = source.asked
        await pilot.pause(0.3)
        assert source.asked == before
        await pilot.press("p")
        await until(pilot, lambda: source.asked > before)
        assert words(app, "status") == ""

    played(test, source=source)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ClusterGoneError("there is no running cluster 'c1'"),
            "The cluster is away: there is no running cluster 'c1'",
        ),
        (
            UnreachableError("unix:/x: refused"),
            "The controller does not answer",
        ),
    ],
)
def test_it_survives_what_it_looks_at(error: Exception, said: str) -> None:
    source = Source()

    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: table(app, "jobs").row_count == 1)
        source.says = error
        await until(pilot, lambda: said in words(app, "status"))
        assert column(table(app, "jobs")) == ["train"]  # what was known last
        source.says = reading(jobs=[job("next")])
        await until(pilot, lambda: column(table(app, "jobs")) == ["next"])
        assert words(app, "status") == ""

    played(test, source=source)


@pytest.mark.slow
def test_what_could_not_be_asked_is_said() -> None:
    source = Source()
    source.says = reading(remarks=("switch l1 [red]is[/red] away",))

    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: words(app, "status") == "switch l1 [red]is[/red] away")

    played(test, source=source)


@pytest.mark.slow
def test_nothing_is_there_yet() -> None:
    source = Source()
    source.says = reading(jobs=[], flows=None, lines=None, slots=None, agents=None, status=clusters.status())

    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "no jobs" in str(table(app, "jobs").border_title))

    played(test, source=source)


def test_help_and_quit() -> None:
    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: table(app, "links").row_count > 0)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help))
        assert "sort by the next column" in "\n".join(screen(app))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Help))
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)

    played(test)


def test_quitting_does_not_wait_for_an_answer() -> None:
    """A question under way fails when its connection is closed; else the process would stay for it."""

    class Slow(Source):
        def __init__(self) -> None:
            super().__init__()
            self.freed = threading.Event()

        def ask(self) -> Reading:
            super().ask()
            if self.asked > 1:
                assert self.freed.wait(20)
                raise UnreachableError("the channel is closed")
            return reading()

        def close(self) -> None:
            super().close()
            self.freed.set()

    async def test(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: table(app, "links").row_count > 0)
        await pilot.press("q")

    played(test, source=Slow())


@pytest.mark.slow
def test_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def test(app: Top, pilot: Pilot[None]) -> None:
        assert app.no_color
        await until(pilot, lambda: table(app, "jobs").row_count == 1)
        colours = {
            segment.style.color.triplet
            for strip in app.screen._compositor.render_strips()
            for segment in strip.apply_filter(app._filters[0], app.background_colors[0])
            if segment.style is not None and segment.style.color is not None and segment.style.color.triplet
        }
        assert all(c.red == c.green == c.blue for c in colours)

    played(test)
