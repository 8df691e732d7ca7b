"""The certificates of a whole cluster, made and shown; `places.py` says where each of them is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from controller.security.authority import DAYS, Authority, write_private
from controller.security.checking import read_certificate
from controller.security.files import CA, CERT, KEY, SWITCHES, TlsError
from controller.security.places import (
    AUTHORITY,
    CONTROLLER,
    operator_directory,
    switch_directory,
    worker_directory,
)
from controller.security.roles import Identity, Role, identity_in

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Owners that get certificates. `switches`: addresses by name; `controller`: its addresses and names."""

    controller: Sequence[str] = ()
    switches: Mapping[str, Sequence[str]] = field(default_factory=dict)
    workers: Sequence[str] = ()
    operators: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A certificate that was found."""

    path: Path
    owner: str
    names: tuple[str, ...]
    issuer: str
    begins: datetime
    ends: datetime


def make(root: Path, wanted: Wanted, *, force: bool = False, days: float = DAYS) -> list[Path]:
    """Make the wanted certificates, with the present authorities or new ones. Return the directories written.

    Raise TlsError, and write nothing, if there are some already, unless `force`.
    """
    workers = _Issuer(root, "ca", "p4reduce workers and operators")
    switches = _Issuer(root, "switches-ca", "p4reduce switches")
    plan: list[tuple[_Issuer, Path, Identity, tuple[str, ...], bool, bool]] = []

    def add(
        issuer: _Issuer, where: Path, identity: Identity, names: Sequence[str], server: bool, client: bool
    ) -> None:
        plan.append((issuer, where, identity, tuple(names), server, client))

    if wanted.controller:
        controller, where = Identity(Role.CONTROLLER, CONTROLLER), root / CONTROLLER
        add(workers, where, controller, [CONTROLLER, *_LOCAL, *wanted.controller], True, False)
        add(switches, where / SWITCHES, controller, [], False, True)
    for name, addresses in wanted.switches.items():
        add(
            switches,
            switch_directory(root, name),
            _identity(Role.SWITCH, name),
            [name, *addresses],
            True,
            False,
        )
    for name in wanted.workers:
        add(workers, worker_directory(root, name), _identity(Role.WORKER, name), [], False, True)
    for name in wanted.operators:
        identity, where = _identity(Role.OPERATOR, name), operator_directory(root, name)
        add(workers, where, identity, [], False, True)
        add(switches, where / SWITCHES, identity, [], False, True)
    if not force:
        for _, where, *_ in plan:
            if (where / CERT).exists():
                raise TlsError(
                    f"there are certificates in {where} already: --force makes new ones, which replace them"
                )
    try:
        for issuer, where, identity, names, server, client in plan:
            where.mkdir(parents=True, exist_ok=True, mode=0o700)
            authority = issuer.authority()
            cert, key = authority.issue(identity, names=names, server=server, client=client, days=days)
            write_private(where / KEY, key)
            (where / CERT).write_bytes(cert)
            (where / CA).write_bytes(authority.pem)
    except OSError as error:
        raise TlsError(f"cannot write {error.filename or root}: {error.strerror}") from error
    return [where for _, where, *_ in plan]


def show(root: Path) -> list[Shown]:
    """Return all certificates in a directory, by path. Raise TlsError if there is none."""
    found = sorted({*root.rglob(CERT), *root.glob(f"{AUTHORITY}/*ca.pem")})
    if not found:
        raise TlsError(f"there are no certificates in {root}: 'p4reduce certs make' makes some")
    return [_shown(path) for path in found]


class _Issuer:
    """An authority that is loaded, or made and saved, when it is first needed."""

    def __init__(self, root: Path, name: str, title: str) -> None:
        self._certificate = root / AUTHORITY / f"{name}.pem"
        self._key = root / AUTHORITY / f"{name}-key.pem"
        self._title = title
        self._authority: Authority | None = None

    def authority(self) -> Authority:
        """Load or make the authority. Raise TlsError if it is damaged."""
        if self._authority is None:
            if self._certificate.exists():
                self._authority = Authority.load(self._certificate, self._key)
            else:
                self._authority = Authority.make(self._title)
                self._certificate.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._authority.save(self._certificate, self._key)
        return self._authority


def _identity(role: Role, name: str) -> Identity:
    identity = Identity(role, name)
    if identity_in([identity.uri]) != identity:
        raise TlsError(f"{name!r} is no name for a {role.value}: letters, digits and . _ -, at most 63")
    return identity


def _shown(path: Path) -> Shown:
    certificate = read_certificate(path)
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = tuple(str(name.value) for name in extension.value)
    except x509.ExtensionNotFound:
        names = ()
    identity = identity_in(names)
    return Shown(
        path=path,
        owner=str(identity) if identity is not None else _common_name(certificate.subject),
        names=tuple(name for name in names if not name.startswith("spiffe:")),
        issuer=_common_name(certificate.issuer),
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
    )


def _common_name(name: x509.Name) -> str:
    values = name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(values[0].value) if values else name.rfc4514_string()
