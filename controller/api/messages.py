"""Messages between a worker and the controller in a session; names and numbers as in controller.proto.

    Join ──► Waiting… ──► Ready ──► Up ──► Start ──► (heartbeats, moves, renewals) ──► Leave ──► Left

The state machines at both ends use these classes; only codec.py knows protobuf. MACs are text, QPNs and PSNs
have 24 bits, and collectives and messages are counted modulo 2^32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Final

NOT_SAID: Final = {"said": False}  # metadata of a field that controller.proto does not have
# Letters of what a worker says in words. Every hop carries so many, in any script: the controller, which
# takes `Limits.session_message_bytes`, and a machine's workers (`host_agent.machine.messages.MESSAGE_BYTES`).
LONGEST_REASON: Final = 1000


def shortened(text: str, longest: int = LONGEST_REASON) -> str:
    """Cut a text to at most so many letters, ending in "…" if it was cut, and make sure it can be encoded."""
    whole = text if len(text) <= longest else text[: longest - 1] + "…"
    return whole.encode(errors="replace").decode()  # names of files may have half surrogates


class Mode(IntEnum):
    """Place where the job's sums are made."""

    IN_NETWORK = 1
    RING = 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class EndCause(IntEnum):
    """The cause of a job's end. Reasons are for people; programs go by the cause."""

    UNSPECIFIED = 0
    ALL_LEFT = 1
    WORKER_LOST = 2
    WORKER_ABORTED = 3
    MISMATCH = 4
    DELETED = 5
    NOT_SET_UP = 6
    CANNOT_GO_ON = 7
    NOT_CONFIGURED = 8

    @classmethod
    def _missing_(cls, value: object) -> EndCause:
        """Map a cause that only a later release knows to UNSPECIFIED."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker as its neighbours have to know it. `psn_out`: the first PSN of `qpn_out`."""

    rank: int
    mac: str
    ip: IPv4Address
    qpn_out: int
    psn_out: int
    qpn_in: int
    hostname: str = ""


MAX_PLANES: Final = 8


@dataclass(frozen=True)
class Gang:
    """A job's place in a gang: it is plane `plane`, for local rank `plane` of each machine.

    A gang has `planes` planes, one for each GPU of a machine. The ranks in a plane are the machines.
    """

    name: str
    plane: int
    planes: int

    def job_of(self, plane: int) -> str:
        """Return the name of a plane's job."""
        return f"{self.name}/{plane}"

    def wrong_with(self, job: str) -> str:
        """Say in words why that job cannot be this plane; return "" if it can."""
        if not 1 <= self.planes <= MAX_PLANES:
            return f"gang {self.name} of {self.planes} planes is not possible: 1 to {MAX_PLANES}, one a GPU"
        if not 0 <= self.plane < self.planes:
            return (
                f"{self.plane} is no plane of gang {self.name} with {self.planes} planes "
                f"(0..{self.planes - 1})"
            )
        if job != self.job_of(self.plane):
            return (
                f"plane {self.plane} of gang {self.name} is the job {self.job_of(self.plane)}, not {job}: "
                "join it under that name"
            )
        return ""


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A request for a job. None: the best that is possible; `mode` then falls back to RING.

    `tenant`: the tenant whose quota the job's slots count against (empty: the default one). `elastic`: the
    job goes on without workers that die, as long as `min_workers` are left (0: one). `token_hash`: hash of
    the token that workers have to present (controller/security/tokens.py); empty: none. `selective`:
    selective retransmission for all workers, or go-back-N (None: as they ask). `gang`: the gang that the job
    is a plane of.
    """

    name: str
    world_size: int
    mode: Mode | None = None
    path_mtu: int | None = None
    window: int | None = None
    message_packets: int | None = None
    tenant: str = ""
    elastic: bool = False
    min_workers: int = 0
    selective: bool | None = None
    token_hash: str = field(default="", repr=False, metadata=NOT_SAID)
    gang: Gang | None = None


@dataclass(frozen=True, kw_only=True)
class RcParameters:
    """Parameters for bringing up an RDMA device's queue pairs, in the encodings of ibv_modify_qp."""

    timeout: int = 16  # 5 bits: 4.096 us * 2^timeout until an unacknowledged packet is sent again; 0 is never
    retry_count: int = 7  # 3 bits: how often in a row, before the queue pair gives up
    rnr_retry: int = 7  # 3 bits: the same for RNR NAKs; 7 is for ever
    min_rnr_timer: int = 12  # 5 bits: how long our own RNR NAKs ask a sender to wait; 12 is 0.64 ms


