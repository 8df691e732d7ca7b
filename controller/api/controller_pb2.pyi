from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    IN_NETWORK: _ClassVar[Mode]
    RING: _ClassVar[Mode]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    CREATED: _ClassVar[Phase]
    JOINING: _ClassVar[Phase]
    INSTALLING: _ClassVar[Phase]
    READY: _ClassVar[Phase]
    RUNNING: _ClassVar[Phase]
    ENDED: _ClassVar[Phase]

class EndCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_CAUSE_UNSPECIFIED: _ClassVar[EndCause]
    ALL_LEFT: _ClassVar[EndCause]
    WORKER_LOST: _ClassVar[EndCause]
    WORKER_ABORTED: _ClassVar[EndCause]
    MISMATCH: _ClassVar[EndCause]
    DELETED: _ClassVar[EndCause]
    NOT_SET_UP: _ClassVar[EndCause]
    CANNOT_GO_ON: _ClassVar[EndCause]
    NOT_CONFIGURED: _ClassVar[EndCause]
MODE_UNSPECIFIED: Mode
IN_NETWORK: Mode
RING: Mode
PHASE_UNSPECIFIED: Phase
CREATED: Phase
JOINING: Phase
INSTALLING: Phase
READY: Phase
RUNNING: Phase
ENDED: Phase
END_CAUSE_UNSPECIFIED: EndCause
ALL_LEFT: EndCause
WORKER_LOST: EndCause
WORKER_ABORTED: EndCause
MISMATCH: EndCause
DELETED: EndCause
NOT_SET_UP: EndCause
CANNOT_GO_ON: EndCause
NOT_CONFIGURED: EndCause

