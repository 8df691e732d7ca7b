"""Permissions of callers, by certificate; without TLS, and on a Unix socket, anybody who can connect."""

from __future__ import annotations

from typing import Any

from controller.api.errors import InvalidRequestError, NotAllowedError
from controller.api.messages import JobSpec, shortened
from controller.security import tokens
from controller.security.channels import is_unix
from controller.security.roles import Identity, Role, peer_identity

_TLS = b"ssl"


def require_role(context: Any, role: Role, what: str) -> Identity | None:
    """Return the owner of the caller's certificate; None if none is needed.

    Raise NotAllowedError for another role.
    """
    if is_unix(context.peer()):
        return None
    authentication = context.auth_context()
    if _TLS not in authentication.get("transport_security_type", ()):
        return None
    identity = peer_identity(authentication)
    if identity is None:
        raise NotAllowedError(
            f"{what} takes the certificate of {_a(role)}, this one does not say what its owner is: "
            "make one with 'p4reduce certs make'"
        )
    if identity.role is not role:
        raise NotAllowedError(
            f"{what} takes the certificate of {_a(role)}, this is one of {identity}: set "
            f"P4REDUCE_TLS_DIR to the directory of {_a(role)}"
        )
    return identity


def _a(role: Role) -> str:
    return f"an {role.value}" if role is Role.OPERATOR else f"a {role.value}"


def require_host(identity: Identity | None, host: str) -> None:
    """Raise NotAllowedError for a worker on another host than that of its certificate."""
    if identity is not None and identity.name != host:
        raise NotAllowedError(
            f"the certificate is of {identity}, but the worker says that it is on host {host}: a worker's "
            "certificate is good on its own host only"
        )


def token_hash(token: str) -> str:
    """Return the hash of a join token, empty for none. Raise InvalidRequestError for a bad token."""
    if token and (wrong := tokens.wrong_with(token)) is not None:
        raise InvalidRequestError(wrong)
    return tokens.hashed(token) if token else ""


def require_token(spec: JobSpec, token: str) -> None:
    """Raise NotAllowedError for a worker without the job's token, or with one if the job has none."""
    if spec.token_hash:
        if not token:
            raise NotAllowedError(
                f"job {spec.name} takes only workers that bring its join token: set {tokens.VARIABLE}, or "
                "give it when joining"
            )
        if not tokens.matches(token, spec.token_hash):
            raise NotAllowedError(f"job {spec.name}: this is not its join token")
    elif token:
        raise NotAllowedError(
            f"job {spec.name} was made without a join token, but this worker brings one: somebody else may "
            "have made it; choose another name, or create it with the token first"
        )


def in_one_line(text: str) -> str:
    """Cut a worker's text to what fits, without characters that could forge lines of a log or terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in shortened(text))
