"""What a job's state machine asks for: messages to workers, and work for the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.api.messages import EndCause, FromController, Mode
from controller.jobs.renewals import Cause


@dataclass(frozen=True)
class Superseded:
    """The job went on under another generation. Nobody is told."""


@dataclass(frozen=True)
class Tell:
    """Say that to a worker, which has a session."""

    rank: int
    event: FromController


@dataclass(frozen=True)
class Gathered:
    """Who has joined this plane of a gang has changed: tell all planes, by `Job.gathered`."""


@dataclass(frozen=True)
class Install:
    """All have joined: make a plan, write the switch, then call `planned` or `end`."""


@dataclass(frozen=True)
class Vacated:
    """All who had joined have withdrawn."""


@dataclass(frozen=True)
class Started:
    """All are up: the job runs. Comes before the Start that is told."""


@dataclass(frozen=True)
class Over:
    """The job has ended: take it off the switch. Comes before the Ended or Left that is told."""


@dataclass(frozen=True)
class Relocate:
    """All workers hold: write the switches or take the job off them, then call `moved`."""

    mode: Mode


@dataclass(frozen=True)
class Stayed:
    """A move was called off: the job goes on as before."""

    reason: str


@dataclass(frozen=True)
class Lost:
    """A worker is lost: find out what it had sent, then call `go_on_without`. `rank` is its rank now."""

    rank: int
    token: bytes
    reason: str


@dataclass(frozen=True)
class MachineLost:
    """A plane goes on without a worker: so do all others, without those of its machine.

    `machine`: the rank that they joined with. `rank`: of the worker. `has_stopped`: it returns nothing more.
    """

    machine: int
    rank: int
    reason: str
    cause: EndCause
    has_stopped: bool


@dataclass(frozen=True)
class Interrupted:
    """The job can go on under a new generation only: call `renew`."""

    cause: Cause
    reason: str


@dataclass(frozen=True)
class Detach:
    """Nothing may be added up in the old generation any more. Comes before the Renew that is told."""


@dataclass(frozen=True)
class Rebuild:
    """All workers have said where they stand: make a plan of this generation, write the switches, then call
    `renewed`.
    """

    renewal: int


@dataclass(frozen=True)
class Renumbered:
    """Workers have other ranks from here on: by the rank before, the one now. Who is not in it is gone."""

    ranks: Mapping[int, int]


@dataclass(frozen=True)
class WentOn:
    """All are up again: the job runs. Comes before the Start that is told."""

    cause: Cause


@dataclass(frozen=True)
class Forgotten:
    """A leaf has lost sums of the job that nobody else has, or entries of it. Comes from the switches."""

    reason: str


@dataclass(frozen=True)
class Stuck:
    """A worker's collective makes no progress: find out who is missing, then call `tell_who_is_missing`."""

    token: bytes
    collective: int


Effect = (
    Tell
    | Gathered
    | Install
    | Vacated
    | Started
    | Relocate
    | Stayed
    | Over
    | Lost
    | MachineLost
    | Interrupted
    | Detach
    | Rebuild
    | Renumbered
    | WentOn
    | Forgotten
    | Stuck
)
