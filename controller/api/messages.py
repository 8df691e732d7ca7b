"""What a worker and the controller say to each other in a session; names and numbers as in controller.proto.

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
    """A text of at most so many letters, which ends in "…" where it was cut; all of it can be encoded."""
    whole = text if len(text) <= longest else text[: longest - 1] + "…"
    return whole.encode(errors="replace").decode()  # names of files may have half surrogates


class Mode(IntEnum):
    """Where the job's sums are made."""

    IN_NETWORK = 1
    RING = 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class EndCause(IntEnum):
    """Why a job has ended. Reasons are for people; programs go by this."""

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
        """Of a later release."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker as its neighbours have to know it. `psn_out`: the first of `qpn_out`."""

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
    """A job is plane number `plane` of the gang `name`: that of local rank `plane` of all machines.

    Of `planes` altogether, one for each GPU of a machine. The plane's ranks are the machines.
    """

    name: str
    plane: int
    planes: int

    def job_of(self, plane: int) -> str:
        """The name of a plane's job."""
        return f"{self.name}/{plane}"

    def wrong_with(self, job: str) -> str:
        """Why that job cannot be this plane, in words; empty if it can."""
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
    """What was asked for. None: whatever is best; then `mode` falls back to RING.

    `tenant`: whose quota the job's slots count against; empty: the default one's. `elastic`: the job goes on
    without workers that die, as long as `min_workers` are left (0: one). `token_hash`: of what workers have
    to bring (controller/security/tokens.py); empty: nothing. `selective`: selective retransmission for all
    workers, or go-back-N (None: as they ask). `gang`: the job is a plane of it.
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
    """What an RDMA device's queue pairs are brought up with, in the encodings of ibv_modify_qp."""

    timeout: int = 16  # 5 bits: 4.096 us * 2^timeout until an unacknowledged packet is sent again; 0 is never
    retry_count: int = 7  # 3 bits: how often in a row, before the queue pair gives up
    rnr_retry: int = 7  # 3 bits: the same for RNR NAKs; 7 is for ever
    min_rnr_timer: int = 12  # 5 bits: how long our own RNR NAKs ask a sender to wait; 12 is 0.64 ms


# From a worker.


@dataclass(frozen=True, kw_only=True)
class Join:
    """A worker wants to take part. `path_mtu_max`: what its link carries, in bytes.

    `rnr_nak`: its NIC repeats by itself, and wants RNR NAKs for what it sends too early. `selective`: lost
    packets alone shall be sent again, or all behind them too (None: the former, where no worker is on an RDMA
    device). `tenant`, `elastic`: as in `JobSpec`.
    `backup_*`: the interface on which the workers can reach each other without the switches, if there is one.
    `gang`: the job is a plane of it.
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
    """A worker is back. `token`: from Ready. `answered`: each Renew that it has since it last heard Renewed.

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
    """This worker's queue pairs are ready."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The sender lives. A worker has numbered so many messages in that generation; `running`: what it is in.

    `number` counts a worker's up from 1; in an elastic job the controller answers each, with its number. 0:
    the controller's own, which answers nothing.
    """

    generation: int = 0
    messages: int = 0
    number: int = 0
    running: int | None = None


@dataclass(frozen=True)
class Leave:
    """A barrier, answered by Left. `collectives`: this worker has called so many, and calls no more."""

    collectives: int | None = None


@dataclass(frozen=True)
class Abort:
    """End the job for everybody. `mismatch`: as another worker has called another collective than this.

    `plane`: of a gang, as another GPU of this worker's machine, the one in that plane, has failed. The reason
    is cut to `LONGEST_REASON` letters.
    """

    reason: str
    mismatch: Called | None = None
    plane: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shortened(self.reason))


@dataclass(frozen=True)
class Paused:
    """This worker starts no collective; the first that it has not started."""

    move: int
    next_collective: int


@dataclass(frozen=True)
class Held:
    """Nothing is in flight."""

    move: int


@dataclass(frozen=True, kw_only=True)
class Renewing:
    """The old queue pairs send nothing any more; new ones, and the first collective that is not finished.

    `gang_collective`: in an elastic gang, the first of all GPUs that is not finished here. `called`: the
    number of the next collective that its user has not called yet; in a gang, of its calls on all GPUs.
    `over`: the newest renewal that is over here, in an elastic gang by its `gang_renewal`; 0: there was none.
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
    """The call of a worker as a collective. `what`: in words, cut as a reason; empty: nothing so far."""

    collective: int
    what: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", shortened(self.what))


@dataclass(frozen=True)
class Stalled:
    """That collective has made no progress here for as long as it may. Answered by Lacking."""

    collective: int


# From the controller.


@dataclass(frozen=True)
class Waiting:
    """These ranks have not joined; to a worker that leaves: have not left.

    `missing_workers`: nor have these, in words, of all planes of a gang.
    """

    missing_ranks: tuple[int, ...]
    missing_workers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ready:
    """All have joined: bring up the queue pairs. The same on all workers but for neighbours, rank and token.

    `window` in messages, `path_mtu` in bytes. `mode` is the one to begin in, `mode_reason` why not in the
    network. `ring`: all ranks, each followed by its successor; empty: by rank. `rank` and `world_size` may be
    others than those that it joined with; world size 0: they are those. `backup`: the neighbours' addresses
    are those of their backup interfaces. `selective`: all send lost packets again alone. `lease_s`: in an
    elastic job, no result is returned later than this after the last heartbeat that was answered; 0: whenever
    it is there. `created`: what was asked for, where the job was created.
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
    """Everybody's queue pairs are ready."""


@dataclass(frozen=True)
class Left:
    """Everybody has left: the job has ended well, and queue pairs may be taken down."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The job has ended early: why, and by which rank on which host (None, "": not a worker's doing).

    `first_message`: the first that the rank did not contribute to, of those that others wait for. `mismatch`
    is for releases that know no causes, and made into one where it comes from them. `plane`: of a gang, the
    plane in which that worker is `rank`, if not in the receiver's.
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
    """The session goes on."""


@dataclass(frozen=True)
class Pause:
    """The job is to move between ring and switch: start no collective, and answer Paused."""

    move: int


@dataclass(frozen=True)
class HoldAt:
    """Run the collectives before this one; when nothing is in flight, answer Held."""

    move: int
    collective: int


@dataclass(frozen=True)
class Moved:
    """Go on, in this mode. `mode_reason`: why not in the network."""

    move: int
    mode: Mode
    mode_reason: str = ""


@dataclass(frozen=True)
class Renew:
    """The job goes on under a new generation: send nothing more in this one, and answer Renewing."""

    renewal: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """Bring up new queue pairs, then go on with `collective`: the first that some worker has not finished.

    `holder`: a rank (new numbering) that has, and gives its result to the others; None: nobody has, and all
    do it anew. `members`: by rank (new numbering), the rank that each worker joined with; empty: as before.

    In an elastic gang, `gang_renewal` is a number of this renewal that all planes hear (0: it is none), and
    who has not finished `gang_collective`, of all GPUs, begins it anew; None: nobody begins one anew.

    The new ranks and world size hold from the call with the number `ranks_from` on, for all workers alike. It
    is the furthest `called` of all; None: a worker did not say any. `over`: the newest renewal that was over
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
    """Say what you have called as this collective: somebody has met another call there than its own."""

    collective: int


@dataclass(frozen=True)
class Lacking:
    """Answers Stalled: whom the collective waits for, in words; empty: nobody is known to be late."""

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