# From a worker.


@dataclass(frozen=True, kw_only=True)
class Join:
    """A worker's request to take part. `path_mtu_max`: the largest path MTU of its link, in bytes.

    `rnr_nak`: its NIC retransmits by itself, and needs RNR NAKs for what it sends too early. `selective`:
    resend only lost packets, or also all packets after them (None: only lost ones, if no worker is on an RDMA
    device). `tenant`, `elastic`: as in `JobSpec`. `backup_*`: the interface on which the workers can reach
    each other without the switches, if there is one. `gang`: the gang that the job is a plane of.
    """

    job: str
    world_size: int
    worker: Worker
    path_mtu_max: int
    rnr_nak: bool = False
    tenant: str = ""
    elastic: bool = False
    join_token: str = field(default="", repr=False)
    backup_mac: str = ""
    backup_ip: IPv4Address | None = None
    backup_path_mtu: int = 0
    selective: bool | None = None
    gang: Gang | None = None


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A worker's return. `token`: from Ready. `answered`: each Renew that it answered since its last Renewed.

    `joined`, with its present queue pairs, and `ready`, in the present mode, are for a controller that has
    lost its database.
    """

    job: str
    generation: int
    rank: int
    token: bytes = field(repr=False)
    joined: Join | None = None
    ready: Ready | None = None
    answered: tuple[int, ...] = ()


@dataclass(frozen=True)
class Up:
    """A worker's notice that its queue pairs are ready."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A sign of life. `messages`: how many messages the worker has numbered in that generation.

    `number` counts a worker's heartbeats up from 1; in an elastic job the controller answers each, with its
    number. 0: the controller's own heartbeat, which answers nothing. `running`: the collective that the
    worker is in.
    """

    generation: int = 0
    messages: int = 0
    number: int = 0
    running: int | None = None


@dataclass(frozen=True)
class Leave:
    """A barrier, answered by Left. `collectives`: the worker's number of calls; it makes no more."""

    collectives: int | None = None


@dataclass(frozen=True)
class Abort:
    """A worker's request to end the job for everybody.

    `mismatch`: the reason is that another worker has called another collective than this. `plane`: in a gang,
    the plane of the GPU on this worker's machine that has failed. The reason is cut to `LONGEST_REASON`
    letters.
    """

    reason: str
    mismatch: Called | None = None
    plane: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shortened(self.reason))


@dataclass(frozen=True)
class Paused:
    """Answer to Pause: this worker starts no collective. `next_collective`: the first not started."""

    move: int
    next_collective: int


@dataclass(frozen=True)
class Held:
    """Answer to HoldAt: nothing is in flight."""

    move: int


@dataclass(frozen=True, kw_only=True)
class Renewing:
    """Answer to Renew: the new queue pairs, and the first collective that is not finished.

    The old queue pairs send nothing any more. `gang_collective`: in an elastic gang, the first of all GPUs
    that is not finished here. `called`: the number of the next collective that its user has not called yet;
    in a gang, of its calls on all GPUs. `over`: the newest renewal that is over here, in an elastic gang by
    its `gang_renewal`; 0: there was none.
    """

    renewal: int
    qpn_out: int
    psn_out: int
    qpn_in: int
    collective: int
    gang_collective: int | None = None
    called: int | None = None
    over: int = 0


@dataclass(frozen=True)
class Called:
    """A worker's call number `collective`. `what`: the call in words, cut as a reason; empty: none yet."""

    collective: int
    what: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", shortened(self.what))


@dataclass(frozen=True)
class Stalled:
    """A worker's notice that a collective has made no progress here for too long. Answered by Lacking."""

    collective: int


# From the controller.


