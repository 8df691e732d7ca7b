"""`p4reduce top` in a terminal: it asks in a thread, shows the answers, and survives the cluster's end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane
from textual.widgets.data_table import RowDoesNotExist

from controller.api.errors import ControllerError, UnreachableError
from p4reduce.live import columns
from p4reduce.live.asking import ClusterGoneError
from p4reduce.live.columns import Table
from p4reduce.live.faults import Row
from p4reduce.live.reading import Reading
from p4reduce.live.view import View, view
from topologies.errors import TopologyError

_VIEWS: Final[dict[str, Sequence[Table]]] = {
    "overview": (columns.JOBS, columns.LINKS, columns.FAULTS),
    "jobs": (columns.JOBS,),
    "flows": (columns.FLOWS,),
    "links": (columns.LINKS,),
    "switches": (columns.SWITCHES,),
    "hosts": (columns.HOSTS,),
    "faults": (columns.FAULTS,),
}
_LOOK_S: Final = 0.1
# What a value of a column looks like; it is said in words too.
_STYLES: Final = {
    "DOWN": "bold red",
    "ERROR": "bold red",
    "NO": "bold red",
    "warning": "yellow",
    "running": "green",
    "ended": "dim",
    "network": "green",
    "ring": "yellow",
    "note": "dim",
}
HELP: Final = """\
[b]Keys[/b]
  ← →  1…7   another view         tab       the next table
  ↑ ↓        through the rows     shift+← → the rest of a wide table
  s  S       sort by the next column; the other way round
  p          pause: nothing is asked meanwhile
  q          quit                 ?         this

[b]What is shown[/b]
  [b]sums by[/b]  network: the switches add up; ring: the workers do
  [b]workers[/b]  those connected, of all that the job has
  [b]slots[/b]    those that somebody has still to add to, of all
  [b]Mbit/s[/b]   of a job: what a worker sends, on average
  [b]again[/b]    packets that came to the switch more than once
  [b]resent[/b]   packets that workers say they have sent again
  [b]links[/b]    up: away from the host, or to the spine
  [b]faults[/b]   what is down; what was dropped, and why: "per s" now,
           "total" since the job began (docs/p4-program.md)

–: not known (yet). Time in an emulated fabric is not a switch ASIC's."""


class Source(Protocol):
    """Source of readings, see `Asker`."""

    name: str

    def ask(self) -> Reading: ...

    def close(self) -> None: ...


class Rows(DataTable[Text]):
    """A table that is given all of its rows again and again, and redraws only what has changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("shift+left", "scroll_left", show=False),
        Binding("shift+right", "scroll_right", show=False),
        Binding("left", "app.turn(-1)", show=False),
        Binding("right", "app.turn(1)", show=False),
    ]

    def __init__(self, table: Table) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, cell_padding=1, classes=table.name)
        self.table = table
        self.border_title = table.title
        self.sort_column: int | None = None
        self.descending = False
        self._found: list[Row] = []
        self._shown: dict[str, list[str]] = {}

    def on_mount(self) -> None:
        self._head()

    def tell(self, rows: list[Row]) -> None:
        """Show these rows."""
        self._found = rows
        column = None if self.sort_column is None else self.table.columns[self.sort_column]
        ordered = columns.sorted_rows(self.table, rows, column, descending=self.descending)
        fresh = {self.table.key_of(row): self.table.cells(row) for row in ordered}
        title = self.table.title if rows else f"{self.table.title}: {self.table.empty}"
        if title != self.border_title:
            self.border_title = title
        if list(fresh) == list(self._shown):
            self._change(fresh)
        else:
            self._replace(fresh)
        self._shown = fresh

    def sort_by_next(self) -> None:
        """Sort by the next column; after the last one, keep the order in which rows are found."""
        following = 0 if self.sort_column is None else self.sort_column + 1
        self.sort_column = following if following < len(self.table.columns) else None
        # Who looks for numbers looks for large ones.
        self.descending = self.sort_column is not None and self.table.columns[self.sort_column].right
        self._again()

    def reverse(self) -> None:
        """Reverse the order of the rows."""
        self.descending = not self.descending
        self._again()

    def _again(self) -> None:
        self._head()
        self._shown = {}
        self.tell(self._found)

    def _head(self) -> None:
        self.clear(columns=True)
        for number, column in enumerate(self.table.columns):
            mark = ("▼" if self.descending else "▲") if number == self.sort_column else ""
            self.add_column(
                Text(f"{column.heading}{mark}", justify="right" if column.right else "left"), key=column.key
            )

    def _change(self, fresh: dict[str, list[str]]) -> None:
        for key, cells in fresh.items():
            for column, old, new in zip(self.table.columns, self._shown[key], cells, strict=True):
                if old != new:
                    self.update_cell(key, column.key, _styled(new, right=column.right), update_width=True)

    def _replace(self, fresh: dict[str, list[str]]) -> None:
        at, scroll = self._cursor_key(), self.scroll_offset
        self.clear()
        for key, cells in fresh.items():
            styled = (
                _styled(cell, right=column.right)
                for column, cell in zip(self.table.columns, cells, strict=True)
            )
            self.add_row(*styled, key=key)
        if at is not None:
            with contextlib.suppress(RowDoesNotExist):
                self.move_cursor(row=self.get_row_index(at), scroll=False)
        self.scroll_to(scroll.x, scroll.y, animate=False)

    def _cursor_key(self) -> str | None:
        keys = list(self._shown)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None


class Words(Static):
    """A line that is redrawn only when it has changed."""

    def __init__(self, text: str, *, id: str) -> None:
        super().__init__(text, id=id, markup=False)
        self.text = text

    def tell(self, text: str) -> None:
        """Show this text."""
        if text != self.text:
            self.text = text
            self.update(text)


class Help(ModalScreen[None]):
    """Screen with the keys and the meaning of the columns."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(HELP)


