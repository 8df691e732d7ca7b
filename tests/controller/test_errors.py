"""Errors made of a status: sentences that say a thing once."""

from __future__ import annotations

import grpc
import pytest

from controller.api.errors import UnreachableError, from_status, plainly

REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:50051: "
    "Failed to connect to remote host: connect: Connection refused (111)"
)


@pytest.mark.parametrize(
    ("details", "plain"),
    [
        (REFUSED, "Connection refused"),
        (
            REFUSED.replace("ipv4:127.0.0.1:50051", "unix:/run/p4reduce/c1/controller.sock"),
            "Connection refused",
        ),
        (
            REFUSED.replace("connect: Connection refused (111)", "Timeout occurred: FD Shutdown"),
            "Timeout occurred",
        ),
        ("ipv4:127.0.0.1:9559: recvmsg:Connection reset by peer", "Connection reset by peer"),
        ("recvmsg:Connection reset by peer", "Connection reset by peer"),
        ("Socket closed", "Socket closed"),
        ("DNS resolution failed for nowhere:1", "DNS resolution failed for nowhere:1"),
        ("slots 1 to 2 (of 3) are taken", "slots 1 to 2 (of 3) are taken"),
        ("", ""),
    ],
)
def test_grpcs_words_are_said_plainly(details: str, plain: str) -> None:
    assert plainly(details) == plain


def test_an_address_is_said_once() -> None:
    error = from_status(grpc.StatusCode.UNAVAILABLE, REFUSED, address="127.0.0.1:50051")
    assert isinstance(error, UnreachableError)
    assert str(error).startswith(
        "there is no controller at 127.0.0.1:50051, or the connection with it broke (Connection refused): "
    )
    assert str(error).count("127.0.0.1") == 1