@dataclass(frozen=True)
class Waiting:
    """The ranks that have not joined or, sent to a worker that leaves, have not left.

    `missing_workers`: in words, the missing workers of all planes of a gang.
    """

    missing_ranks: tuple[int, ...]
    missing_workers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Notice that all have joined: bring up the queue pairs. Only neighbours, rank and token differ.

    `window` in messages, `path_mtu` in bytes. `mode` is the mode to begin in; `mode_reason`, why not in the
    network. `ring`: all ranks, each followed by its successor; empty: by rank. `rank` and `world_size` may
    differ from those that the worker joined with; world size 0: they do not. `backup`: the neighbours'
    addresses are those of their backup interfaces. `selective`: all workers resend only lost packets.
    `lease_s`: in an elastic job, no result is returned later than this after the last heartbeat that was
    answered; 0: there is no limit. `created`: the request, if the job was created explicitly.
    """

    job_id: int
    generation: int
    window: int
    message_packets: int
    path_mtu: int
    mode: Mode
    successor: Worker
    predecessor: Worker
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    mode_reason: str = ""
    resume_token: bytes = field(default=b"", repr=False)
    rc: RcParameters = RcParameters()
    ring: tuple[int, ...] = ()
    rank: int = 0
    world_size: int = 0
    selective: bool = False
    backup: bool = False
    lease_s: float = 0.0
    created: JobSpec | None = None


@dataclass(frozen=True)
class Start:
    """Notice that everybody's queue pairs are ready."""


@dataclass(frozen=True)
class Left:
    """Notice that everybody has left: the job has ended well, and queue pairs may be taken down."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Notice that the job has ended early: why, and by which rank and host (None, "": by no worker).

    `first_message`: the first that the rank did not contribute to, of those that others wait for. `mismatch`
    is for releases that do not know causes; a `mismatch` from them becomes a cause. `plane`: in a gang, the
    plane in which that worker is `rank`, if not the receiver's.
    """

    reason: str
    cause: EndCause = EndCause.UNSPECIFIED
    rank: int | None = None
    host: str = ""
    first_message: int | None = None
    mismatch: bool = False
    plane: int | None = None

    def __post_init__(self) -> None:
        cause = EndCause(self.cause)
        if cause is EndCause.UNSPECIFIED and self.mismatch:
            cause = EndCause.MISMATCH
        elif cause is EndCause.UNSPECIFIED and self.rank is not None:
            cause = EndCause.WORKER_LOST
        object.__setattr__(self, "cause", cause)
        object.__setattr__(self, "mismatch", cause is EndCause.MISMATCH)


@dataclass(frozen=True)
class Resumed:
    """Notice that the session goes on."""


@dataclass(frozen=True)
class Pause:
    """Order to start no collective and answer Paused, as the job is to move between ring and switch."""

    move: int


@dataclass(frozen=True)
class HoldAt:
    """Order to run the collectives before this one and, when nothing is in flight, answer Held."""

    move: int
    collective: int


@dataclass(frozen=True)
class Moved:
    """Notice to go on, in this mode. `mode_reason`: why not in the network."""

    move: int
    mode: Mode
    mode_reason: str = ""


@dataclass(frozen=True)
class Renew:
    """Notice that the job goes on under a new generation: send no more in this one, and answer Renewing."""

    renewal: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """Order to bring up new queue pairs, and go on with `collective`, the first that some have not finished.

    `holder`: a rank (new numbering) that has finished it, and gives its result to the others; None: nobody
    has, and all do it anew. `members`: by rank (new numbering), the rank that each worker joined with; empty:
    as before.

    In an elastic gang, `gang_renewal` is the number of this renewal that all planes hear (0: there is none).
    A worker that has not finished `gang_collective`, of all GPUs, begins it anew; None: nobody begins one
    anew.

    The new ranks and world size hold from the call with the number `ranks_from` on, for all workers alike. It
    is the furthest `called` of all; None: a worker did not give one. `over`: the newest renewal that was over
    for any of them.
    """

    renewal: int
    ready: Ready
    collective: int
    holder: int | None = None
    members: tuple[int, ...] = ()
    gang_renewal: int = 0
    gang_collective: int | None = None
    ranks_from: int | None = None
    over: int = 0


@dataclass(frozen=True)
class Compare:
    """Request to name the call made as this collective: somebody has met a call other than its own."""

    collective: int


@dataclass(frozen=True)
class Lacking:
    """Answer to Stalled: the workers that the collective waits for, in words; empty: none is known."""

    collective: int
    who: str


FromWorker = Join | Resume | Up | Heartbeat | Leave | Abort | Paused | Held | Renewing | Called | Stalled
FromController = (
    Waiting
    | Ready
    | Start
    | Heartbeat
    | Left
    | Ended
    | Resumed
    | Pause
    | HoldAt
    | Moved
    | Renew
    | Renewed
    | Compare
    | Lacking
)