class Top(App[None]):
    """The live view of one cluster. `interval_s`: seconds from one look to the next."""

    TITLE = "p4reduce top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { height: 1; padding: 0 1; text-style: bold; }
    #second { height: 1; padding: 0 1; }
    #status { height: auto; padding: 0 1; display: none; background: $warning; color: $text; }
    #status.shown { display: block; }
    Screen { overflow: hidden; }
    #views, ContentSwitcher, TabPane, TabPane Vertical { height: 1fr; padding: 0; }
    Rows { height: 1fr; border-top: solid $primary; border-title-color: $text; border-title-style: bold;
           background: $background; scrollbar-size: 0 1; }
    Rows:focus { border-top: heavy $accent; }
    #overview Rows.jobs { height: auto; max-height: 35%; }
    #overview Rows.faults { height: auto; max-height: 40%; }
    Help { align: center middle; }
    Help VerticalScroll { width: 78; max-height: 90%; height: auto; border: round $accent; padding: 0 1;
                          background: $surface; }
    .stale Rows { opacity: 60%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("s", "sort", "sort"),
        Binding("S", "reverse", "reverse"),
        Binding("left", "turn(-1)", "view", key_display="←"),
        Binding("right", "turn(1)", "view", key_display="→"),
        Binding("question_mark", "help", "help", key_display="?"),
        *(Binding(str(n), f"show('{name}')", show=False) for n, name in enumerate(_VIEWS, 1)),
    ]

    def __init__(self, source: Source, *, interval_s: float = 1.0) -> None:
        super().__init__()
        self.source = source
        self.interval_s = interval_s
        self.paused = False
        self.trouble = ""
        self.latest: View | None = None
        # Not looked for in the screen: that may be the help's.
        self._headline = Words(f"{source.name}: asking …", id="headline")
        self._second = Words("", id="second")
        self._status = Words("", id="status")
        self._views = TabbedContent(id="views")
        self._tables = {name: [Rows(table) for table in tables] for name, tables in _VIEWS.items()}

    def compose(self) -> ComposeResult:
        yield from (self._headline, self._second, self._status)
        with self._views:
            for name, tables in self._tables.items():
                with TabPane(name.capitalize(), id=name), Vertical():
                    yield from tables
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._focus()
        self.look()

    def on_unmount(self) -> None:
        self.source.close()  # a question under way fails, and nobody waits for it

    @work(exclusive=True)
    async def look(self) -> None:
        """Ask, show and wait in a loop; ask nothing during a pause."""
        while True:
            started = time.monotonic()
            if not self.paused:
                await self._ask()
            while (left := started + self.interval_s - time.monotonic()) > 0 or self.paused:
                await asyncio.sleep(_LOOK_S if self.paused else min(left, self.interval_s))

    async def _ask(self) -> None:
        reading, trouble = None, ""
        try:
            reading = await asyncio.to_thread(self.source.ask)
        except ClusterGoneError as error:
            trouble = f"The cluster is away: {error}. Waiting for it to come back; q quits."
        except UnreachableError:
            trouble = (
                "The controller does not answer: it has died, or is being started. Trying again; q quits."
            )
        except (ControllerError, TopologyError) as error:
            trouble = f"{error}. Trying again; q quits."
        if not self.is_running or self._exit:
            return  # quit meanwhile: there is nothing left to show it on
        if reading is not None and not self.paused:
            self.latest = view(reading)
        self._say(trouble)
        if not trouble:
            self._show()

    def _say(self, trouble: str) -> None:
        """Show the trouble; the last known view stays, marked as stale."""
        self.trouble = trouble
        remarks = self.latest.remarks if self.latest is not None else []
        words = " ".join(filter(None, ("PAUSED (p goes on)." if self.paused else "", trouble, *remarks)))
        self._status.tell(words)
        self._status.set_class(bool(words), "shown")
        self._views.set_class(bool(trouble), "stale")

    def _show(self) -> None:
        """Show the latest view in the open tab; other tabs are updated when they are opened."""
        if self.latest is None:
            return
        self._headline.tell(columns.headline(self.latest))
        self._second.tell(columns.second_line(self.latest))
        for rows in self._open_tables():
            rows.tell(rows.table.rows(self.latest))

    def _open_tables(self) -> list[Rows]:
        return self._tables.get(self._views.active, [])

    def _focus(self) -> None:
        tables = self._open_tables()
        if tables:
            tables[0].focus()

    def _current(self) -> Rows | None:
        tables = self._open_tables()
        focused = [rows for rows in tables if rows.has_focus]
        return next(iter(focused or tables), None)

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Show the latest view in the tab that was opened."""
        self._show()
        self._focus()

    def action_show(self, name: str) -> None:
        """Open a view."""
        self._views.active = name

    def action_turn(self, by: int) -> None:
        """Open the next view, or the previous one."""
        names = list(_VIEWS)
        self.action_show(names[(names.index(self._views.active) + by) % len(names)])

    def action_pause(self) -> None:
        """Pause, or go on."""
        self.paused = not self.paused
        self._say(self.trouble)

    def action_sort(self) -> None:
        """Sort the current table by its next column."""
        if (rows := self._current()) is not None:
            rows.sort_by_next()

    def action_reverse(self) -> None:
        """Reverse the order of the current table."""
        if (rows := self._current()) is not None:
            rows.reverse()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())


def _styled(cell: str, *, right: bool) -> Text:
    return Text(cell, style=_STYLES.get(cell, ""), justify="right" if right else "left")
