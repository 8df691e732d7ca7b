"""Small probes from inside the hosts: pings to the next host over the fabric, a connection to the controller.

Switches route ICMP echoes like all packets that belong to no job. They show whether a host's link carries
anything, and how long that takes, even if no job sends.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from p4reduce.doctor.facts import Echo
from topologies import namespaces
from topologies.errors import TopologyError
from topologies.state import ClusterState, HostKind, HostState

ECHOES: Final = 8
PAUSE_S: Final = 0.1
PATIENCE_S: Final = 0.4  # for the answers
LONG_PATIENCE_S: Final = 2.0  # where none came in that time
CONNECT_S: Final = 0.5
_AT_ONCE: Final = 16
_REQUEST, _REPLY = 8, 0
_HEADER: Final = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number (RFC 792)
_PAYLOAD: Final = bytes(48)


def probe(
    cluster: ClusterState, *, patience_s: float = PATIENCE_S
) -> tuple[dict[tuple[str, str], Echo], dict[str, str]]:
    """Send echoes from each host to the next, and connect each host to the controller.

    Returns the echoes by pair of hosts, and for each host why it does not reach the controller ("": it does).
    """
    hosts = [host for host in cluster.hosts if host.kind is HostKind.EMULATED and host.process.alive()]
    if not hosts:
        return {}, {}
    pairs = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
    with ThreadPoolExecutor(min(_AT_ONCE, len(pairs))) as pool:
        found = list(pool.map(lambda pair: _from(pair[0], pair[1], cluster.controller, patience_s), pairs))
    echoes: dict[tuple[str, str], Echo] = {}
    management = {}
    for (host, other), (echo, why) in zip(pairs, found, strict=True):
        if echo is not None and host is not other:
            echoes[host.name, other.name] = echo
        management[host.name] = why
    return echoes, management


def _from(host: HostState, other: HostState, controller: str, patience_s: float) -> tuple[Echo | None, str]:
    try:
        with namespaces.entered(Path(f"/proc/{host.process.pid}/ns/net")):
            return _echoes(other.ip, patience_s), _connects(controller)
    except (OSError, TopologyError) as error:  # the host is going away just now
        return None, f"its network namespace cannot be entered: {error}"


def _connects(controller: str) -> str:
    address, _, port = controller.rpartition(":")
    try:
        socket.create_connection((address, int(port)), CONNECT_S).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return ""


def _echoes(ip: str, patience_s: float) -> Echo:
    """Send requests in two bursts, and count the answers.

    A machine that is short of time delays all packets of one burst, so there are two.
    """
    identifier = int.from_bytes(os.urandom(2), "big")
    sent: dict[int, float] = {}
    arrived: list[int] = []
    times_ms: list[float] = []

    def listen(raw: socket.socket, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            raw.settimeout(left)
            try:
                packet = raw.recv(2048)
            except TimeoutError:
                return
            number = _answers(packet, identifier)
            if number is None or number not in sent:
                continue
            if number not in arrived:
                times_ms.append(1e3 * (time.monotonic() - sent[number]))
            arrived.append(number)
            if len(set(arrived)) == ECHOES:  # a copy may still come
                until = min(until, time.monotonic() + 0.01)

    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        for burst, wait_s in ((range(ECHOES // 2), PAUSE_S), (range(ECHOES // 2, ECHOES), patience_s)):
            for number in burst:
                sent[number] = time.monotonic()
                raw.sendto(_request(identifier, number), (ip, 0))
            listen(raw, time.monotonic() + wait_s)
    first = list(dict.fromkeys(arrived))
    return Echo(
        sent=ECHOES,
        received=len(first),
        overtaken=sum(first[i] < first[i - 1] for i in range(1, len(first))),
        fastest_ms=min(times_ms) if times_ms else None,
    )


def _request(identifier: int, number: int) -> bytes:
    bare = _HEADER.pack(_REQUEST, 0, 0, identifier, number) + _PAYLOAD
    return _HEADER.pack(_REQUEST, 0, _checksum(bare), identifier, number) + _PAYLOAD


def _answers(packet: bytes, identifier: int) -> int | None:
    """Return the number of the request that an IP packet answers; None if it answers none of ours."""
    start = (packet[0] & 0x0F) * 4
    if len(packet) < start + _HEADER.size:
        return None
    kind, _, _, theirs, number = _HEADER.unpack_from(packet, start)
    return int(number) if kind == _REPLY and theirs == identifier else None


def _checksum(data: bytes) -> int:
    """Compute the Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def pairs_of(host: str, echoes: Mapping[tuple[str, str], Echo]) -> list[Echo]:
    """Return the echoes that went over a host's link."""
    return [echo for pair, echo in echoes.items() if host in pair]