class WorkerMessage(_message.Message):
    __slots__ = ("join", "resume", "up", "heartbeat", "leave", "abort", "paused", "held", "renewing", "called", "stalled")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RENEWING_FIELD_NUMBER: _ClassVar[int]
    CALLED_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    join: Join
    resume: Resume
    up: Up
    heartbeat: Heartbeat
    leave: Leave
    abort: Abort
    paused: Paused
    held: Held
    renewing: Renewing
    called: Called
    stalled: Stalled
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., up: _Optional[_Union[Up, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., paused: _Optional[_Union[Paused, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., renewing: _Optional[_Union[Renewing, _Mapping]] = ..., called: _Optional[_Union[Called, _Mapping]] = ..., stalled: _Optional[_Union[Stalled, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("job", "world_size", "worker", "path_mtu_max", "rnr_nak", "tenant", "elastic", "join_token", "backup_mac", "backup_ip", "backup_path_mtu", "selective", "gang")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PATH_MTU_MAX_FIELD_NUMBER: _ClassVar[int]
    RNR_NAK_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_FIELD_NUMBER: _ClassVar[int]
    JOIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BACKUP_MAC_FIELD_NUMBER: _ClassVar[int]
    BACKUP_IP_FIELD_NUMBER: _ClassVar[int]
    BACKUP_PATH_MTU_FIELD_NUMBER: _ClassVar[int]
    SELECTIVE_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    job: str
    world_size: int
    worker: Worker
    path_mtu_max: int
    rnr_nak: bool
    tenant: str
    elastic: bool
    join_token: str
    backup_mac: str
    backup_ip: str
    backup_path_mtu: int
    selective: bool
    gang: Gang
    def __init__(self, job: _Optional[str] = ..., world_size: _Optional[int] = ..., worker: _Optional[_Union[Worker, _Mapping]] = ..., path_mtu_max: _Optional[int] = ..., rnr_nak: _Optional[bool] = ..., tenant: _Optional[str] = ..., elastic: _Optional[bool] = ..., join_token: _Optional[str] = ..., backup_mac: _Optional[str] = ..., backup_ip: _Optional[str] = ..., backup_path_mtu: _Optional[int] = ..., selective: _Optional[bool] = ..., gang: _Optional[_Union[Gang, _Mapping]] = ...) -> None: ...

class Gang(_message.Message):
    __slots__ = ("name", "plane", "planes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    name: str
    plane: int
    planes: int
    def __init__(self, name: _Optional[str] = ..., plane: _Optional[int] = ..., planes: _Optional[int] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("rank", "mac", "ip", "qpn_out", "psn_out", "qpn_in", "hostname")
    RANK_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    QPN_OUT_FIELD_NUMBER: _ClassVar[int]
    PSN_OUT_FIELD_NUMBER: _ClassVar[int]
    QPN_IN_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    rank: int
    mac: str
    ip: str
    qpn_out: int
    psn_out: int
    qpn_in: int
    hostname: str
    def __init__(self, rank: _Optional[int] = ..., mac: _Optional[str] = ..., ip: _Optional[str] = ..., qpn_out: _Optional[int] = ..., psn_out: _Optional[int] = ..., qpn_in: _Optional[int] = ..., hostname: _Optional[str] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("job", "generation", "rank", "token", "joined", "ready", "answered")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    rank: int
    token: bytes
    joined: Join
    ready: Ready
    answered: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., token: _Optional[bytes] = ..., joined: _Optional[_Union[Join, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., answered: _Optional[_Iterable[int]] = ...) -> None: ...

class Up(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("generation", "messages", "number", "running")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    generation: int
    messages: int
    number: int
    running: int
    def __init__(self, generation: _Optional[int] = ..., messages: _Optional[int] = ..., number: _Optional[int] = ..., running: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("collectives",)
    COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    collectives: int
    def __init__(self, collectives: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("reason", "mismatch", "plane")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    mismatch: Called
    plane: int
    def __init__(self, reason: _Optional[str] = ..., mismatch: _Optional[_Union[Called, _Mapping]] = ..., plane: _Optional[int] = ...) -> None: ...

class Called(_message.Message):
    __slots__ = ("collective", "what")
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    collective: int
    what: str
    def __init__(self, collective: _Optional[int] = ..., what: _Optional[str] = ...) -> None: ...

class Stalled(_message.Message):
    __slots__ = ("collective",)
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    collective: int
    def __init__(self, collective: _Optional[int] = ...) -> None: ...

class ControllerMessage(_message.Message):
    __slots__ = ("waiting", "ready", "start", "heartbeat", "left", "ended", "resumed", "pause", "hold_at", "moved", "renew", "renewed", "compare", "lacking")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    HOLD_AT_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    waiting: Waiting
    ready: Ready
    start: Start
    heartbeat: Heartbeat
    left: Left
    ended: Ended
    resumed: Resumed
    pause: Pause
    hold_at: HoldAt
    moved: Moved
    renew: Renew
    renewed: Renewed
    compare: Compare
    lacking: Lacking
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., resumed: _Optional[_Union[Resumed, _Mapping]] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., hold_at: _Optional[_Union[HoldAt, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ..., compare: _Optional[_Union[Compare, _Mapping]] = ..., lacking: _Optional[_Union[Lacking, _Mapping]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("missing_ranks", "missing_workers")
    MISSING_RANKS_FIELD_NUMBER: _ClassVar[int]
    MISSING_WORKERS_FIELD_NUMBER: _ClassVar[int]
    missing_ranks: _containers.RepeatedScalarFieldContainer[int]
    missing_workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, missing_ranks: _Optional[_Iterable[int]] = ..., missing_workers: _Optional[_Iterable[str]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("job_id", "generation", "window", "message_packets", "path_mtu", "mode", "mode_reason", "successor", "predecessor", "heartbeat_interval_s", "heartbeat_timeout_s", "resume_token", "rc", "ring", "rank", "world_size", "selective", "backup", "lease_s", "created")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_PACKETS_FIELD_NUMBER: _ClassVar[int]
    PATH_MTU_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_REASON_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RC_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SELECTIVE_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    generation: int
    window: int
    message_packets: int
    path_mtu: int
    mode: Mode
    mode_reason: str
    successor: Worker
    predecessor: Worker
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    resume_token: bytes
    rc: RcParameters
    ring: _containers.RepeatedScalarFieldContainer[int]
    rank: int
    world_size: int
    selective: bool
    backup: bool
    lease_s: float
    created: JobSpec
    def __init__(self, job_id: _Optional[int] = ..., generation: _Optional[int] = ..., window: _Optional[int] = ..., message_packets: _Optional[int] = ..., path_mtu: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., mode_reason: _Optional[str] = ..., successor: _Optional[_Union[Worker, _Mapping]] = ..., predecessor: _Optional[_Union[Worker, _Mapping]] = ..., heartbeat_interval_s: _Optional[float] = ..., heartbeat_timeout_s: _Optional[float] = ..., resume_token: _Optional[bytes] = ..., rc: _Optional[_Union[RcParameters, _Mapping]] = ..., ring: _Optional[_Iterable[int]] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., selective: _Optional[bool] = ..., backup: _Optional[bool] = ..., lease_s: _Optional[float] = ..., created: _Optional[_Union[JobSpec, _Mapping]] = ...) -> None: ...

class RcParameters(_message.Message):
    __slots__ = ("timeout", "retry_count", "rnr_retry", "min_rnr_timer")
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    RNR_RETRY_FIELD_NUMBER: _ClassVar[int]
    MIN_RNR_TIMER_FIELD_NUMBER: _ClassVar[int]
    timeout: int
    retry_count: int
    rnr_retry: int
    min_rnr_timer: int
    def __init__(self, timeout: _Optional[int] = ..., retry_count: _Optional[int] = ..., rnr_retry: _Optional[int] = ..., min_rnr_timer: _Optional[int] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: int
    def __init__(self, move: _Optional[int] = ...) -> None: ...

class Paused(_message.Message):
    __slots__ = ("move", "next_collective")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    NEXT_COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    move: int
    next_collective: int
    def __init__(self, move: _Optional[int] = ..., next_collective: _Optional[int] = ...) -> None: ...

class HoldAt(_message.Message):
    __slots__ = ("move", "collective")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    move: int
    collective: int
    def __init__(self, move: _Optional[int] = ..., collective: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: int
    def __init__(self, move: _Optional[int] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("move", "mode", "mode_reason")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_REASON_FIELD_NUMBER: _ClassVar[int]
    move: int
    mode: Mode
    mode_reason: str
    def __init__(self, move: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., mode_reason: _Optional[str] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("renewal", "reason")
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    renewal: int
    reason: str
    def __init__(self, renewal: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Renewing(_message.Message):
    __slots__ = ("renewal", "qpn_out", "psn_out", "qpn_in", "collective", "gang_collective", "called", "over")
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    QPN_OUT_FIELD_NUMBER: _ClassVar[int]
    PSN_OUT_FIELD_NUMBER: _ClassVar[int]
    QPN_IN_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    GANG_COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    CALLED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    renewal: int
    qpn_out: int
    psn_out: int
    qpn_in: int
    collective: int
    gang_collective: int
    called: int
    over: int
    def __init__(self, renewal: _Optional[int] = ..., qpn_out: _Optional[int] = ..., psn_out: _Optional[int] = ..., qpn_in: _Optional[int] = ..., collective: _Optional[int] = ..., gang_collective: _Optional[int] = ..., called: _Optional[int] = ..., over: _Optional[int] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("renewal", "ready", "collective", "holder", "members", "gang_renewal", "gang_collective", "ranks_from", "over")
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GANG_RENEWAL_FIELD_NUMBER: _ClassVar[int]
    GANG_COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FROM_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    renewal: int
    ready: Ready
    collective: int
    holder: int
    members: _containers.RepeatedScalarFieldContainer[int]
    gang_renewal: int
    gang_collective: int
    ranks_from: int
    over: int
    def __init__(self, renewal: _Optional[int] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., collective: _Optional[int] = ..., holder: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ..., gang_renewal: _Optional[int] = ..., gang_collective: _Optional[int] = ..., ranks_from: _Optional[int] = ..., over: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Left(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Resumed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Compare(_message.Message):
    __slots__ = ("collective",)
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    collective: int
    def __init__(self, collective: _Optional[int] = ...) -> None: ...

class Lacking(_message.Message):
    __slots__ = ("collective", "who")
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    collective: int
    who: str
    def __init__(self, collective: _Optional[int] = ..., who: _Optional[str] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("reason", "rank", "host", "first_message", "mismatch", "cause", "plane")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    FIRST_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    rank: int
    host: str
    first_message: int
    mismatch: bool
    cause: EndCause
    plane: int
    def __init__(self, reason: _Optional[str] = ..., rank: _Optional[int] = ..., host: _Optional[str] = ..., first_message: _Optional[int] = ..., mismatch: _Optional[bool] = ..., cause: _Optional[_Union[EndCause, str]] = ..., plane: _Optional[int] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("name", "world_size", "mode", "path_mtu", "window", "message_packets", "tenant", "elastic", "min_workers", "join_token", "selective", "gang")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PATH_MTU_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_PACKETS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    JOIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SELECTIVE_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    name: str
    world_size: int
    mode: Mode
    path_mtu: int
    window: int
    message_packets: int
    tenant: str
    elastic: bool
    min_workers: int
    join_token: str
    selective: bool
    gang: Gang
    def __init__(self, name: _Optional[str] = ..., world_size: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., path_mtu: _Optional[int] = ..., window: _Optional[int] = ..., message_packets: _Optional[int] = ..., tenant: _Optional[str] = ..., elastic: _Optional[bool] = ..., min_workers: _Optional[int] = ..., join_token: _Optional[str] = ..., selective: _Optional[bool] = ..., gang: _Optional[_Union[Gang, _Mapping]] = ...) -> None: ...

class JobName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("spec", "phase", "explicit", "workers", "ended", "job_id", "generation", "mode", "mode_reason", "window", "message_packets", "path_mtu", "places", "ring", "waitlisted", "renewals", "renewal_reason", "renewing", "awaited", "selective", "ended_s_ago", "planes")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_REASON_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_PACKETS_FIELD_NUMBER: _ClassVar[int]
    PATH_MTU_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    WAITLISTED_FIELD_NUMBER: _ClassVar[int]
    RENEWALS_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_REASON_FIELD_NUMBER: _ClassVar[int]
    RENEWING_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    SELECTIVE_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_AGO_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    spec: JobSpec
    phase: Phase
    explicit: bool
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    ended: Ended
    job_id: int
    generation: int
    mode: Mode
    mode_reason: str
    window: int
    message_packets: int
    path_mtu: int
    places: _containers.RepeatedCompositeFieldContainer[JobAllocation]
    ring: _containers.RepeatedScalarFieldContainer[int]
    waitlisted: Waitlisted
    renewals: int
    renewal_reason: str
    renewing: bool
    awaited: _containers.RepeatedScalarFieldContainer[int]
    selective: bool
    ended_s_ago: float
    planes: _containers.RepeatedCompositeFieldContainer[JobInfo]
    def __init__(self, spec: _Optional[_Union[JobSpec, _Mapping]] = ..., phase: _Optional[_Union[Phase, str]] = ..., explicit: _Optional[bool] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., job_id: _Optional[int] = ..., generation: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., mode_reason: _Optional[str] = ..., window: _Optional[int] = ..., message_packets: _Optional[int] = ..., path_mtu: _Optional[int] = ..., places: _Optional[_Iterable[_Union[JobAllocation, _Mapping]]] = ..., ring: _Optional[_Iterable[int]] = ..., waitlisted: _Optional[_Union[Waitlisted, _Mapping]] = ..., renewals: _Optional[int] = ..., renewal_reason: _Optional[str] = ..., renewing: _Optional[bool] = ..., awaited: _Optional[_Iterable[int]] = ..., selective: _Optional[bool] = ..., ended_s_ago: _Optional[float] = ..., planes: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ...) -> None: ...

class JobAllocation(_message.Message):
    __slots__ = ("switch", "role", "first_slot", "slots", "ranks")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SLOT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    switch: str
    role: str
    first_slot: int
    slots: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, switch: _Optional[str] = ..., role: _Optional[str] = ..., first_slot: _Optional[int] = ..., slots: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class Waitlisted(_message.Message):
    __slots__ = ("position", "reason", "waiting_s")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    position: int
    reason: str
    waiting_s: float
    def __init__(self, position: _Optional[int] = ..., reason: _Optional[str] = ..., waiting_s: _Optional[float] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker", "host", "port", "heard_s_ago", "connected")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    HEARD_S_AGO_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    worker: Worker
    host: str
    port: int
    heard_s_ago: float
    connected: bool
    def __init__(self, worker: _Optional[_Union[Worker, _Mapping]] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., heard_s_ago: _Optional[float] = ..., connected: _Optional[bool] = ...) -> None: ...

class JobList(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ...) -> None: ...

class FlowsRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("job", "generation", "rank", "switch", "index", "ingress_port", "egress_port", "src_ip", "dst_ip", "dest_qp", "ack_qp", "first_psn", "on_switch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INGRESS_PORT_FIELD_NUMBER: _ClassVar[int]
    EGRESS_PORT_FIELD_NUMBER: _ClassVar[int]
    SRC_IP_FIELD_NUMBER: _ClassVar[int]
    DST_IP_FIELD_NUMBER: _ClassVar[int]
    DEST_QP_FIELD_NUMBER: _ClassVar[int]
    ACK_QP_FIELD_NUMBER: _ClassVar[int]
    FIRST_PSN_FIELD_NUMBER: _ClassVar[int]
    ON_SWITCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    rank: int
    switch: str
    index: int
    ingress_port: int
    egress_port: int
    src_ip: str
    dst_ip: str
    dest_qp: int
    ack_qp: int
    first_psn: int
    on_switch: bool
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., switch: _Optional[str] = ..., index: _Optional[int] = ..., ingress_port: _Optional[int] = ..., egress_port: _Optional[int] = ..., src_ip: _Optional[str] = ..., dst_ip: _Optional[str] = ..., dest_qp: _Optional[int] = ..., ack_qp: _Optional[int] = ..., first_psn: _Optional[int] = ..., on_switch: _Optional[bool] = ...) -> None: ...

class FlowList(_message.Message):
    __slots__ = ("flows",)
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[Flow]
    def __init__(self, flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ...) -> None: ...

class SlotsRequest(_message.Message):
    __slots__ = ("job", "all")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    job: str
    all: bool
    def __init__(self, job: _Optional[str] = ..., all: _Optional[bool] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("job", "switch", "index", "generation", "message", "ranks", "chunks", "flags", "missing", "age_s", "bytes", "state", "tenant", "role")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    job: str
    switch: str
    index: int
    generation: int
    message: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    chunks: int
    flags: int
    missing: _containers.RepeatedScalarFieldContainer[int]
    age_s: float
    bytes: int
    state: str
    tenant: str
    role: str
    def __init__(self, job: _Optional[str] = ..., switch: _Optional[str] = ..., index: _Optional[int] = ..., generation: _Optional[int] = ..., message: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., chunks: _Optional[int] = ..., flags: _Optional[int] = ..., missing: _Optional[_Iterable[int]] = ..., age_s: _Optional[float] = ..., bytes: _Optional[int] = ..., state: _Optional[str] = ..., tenant: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class SlotList(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    def __init__(self, slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ...) -> None: ...

class CountersRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class FlowCounters(_message.Message):
    __slots__ = ("job", "generation", "rank", "switch", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: CounterValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[CounterValue, _Mapping]] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    rank: int
    switch: str
    counters: _containers.MessageMap[str, CounterValue]
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., switch: _Optional[str] = ..., counters: _Optional[_Mapping[str, CounterValue]] = ...) -> None: ...

class CounterValue(_message.Message):
    __slots__ = ("packets", "bytes")
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    packets: int
    bytes: int
    def __init__(self, packets: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CounterList(_message.Message):
    __slots__ = ("flows",)
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[FlowCounters]
    def __init__(self, flows: _Optional[_Iterable[_Union[FlowCounters, _Mapping]]] = ...) -> None: ...

class PortsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Port(_message.Message):
    __slots__ = ("switch", "port", "host", "ip", "mac", "received", "sent", "no_route", "peer", "drops")
    class DropsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: CounterValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[CounterValue, _Mapping]] = ...) -> None: ...
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    NO_ROUTE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    switch: str
    port: int
    host: str
    ip: str
    mac: str
    received: CounterValue
    sent: CounterValue
    no_route: CounterValue
    peer: str
    drops: _containers.MessageMap[str, CounterValue]
    def __init__(self, switch: _Optional[str] = ..., port: _Optional[int] = ..., host: _Optional[str] = ..., ip: _Optional[str] = ..., mac: _Optional[str] = ..., received: _Optional[_Union[CounterValue, _Mapping]] = ..., sent: _Optional[_Union[CounterValue, _Mapping]] = ..., no_route: _Optional[_Union[CounterValue, _Mapping]] = ..., peer: _Optional[str] = ..., drops: _Optional[_Mapping[str, CounterValue]] = ...) -> None: ...

class PortList(_message.Message):
    __slots__ = ("ports",)
    PORTS_FIELD_NUMBER: _ClassVar[int]
    ports: _containers.RepeatedCompositeFieldContainer[Port]
    def __init__(self, ports: _Optional[_Iterable[_Union[Port, _Mapping]]] = ...) -> None: ...

class LinksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Link(_message.Message):
    __slots__ = ("a", "a_port", "b", "b_port", "up", "state", "a_to_b", "b_to_a")
    A_FIELD_NUMBER: _ClassVar[int]
    A_PORT_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    B_PORT_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    A_TO_B_FIELD_NUMBER: _ClassVar[int]
    B_TO_A_FIELD_NUMBER: _ClassVar[int]
    a: str
    a_port: int
    b: str
    b_port: int
    up: bool
    state: str
    a_to_b: CounterValue
    b_to_a: CounterValue
    def __init__(self, a: _Optional[str] = ..., a_port: _Optional[int] = ..., b: _Optional[str] = ..., b_port: _Optional[int] = ..., up: _Optional[bool] = ..., state: _Optional[str] = ..., a_to_b: _Optional[_Union[CounterValue, _Mapping]] = ..., b_to_a: _Optional[_Union[CounterValue, _Mapping]] = ...) -> None: ...

class LinkList(_message.Message):
    __slots__ = ("links",)
    LINKS_FIELD_NUMBER: _ClassVar[int]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    def __init__(self, links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("document",)
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    document: str
    def __init__(self, document: _Optional[str] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("document",)
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    document: str
    def __init__(self, document: _Optional[str] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class PlanReport(_message.Message):
    __slots__ = ("revision", "switches", "applied", "settings")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    switches: _containers.RepeatedCompositeFieldContainer[SwitchPlan]
    applied: bool
    settings: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, revision: _Optional[int] = ..., switches: _Optional[_Iterable[_Union[SwitchPlan, _Mapping]]] = ..., applied: _Optional[bool] = ..., settings: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...

class SwitchPlan(_message.Message):
    __slots__ = ("name", "connected", "state", "changes", "unchanged", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    connected: bool
    state: str
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    unchanged: int
    error: str
    def __init__(self, name: _Optional[str] = ..., connected: _Optional[bool] = ..., state: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., unchanged: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("kind", "what", "key", "before", "after", "drift", "applied", "error")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Change.Kind]
        ADD: _ClassVar[Change.Kind]
        CHANGE: _ClassVar[Change.Kind]
        DELETE: _ClassVar[Change.Kind]
    KIND_UNSPECIFIED: Change.Kind
    ADD: Change.Kind
    CHANGE: Change.Kind
    DELETE: Change.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    kind: Change.Kind
    what: str
    key: str
    before: str
    after: str
    drift: bool
    applied: bool
    error: str
    def __init__(self, kind: _Optional[_Union[Change.Kind, str]] = ..., what: _Optional[str] = ..., key: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., drift: _Optional[bool] = ..., applied: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class RevisionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Revision(_message.Message):
    __slots__ = ("number", "applied_at", "document", "current")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    APPLIED_AT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    applied_at: float
    document: str
    current: bool
    def __init__(self, number: _Optional[int] = ..., applied_at: _Optional[float] = ..., document: _Optional[str] = ..., current: _Optional[bool] = ...) -> None: ...

class RevisionList(_message.Message):
    __slots__ = ("revisions",)
    REVISIONS_FIELD_NUMBER: _ClassVar[int]
    revisions: _containers.RepeatedCompositeFieldContainer[Revision]
    def __init__(self, revisions: _Optional[_Iterable[_Union[Revision, _Mapping]]] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("switch", "force")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    switch: str
    force: bool
    def __init__(self, switch: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class PushReport(_message.Message):
    __slots__ = ("switches",)
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[SwitchInfo]
    def __init__(self, switches: _Optional[_Iterable[_Union[SwitchInfo, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SwitchInfo(_message.Message):
    __slots__ = ("name", "address", "device_id", "target", "connected", "state", "slots_used", "slots", "jobs", "program_sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    device_id: int
    target: str
    connected: bool
    state: str
    slots_used: int
    slots: int
    jobs: int
    program_sha256: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., device_id: _Optional[int] = ..., target: _Optional[str] = ..., connected: _Optional[bool] = ..., state: _Optional[str] = ..., slots_used: _Optional[int] = ..., slots: _Optional[int] = ..., jobs: _Optional[int] = ..., program_sha256: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("switches", "live_jobs", "workers", "listening", "database")
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    LIVE_JOBS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LISTENING_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[SwitchInfo]
    live_jobs: int
    workers: int
    listening: _containers.RepeatedScalarFieldContainer[str]
    database: str
    def __init__(self, switches: _Optional[_Iterable[_Union[SwitchInfo, _Mapping]]] = ..., live_jobs: _Optional[int] = ..., workers: _Optional[int] = ..., listening: _Optional[_Iterable[str]] = ..., database: _Optional[str] = ...) -> None: ...
