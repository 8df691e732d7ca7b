"""Our headers against frames that Linux's RoCE v2 stack sent, and against scapy."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.wire.headers import (
    Aeth,
    Bth,
    Ethernet,
    IPv4,
    MalformedPacket,
    Opcode,
    RocePacket,
    Udp,
    parse_mac,
)
from p4reduce.oracle.placement import is_whole

FRAMES = {
    name: bytes.fromhex(text)
    for name, text in (
        line.split()
        for line in (Path(__file__).parent / "rxe_frames.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_real_stacks_frame_comes_back_byte_for_byte(name: str) -> None:
    packet = RocePacket.parse(FRAMES[name])
    assert packet.build() == FRAMES[name]
    assert packet.icrc_ok()
    assert is_whole(FRAMES[name])


@pytest.mark.parametrize(
    ("name", "opcode", "syndrome"),
    [
        ("send_first", Opcode.SEND_FIRST, None),
        ("send_middle", Opcode.SEND_MIDDLE, None),
        ("send_last", Opcode.SEND_LAST, None),
        ("send_only", Opcode.SEND_ONLY, None),
        ("ack", Opcode.ACKNOWLEDGE, 0x1F),
        ("rnr_nak", Opcode.ACKNOWLEDGE, 0x2C),
        ("nak_sequence_error", Opcode.ACKNOWLEDGE, 0x60),
    ],
)
def test_opcodes_and_syndromes_are_those_of_a_real_stack(
    name: str, opcode: Opcode, syndrome: int | None
) -> None:
    packet = RocePacket.parse(FRAMES[name])
    assert packet.bth.opcode == opcode
    assert (packet.aeth.syndrome if packet.aeth else None) == syndrome


def test_exact_bytes_of_every_header() -> None:
    assert Bth(opcode=2, dest_qp=0x123456, psn=0xABCDEF, ack_req=True, pad_count=1).pack().hex() == (
        "0210ffff001234568 0abcdef".replace(" ", "")
    )
    assert Aeth(syndrome=0x60, msn=0x010203).pack().hex() == "60010203"
    assert Udp(length=24, src_port=0xC000).pack().hex() == "c00012b700180000"
    ip = IPv4(
        src=IPv4Address("10.77.0.2"), dst=IPv4Address("10.77.0.1"), total_length=1068, identification=0x48C
    )
    assert ip.pack().hex() == "4500042c048c400040111d990a4d00020a4d0001"
    ethernet = Ethernet(dst=parse_mac("02:00:0a:4d:00:01"), src=parse_mac("02:00:0a:4d:00:02"))
    assert ethernet.pack().hex() == "02000a4d000102000a4d00020800"


def packets() -> Any:
    return st.builds(
        RocePacket,
        ethernet=st.builds(Ethernet, dst=st.binary(min_size=6, max_size=6), src=st.just(bytes(6))),
        ip=st.builds(
            IPv4,
            src=st.ip_addresses(v=4),
            dst=st.ip_addresses(v=4),
            total_length=st.just(0),
            identification=st.integers(0, 0xFFFF),
            ttl=st.integers(0, 255),
            tos=st.integers(0, 255),
        ),
        udp=st.builds(Udp, length=st.just(0), src_port=st.integers(0, 0xFFFF)),
        bth=st.builds(
            Bth,
            opcode=st.sampled_from([0, 1, 2, 4]),
            dest_qp=st.integers(0, 0xFFFFFF),
            psn=st.integers(0, 0xFFFFFF),
            ack_req=st.booleans(),
            solicited=st.booleans(),
            mig_req=st.booleans(),
            resv8a=st.integers(0, 255),
        ),
        payload=st.binary(max_size=64),
    )


@given(packets())
def test_scapy_makes_the_same_icrc_of_every_packet(packet: RocePacket) -> None:
    from scapy.contrib.roce import BTH  # noqa: F401  binds UDP port 4791
    from scapy.layers.l2 import Ether

    frame = packet.build()
    decoded = Ether(frame)
    assert decoded["BTH"].compute_icrc(bytes(decoded["BTH"])[:-4]) == frame[-4:]


@given(packets(), st.integers(0, 10**6))
def test_a_router_may_change_ttl_and_tos_but_no_bit_of_the_rest(packet: RocePacket, where: int) -> None:
    frame = bytearray(packet.build())
    frame[15] ^= 0xFF  # TOS
    frame[22] ^= 0xFF  # TTL
    assert is_whole(bytes(frame))
    protected = [*range(26, 34), *range(34, 40), *range(42, 46), *range(47, len(frame))]
    frame[protected[where % len(protected)]] ^= 1 << where % 8
    assert not is_whole(bytes(frame))


@given(st.sampled_from(sorted(FRAMES)), st.integers(0, 1000))
def test_a_truncated_packet_is_malformed(name: str, kept: int) -> None:
    frame = FRAMES[name]
    with pytest.raises(MalformedPacket):
        RocePacket.parse(frame[: min(kept, len(frame) - 1)])


@given(st.binary(max_size=120))
def test_random_bytes_are_malformed_and_nothing_worse(frame: bytes) -> None:
    with pytest.raises(MalformedPacket):
        RocePacket.parse(frame)


def test_ethernet_padding_is_not_part_of_the_packet() -> None:
    assert RocePacket.parse(FRAMES["ack"] + bytes(20)) == RocePacket.parse(FRAMES["ack"])


@pytest.mark.parametrize("text", ["02:00:00:00:00", "02:00:00:00:00:zz", "", "0200.0000.0001"])
def test_a_bad_mac_address_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="not a MAC address"):
        parse_mac(text)


def test_mac_addresses_read_as_they_print() -> None:
    assert parse_mac("02:00:0a:4d:00:01") == bytes.fromhex("02000a4d0001")
