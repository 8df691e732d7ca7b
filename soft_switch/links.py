"""State of an interface's link, from the kernel (netdevice(7))."""

from __future__ import annotations

import fcntl
import socket
import struct

SIOCGIFFLAGS = 0x8913
IFF_UP, IFF_RUNNING = 0x1, 0x40
IFNAMSIZ = 16


def interface_is_up(name: str) -> bool:
    """Tell whether an interface is switched on and has a link; False if there is no such interface."""
    request = struct.pack(f"{IFNAMSIZ}sh22x", name.encode()[: IFNAMSIZ - 1], 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            answer = fcntl.ioctl(control, SIOCGIFFLAGS, request)
        except OSError:
            return False
    flags: int = struct.unpack_from("h", answer, IFNAMSIZ)[0]
    return flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING
