"""Effects that a job's state machine asks for: messages to workers, and work for the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.api.messages import EndCause, FromController, Mode
from controller.jobs.renewals import Cause


@dataclass(frozen=True)
class Superseded:
    """The outcome of a job that went on under another generation. Nobody is told."""


@dataclass(frozen=True)
class Tell:
    """Message to a worker; the controller sends it if the worker has a session."""

    rank: int
    event: FromController


@dataclass(frozen=True)
class Gathered:
    """A worker of this plane has joined or withdrawn: tell all planes of the gang, by `Job.gathered`."""


@dataclass(frozen=True)
class Install:
    """All have joined: make a plan, write the switch, then call `planned` or `end`."""


@dataclass(frozen=True)
class Vacated:
    """All workers that had joined have withdrawn."""


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
    """A plane goes on without a worker: all others go on without those of its machine.

    `machine`: the rank that they joined with. `rank`: that worker's rank. `has_stopped`: it returns nothing
    more.
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
    """The old generation may make no more sums. Comes before the Renew that is told."""


@dataclass(frozen=True)
class Rebuild:
    """All workers have said where they stand: plan this generation, write the switches, call `renewed`."""

    renewal: int


@dataclass(frozen=True)
class Renumbered:
    """Workers have other ranks from here on: each new rank by the one before. Others are gone."""

    ranks: Mapping[int, int]


@dataclass(frozen=True)
class WentOn:
    """All workers are up again: the job runs. Comes before the Start that is told."""

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
