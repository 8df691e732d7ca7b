"""The states of a job, and what leads from one to another: the one table that says so. No I/O.

A job comes to be in four states, and then runs, until it ends:

    CREATED ──► JOINING ──► INSTALLING ──► READY ──► RUNNING ──► ENDED

A job that runs may be *moved* between ring and switch, in three steps, and goes on unchanged where one of
its workers keeps the others waiting:

    RUNNING ──► PAUSING ──► HOLDING ──► RELOCATING ──► RUNNING

PAUSING, a worker starts no collective, and says which is the first that it has not started. The largest of
these is where all are held: what comes before it has begun somewhere and so must run everywhere. HOLDING, a
worker says when it has nothing in flight: all it sent is acknowledged, all results are in. Only then may the
switches' entries come or go: RELOCATING.

A job that lost something is *renewed*: it goes on under a new generation. That comes in between anything,
another renewal too, where a worker or a switch fails once more:

    RUNNING ──► ASKING ──► REBUILDING ──► RAISING ──► RUNNING

ASKING, each worker closes its connections for good, and says where it stands: the first collective that it
has not finished. Nothing of the old generation is sent after that. As each collective synchronises, two
workers differ by one at most. The job goes on with the smallest; a worker that has finished that one, the
holder, gives its result to those that have not, and without a holder all do it anew. REBUILDING, the switches
are written; RAISING, the workers come up in the new generation.

A move into the switch, or from there into it again, ends in a renewal that finds nothing to cut: under a new
generation, nothing that a switch has of an earlier stay is believed.

People are shown less: of a job that runs, only whether it is being renewed, and whom it waits for. `Phase` is
what they see, and what the database keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from controller.jobs.specs import Phase


class State(Enum):
    """Where a job is. `phase`: as people see it."""

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
    State.CREATED: (State.JOINING, State.INSTALLING, State.ENDED),
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
    """A defect of the controller: a job was to come to a state that does not follow from its own."""


def require(before: State, after: State) -> State:
    """The state after. TransitionError."""
    if after not in TRANSITIONS[before]:
        raise TransitionError(f"a job that is {before.name} cannot be {after.name} next")
    return after
