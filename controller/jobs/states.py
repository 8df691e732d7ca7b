"""The states of a job, and the one table of which follows which. No I/O.

A job is set up in four states, then runs until it ends:

    CREATED ──► JOINING ──► INSTALLING ──► READY ──► RUNNING ──► ENDED

A plane of a gang stays JOINING until the workers of all planes have joined.

A running job may be *moved* between ring and switch, in three steps. It goes on unchanged if one of its
workers keeps the others waiting; so does a gang, whose planes hold one by one and are moved together:

    RUNNING ──► PAUSING ──► HOLDING ──► RELOCATING ──► RUNNING

- PAUSING: no worker starts a collective; each says which is the first that it has not started. All are held
  at the largest of these: earlier ones have begun somewhere, so they must run everywhere.
- HOLDING: each worker says when it has nothing in flight, that is, all it sent is acknowledged and all its
  results are in.
- RELOCATING: now the entries on the switches may come or go.

A job that lost something is *renewed*: it goes on under a new generation. A renewal can interrupt anything,
even another renewal, when a worker or a switch fails once more:

    RUNNING ──► ASKING ──► REBUILDING ──► RAISING ──► RUNNING

- ASKING: each worker closes its connections for good, and answers with the first collective that it has not
  finished. It sends nothing of the old generation after that. Collectives synchronise, so two workers differ
  by one at most. The job goes on with the smallest. If a worker has finished that one, it is the holder and
  gives its result to those that lack it; without a holder all run it again.
- REBUILDING: the controller writes the switches.
- RAISING: the workers come up in the new generation.

A move into the switch, or from the switch into it again, ends in a renewal that finds nothing to cut. Under
the new generation a switch ignores what it still has of the job's earlier time there.

People see less: `Phase`, which the database keeps as well, and of a running job whether it is being renewed
and whom it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from controller.jobs.specs import Phase


class State(Enum):
    """State of a job. `phase`: the coarser state that people see."""

    CREATED = 1, Phase.CREATED  # without workers
    JOINING = 2, Phase.JOINING  # some workers have joined
    INSTALLING = 3, Phase.INSTALLING  # all have; the switches are being written
    READY = 4, Phase.READY  # workers bring up their queue pairs
    RUNNING = 5, Phase.RUNNING  # all are up
    PAUSING = 6, Phase.RUNNING
    HOLDING = 7, Phase.RUNNING
    RELOCATING = 8, Phase.RUNNING
    ASKING = 9, Phase.RUNNING
    REBUILDING = 10, Phase.RUNNING
    RAISING = 11, Phase.RUNNING
    ENDED = 12, Phase.ENDED

    def __init__(self, number: int, phase: Phase) -> None:
        self.phase = phase


MOVING: Final = (State.PAUSING, State.HOLDING, State.RELOCATING)
RENEWING: Final = (State.ASKING, State.REBUILDING, State.RAISING)

_GOES_ON: Final = (State.ASKING, State.ENDED)

TRANSITIONS: Final[Mapping[State, tuple[State, ...]]] = {
    State.CREATED: (State.JOINING, State.ENDED),
    State.JOINING: (State.JOINING, State.INSTALLING, State.CREATED, State.ENDED),  # CREATED: all withdrew
    State.INSTALLING: (State.READY, State.ENDED),
    State.READY: (State.RUNNING, *_GOES_ON),
    State.RUNNING: (State.PAUSING, *_GOES_ON),
    State.PAUSING: (State.HOLDING, State.RUNNING, *_GOES_ON),  # RUNNING: called off
    State.HOLDING: (State.RELOCATING, State.RUNNING, *_GOES_ON),
    State.RELOCATING: (State.RUNNING, *_GOES_ON),
    State.ASKING: (State.REBUILDING, *_GOES_ON),  # ASKING: once more, under another number
    State.REBUILDING: (State.RAISING, *_GOES_ON),
    State.RAISING: (State.RUNNING, *_GOES_ON),
    State.ENDED: (),
}


class TransitionError(Exception):
    """A defect of the controller: a job was to enter a state that does not follow from its own."""


def require(before: State, after: State) -> State:
    """Return the state after. Raise TransitionError if it cannot follow."""
    if after not in TRANSITIONS[before]:
        raise TransitionError(f"a job that is {before.name} cannot be {after.name} next")
    return after
