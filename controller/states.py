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
from enum import Enum, auto
from typing import Final

from controller.specs import Phase


class State(Enum):
    """Where a job is."""

    CREATED = auto()  # without workers
    JOINING = auto()  # some workers have joined
    INSTALLING = auto()  # all have; the switches are being written
    READY = auto()  # workers bring up their queue pairs
    RUNNING = auto()  # all are up
    PAUSING = auto()
    HOLDING = auto()
    RELOCATING = auto()
    ASKING = auto()
    REBUILDING = auto()
    RAISING = auto()
    ENDED = auto()

    @property
    def phase(self) -> Phase:
        """As people see it."""
        return Phase.RUNNING if self in (*MOVING, *RENEWING) else Phase[self.name]


class Event(Enum):
    """What changes that."""

    JOINED = auto()
    ALL_JOINED = auto()
    ALL_WITHDREW = auto()  # nobody who joined is left
    INSTALLED = auto()
    ALL_UP = auto()
    HAD_RUN = auto()  # a worker comes back from a generation that this controller had not seen run
    MOVE = auto()
    ALL_PAUSED = auto()
    ALL_HOLD = auto()
    MOVED = auto()
    CALLED_OFF = auto()
    RENEW = auto()
    ALL_STAND = auto()
    REBUILT = auto()
    END = auto()


MOVING: Final = (State.PAUSING, State.HOLDING, State.RELOCATING)
RENEWING: Final = (State.ASKING, State.REBUILDING, State.RAISING)

_GOES_ON: Final = {Event.RENEW: State.ASKING, Event.END: State.ENDED}

TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.CREATED: {
        Event.JOINED: State.JOINING,
        Event.ALL_JOINED: State.INSTALLING,
        Event.END: State.ENDED,
    },
    State.JOINING: {
        Event.JOINED: State.JOINING,
        Event.ALL_JOINED: State.INSTALLING,
        Event.ALL_WITHDREW: State.CREATED,
        Event.END: State.ENDED,
    },
    State.INSTALLING: {Event.INSTALLED: State.READY, Event.END: State.ENDED},
    State.READY: {Event.ALL_UP: State.RUNNING, Event.HAD_RUN: State.RUNNING, **_GOES_ON},
    State.RUNNING: {Event.MOVE: State.PAUSING, **_GOES_ON},
    State.PAUSING: {Event.ALL_PAUSED: State.HOLDING, Event.CALLED_OFF: State.RUNNING, **_GOES_ON},
    State.HOLDING: {Event.ALL_HOLD: State.RELOCATING, Event.CALLED_OFF: State.RUNNING, **_GOES_ON},
    State.RELOCATING: {Event.MOVED: State.RUNNING, **_GOES_ON},
    State.ASKING: {Event.ALL_STAND: State.REBUILDING, **_GOES_ON},
    State.REBUILDING: {Event.REBUILT: State.RAISING, **_GOES_ON},
    State.RAISING: {Event.ALL_UP: State.RUNNING, **_GOES_ON},
    State.ENDED: {},
}


class TransitionError(Exception):
    """A defect of the controller: what cannot happen in a state was to happen."""


def after(state: State, event: Event) -> State:
    """The state that follows. TransitionError."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise TransitionError(f"{event.name} cannot happen to a job that is {state.name}") from None
