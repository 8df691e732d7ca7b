"""The frames of a capture file, read by libpcap (cypcap), which knows pcap, nanosecond pcap and pcapng.

The frames of a large capture go to a file without a name and are mapped from there, so the machine's memory
need not hold them. Times are rounded down to microseconds, far finer than hosts here can keep to.
"""

from __future__ import annotations

import mmap
import tempfile
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

import cypcap
import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.errors import WorkloadError

_IN_MEMORY_BYTES: Final = 64 * 1024 * 1024
_CUT_OFF: Final = "truncated dump file"


class LinkType(IntEnum):
    """The header that frames begin with; types of www.tcpdump.org/linktypes.html that can carry IP here."""

    ETHERNET = 1
    RAW_IP = 12  # as read: 101 in the file
    LINUX_COOKED = 113
    IPV4 = 228
    LINUX_COOKED_V2 = 276


@dataclass(frozen=True, eq=False)
class Capture:
    """The frames of a capture file.

    Frame i is `data[offsets[i]:offsets[i] + lengths[i]]`, and was seen at `times_ns[i]` (since 1970).
    `notes`: what a user should know.
    """

    path: Path
    link_type: LinkType
    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.offsets)


def read(path: Path) -> Capture:
    """Read the capture in a file. WorkloadError if it cannot be read, is not a capture, or holds no frame."""
    try:
        if not path.is_file():
            raise WorkloadError(f"{path} is no file" if path.exists() else f"there is no file {path}")
        if path.stat().st_size == 0:
            raise WorkloadError(f"{path} is empty, not even a capture's header is there")
        with path.open("rb"):
            return _read(path)
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path) -> Capture:
    try:
        # Not with TstampPrecision.NANO: cypcap's `ts` would still take the nanoseconds for microseconds.
        packets = cypcap.open_offline(str(path))
    except cypcap.Error as error:
        raise WorkloadError(f"{path} is no capture (pcap or pcapng): {error.args[1]}{_hint(path)}") from error
    link_type = _link_type(path, packets)
    times, lengths = array("d"), array("q")
    notes = []
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool, packets:
        write, add_time, add_length = spool.write, times.append, lengths.append
        try:
            for header, frame in packets:
                write(frame)
                add_time(header.ts)
                add_length(header.caplen)
        except cypcap.Error as error:
            if _CUT_OFF not in error.args[1] or not times:
                where = f"{path}, behind packet {len(times)}"
                raise WorkloadError(f"{where}: {error.args[1]}{_interfaces(error)}") from error
            notes.append(f"the file ends in the middle of packet {len(times) + 1}: what is before it counts")
        if not times:
            raise WorkloadError(f"{path} holds no packets")
        data = _mapped(spool)
    length = np.frombuffer(lengths, np.int64)
    return Capture(
        path=path,
        link_type=link_type,
        data=data,
        offsets=np.cumsum(length) - length,
        lengths=length,
        times_ns=np.rint(np.frombuffer(times, np.float64) * 1e6).astype(np.int64) * 1000,
        notes=tuple(notes),
    )


def _mapped(spool: tempfile.SpooledTemporaryFile[bytes]) -> NDArray[np.uint8]:
    """Return the bytes that were written; a mapped file stays as long as the array."""
    spool.flush()
    if not spool.tell():
        return np.zeros(0, np.uint8)
    if spool.tell() <= _IN_MEMORY_BYTES:
        spool.seek(0)
        return np.frombuffer(spool.read(), np.uint8)
    return np.frombuffer(mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _link_type(path: Path, packets: cypcap.Pcap) -> LinkType:
    number = int(packets.datalink())
    try:
        return LinkType(number)
    except ValueError as error:
        name = getattr(packets.datalink(), "name", "unknown")
        raise WorkloadError(
            f"{path} is a capture of link type {number} ({name}): RoCE v2 can be taken from Ethernet, "
            "Linux cooked (tcpdump -i any) and raw IP captures"
        ) from error


def _hint(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(6)
    packers = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zXZ\x00": "unxz"}
    for magic, tool in packers.items():
        if start.startswith(magic):
            return f" (it is compressed: {tool} it first)"
    return ""


def _interfaces(error: cypcap.Error) -> str:
    if "interface" not in error.args[1]:
        return ""
    return (
        " (libpcap reads captures of several interfaces only where they are alike: play one at a time, "
        "as from 'tshark -r FILE -Y frame.interface_id==0 -w ONE.pcapng')"
    )
