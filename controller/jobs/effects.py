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
    """Notice for all planes of the gang that a worker joined or withdrew here; told by `Job.gathered`."""


@dataclass(frozen=True)
class Install:
    """Order to make a plan and write the switch, as all have joined; then call `planned` or `end`."""


@dataclass(frozen=True)
class Vacated:
    """Notice that all workers that had joined have withdrawn."""


@dataclass(frozen=True)
class Started:
    """Notice that all are up: the job runs. Comes before the Start that is told."""


@dataclass(frozen=True)
class Over:
    """Notice that the job has ended: take it off the switch. Comes before the Ended or Left that is told."""


@dataclass(frozen=True)
class Relocate:
    """Order to write the switches, or take the job off them, as all workers hold; then call `moved`."""

    mode: Mode


@dataclass(frozen=True)
class Stayed:
    """Notice that a move was called off: the job goes on as before."""

    reason: str


@dataclass(frozen=True)
class Lost:
    """Order to find out what a lost worker had sent, then call `go_on_without`. `rank` is its rank now."""

    rank: int
    token: bytes
    reason: str


@dataclass(frozen=True)
class MachineLost:
    """Notice that a plane goes on without a worker: all others go on without those of its machine.

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
    """Order to call `renew`: the job can go on only under a new generation."""

    cause: Cause
    reason: str


@dataclass(frozen=True)
class Detach:
    """Order to end all sums in the old generation. Comes before the Renew that is told."""


@dataclass(frozen=True)
class Rebuild:
    """Order to plan this generation and write the switches, as all have answered; then call `renewed`."""

    renewal: int


@dataclass(frozen=True)
class Renumbered:
    """New ranks of workers from here on, by the ranks before. Workers without one are gone."""

    ranks: Mapping[int, int]


@dataclass(frozen=True)
class WentOn:
    """Notice that all are up again: the job runs. Comes before the Start that is told."""

    cause: Cause


@dataclass(frozen=True)
class Forgotten:
    """Notice from the switches: a leaf has lost sums of the job that nobody else has, or entries of it."""

    reason: str


@dataclass(frozen=True)
class Stuck:
    """Order to find out who is missing in a collective without progress, then call `tell_who_is_missing`."""

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
