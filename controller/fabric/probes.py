"""Probes of links: they find the links that answer. No I/O.

A probe is a frame out of a leaf's uplink; the spine's program reflects it, and the leaf's program hands it to
the controller. A link goes down after several intervals in a row with a probe out and no answer, not even a
late one. It comes up after several in a row with an answer. Intervals without a probe do not count, so no
link goes down while the controller is too busy to send.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller.fabric.addresses import switch_ip, switch_mac
from controller.fabric.graph import Link

TREE_PORT = 53300  # UDP
_VERSION = 1
_ECHO_REQUEST = 4
_NONCES = 1 << 32


@dataclass
class _Watched:
    """A link, and its answer since its last probe, if one was `sent`."""

    link: Link
    sent: bool = False
    answered: bool = False
    answered_at: float | None = None
    in_a_row: int = 0  # intervals with an answer; below 0: without
    down: bool = False
    nonces: list[int] = field(default_factory=list)


class Prober:
    """Probes of these links, one each per `interval_s`. `lost` misses in a row take a link down.

    `found` answers in a row bring it up. `down`: the links that are down at first.
    """

    def __init__(
        self,
        links: Iterable[Link],
        *,
        interval_s: float,
        lost: int,
        found: int,
        down: Iterable[str] = (),
    ) -> None:
        down = set(down) if interval_s else ()
        self._links = {link.name: _Watched(link, down=link.name in down) for link in links}
        self._interval_s = interval_s
        self._lost = lost
        self._found = found
        self._next_nonce = 1
        self._asked: dict[int, _Watched] = {}
        self._due_at = 0.0

    @property
    def down(self) -> frozenset[str]:
        """The links that do not answer, by name."""
        return frozenset(name for name, watched in self._links.items() if watched.down)

    def silent_for(self, name: str, now: float) -> float | None:
        """Return for how many seconds a link has not answered; None if it never has."""
        answered_at = self._links[name].answered_at
        return None if answered_at is None else now - answered_at

    def due(self, now: float, can_ask: Callable[[Link], bool]) -> list[tuple[Link, int]]:
        """Judge the probes sent before, and return the links and nonces of those to send now.

        A link that cannot be asked keeps its state.
        """
        if not self._interval_s or now < self._due_at:
            return []
        self._due_at = now + self._interval_s
        probes = []
        for watched in self._links.values():
            if watched.sent:
                self._judge(watched)
            watched.answered = False
            watched.sent = can_ask(watched.link)
            if watched.sent:
                probes.append((watched.link, self._nonce(watched)))
        return probes

    def not_sent(self, nonce: int) -> None:
        """Note that a probe could not be sent, so that no answer to it is missed."""
        watched = self._asked.get(nonce)
        if watched is not None:
            watched.sent = False

    def answer(self, nonce: int, now: float) -> None:
        """Note that a probe came back, perhaps late."""
        watched = self._asked.get(nonce)
        if watched is not None:
            watched.answered, watched.answered_at = True, now

    def _judge(self, watched: _Watched) -> None:
        if watched.answered:
            watched.in_a_row = max(0, watched.in_a_row) + 1
        else:
            watched.in_a_row = min(0, watched.in_a_row) - 1
        if watched.in_a_row >= self._found:
            watched.down = False
        elif -watched.in_a_row >= self._lost:
            watched.down = True

    def _nonce(self, watched: _Watched) -> int:
        nonce = self._next_nonce
        self._next_nonce = (nonce + 1) % _NONCES
        self._asked[nonce] = watched
        watched.nonces.append(nonce)
        for old in watched.nonces[: -2 * self._lost]:
            del self._asked[old]
        del watched.nonces[: -2 * self._lost]
        return nonce


def echo_request(link: Link, *, leaf_id: int, spine_id: int, nonce: int) -> bytes:
    """Return the frame from a leaf to a spine that asks for an answer (docs/protocol.md, "Several racks")."""
    macs = (switch_mac(spine_id, link.spine_port), switch_mac(leaf_id, link.leaf_port))
    ethernet = b"".join(mac.to_bytes(6, "big") for mac in macs) + struct.pack(">H", 0x0800)
    tree = struct.pack(">BBBBBBHIIBBH", _VERSION, _ECHO_REQUEST, 0, 0, 0, 0, 0, 0, nonce, 0, 0, 0)
    length = 8 + len(tree) + 4  # with the UDP header and the ICRC
    addresses = struct.pack(">II", switch_ip(leaf_id), switch_ip(spine_id))
    without = struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0) + addresses
    ip = without[:10] + struct.pack(">H", _checksum(without)) + without[12:]
    udp = struct.pack(">HHHH", TREE_PORT, TREE_PORT, length, 0)
    return ethernet + ip + udp + tree + _icrc(ip, udp, tree)


def _icrc(ip: bytes, udp: bytes, tree: bytes) -> bytes:
    """Compute the ICRC as for RoCE; the tree header's halves stand for RoCE's mask and BTH."""
    masked_ip = ip[:1] + b"\xff" + ip[2:8] + b"\xff" + ip[9:10] + b"\xff\xff" + ip[12:]
    masked_udp = udp[:6] + b"\xff\xff"
    return zlib.crc32(tree[:8] + masked_ip + masked_udp + tree[8:]).to_bytes(4, "little")


def _checksum(header: bytes) -> int:
    """Compute the IPv4 header checksum."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
