"""Search for the RDMA device behind a network interface in sysfs, which needs no library."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

SYSFS: Final = Path("/sys/class/infiniband")
INSTALL_PYVERBS: Final = (
    "install it: 'apt install python3-pyverbs' on Debian and Ubuntu (a virtual environment needs "
    "--system-site-packages), else 'pip install p4reduce[verbs]'"
)


@dataclass(frozen=True, kw_only=True)
class RoceDevice:
    """A port of an RDMA device, and the GID that stands for an interface's IPv4 address in RoCE v2."""

    name: str
    port: int
    gid_index: int
    interface: str

    @property
    def hw_counters(self) -> Path:
        """The folder of what the device counts, one number a file, all users together."""
        return SYSFS / self.name / "ports" / str(self.port) / "hw_counters"


def find_device(interface: str, ip: IPv4Address, *, sysfs: Path = SYSFS) -> RoceDevice | None:
    """Return the device with a RoCE v2 GID of `ip` on `interface`; None if there is none."""
    for port in sorted(sysfs.glob("*/ports/*")):
        for index, gid in _gids(port):
            if (
                gid.ipv4_mapped == ip
                and _read(port / "gid_attrs" / "types" / str(index)) == "RoCE v2"
                and _read(port / "gid_attrs" / "ndevs" / str(index)) == interface
            ):
                return RoceDevice(
                    name=port.parent.parent.name, port=int(port.name), gid_index=index, interface=interface
                )
    return None


def pyverbs_missing() -> str:
    """Say why pyverbs cannot be used here, and what to do; return "" if it can."""
    try:
        importlib.import_module("pyverbs.device")
    except ImportError as error:
        return f"pyverbs does not import ({error}): {INSTALL_PYVERBS}"
    return ""


def _gids(port: Path) -> Iterator[tuple[int, IPv6Address]]:
    for path in sorted((port / "gids").glob("*"), key=lambda path: int(path.name)):
        text = _read(path)
        if text:
            yield int(path.name), IPv6Address(text)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # an empty entry of the GID table cannot be read (EINVAL)
        return ""
