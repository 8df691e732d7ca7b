"""The bytes on the wire: against the Python formats, scapy, and packets of Linux's RoCE v2 stack."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether
from scapy.utils import rdpcap

from host_agent.transport import Endpoint, native
from host_agent.wire.aggregation import AggregationHeader, ElementType, Op, Reduction
from host_agent.wire.headers import IPv4, Opcode, RocePacket
from tests.host_agent.transport.fabric import ring_configs
from tests.host_agent.transport.peer import Peer, sum_of

SAMPLES = [bytes(packet) for packet in rdpcap(str(Path(__file__).parent / "data" / "rxe.pcap"))]


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1), st.integers(0, 15))
def test_crc32_is_zlibs(data: bytes, start: int, skip: int) -> None:
    part = data[skip:]
    assert native.library().p4r_crc32(start, part, len(part)) == zlib.crc32(part, start)


def test_a_message_is_cut_into_packets() -> None:
    peer = Peer.of(path_mtu=512, message_packets=4, first_psns=[2**24 - 1, 0])
    values = np.arange(300, dtype=np.int32)  # 256 + 1200 bytes: two whole packets and two chunks
    peer.endpoint.post(sum_of(values), peer.now)
    packets = peer.poll()
    assert [p.bth.opcode for p in packets] == [Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST]
    assert [p.bth.psn for p in packets] == [2**24 - 1, 0, 1]
    assert [p.bth.ack_req for p in packets] == [False, False, True]
    assert [len(p.payload) for p in packets] == [512, 512, 512]
    assert [p.ip.identification for p in packets] == [0, 1, 2]
    assert {p.bth.dest_qp for p in packets} == {peer.config.successor.qpn_in}
    payload = b"".join(p.payload for p in packets)
    assert payload[256:1456] == values.astype(">i4").tobytes()
    assert not any(payload[1456:])
    assert AggregationHeader.unpack(payload) == AggregationHeader(
        job=3, generation=7, message=0, rank=0, op=Op.SUM, packets=3, element_type=ElementType.INT32,
        reduction=Reduction.SUM, elements=300, collective=1, tensor_elements=300,
    )  # fmt: skip


def test_path_mtu_256_has_its_header_alone_in_the_first_packet() -> None:
    peer = Peer.of(path_mtu=256)
    peer.endpoint.post(sum_of(np.zeros(0, np.int32)), peer.now)
    assert [p.bth.opcode for p in peer.poll()] == [Opcode.SEND_FIRST, Opcode.SEND_LAST]


def test_one_packet_of_exact_bytes() -> None:
    """Compare with bytes written down by hand from the specification's tables."""
    peer = Peer.of(path_mtu=1024, first_psns=[0xABCDEF, 0])
    peer.endpoint.post(sum_of(np.array([1, -2], np.int32)), peer.now)
    (frame,) = peer.endpoint.poll(peer.now)
    assert frame[:54].hex() == (
        "020000000102" "020000000101" "0800"
        "4500" "022c" "0000" "4000" "4011" "24bd" "0a010001" "0a010002"
        "c100" "12b7" "0218" "0000"
        "04" "00" "ffff" "00" "000201" "80" "abcdef"
    )  # fmt: skip
    assert frame[54:90].hex() == (
        "50345244" "01" "00" "0003" "00000007" "00000000" "00" "01" "01" "01" "01" "000000"
        "00000002" "00000001" "00000002"
    )  # fmt: skip
    assert frame[310:318].hex() == "00000001fffffffe"
    assert len(frame) == 54 + 512 + 4


@given(st.integers(0, 500), st.sampled_from([256, 512, 1024, 2048, 4096]), st.integers(0, 2**24 - 1))
def test_scapy_and_the_python_formats_agree(elements: int, path_mtu: int, psn: int) -> None:
    peer = Peer.of(path_mtu=path_mtu, message_packets=16, first_psns=[psn, 0])
    peer.endpoint.post(sum_of(np.arange(elements, dtype=np.int32)), peer.now)
    for frame in peer.endpoint.poll(peer.now):
        ours = RocePacket.parse(frame)
        assert ours.build() == frame  # lengths, IP checksum, ICRC
        assert IPv4.unpack(frame[14:]).pack() == frame[14:34]
        theirs = Ether(frame)[BTH]
        assert (theirs.dqpn, theirs.psn, theirs.ackreq) == (
            ours.bth.dest_qp, ours.bth.psn, ours.bth.ack_req,
        )  # fmt: skip
        rebuilt = Ether(frame)
        rebuilt[BTH].icrc = None
        assert bytes(rebuilt) == frame


@pytest.mark.parametrize("frame", SAMPLES)
def test_the_kernels_packets_have_the_icrc_we_compute(frame: bytes) -> None:
    endpoint = Endpoint(ring_configs(2)[0])
    endpoint.receive(frame, 1)
    counters = endpoint.counters()
    assert (counters.foreign, counters.icrc_errors, counters.malformed) == (1, 0, 0)
    damaged = bytearray(frame)
    damaged[60] ^= 0x10  # payload, or AETH
    endpoint.receive(bytes(damaged), 2)
    assert endpoint.counters().icrc_errors == 1


def test_acknowledgements_look_like_the_kernels() -> None:
    """Compare with an ACK of the sample: only addresses, QP, PSN, MSN and identification differ."""
    sample = next(p for p in map(RocePacket.parse, SAMPLES) if p.aeth and p.aeth.syndrome == 0x1F)
    peer = Peer.of(path_mtu=1024)
    peer.endpoint.post(sum_of(np.zeros(2, np.int32)), peer.now)
    peer.give(*peer.message(2000, peer.header(0, 2), bytes(8)))
    ack = next(p for p in peer.poll() if p.aeth is not None)
    assert sample.aeth is not None
    assert ack.aeth is not None
    assert ack.aeth.syndrome == sample.aeth.syndrome == 0x1F
    assert ack.aeth.msn == 1
    assert ack.bth.psn == 2000
    assert ack.ip.total_length == sample.ip.total_length
    assert (ack.bth.pkey, ack.bth.ack_req, ack.bth.pad_count) == (
        sample.bth.pkey, sample.bth.ack_req, sample.bth.pad_count,
    )  # fmt: skip
