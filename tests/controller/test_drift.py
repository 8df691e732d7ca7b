"""What turns a switch as found into a switch as wanted, and in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.drift import Change, ChangeKind, batch, difference
from controller.entries import Entry, Group, Key, TableEntry, key_of, table_entry
from controller.flows import EMIT, FLOW, MEMBER_QP
from controller.routes import ROUTE
from controller.updates import UpdateKind

_TABLES = (FLOW, MEMBER_QP, EMIT, ROUTE)
_ENTRIES = st.one_of(
    st.builds(
        lambda table, key, value: table_entry(table, {"key": key}, "action", value=value),
        st.sampled_from(_TABLES),
        st.integers(0, 3),
        st.integers(0, 1),
    ),
    st.builds(lambda number, port: Group(number, ((port, 1),)), st.integers(1, 4), st.integers(1, 2)),
)
_STATES = st.dictionaries(st.integers(0, 40), _ENTRIES).map(
    lambda found: {key_of(entry): entry for entry in found.values()}
)


def route(number: int, port: int = 1) -> TableEntry:
    return table_entry(ROUTE, {"dst_ip": (number, 32)}, "next_hop", port=port)


def by_key(*entries: Entry) -> dict[Key, Entry]:
    return {key_of(entry): entry for entry in entries}


def rank(entry: Entry) -> str:
    return "group" if isinstance(entry, Group) else entry.table


@given(found=_STATES, wanted=_STATES, written=_STATES)
def test_the_changes_make_it_so(
    found: dict[Key, Entry], wanted: dict[Key, Entry], written: dict[Key, Entry]
) -> None:
    result = difference(found.values(), wanted.values(), written)
    switch = dict(found)
    for update in batch(result.changes):
        key = key_of(update.entry)
        assert (key in switch) == (update.kind is not UpdateKind.INSERT)
        if update.kind is UpdateKind.DELETE:
            assert switch.pop(key) == update.entry
        else:
            switch[key] = update.entry
    assert switch == wanted
    assert len(batch(result.changes)) == len(result.changes)
    assert result.unchanged == len(wanted.items() & found.items())
    assert not difference(switch.values(), wanted.values(), wanted).changes


@given(found=_STATES, wanted=_STATES)
def test_drift_is_what_nobody_wrote(found: dict[Key, Entry], wanted: dict[Key, Entry]) -> None:
    by_us = difference(found.values(), wanted.values(), found)
    assert not any(change.drift for change in by_us.changes)
    by_hand = difference(found.values(), wanted.values(), wanted)
    assert all(change.drift for change in by_hand.changes)


@given(found=_STATES, wanted=_STATES)
def test_the_order_is_safe(found: dict[Key, Entry], wanted: dict[Key, Entry]) -> None:
    updates = batch(difference(found.values(), wanted.values(), {}).changes)
    kinds = [update.kind is UpdateKind.DELETE for update in updates]
    assert kinds == sorted(kinds)  # what replaces something is there before that goes
    written = [rank(u.entry) for u in updates if u.kind is not UpdateKind.DELETE]
    assert written == sorted(written, key=["group", EMIT, FLOW, MEMBER_QP, ROUTE].index)
    deleted = [rank(u.entry) for u in updates if u.kind is UpdateKind.DELETE]
    assert [FLOW] * deleted.count(FLOW) == deleted[: deleted.count(FLOW)]
    guards = deleted.count(MEMBER_QP)
    assert [MEMBER_QP] * guards == deleted[len(deleted) - guards :]


def test_each_kind() -> None:
    result = difference(
        [route(1), route(2, port=9), route(4)], [route(1), route(2), route(3)], by_key(route(1), route(2))
    )
    assert result.unchanged == 1
    assert set(result.changes) == {
        Change(route(2, port=9), route(2), drift=True),  # changed by hand
        Change(None, route(3), drift=False),  # new in the document
        Change(route(4), None, drift=True),  # added by hand
    }
    assert {change.kind for change in result.changes} == set(ChangeKind)


def test_deleted_by_hand() -> None:
    (change,) = difference([], [route(1)], by_key(route(1))).changes
    assert change == Change(None, route(1), drift=True)


def test_changed_by_hand_into_what_is_wanted_now_is_no_change() -> None:
    assert difference([route(1, port=2)], [route(1, port=2)], by_key(route(1))).changes == ()
