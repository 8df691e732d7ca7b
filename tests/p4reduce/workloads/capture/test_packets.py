"""Packets taken from capture files of all kinds, and those left out, with the reason."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q
from scapy.packet import Raw

from p4reduce.workloads.capture import packets
from p4reduce.workloads.capture.packets import RocePackets, roce_packets
from p4reduce.workloads.capture.reading import read
from p4reduce.workloads.errors import WorkloadError
from tests.p4reduce.workloads.capture import frames as files
from tests.p4reduce.workloads.capture.frames import ether, roce, write_pcap, write_pcapng

A, B, C = "192.0.2.1", "192.0.2.2", "192.0.2.3"
ONE = roce(A, B, qp=0x123456, psn=7)


def taken(path: Path) -> RocePackets:
    return roce_packets(read(path))


def bytes_of(rows: RocePackets, row: int) -> bytes:
    """Return a packet from its IP header on."""
    start = int(rows.offsets[row])
    return rows.capture.data[start : start + int(rows.captured[row])].tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "capture.pcap"


@pytest.mark.parametrize("magic", [files.MICROSECOND, files.NANOSECOND])
@pytest.mark.parametrize("order", "<>")
def test_pcap_of_either_byte_order_and_precision(path: Path, magic: int, order: str) -> None:
    times = [1_700_000_000.000001, 1_700_000_000.0101, 1_700_000_003.5]
    rows = taken(write_pcap(path, [(at, ONE) for at in times], magic=magic, order=order))
    assert rows.times_ns / 1e9 == pytest.approx(times, abs=1.5e-6)
    assert [bytes_of(rows, row) for row in range(3)] == [ONE[14:]] * 3
    assert list(rows.numbers) == [1, 2, 3]
    assert (rows.left_out, rows.notes) == ({}, ())


def test_times_are_right_to_a_microsecond(path: Path) -> None:
    gap_ns = 2_500
    frames = [(number * gap_ns / 1e9, ONE) for number in range(50)]
    rows = taken(write_pcap(path, frames, magic=files.NANOSECOND))
    assert np.abs(rows.times_ns - np.arange(50) * gap_ns).max() < 1000


def test_pcapng(path: Path) -> None:
    times = [1_700_000_000.000001, 1_700_000_000.0101]
    rows = taken(write_pcapng(path, [(at, ONE) for at in times]))
    assert rows.times_ns / 1e9 == pytest.approx(times, abs=1e-6)
    assert bytes_of(rows, 1) == ONE[14:]


def test_columns(path: Path) -> None:
    frames = [(1.0, roce(A, B, qp=5)), (1.5, roce(B, A, qp=0xABCDEF, payload=bytes(1024)))]
    rows = taken(write_pcap(path, frames))
    assert [IPv4Address(int(address)) for address in rows.sources] == [IPv4Address(A), IPv4Address(B)]
    assert [IPv4Address(int(address)) for address in rows.destinations] == [IPv4Address(B), IPv4Address(A)]
    assert list(rows.queue_pairs) == [5, 0xABCDEF]
    assert list(rows.lengths) == [44 + 256, 44 + 1024]


@pytest.mark.parametrize(
    ("link_type", "header"),
    [
        pytest.param(files.COOKED, bytes(14) + b"\x08\x00", id="cooked"),
        pytest.param(files.COOKED_V2, b"\x08\x00" + bytes(18), id="cooked, version 2"),
        pytest.param(files.RAW_IP, b"", id="raw IP"),
    ],
)
def test_other_link_types(path: Path, link_type: int, header: bytes) -> None:
    rows = taken(write_pcap(path, [(1.0, header + ONE[14:])], link_type=link_type))
    assert bytes_of(rows, 0) == ONE[14:]


def test_vlan_tags_are_taken_off(path: Path) -> None:
    once = bytes(ether(type=0x8100) / Dot1Q(vlan=7, type=0x0800) / Raw(ONE[14:]))
    twice = bytes(
        ether(type=0x88A8) / Dot1Q(vlan=7, type=0x8100) / Dot1Q(vlan=8, type=0x0800) / Raw(ONE[14:])
    )
    rows = taken(write_pcap(path, [(1.0, once), (2.0, ONE), (3.0, twice)]))
    assert [bytes_of(rows, row) for row in range(3)] == [ONE[14:]] * 3
    assert rows.notes == ("2 packets had VLAN tags: they are played without",)


def test_padding_behind_the_packet_is_no_part_of_it(path: Path) -> None:
    assert bytes_of(taken(write_pcap(path, [(1.0, ONE + b"\xee" * 10)])), 0) == ONE[14:]


def test_what_is_cut_off_by_the_snapshot_length_is_said(path: Path) -> None:
    rows = taken(write_pcap(path, [(1.0, ONE), (2.0, ONE)], snap=96))
    assert list(rows.captured) == [96 - 14] * 2
    assert list(rows.lengths) == [len(ONE) - 14] * 2
    assert len(rows.notes) == 1
    assert "only the beginning of 2 packets" in rows.notes[0]


def test_a_packet_without_its_transport_header_cannot_be_played(path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"2 packets, and none .*: 2 cut off before the end"):
        taken(write_pcap(path, [(1.0, ONE), (2.0, ONE)], snap=14 + 39))
    with pytest.raises(WorkloadError, match=r"1 packets, and none .*: 1 cut off before the end"):
        taken(write_pcap(path, [(1.0, ONE)], snap=14 + 21))


def test_packets_are_ordered_by_time(path: Path) -> None:
    frames = [(2.0, roce(A, B, psn=2)), (1.0, roce(A, B, psn=1)), (3.0, roce(A, B, psn=3))]
    rows = taken(write_pcap(path, frames))
    assert list(rows.numbers) == [2, 1, 3]
    assert len(rows.notes) == 1
    assert "played by time" in rows.notes[0]


def test_everything_else_is_counted_by_reason(path: Path) -> None:
    over_ipv6 = ether() / IPv6(src="2001:db8::1", dst="2001:db8::2") / UDP(dport=4791) / Raw(bytes(40))
    other_udp = ether() / IP(src=A, dst=B) / UDP(dport=4790) / Raw(bytes(40))
    strange = bytearray(ONE)
    strange[14 + 3] += 1  # the IP header's length no longer agrees with UDP's
    others = [
        bytes(ether() / ARP()),
        bytes(ether() / IP(src=A, dst=B) / TCP(dport=4791)),
        bytes(other_udp),
        bytes(ether() / IPv6() / UDP(dport=53)),
        bytes(ether(type=0x8915) / Raw(bytes(60))),
        bytes(over_ipv6),
        ONE[:20] + b"\x20\x00" + ONE[22:],  # more fragments
        roce(A, "224.0.0.9"),
        bytes(strange) + b"x",
        b"",
        ONE[:9],
    ]
    with_options = (
        ether() / IP(src=A, dst=B, options=[b"\x01\x01\x01\x00"]) / UDP(dport=4791) / Raw(bytes(40))
    )
    frames = [(1.0, ONE), *((2.0, frame) for frame in others), (3.0, bytes(with_options)), (4.0, ONE)]
    rows = taken(write_pcap(path, frames))
    assert list(rows.numbers) == [1, len(frames)]
    assert rows.left_out == {
        packets.OTHER: 6,
        packets.ROCE_V1: 1,
        packets.OVER_IPV6: 1,
        packets.FRAGMENTS: 1,
        packets.OPTIONS: 1,
        packets.MALFORMED: 1,
        packets.MULTICAST: 1,
    }


def test_ipv6_only(path: Path) -> None:
    packet = ether() / IPv6(src="2001:db8::1", dst="2001:db8::2") / UDP(dport=4791) / Raw(bytes(40))
    with pytest.raises(WorkloadError, match=r"1 packets, and none .*: 1 RoCE v2 over IPv6"):
        taken(write_pcap(path, [(1.0, bytes(packet))]))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"numel,forward_ns,backward_ns\n1,2,3\n", "is no capture", id="no capture"),
        pytest.param(b"\x1f\x8b\x08" + bytes(30), "compressed: gunzip", id="compressed"),
    ],
)
def test_files_that_are_none(path: Path, content: bytes, complaint: str) -> None:
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=complaint):
        read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="there is no file"):
        read(tmp_path / "missing.pcap")
    with pytest.raises(WorkloadError, match="is no file"):
        read(tmp_path)


def test_a_capture_without_packets(path: Path) -> None:
    with pytest.raises(WorkloadError, match="holds no packets"):
        read(write_pcap(path, []))


def test_only_empty_frames(path: Path) -> None:
    with pytest.raises(WorkloadError, match="1 packets, and none"):
        taken(write_pcap(path, [(1.0, b"")]))


def test_a_file_that_ends_within_a_packet_is_read_up_to_there(path: Path) -> None:
    write_pcap(path, [(1.0, ONE), (2.0, ONE)])
    path.write_bytes(path.read_bytes()[:-20])
    rows = taken(path)
    assert len(rows) == 1
    assert rows.notes == ("the file ends in the middle of packet 2: what is before it counts",)


def test_a_damaged_file(path: Path) -> None:
    write_pcap(path, [(1.0, ONE), (2.0, ONE)])
    content = bytearray(path.read_bytes())
    place = 24 + 16 + len(ONE) + 8
    content[place : place + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(bytes(content))
    with pytest.raises(WorkloadError, match=r"behind packet 1: invalid packet capture length"):
        read(path)


def test_interfaces_of_different_kinds(path: Path) -> None:
    write_pcapng(path, [(1.0, ONE), (1.0, ONE)], link_types=(files.ETHERNET, files.COOKED))
    with pytest.raises(WorkloadError, match="interfaces only where they are alike"):
        read(path)


def test_a_link_type_without_ip(path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"link type 127 \("):
        read(write_pcap(path, [(1.0, ONE)], link_type=127))


def test_a_large_capture_is_mapped_from_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p4reduce.workloads.capture.reading._IN_MEMORY_BYTES", 1000)
    rows = taken(write_pcap(path, [(float(second), roce(A, C, psn=second)) for second in range(20)]))
    assert not rows.capture.data.flags.owndata
    assert [bytes_of(rows, row)[39] for row in range(20)] == list(range(20))
