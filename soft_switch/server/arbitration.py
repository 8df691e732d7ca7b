"""Client arbitration, which decides who may write, as a state machine without I/O.

Each role of the device has any number of live controllers, told apart by election id, and at most one
primary. Rules: P4Runtime specification, "Client Arbitration and Controller Replication". They leave one
choice, made here as `promote`:

    promote=True   the live controller with the highest election id is primary, so when a primary leaves,
                   the next takes over at once. This is what simple_switch_grpc does.
    promote=False  the primary is the controller with the highest election id ever seen, as the specification
                   says since 1.3: when it leaves there is none until somebody claims that id or a higher one.

    event                                   who is told
    --------------------------------------  -----------------------------------------------------
    update, primary changes or repeats      everybody in the role
    update from a backup that stays one     that controller
    primary leaves                          everybody left in the role
    backup leaves                           nobody
"""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
from finsy.proto import U128, p4r, rpc_status
from google.protobuf.any_pb2 import Any

from soft_switch.server.errors import P4RuntimeError, code_number, invalid, not_found
from soft_switch.server.roles import Access, parse_role

MAX_CONTROLLERS = 16  # live controllers a role, as in simple_switch_grpc

SessionId = int
Notice = tuple[SessionId, p4r.MasterArbitrationUpdate]


@dataclass
class Role:
    """The live controllers of one role, by session; an election id of None can never be primary."""

    name: str
    explicit: bool  # the controllers named the role, so answers do too
    live: dict[SessionId, int | None] = field(default_factory=dict)
    highest: int | None = None  # election id ever seen
    asked: dict[SessionId, tuple[Any | None, Access | None]] = field(default_factory=dict)
    config: Any | None = None  # of the last primary, as it was given
    access: Access | None = None  # what that says; None: everything

    def primary(self, *, promote: bool) -> SessionId | None:
        """Return the session that may write."""
        ids = {election_id: session for session, election_id in self.live.items() if election_id is not None}
        if not ids:
            return None
        top = max(ids)
        return ids[top] if promote or top == self.highest else None


