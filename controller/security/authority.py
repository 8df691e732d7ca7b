"""Certificate authorities, valid for ten years, and certificates, valid for one; EC keys (P-256)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.security.checking import check_time, read_certificate
from controller.security.files import TlsError
from controller.security.roles import Identity

AUTHORITY_DAYS: Final = 3650
DAYS: Final = 365
_SKEW: Final = timedelta(minutes=5)  # of clocks
_ORGANISATION: Final = "p4reduce"


@dataclass(frozen=True)
class Authority:
    """A self-signed certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, name: str, *, days: int = AUTHORITY_DAYS) -> Authority:
        """Make a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        certificate = (
            _builder(subject, subject, key, days=days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: Path, key: Path) -> Authority:
        """Load an authority that was saved. Raise TlsError."""
        issuer = read_certificate(certificate)
        check_time(issuer, f"the authority {certificate}")
        try:
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise TlsError(f"cannot read the authority's key {key}: {error}") from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != issuer.public_key():
            raise TlsError(f"{key} is not the key of the authority {certificate}")
        return cls(issuer, loaded)

    @property
    def pem(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def save(self, certificate: Path, key: Path) -> None:
        """Write both files."""
        write_private(key, private_pem(self.key))
        certificate.write_bytes(self.pem)

    def issue(
        self,
        identity: Identity,
        *,
        names: Iterable[str] = (),
        server: bool = False,
        client: bool = False,
        days: float = DAYS,
        now: datetime | None = None,
    ) -> tuple[bytes, bytes]:
        """Issue a certificate; return it and its key in PEM. `names`: its addresses and DNS names."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [
            *([ExtendedKeyUsageOID.SERVER_AUTH] if server else []),
            *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else []),
        ]
        others = [general_name(name) for name in dict.fromkeys(names)]
        issuer = self.certificate
        certificate = (
            _builder(_name(str(identity)), issuer.subject, key, days=days, now=now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri), *others]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private_pem(key)


def general_name(name: str) -> x509.GeneralName:
    """Return an address, or a DNS name, as X.509 has it. Raise TlsError."""
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        try:
            return x509.DNSName(name)
        except ValueError as error:
            raise TlsError(f"{name!r} is no address and no DNS name: {error}") from error


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key in PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from the first moment on."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    scratch.replace(path)


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANISATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    days: float,
    now: datetime | None = None,
) -> x509.CertificateBuilder:
    now = now or datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
