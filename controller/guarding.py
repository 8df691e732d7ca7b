"""Who may call what: by certificate, where the service has TLS; else, and by Unix socket, who can connect."""

from __future__ import annotations

from typing import Any

import grpc

from controller.api.errors import ControllerError
from security.channels import is_unix
from security.roles import Identity, Role, peer_identity

_TLS = b"ssl"


class NotAllowedError(ControllerError):
    """The certificate is of somebody who is not to do that."""

    code = grpc.StatusCode.PERMISSION_DENIED


def require_role(context: Any, role: Role, what: str) -> Identity | None:
    """Whose certificate the caller has shown; None where none is needed. NotAllowedError for another role."""
    if is_unix(context.peer()):
        return None
    authentication = context.auth_context()
    if _TLS not in authentication.get("transport_security_type", ()):
        return None
    identity = peer_identity(authentication)
    if identity is None:
        raise NotAllowedError(
            f"{what} takes the certificate of a {role.value}, this one does not say what its owner is: "
            "make one with 'p4reduce certs make'"
        )
    if identity.role is not role:
        raise NotAllowedError(
            f"{what} takes the certificate of a {role.value}, this is one of {identity}: set "
            f"P4REDUCE_TLS_DIR to the directory of a {role.value}"
        )
    return identity


def require_host(identity: Identity | None, host: str) -> None:
    """A worker's certificate is one host's. NotAllowedError for a worker that says it is on another."""
    if identity is not None and identity.name != host:
        raise NotAllowedError(
            f"the certificate is of {identity}, but the worker says that it is on host {host}: a worker's "
            "certificate is good on its own host only"
        )
