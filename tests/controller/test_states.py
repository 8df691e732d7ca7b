"""The table of a job's states."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from controller import jobs
from controller.specs import Phase
from controller.states import MOVING, RENEWING, TRANSITIONS, Event, State, TransitionError, after

LIVE = [state for state in State if state is not State.ENDED]


def test_every_state_can_be_reached_and_every_live_one_can_end() -> None:
    reached, looking = {State.CREATED}, [State.CREATED]
    while looking:
        found = set(TRANSITIONS[looking.pop()].values()) - reached
        reached |= found
        looking += found
    assert reached == set(State) == set(TRANSITIONS)
    assert all(after(state, Event.END) is State.ENDED for state in LIVE)


def test_every_event_happens_somewhere() -> None:
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)


def test_what_the_table_does_not_have_cannot_happen() -> None:
    for state, event in product(State, Event):
        if event in TRANSITIONS[state]:
            assert after(state, event) is TRANSITIONS[state][event]
        else:
            with pytest.raises(TransitionError, match=f"{event.name} .* {state.name}"):
                after(state, event)


def test_what_runs_is_moved_from_there_alone_and_renewed_from_everywhere() -> None:
    set_up = [state for state in State if state.phase in (Phase.READY, Phase.RUNNING)]
    assert [state for state in State if Event.RENEW in TRANSITIONS[state]] == set_up
    assert [state for state in State if Event.MOVE in TRANSITIONS[state]] == [State.RUNNING]
    for state in (*MOVING, *RENEWING):
        assert state.phase is Phase.RUNNING
        assert set(TRANSITIONS[state].values()) <= {*MOVING, *RENEWING, State.RUNNING, State.ENDED}


def test_a_job_changes_its_state_in_one_place() -> None:
    """Beside it, jobs are only made, in one state or another."""
    source = Path(jobs.__file__).read_text()
    changes = [line.strip() for line in source.splitlines() if re.search(r"\bself\._state = ", line)]
    assert changes == ["self._state = State.CREATED", "self._state = after(self._state, event)"]
