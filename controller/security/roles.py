"""The role and name in a certificate: a SPIFFE id among its names, spiffe://p4reduce/<role>/<name>."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

_ID: Final = re.compile(r"spiffe://p4reduce/([a-z]+)/([A-Za-z0-9][A-Za-z0-9._-]{0,62})")


class Role(str, Enum):
    """Role of a certificate's owner."""

    CONTROLLER = "controller"
    SWITCH = "switch"
    WORKER = "worker"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Identity:
    """A certificate's owner."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role.value} {self.name}"

    @property
    def uri(self) -> str:
        """The SPIFFE id in the certificate."""
        return f"spiffe://p4reduce/{self.role.value}/{self.name}"


def identity_in(names: Iterable[str]) -> Identity | None:
    """Return the identity in a certificate's names; None if they hold no id of ours, or several."""
    found = {name for name in names if name.startswith("spiffe://")}
    match = _ID.fullmatch(found.pop()) if len(found) == 1 else None
    if match is None or match[1] not in {role.value for role in Role}:
        return None
    return Identity(Role(match[1]), match[2])


def peer_identity(authentication: Mapping[str, Iterable[Any]]) -> Identity | None:
    """Return the peer's identity from a gRPC context's `auth_context()`; None if it shows none of ours."""
    names = authentication.get("x509_subject_alternative_name", ())
    return identity_in(name.decode(errors="replace") for name in names)
