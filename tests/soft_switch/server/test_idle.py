"""Idle timeouts: which entries are reported as idle, and when."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import p4r
from hypothesis import given, settings
from hypothesis import strategies as st

from soft_switch.server.idle import MIN_TIMEOUT_NS, IdleTimeouts
from soft_switch.server.ticker import Ticker
from tests.soft_switch.server.features import MIRRORS, SOURCES, exact, mirror, source, station, why

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane, Switch

MS = 1_000_000
YEAR = 365 * 86400 * 10**9


class Clock:
    """Time, and when each entry was hit last."""

    def __init__(self) -> None:
        self.now = 0
        self.hits: dict[int, int] = {}

    def idle_ns(self, table: str, handle: int) -> int:
        return self.now - self.hits[handle]


def machine(clock: Clock) -> IdleTimeouts[int]:
    backend: Any = clock
    return IdleTimeouts(backend)


def test_an_entry_is_reported_every_timeout_until_it_is_hit() -> None:
    clock = Clock()
    idle = machine(clock)
    clock.hits[1] = 0
    idle.watch(1, "t", 1, 100 * MS, 0)
    reports = []
    for clock.now in range(0, 1000 * MS, 10 * MS):
        if clock.now == 250 * MS:
            clock.hits[1] = clock.now
        reports += [clock.now // MS for _ in idle.expired(clock.now)]
    assert reports == [100, 200, 350, 450, 550, 650, 750, 850, 950]


def test_timeouts_change_and_end() -> None:
    clock = Clock()
    idle = machine(clock)
    clock.hits = {1: 0, 2: 0, 3: 0}
    for number in clock.hits:
        idle.watch(number, "t", number, 100 * MS, 0)
    idle.watch(1, "t", 1, 300 * MS, 0)
    idle.watch(2, "t", 2, 0, 0)
    idle.drop(3)
    clock.now = 299 * MS
    assert idle.expired(clock.now) == []
    clock.now = 300 * MS
    assert idle.expired(clock.now) == [1]


def test_a_tiny_timeout_is_a_small_one() -> None:
    clock = Clock()
    idle = machine(clock)
    clock.hits[1] = 0
    idle.watch(1, "t", 1, 1, 0)
    assert idle.deadline() == MIN_TIMEOUT_NS


def test_entries_that_come_and_go_leave_nothing() -> None:
    clock = Clock()
    idle = machine(clock)
    clock.hits[0] = 0
    for number in range(10_000):
        idle.watch(number, "t", 0, YEAR, 0)
        idle.drop(number)
    assert len(idle._heap) < 2000


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["hit", "wait", "set", "drop"])), max_size=60))
def test_no_entry_is_reported_early_or_forgotten(events: list[tuple[int, str]]) -> None:
    clock = Clock()
    idle = machine(clock)
    timeouts: dict[int, int] = {}
    reported: dict[int, int] = {}
    for number, event in events:
        clock.now += 7 * MS
        if event == "set":
            if number not in timeouts:
                clock.hits[number] = clock.now
                reported.pop(number, None)
            timeouts[number] = (number + 2) * 10 * MS
            idle.watch(number, "t", number, timeouts[number], clock.now)
        elif event == "hit":
            clock.hits[number] = clock.now
        elif event == "drop":
            timeouts.pop(number, None)
            idle.drop(number)
        due = {
            key
            for key, timeout in timeouts.items()
            if min(clock.now - clock.hits[key], clock.now - reported.get(key, -YEAR)) >= timeout
        }
        assert set(idle.expired(clock.now)) == due
        reported.update(dict.fromkeys(due, clock.now))


# Over P4Runtime


def test_a_notification(learner: Controller, plane: FakePlane) -> None:
    entry = source(1, idle_timeout_ns=20 * MS, controller_metadata=7, metadata=b"m")
    learner.insert(table_entry=entry)
    learner.insert(table_entry=source(2, idle_timeout_ns=YEAR))
    learner.insert(table_entry=source(3))
    handles = {entry[0][0].value: handle for handle, entry in plane.entries["ingress.sources"].items()}
    assert learner.quiet()
    plane.idle = dict.fromkeys((("ingress.sources", handle) for handle in handles.values()), 21 * MS)
    message = learner.receive().idle_timeout_notification
    assert abs(message.timestamp - time.time_ns()) < 60 * 10**9
    expected = p4r.TableEntry()
    expected.CopyFrom(entry)
    expected.ClearField("action")
    assert list(message.table_entry) == [expected]
    learner.delete(table_entry=entry)
    learner.insert(table_entry=source(4))
    while not learner.quiet():  # what was on its way before the delete
        learner.receive()


def test_the_timeout_is_read_back_and_the_age_on_request(learner: Controller, plane: FakePlane) -> None:
    entry = station(1, idle_timeout_ns=YEAR)
    learner.insert(table_entry=entry)
    question = p4r.TableEntry(table_id=entry.table_id)
    assert learner.read(p4r.Entity(table_entry=question)) == [p4r.Entity(table_entry=entry)]
    (handle,) = plane.entries["ingress.stations"]
    plane.idle["ingress.stations", handle] = 12345
    question.time_since_last_hit.SetInParent()
    (answer,) = learner.read(p4r.Entity(table_entry=question))
    assert answer.table_entry.time_since_last_hit.elapsed_ns == 12345
    everything = p4r.TableEntry(time_since_last_hit=p4r.TableEntry.IdleTimeout())
    learner.insert(table_entry=mirror(1, 1))
    answers = [answer.table_entry for answer in learner.read(p4r.Entity(table_entry=everything))]
    assert [answer.HasField("time_since_last_hit") for answer in answers] == [True, False]
    learner.modify(table_entry=station(1))
    (answer,) = learner.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=entry.table_id)))
    assert answer.table_entry.idle_timeout_ns == 0


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (mirror(1, 1, idle_timeout_ns=1), "table ingress.mirrors: idle_timeout_ns: the program declares no"),
        (source(1, idle_timeout_ns=-1), "table ingress.sources: idle_timeout_ns -1 is negative"),
        (source(1, time_since_last_hit=p4r.TableEntry.IdleTimeout()),
         "table ingress.sources: time_since_last_hit is the switch's to set"),
        (p4r.TableEntry(table_id=SOURCES, is_default_action=True, idle_timeout_ns=1),
         "table ingress.sources: idle_timeout_ns: the default entry has no idle timeout"),
    ],
)  # fmt: skip
def test_a_bad_write(learner: Controller, entry: p4r.TableEntry, text: str) -> None:
    kind = "modify" if entry.is_default_action else "insert"
    assert why(learner, kind, table_entry=entry).startswith(f"INVALID_ARGUMENT: {text}")


def test_a_bad_read(learner: Controller) -> None:
    age = p4r.TableEntry.IdleTimeout()
    refusal = learner.refused(
        learner.read,
        p4r.Entity(table_entry=p4r.TableEntry(table_id=MIRRORS, time_since_last_hit=age)),
        p4r.Entity(
            table_entry=p4r.TableEntry(table_id=SOURCES, is_default_action=True, time_since_last_hit=age)
        ),
        p4r.Entity(table_entry=p4r.TableEntry(table_id=SOURCES, time_since_last_hit=age)),
    )
    assert refusal.codes == ["INVALID_ARGUMENT", "INVALID_ARGUMENT", "OK"]


def test_only_primaries_are_told_and_only_of_the_running_pipeline(
    learner: Controller, switch: Switch, plane: FakePlane, features: p4r.ForwardingPipelineConfig
) -> None:
    backup = switch.connect()
    backup.bid(0)
    assert backup.verdict() == ("ALREADY_EXISTS", 1)
    learner.insert(table_entry=source(1, idle_timeout_ns=20 * MS))
    (handle,) = plane.entries["ingress.sources"]
    plane.idle["ingress.sources", handle] = YEAR
    (entry,) = learner.receive().idle_timeout_notification.table_entry
    assert list(entry.match) == [exact(1, 1)]
    assert not entry.HasField("action")
    assert backup.quiet()
    learner.set_config("VERIFY_AND_SAVE", features)
    learner.insert(table_entry=source(2, idle_timeout_ns=1))
    (entry,) = learner.receive().idle_timeout_notification.table_entry
    assert list(entry.match) == [exact(1, 1)]


def test_a_saved_pipeline_is_watched_from_its_commit_on(
    learner: Controller,
    plane: FakePlane,
    features: p4r.ForwardingPipelineConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner.set_config("VERIFY_AND_SAVE", features)
    learner.insert(table_entry=source(1, idle_timeout_ns=20 * MS))
    woken, wake = threading.Event(), Ticker.wake

    def noted(ticker: Ticker) -> None:
        woken.set()
        wake(ticker)

    monkeypatch.setattr(Ticker, "wake", noted)
    learner.set_config("COMMIT")
    assert woken.is_set()  # it may sleep for ever, as there was nothing to watch
    (handle,) = plane.entries["ingress.sources"]
    plane.idle["ingress.sources", handle] = YEAR
    (entry,) = learner.receive().idle_timeout_notification.table_entry
    assert list(entry.match) == [exact(1, 1)]
