"""gRPC channels and servers' ports, with TLS or without."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import grpc

from controller.security.files import Loaded, TlsError, TlsFiles, read

UNIX: Final = ("unix:", "unix-abstract:")
Options = Sequence[tuple[str, Any]]


def is_unix(address: str) -> bool:
    """Tell whether it is a Unix socket's address: the file system decides who may open that."""
    return address.startswith(UNIX)


def open_channel(
    address: str, tls: TlsFiles | None, *, options: Options, name: str | None = None
) -> grpc.Channel:
    """Open a channel. Raise TlsError.

    `name`: the name that the server's certificate has to be for (None: the address).
    """
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, channel_credentials(tls), options=(*options, *named(name)))


def open_aio_channel(
    address: str, tls: TlsFiles | None, *, options: Options, name: str | None = None
) -> grpc.aio.Channel:
    """Open a channel for asyncio, as `open_channel`."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=list(options))
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=[*options, *named(name)])


def load(files: TlsFiles, *, now: datetime | None = None) -> Loaded:
    """Read the files. Raise TlsError if one is missing or not valid now, or they do not belong together."""
    loaded = Loaded(
        ca=None if files.ca is None else read(files.ca), cert=read(files.cert), key=read(files.key)
    )
    try:
        from controller.security import checking
    except ImportError:  # machines that only run workers may be without cryptography: gRPC checks as well
        return loaded
    checking.check_files(files, loaded, now=now)
    return loaded


def channel_credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    """Return credentials that show our certificate and accept only a server whose authority we know.

    Raise TlsError.
    """
    loaded = load(tls)
    return grpc.ssl_channel_credentials(loaded.ca, loaded.key, loaded.cert)


def server_credentials(tls: TlsFiles, *, client_certificates: bool = True) -> grpc.ServerCredentials:
    """Return a server's credentials; by default it accepts only clients whose authority it knows.

    Raise TlsError.
    """
    loaded = load(tls)
    if client_certificates and loaded.ca is None:
        raise TlsError("to ask clients for certificates takes the certificate of their authority")
    return grpc.ssl_server_credentials(
        [(loaded.key, loaded.cert)],
        root_certificates=loaded.ca if client_certificates else None,
        require_client_auth=client_certificates,
    )


def named(name: str | None) -> Options:
    """Return the option that requires a server's certificate for `name`."""
    return () if name is None else (("grpc.ssl_target_name_override", name),)
