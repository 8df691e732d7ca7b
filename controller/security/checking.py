"""Checks of certificates and keys."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from controller.security.files import Loaded, TlsError, TlsFiles, read


def check_files(files: TlsFiles, loaded: Loaded, *, now: datetime | None = None) -> None:
    """Raise TlsError if the files do not belong together, or a certificate is not valid now."""
    certificate = _certificates(files.cert, loaded.cert)[0]
    try:
        key = serialization.load_pem_private_key(loaded.key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise TlsError(f"{files.key} is no private key in PEM without a password: {error}") from error
    if key.public_key() != certificate.public_key():
        raise TlsError(f"{files.key} is not the key of the certificate {files.cert}: give the pair of files")
    check_time(certificate, f"the certificate {files.cert}", now=now)
    if files.ca is None or loaded.ca is None:
        return
    authorities = _certificates(files.ca, loaded.ca)
    for authority in authorities:
        check_time(authority, f"the authority {files.ca}", now=now)
    if not any(signed_by(certificate, authority) for authority in authorities):
        raise TlsError(
            f"the certificate {files.cert} is not signed by the authority {files.ca}: take both from the "
            "same 'p4reduce certs' directory"
        )


def check_time(certificate: x509.Certificate, what: str, *, now: datetime | None = None) -> None:
    """Raise TlsError if a certificate is not valid yet, or not any more."""
    now = now or datetime.now(timezone.utc)
    if now >= certificate.not_valid_after_utc:
        raise TlsError(
            f"{what} has expired on {day(certificate.not_valid_after_utc)}: make new ones with "
            "'p4reduce certs make --force' and start again what uses them"
        )
    if now < certificate.not_valid_before_utc:
        raise TlsError(
            f"{what} is valid from {day(certificate.not_valid_before_utc)} on only: check this machine's "
            "clock"
        )


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Tell whether this authority has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def day(moment: datetime) -> str:
    """Format a moment for people, in UTC."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def read_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate of a PEM file. Raise TlsError."""
    return _certificates(path, read(path))[0]


def _certificates(path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise TlsError(f"{path} holds no certificate in PEM: {error}") from error
