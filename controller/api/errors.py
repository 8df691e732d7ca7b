"""The controller's errors: one exception for each gRPC status, the same on both ends."""

from __future__ import annotations

import re

import grpc


class ControllerError(Exception):
    """Base of all refusals by the controller. The message is a sentence for the user."""

    code = grpc.StatusCode.INTERNAL


class InvalidRequestError(ControllerError):
    """A value that can never be right."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFoundError(ControllerError):
    """Error about a job or switch that does not exist."""

    code = grpc.StatusCode.NOT_FOUND


class ConflictError(ControllerError):
    """Error about a name, rank or QP that somebody else has."""

    code = grpc.StatusCode.ALREADY_EXISTS


class QueuePairTakenError(ConflictError):
    """Conflict over a queue pair's number, which is or was another's on that host. Another number will do."""

    code = grpc.StatusCode.OUT_OF_RANGE


class NotPossibleError(ControllerError):
    """A valid request that the present state does not allow."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class NoResourcesError(ControllerError):
    """The switch has no slots, flows or groups left for this."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnreachableError(ControllerError):
    """Error about an address without a controller or switch, or about a connection that broke."""

    code = grpc.StatusCode.UNAVAILABLE


class NotAllowedError(ControllerError):
    """A request that only somebody else may make, or somebody with the right token."""

    code = grpc.StatusCode.PERMISSION_DENIED


class TimedOutError(ControllerError):
    """Error about a wait that took too long; the message names what was waited for."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


_KINDS: list[type[ControllerError]] = [*ControllerError.__subclasses__(), QueuePairTakenError]
_BY_CODE = {kind.code: kind for kind in _KINDS}


# "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:9559: Failed to connect to remote
# host: connect: Connection refused (111)"
_BEFORE = re.compile(
    r"^(.*; last error: )?([A-Z_]+: )?((ipv4|ipv6|unix):\S+: )?(Failed to connect to remote host: )?"
    r"((connect|recvmsg|sendmsg): ?)?"
)
_BEHIND = re.compile(r"(: FD Shutdown| \(\d+\))$")


def plainly(details: str) -> str:
    """Return gRPC's text about a connection without the address, which our sentence names already."""
    return _BEHIND.sub("", _BEFORE.sub("", details)) or details


def from_status(code: grpc.StatusCode, details: str, *, address: str) -> ControllerError:
    """Return the exception for a status that the controller at `address` answered."""
    if code is grpc.StatusCode.UNAVAILABLE and not details.startswith("switch "):
        details = plainly(details)
        # gRPC's own, not the controller's: its text names sockets, not what to do.
        if address.startswith("unix:"):
            return UnreachableError(
                f"the controller behind {address} has died ({details}): its log is beside that socket; "
                "take the cluster down and up again ('p4reduce down')"
            )
        return UnreachableError(
            f"there is no controller at {address}, or the connection with it broke ({details}): "
            "check the address and that `python -m controller` runs there"
        )
    return _BY_CODE.get(code, ControllerError)(details or f"the controller at {address} answered {code.name}")
