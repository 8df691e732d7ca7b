"""Explanations of connections that failed because of TLS; gRPC's errors do not say what to do.

After a channel has failed, one handshake with Python's ssl tells which certificate is wrong, and why.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

from controller.security.channels import is_unix
from controller.security.files import VARIABLE, TlsFiles

_TIMEOUT_S: Final = 2.0
# What a server says about our certificate (RFC 8446, 6.2), by OpenSSL's names.
_REFUSALS: Final = {
    "EXPIRED": "it has expired: make a new one with 'p4reduce certs make --force'",
    "UNKNOWN_CA": "it is signed by an authority that is not known there: both sides need certificates from "
    "the same 'p4reduce certs' directory, of the right kind (a worker's is none for a switch)",
    "CERTIFICATE_REQUIRED": "it did not get one",
}
_CLOSED: Final = (
    "it is signed by an authority that is not known there (a worker's is none for a switch), or has expired "
    "by that side's clock; its log says more, and 'p4reduce certs' makes certificates that fit together"
)
_VERIFY_EXPIRED: Final = (10, 9)  # X509_V_ERR_CERT_HAS_EXPIRED, _NOT_YET_VALID
_VERIFY_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH


def why(address: str, tls: TlsFiles | None, *, what: str, name: str | None = None) -> str | None:
    """Say why TLS keeps us from `what` at `address`; None if TLS is not the reason.

    `name`: the name that its certificate has to be for (None: the address). Takes 2 s at most.
    """
    try:
        with _connect(address) as plain:
            return _without(plain, what) if tls is None else _with(plain, tls, what, name or _host(address))
    except (OSError, ValueError):
        return None


def _without(plain: socket.socket, what: str) -> str | None:
    """Say so if the other side uses TLS, since this side does not."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with context.wrap_socket(plain):
            pass
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return None
    return (
        f"{what} talks TLS only, and this side has no certificate: set {VARIABLE} to a directory that "
        "holds one ('p4reduce certs' makes them)"
    )


def _with(plain: socket.socket, tls: TlsFiles, what: str, name: str) -> str | None:
    context = _context()
    if tls.ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    try:
        with context.wrap_socket(plain, server_hostname=name) as secure:
            # A server refuses our certificate after our side of the handshake is over, and gRPC's just
            # closes; one that takes it sends its HTTP/2 settings.
            if not secure.recv(1):
                return f"{what} does not take the certificate {tls.cert}: {_CLOSED}"
    except ssl.SSLCertVerificationError as error:
        return _their_certificate(error, tls, what, name)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" in reason:
            known = next((text for word, text in _REFUSALS.items() if word in reason), reason.lower())
            return f"{what} does not take the certificate {tls.cert}: {known}"
        if reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"):
            return _plain(tls, what)
        return f"{what}: TLS fails: {reason.lower() or error}"
    except ConnectionResetError:
        return _plain(tls, what)
    return None


def _their_certificate(error: ssl.SSLCertVerificationError, tls: TlsFiles, what: str, name: str) -> str:
    if error.verify_code in _VERIFY_EXPIRED:
        return (
            f"the certificate of {what} is not valid now ({error.verify_message}): make new ones with "
            "'p4reduce certs make --force' and start it again; or the clock of this machine is wrong"
        )
    if error.verify_code in _VERIFY_NAME:
        return (
            f"the certificate of {what} is not for {name}: make one that is ('p4reduce certs' takes "
            "addresses and names), or use an address that it has"
        )
    return (
        f"the certificate of {what} is not signed by the authority {tls.ca or 'of this machine'} "
        f"({error.verify_message}): both sides need certificates from the same 'p4reduce certs' directory"
    )


def _plain(tls: TlsFiles, what: str) -> str:
    return (
        f"{what} does not talk TLS, and this side is to ({tls.cert}): start it with TLS, or take that away "
        f"here ({VARIABLE}, for instance)"
    )


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context


def _connect(address: str) -> socket.socket:
    if is_unix(address):
        path = address.partition(":")[2]
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(f"\0{path}" if address.startswith("unix-abstract:") else path)
        except OSError:
            connection.close()
            raise
        return connection
    _, _, port = address.rpartition(":")
    return socket.create_connection((_host(address), int(port)), timeout=_TIMEOUT_S)


def _host(address: str) -> str:
    host = address.rpartition(":")[0]
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        host = host.removeprefix(scheme)
    return host.strip("/[]")
