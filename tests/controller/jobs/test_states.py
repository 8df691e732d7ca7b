"""The table of a job's states."""

from __future__ import annotations

import re
from itertools import pairwise, product
from pathlib import Path

import pytest

from controller.jobs import job as jobs
from controller.jobs import states
from controller.jobs.specs import Phase
from controller.jobs.states import MOVING, RENEWING, TRANSITIONS, State, TransitionError, require


def drawn() -> list[list[State]]:
    """Return the three paths of states that the module's docstring draws."""
    lines = [line for line in (states.__doc__ or "").splitlines() if "──►" in line]
    return [[State[name] for name in re.findall(r"[A-Z]+", line)] for line in lines]


def test_the_table_is_what_is_drawn() -> None:
    """Compare the table with the drawings and with the text beside them."""
    set_up, moved, renewed = drawn()
    follows = {*pairwise(set_up), *pairwise(moved), *pairwise(renewed)}
    follows |= {
        (State.JOINING, State.JOINING),
        (State.JOINING, State.CREATED),
    }  # one by one, and all withdraw
    follows |= {(state, State.RUNNING) for state in moved[1:-1]}  # the rest have kept waiting
    follows |= {(state, State.ASKING) for state in (State.READY, *moved, *renewed)}
    follows |= {(state, State.ENDED) for state in set(State) - {State.ENDED}}
    assert {(before, after) for before in TRANSITIONS for after in TRANSITIONS[before]} == follows
    assert (tuple(moved[1:-1]), tuple(renewed[1:-1])) == (MOVING, RENEWING)


def test_people_see_how_a_job_is_set_up_and_that_it_runs() -> None:
    assert [state.phase.name for state in drawn()[0]] == [state.name for state in drawn()[0]]
    assert {state.phase for state in (*MOVING, *RENEWING)} == {Phase.RUNNING}


def test_every_state_can_be_reached_and_every_live_one_can_end() -> None:
    reached, looking = {State.CREATED}, [State.CREATED]
    while looking:
        found = set(TRANSITIONS[looking.pop()]) - reached
        reached |= found
        looking += found
    assert reached == set(State) == set(TRANSITIONS)
    assert [state for state in State if State.ENDED not in TRANSITIONS[state]] == [State.ENDED]


def test_what_the_table_does_not_have_cannot_happen() -> None:
    for before, after in product(State, State):
        if after in TRANSITIONS[before]:
            assert require(before, after) is after
        else:
            with pytest.raises(TransitionError, match=f"is {before.name} cannot be {after.name}"):
                require(before, after)


def test_what_runs_is_moved_from_there_alone_and_renewed_from_everywhere() -> None:
    set_up = [state for state in State if state.phase in (Phase.READY, Phase.RUNNING)]
    assert [state for state in State if State.ASKING in TRANSITIONS[state]] == set_up
    assert [state for state in State if State.PAUSING in TRANSITIONS[state]] == [State.RUNNING]
    for state in (*MOVING, *RENEWING):
        assert state.phase is Phase.RUNNING
        assert {*TRANSITIONS[state]} <= {*MOVING, *RENEWING, State.RUNNING, State.ENDED}


def test_a_job_changes_its_state_in_one_place() -> None:
    """Check that jobs are otherwise only made in a state."""
    source = Path(jobs.__file__).read_text()
    changes = [line.strip() for line in source.splitlines() if re.search(r"\bself\._state = ", line)]
    assert changes == ["self._state = State.CREATED", "self._state = require(self._state, state)"]