class Arbiter:
    """The roles of one device. Every method returns the notices to send, in order."""

    def __init__(self, device_id: int, *, promote: bool = True) -> None:
        self._device_id = device_id
        self._promote = promote
        self._roles: dict[str, Role] = {"": Role("", explicit=False)}
        self._role_of: dict[SessionId, str] = {}

    def update(self, session: SessionId, message: p4r.MasterArbitrationUpdate) -> list[Notice]:
        """Take a MasterArbitrationUpdate; P4RuntimeError ends the stream that sent it."""
        name = message.role.name
        self._check(session, message)
        access = parse_role(message.role, self._live_access())
        election_id = U128.decode(message.election_id) if message.HasField("election_id") else None
        role = self._roles.get(name) or Role(name, explicit=True)
        for other, taken in role.live.items():
            if other != session and election_id is not None and taken == election_id:
                raise invalid(
                    f"Election id already exists: {election_id} is used by another live controller"
                    f"{_of_role(name)}; take another one"
                )
        if session not in role.live and len(role.live) >= MAX_CONTROLLERS:
            raise P4RuntimeError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"Too many connections: {MAX_CONTROLLERS} controllers are live{_of_role(name)}",
            )
        self._roles[name] = role
        self._role_of[session] = name
        before = role.primary(promote=self._promote)
        role.live[session] = election_id
        role.asked[session] = (message.role.config if message.role.HasField("config") else None, access)
        if election_id is not None:
            role.highest = max(election_id, role.highest or 0)
        after = role.primary(promote=self._promote)
        self._configure(role, after)
        if after == before and after != session:
            return [self._notice(role, session)]
        return self._notices(role)

    def leave(self, session: SessionId) -> list[Notice]:
        """Note that a stream has ended, in whatever way."""
        name = self._role_of.pop(session, None)
        if name is None:
            return []
        role = self._roles[name]
        was_primary = role.primary(promote=self._promote) == session
        del role.live[session], role.asked[session]
        self._configure(role, role.primary(promote=self._promote))
        return self._notices(role) if was_primary else []

    def is_primary(self, session: SessionId) -> bool:
        """Tell whether this stream is the primary of its role."""
        name = self._role_of.get(session)
        return name is not None and self._roles[name].primary(promote=self._promote) == session

    def primaries(self) -> list[SessionId]:
        """Return the primary of every role that has one."""
        primaries = (role.primary(promote=self._promote) for role in self._roles.values())
        return [session for session in primaries if session is not None]

    def access(self, session: SessionId) -> Access | None:
        """Return the rights of a live controller's role; None is everything."""
        return self._roles[self._role_of[session]].access

    def role_access(self, role_name: str) -> Access | None:
        """Return the rights of a role; None is everything, as for a role nobody has configured."""
        role = self._roles.get(role_name)
        return role.access if role is not None else None

    def _configure(self, role: Role, primary: SessionId | None) -> None:
        """Give the role the primary's configuration, which stays when the primary leaves."""
        if primary is not None:
            role.config, role.access = role.asked[primary]

    def _live_access(self) -> dict[str, Access]:
        return {name: role.access for name, role in self._roles.items() if role.live and role.access}

    def check_primary(self, role_name: str, election_id: p4r.Uint128 | None) -> Access | None:
        """Refuse a request that does not come from the role's primary; return the role's rights."""
        role = self._roles.get(role_name)
        if role is None:
            raise not_found(f"there is no role {role_name!r}: no controller has taken it")
        session = role.primary(promote=self._promote)
        reason = None
        if session is None:
            reason = "there is no primary, open a StreamChannel and send a MasterArbitrationUpdate"
        elif election_id is None:
            reason = "the request has no election id"
        elif role.live[session] != U128.decode(election_id):
            reason = f"election id {U128.decode(election_id)} is not that of the primary"
        if reason is not None:
            raise P4RuntimeError(
                grpc.StatusCode.PERMISSION_DENIED, f"Not primary{_of_role(role_name)}: {reason}"
            )
        return role.access

    def _check(self, session: SessionId, message: p4r.MasterArbitrationUpdate) -> None:
        current = self._role_of.get(session)
        if message.device_id != self._device_id:
            text = f"there is no device {message.device_id} here, this is device {self._device_id}"
            if current is None:
                raise not_found(text)
            raise P4RuntimeError(grpc.StatusCode.FAILED_PRECONDITION, f"Invalid device id: {text}")
        if current is not None and message.role.name != current:
            raise P4RuntimeError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this stream has role {current!r}, it cannot change to {message.role.name!r}: open another",
            )

    def _notices(self, role: Role) -> list[Notice]:
        """Return a role's notices: backups first, so that an old primary stops before a new one starts."""
        primary = role.primary(promote=self._promote)
        order = sorted(role.live, key=lambda session: session == primary)
        return [self._notice(role, session) for session in order]

    def _notice(self, role: Role, session: SessionId) -> Notice:
        primary = role.primary(promote=self._promote)
        if primary is None:
            code, text = grpc.StatusCode.NOT_FOUND, "There is no primary"
        elif primary == session:
            code, text = grpc.StatusCode.OK, "Is primary"
        else:
            code, text = grpc.StatusCode.ALREADY_EXISTS, "Is backup"
        message = p4r.MasterArbitrationUpdate(
            device_id=self._device_id, status=rpc_status.Status(code=code_number(code), message=text)
        )
        if role.explicit:
            message.role.name = role.name
        if role.config is not None:
            message.role.config.CopyFrom(role.config)
        election_id = role.live[primary] if primary is not None else role.highest
        if election_id is not None:
            message.election_id.CopyFrom(U128.encode(election_id))
        return session, message


def _of_role(name: str) -> str:
    return f" of role {name!r}" if name else ""
