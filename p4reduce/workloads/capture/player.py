"""The native frame player through ctypes: it sends captured packets on the interfaces of several hosts.

Its structures are as `native/p4r_player.h` lays them out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from ctypes import c_char, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, fields
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from host_agent.errors import CommunicatorError
from host_agent.transport.native import ERROR_BYTES, loaded
from host_agent.wire.headers import parse_mac

NEVER: Final = -1  # the time of what was not sent, or has not come
HEADER_BYTES: Final = 40  # IPv4, UDP, BTH: what must be there of a packet
ETHERNET_BYTES: Final = 14
_MAX_PACKET: Final = 65535
_LIBRARY: Final = Path(__file__).parent / "_player.so"

# One packet: when (ns after the start), where its IPv4 header is in the data, how much of it is there (what
# is missing is sent as zeros), its bytes from the IPv4 header to the ICRC, and the numbers of its hosts.
PACKET: Final = np.dtype(
    [
        ("at_ns", np.int64),
        ("offset", np.uint64),
        ("captured", np.uint32),
        ("bytes", np.uint16),
        ("from", np.uint8),
        ("to", np.uint8),
    ]
)


class PlayerError(CommunicatorError):
    """Packets cannot be played on these interfaces."""


class _NativeHost(ctypes.Structure):
    _fields_ = (
        ("network_namespace", c_char_p),
        ("interface", c_char_p),
        ("ip", c_uint32),
        ("mac", c_uint8 * 6),
        ("reserved", c_uint8 * 2),
    )


class _NativeProgress(ctypes.Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("sent", "received", "unexpected", "blocked", "ring_drops")),
        ("last_received_ns", c_int64),
        ("senders", c_uint32),
        ("failed", c_uint32),
        ("error", c_char * 256),
    )


_PROTOTYPES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "p4r_player_new": (
        c_void_p,
        (
            *(c_void_p, c_uint64),
            *(ctypes.POINTER(_NativeHost), c_size_t),
            *(c_void_p, c_size_t),
            *(c_void_p, c_void_p, c_void_p, c_void_p),
            *(c_char_p, c_size_t),
        ),
    ),
    "p4r_player_start": (c_int, (c_void_p, c_char_p, c_size_t)),
    "p4r_player_progress": (None, (c_void_p, ctypes.POINTER(_NativeProgress))),
    "p4r_player_stop": (None, (c_void_p,)),
    "p4r_player_free": (None, (c_void_p,)),
    "p4r_player_frame": (
        c_size_t,
        (c_void_p, ctypes.POINTER(_NativeHost), c_void_p, c_uint32, c_char_p),
    ),
}


@dataclass(frozen=True, kw_only=True)
class PlayHost:
    """A host: its addresses and interface, and the path of its network namespace ("": ours)."""

    ip: IPv4Address
    mac: str
    interface: str
    network_namespace: str = ""


@dataclass(frozen=True, kw_only=True)
class PlayProgress:
    """Progress of a player. `unexpected`: received, but not as sent; `ring_drops`: not looked at in time."""

    sent: int
    received: int
    unexpected: int
    blocked: int
    ring_drops: int
    last_received_ns: int
    senders: int
    error: str


class FramePlayer(AbstractContextManager["FramePlayer"]):
    """Plays `packets` (of dtype PACKET, in the order of their times), whose bytes are in `data` (uint8).

    A context manager. Once it has been stopped, these hold for each packet: `sent_ns` and `received_ns` (or
    NEVER), `reordered` (1: it arrived behind a later one with the same hosts, UDP source port and queue
    pair), `duplicates` (how often it came again, 255 at most). PlayerError if an interface cannot be used.
    """

    def __init__(self, data: NDArray[np.uint8], hosts: Sequence[PlayHost], packets: NDArray[np.void]) -> None:
        if packets.dtype != PACKET or data.dtype != np.uint8:
            raise ValueError(f"packets of dtype {packets.dtype} in data of dtype {data.dtype}")
        # The native part keeps pointers to all of these.
        self._data, self._packets = np.ascontiguousarray(data), np.ascontiguousarray(packets)
        self._hosts = _native_hosts(hosts)
        self.sent_ns = np.full(len(packets), NEVER, np.int64)
        self.received_ns = np.full(len(packets), NEVER, np.int64)
        self.reordered = np.zeros(len(packets), np.uint8)
        self.duplicates = np.zeros(len(packets), np.uint8)
        error = ctypes.create_string_buffer(ERROR_BYTES)
        self._player = _library().p4r_player_new(
            *(self._data.ctypes.data, self._data.size),
            *(self._hosts, len(hosts)),
            *(self._packets.ctypes.data, len(packets)),
            *(self.sent_ns.ctypes.data, self.received_ns.ctypes.data),
            *(self.reordered.ctypes.data, self.duplicates.ctypes.data),
            *(error, len(error)),
        )
        if not self._player:
            raise PlayerError(error.value.decode())

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start playing; may be called once."""
        error = ctypes.create_string_buffer(ERROR_BYTES)
        if _library().p4r_player_start(self._player, error, len(error)):
            raise PlayerError(error.value.decode())

    def progress(self) -> PlayProgress:
        """Return the progress. PlayerError once the player is closed."""
        if not self._player:
            raise PlayerError("the player is closed")
        native = _NativeProgress()
        _library().p4r_player_progress(self._player, ctypes.byref(native))
        values = {field.name: getattr(native, field.name) for field in fields(PlayProgress)}
        return PlayProgress(**{**values, "error": native.error.decode() if native.failed else ""})

    def stop(self) -> None:
        """Stop sending and listening, within some 50 ms. Idempotent."""
        if self._player:
            _library().p4r_player_stop(self._player)

    def close(self) -> None:
        """Stop, and close the sockets. Idempotent."""
        player, self._player = self._player, None
        if player:
            _library().p4r_player_free(player)


def frame_of(data: NDArray[np.uint8], hosts: Sequence[PlayHost], packet: np.void, *, sequence: int) -> bytes:
    """Return the frame that is sent for a packet, the `sequence`th (from 0) from its host to the other."""
    room = ctypes.create_string_buffer(ETHERNET_BYTES + _MAX_PACKET)
    native = np.array([packet], PACKET)
    length = _library().p4r_player_frame(
        data.ctypes.data, _native_hosts(hosts), native.ctypes.data, sequence, room
    )
    return room.raw[:length]


def _native_hosts(hosts: Sequence[PlayHost]) -> ctypes.Array[_NativeHost]:
    return (_NativeHost * len(hosts))(
        *(
            _NativeHost(
                network_namespace=host.network_namespace.encode(),
                interface=host.interface.encode(),
                ip=int(host.ip),
                mac=(c_uint8 * 6)(*parse_mac(host.mac)),
            )
            for host in hosts
        )
    )


@cache
def _library() -> ctypes.CDLL:
    return loaded(_LIBRARY, _PROTOTYPES)
