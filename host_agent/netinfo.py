"""The worker's network interface: name, MAC, IPv4 address, MTU, and the largest path MTU."""

from __future__ import annotations

import fcntl
import logging
import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from host_agent.errors import InterfaceError
from host_agent.transport.config import PATH_MTUS
from host_agent.wire.headers import ROCE_OVERHEAD

_LOG = logging.getLogger(__name__)

# linux/sockios.h and linux/if.h
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFADDR: Final = 0x8915
_SIOCGIFMTU: Final = 0x8921
_SIOCGIFHWADDR: Final = 0x8927
_IFF_UP: Final = 0x1
_ARPHRD_ETHER: Final = 1
_IFREQ_SIZE: Final = 40
_IFREQ_NAME_SIZE: Final = 16


@dataclass(frozen=True, kw_only=True)
class Interface:
    """An interface that is up and has an IPv4 address; `mtu` is the link's, in bytes."""

    name: str
    mac: str
    ip: IPv4Address
    mtu: int


def path_mtu_for(link_mtu: int) -> int:
    """Return the largest RoCE path MTU whose packets fit a link; InterfaceError if not even 256 does."""
    fitting = [mtu for mtu in PATH_MTUS if mtu + ROCE_OVERHEAD <= link_mtu]
    if not fitting:
        raise InterfaceError(
            f"a link MTU of {link_mtu} bytes cannot carry RoCE v2: the smallest path MTU of "
            f"{PATH_MTUS[0]} needs {PATH_MTUS[0] + ROCE_OVERHEAD}"
        )
    return fitting[-1]


def require_path_mtu(path_mtu: int, interface: Interface) -> int:
    """Return `path_mtu` itself. InterfaceError if it is not a path MTU, or the link cannot carry it."""
    if path_mtu not in PATH_MTUS:
        raise InterfaceError(f"path MTU {path_mtu} is none of RoCE's: {', '.join(map(str, PATH_MTUS))}")
    if path_mtu + ROCE_OVERHEAD > interface.mtu:
        needed = path_mtu + ROCE_OVERHEAD
        raise InterfaceError(
            f"path MTU {path_mtu} needs a link MTU of {needed} bytes, but {interface.name} has "
            f"{interface.mtu}: raise it (ip link set {interface.name} mtu {needed}) or ask for path MTU "
            f"{path_mtu_for(interface.mtu)}"
        )
    return path_mtu


def find_interface(name: str | None = None, *, controller: str | None = None) -> Interface:
    """Return the interface called `name`; without a name the only candidate.

    Candidates are up, are not loopback, have an IPv4 address, and do not lead to the controller
    ("host:port"), which sits on the management network. InterfaceError if there is no such interface, or more
    than one.
    """
    if name is not None:
        return _read(name)
    management = local_address_towards(controller) if controller else None
    candidates: list[Interface] = []
    for _, candidate in socket.if_nameindex():
        try:
            interface = _read(candidate)
        except InterfaceError:
            continue  # down, or without an address: no candidate
        if not interface.ip.is_loopback and interface.ip != management:
            candidates.append(interface)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise InterfaceError(
            "no network interface for RoCE: none is up with an IPv4 address (loopback and the one that leads "
            "to the controller do not count). A worker of an emulated cluster runs in one of its hosts "
            "('p4reduce exec h1 -- ...'); elsewhere, name one with interface="
        )
    names = ", ".join(f"{i.name} ({i.ip})" for i in candidates)
    raise InterfaceError(
        f"more than one network interface could carry RoCE: {names}; name one with interface="
    )


def _read(name: str) -> Interface:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            (flags,) = struct.unpack_from("H", _ioctl(probe, _SIOCGIFFLAGS, name))
            if not flags & _IFF_UP:
                raise InterfaceError(f"network interface {name} is down: ip link set {name} up")
            mac = _ioctl(probe, _SIOCGIFHWADDR, name)[2:8]
            (mtu,) = struct.unpack_from("i", _ioctl(probe, _SIOCGIFMTU, name))
        except OSError as error:
            names = ", ".join(n for _, n in socket.if_nameindex())
            raise InterfaceError(f"network interface {name}: {error.strerror} (here are: {names})") from error
        try:
            address = IPv4Address(_ioctl(probe, _SIOCGIFADDR, name)[4:8])
        except OSError as error:
            raise InterfaceError(
                f"network interface {name} has no IPv4 address: ip addr add … dev {name}"
            ) from error
    return Interface(name=name, mac=mac.hex(":"), ip=address, mtu=mtu)


def _ioctl(probe: socket.socket, request: int, name: str) -> bytes:
    """Return the union of `struct ifreq` after the call, from the end of the 16-byte name on."""
    encoded = name.encode()
    if len(encoded) >= _IFREQ_NAME_SIZE:
        raise InterfaceError(f"{name!r} is too long for an interface name (15 bytes)")
    ifreq = encoded.ljust(_IFREQ_SIZE, b"\x00")
    return fcntl.ioctl(probe, request, ifreq)[_IFREQ_NAME_SIZE:]


def find_backup(controller: str, roce: Interface) -> Interface | None:
    """Return the interface that leads to `controller` ("host:port"); None if it cannot stand in for `roce`.

    A rack's only switch carries all RoCE traffic. When it is away for long, the job can go on by ring on the
    management network, over which all workers reach the controller anyway. The interface has to be another
    one, an Ethernet interface, with room for the smallest path MTU, on which this process may send raw
    frames.
    """
    address = local_address_towards(controller)
    if address is None or address.is_loopback:
        return None
    for _, name in socket.if_nameindex():
        try:
            interface = _read(name)
            if interface.ip != address or name == roce.name or not _is_ethernet(name):
                continue
            path_mtu_for(interface.mtu)
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as probe:
                probe.bind((name, 0))
        except (
            InterfaceError,
            OSError,
        ) as error:  # down, no address, too small, not ours
            _LOG.debug("%s is no backup for %s: %s", name, roce.name, error)
        else:
            return interface
    return None


def _is_ethernet(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        (kind,) = struct.unpack_from("H", _ioctl(probe, _SIOCGIFHWADDR, name))
    return bool(kind == _ARPHRD_ETHER)


def local_address_towards(controller: str) -> IPv4Address | None:
    """Return our own address on the way to `controller`; None if there is no way (joining will say so)."""
    host = controller.rpartition(":")[0] or controller
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # UDP: nothing is sent
        except OSError:
            return None
        return IPv4Address(probe.getsockname()[0])
