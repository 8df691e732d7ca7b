"""What comes out of a job's state machine: events for its workers, and what the controller has to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.comparing import Compare
from controller.moves import HoldAt, Moved, Pause
from controller.renewals import Cause, Renew
from controller.specs import JobSpec, Member, Mode, Plan

# What a worker is told.


@dataclass(frozen=True)
class Waiting:
    """These ranks have not joined."""

    missing: tuple[int, ...]


@dataclass(frozen=True)
class Ready:
    """All have joined: bring up the connections with the neighbours.

    `created`: what was asked for, where the job was created.
    """

    plan: Plan
    successor: Member
    predecessor: Member
    token: bytes
    rank: int
    world_size: int
    lease_s: float = 0.0
    created: JobSpec | None = None


@dataclass(frozen=True)
class Renewed:
    """Bring up new connections, then go on with this collective.

    `holder`: who has finished it, and gives its result to the others; None: all do it anew. `members`: by
    rank, the rank that each worker joined with.
    """

    renewal: int
    ready: Ready
    collective: int
    holder: int | None = None
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Start:
    """Everybody's connections are ready."""


@dataclass(frozen=True)
class Heartbeat:
    """The controller lives. `number`: the worker's that it answers; 0: none."""

    number: int = 0


@dataclass(frozen=True)
class Resumed:
    """The session goes on."""


@dataclass(frozen=True)
class Left:
    """Everybody has left: the job has ended well."""


@dataclass(frozen=True)
class Ended:
    """The job has ended early, and by whose doing (None: no worker's).

    `first_message`: the first that this worker did not contribute to, of those that others wait for.
    `mismatch`: workers have called different things, and the reason names each one's call.
    """

    reason: str
    rank: int | None = None
    host: str = field(default="", compare=False)
    first_message: int | None = field(default=None, compare=False)
    mismatch: bool = False


@dataclass(frozen=True)
class Superseded:
    """The job went on under another generation. Nobody is told."""


Event = (
    Waiting
    | Ready
    | Start
    | Heartbeat
    | Resumed
    | Left
    | Ended
    | Pause
    | HoldAt
    | Moved
    | Renew
    | Renewed
    | Compare
)


# What has to be done.


@dataclass(frozen=True)
class Tell:
    """Send an event to a worker, which has a session."""

    rank: int
    event: Event


@dataclass(frozen=True)
class Install:
    """All have joined: make a plan, write the switch, then call `planned` or `end`."""


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
    """A worker is lost: find out what it had sent, then call `bury`. `rank` is its rank now."""

    rank: int
    token: bytes
    reason: str


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


Effect = (
    Tell
    | Install
    | Started
    | Relocate
    | Stayed
    | Over
    | Lost
    | Interrupted
    | Detach
    | Rebuild
    | Renumbered
    | WentOn
)
