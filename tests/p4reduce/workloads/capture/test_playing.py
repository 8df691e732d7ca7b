"""Packets that are sent or refused, and how the figures look. Without a network."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from controller.api import controller_pb2 as pb
from p4reduce.oracle.placement import is_whole
from p4reduce.workloads.capture import capture_tables, guard, play
from p4reduce.workloads.capture.guard import require_no_jobs_packets
from p4reduce.workloads.capture.packets import RocePackets, roce_packets
from p4reduce.workloads.capture.plan import Plan, require_room
from p4reduce.workloads.capture.player import FramePlayer, PlayerError, PlayHost, frame_of
from p4reduce.workloads.capture.reading import read
from p4reduce.workloads.capture.result import CaptureResult, PairResult, Spread
from p4reduce.workloads.errors import WorkloadError
from tests.p4reduce.workloads.capture.frames import roce, write_pcap
from tests.topologies.states import cluster_state, host_state

A, B, C = "192.0.2.1", "192.0.2.2", "192.0.2.3"
RACK = cluster_state("c1", hosts=[host_state(number) for number in (1, 2, 3)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "capture.pcap"


def packets_of(path: Path, *frames: tuple[float, bytes], snap: int = 65535) -> RocePackets:
    return roce_packets(read(write_pcap(path, frames, snap=snap)))


def plan_of(packets: RocePackets, *, speed: float = 1.0, mapping: dict[str, str] | None = None) -> Plan:
    given = {IPv4Address(address): host for address, host in (mapping or {}).items()}
    return Plan.of(RACK, packets, given, speed=speed)


def play_hosts(plan: Plan) -> list[PlayHost]:
    return [PlayHost(ip=IPv4Address(h.ip), mac=h.mac, interface=h.interface) for h in plan.hosts]


def frames_of(plan: Plan) -> list[bytes]:
    """Return the frames that would be sent, each with the sequence number 0x20003."""
    hosts, data = play_hosts(plan), plan.packets.capture.data
    return [frame_of(data, hosts, packet, sequence=0x20003) for packet in plan.played]


def test_times_hosts_and_speed(path: Path) -> None:
    packets = packets_of(path, (5.0, roce(B, A)), (5.25, roce(A, C)), (6.0, roce(C, A)))
    plan = plan_of(packets)
    assert {str(address): host.name for address, host in plan.endpoints.items()} == {
        B: "h1",
        A: "h2",
        C: "h3",
    }
    assert list(plan.played["at_ns"]) == [0, 250_000_000, 1_000_000_000]
    assert list(zip(plan.played["from"], plan.played["to"], strict=True)) == [(0, 1), (1, 2), (2, 1)]
    assert list(plan_of(packets, speed=2).played["at_ns"]) == [0, 125_000_000, 500_000_000]
    assert list(plan_of(packets, speed=0).played["at_ns"]) == [0, 0, 0]


def test_times_that_cannot_be_right(path: Path) -> None:
    packets = packets_of(path, (0.0, roce(A, B)), (1_700_000_000.0, roce(A, B)))
    with pytest.raises(WorkloadError, match="takes 19,676 days to play, from packet 1 to packet 2"):
        plan_of(packets)
    assert plan_of(packets, speed=0).played["at_ns"][1] == 0
    assert plan_of(packets, speed=1e6).played["at_ns"][1] == 1_700_000_000_000


@pytest.mark.parametrize("payload", [0, 4, 256, 1000, 4096])
def test_a_played_frame(path: Path, payload: int) -> None:
    content = (bytes(range(250)) * 17)[:payload]
    captured = roce(B, A, qp=0xABCDEF, psn=0xFFFFFE, payload=content, opcode=1, tos=0x6A)
    (frame,) = frames_of(plan_of(packets_of(path, (1.0, captured))))
    assert len(frame) == len(captured)
    assert is_whole(frame)
    assert frame[:14] == bytes.fromhex("0200000000020200000000010800")
    ip, captured_ip = frame[14:34], captured[14:34]
    assert ip[:4] == captured_ip[:4]  # version, type of service, length
    assert ip[4:6] == b"\x00\x03"  # the number of the packet
    assert ip[12:] == bytes([10, 0, 0, 1, 10, 0, 0, 2])
    assert checksum(ip) == 0xFFFF
    assert frame[34:38] == captured[34:38]  # UDP ports
    assert frame[40:42] == b"\x00\x00"
    assert frame[42:-4] == captured[42:-4]  # BTH and payload


def checksum(header: bytes) -> int:
    """Return the ones' complement sum."""
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
    return (total & 0xFFFF) + (total >> 16)


def test_what_the_capture_lacks_is_zero(path: Path) -> None:
    captured = roce(A, B, payload=b"\xff" * 512)
    (frame,) = frames_of(plan_of(packets_of(path, (1.0, captured), snap=100)))
    assert len(frame) == len(captured)
    assert frame[42:100] == captured[42:100]
    assert frame[100:-4] == bytes(len(captured) - 104)
    assert is_whole(frame)


def test_packets_that_the_links_do_not_carry(path: Path) -> None:
    packets = packets_of(path, (1.0, roce(A, B)), (2.0, roce(A, B, payload=bytes(4096))))
    with pytest.raises(
        WorkloadError, match=r"packet 2 has 4140 bytes .* 1 packets .* carry 1500: .*--mtu 4096"
    ):
        require_room(RACK, packets)
    require_room(replace(RACK, path_mtu=4096), packets)


def test_jumbo_packets_fit_nowhere(path: Path) -> None:
    packets = packets_of(path, (1.0, roce(A, B, payload=bytes(8192))))
    with pytest.raises(WorkloadError, match=r"8236 bytes .*: no path MTU of RoCE needs such links"):
        require_room(RACK, packets)


def test_two_addresses_that_talk_to_each_other_need_two_hosts(path: Path) -> None:
    packets = packets_of(path, (1.0, roce(A, B)), (2.0, roce(B, C)))
    with pytest.raises(
        WorkloadError, match=r"192\.0\.2\.2 sends to 192\.0\.2\.3 \(packet 2\), and both .* h2"
    ):
        plan_of(packets, mapping={B: "h2", C: "h2"})


def jobs_of(monkeypatch: pytest.MonkeyPatch, **phases: int) -> None:
    """Let the controller know jobs of h1 and h2, with queue pairs 0x11 (out) and 0x22 (in) at each."""
    workers = [
        pb.WorkerInfo(worker=pb.Worker(ip=f"10.0.0.{number}", qpn_out=0x11, qpn_in=0x22)) for number in (1, 2)
    ]
    jobs = [
        pb.JobInfo(spec=pb.JobSpec(name=name), phase=phase, workers=workers)  # type: ignore[arg-type]
        for name, phase in phases.items()
    ]

    class Admin:
        def __init__(self, target: str) -> None:
            assert target == f"unix:{RACK.control_socket}"

        def __enter__(self) -> Any:
            return SimpleNamespace(list_jobs=lambda: jobs)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(guard, "AdminClient", Admin)


@pytest.mark.parametrize("qp", [0x11, 0x22])
def test_what_could_be_a_jobs_own_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, qp: int) -> None:
    plan = plan_of(packets_of(path, (1.0, roce(A, B, qp=0x12)), (2.0, roce(B, A, qp=qp))))
    jobs_of(monkeypatch, j1=pb.RUNNING)
    with pytest.raises(WorkloadError, match=rf"packet 2 .* from 10\.0\.0\.2 to queue pair {qp:#x} .*'j1'"):
        require_no_jobs_packets(plan)
    jobs_of(monkeypatch, j1=pb.ENDED)
    assert require_no_jobs_packets(plan) == []


def test_what_others_send_to_a_jobs_queue_pairs_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_of(monkeypatch, j1=pb.RUNNING)
    packets = packets_of(path, (1.0, roce(A, B, qp=0x12)), (2.0, roce(C, B, qp=0x11)))
    (note,) = require_no_jobs_packets(plan_of(packets))
    assert note.startswith("1 packets are for queue pairs of running jobs")


@pytest.mark.parametrize("speed", [-1.0, float("inf"), float("nan")])
def test_impossible_speeds(speed: float, path: Path) -> None:
    with pytest.raises(WorkloadError, match="a speed of 0"):
        play(RACK, path, speed=speed)


def test_a_cluster_whose_hosts_are_gone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_of(monkeypatch)
    write_pcap(path, [(1.0, roce(A, B))])
    with pytest.raises(WorkloadError, match="host h1 is gone"):
        play(RACK, path)


def test_interfaces_that_do_not_exist(path: Path) -> None:
    plan = plan_of(packets_of(path, (1.0, roce(A, B))))
    hosts = [replace(host, interface="p4r-nowhere") for host in play_hosts(plan)]
    with pytest.raises(PlayerError, match=r"there is no interface p4r-nowhere|raw socket"):
        FramePlayer(plan.packets.capture.data, hosts, plan.played)


@pytest.mark.parametrize(("field", "value"), [("offset", 300), ("captured", 30), ("bytes", 43), ("to", 9)])
def test_the_player_takes_nothing_that_is_not_in_the_data(path: Path, field: str, value: int) -> None:
    plan = plan_of(packets_of(path, (1.0, roce(A, B))))
    plan.played[field] = value
    with pytest.raises(PlayerError, match="packet 0 is not within the data"):
        FramePlayer(plan.packets.capture.data, play_hosts(plan), plan.played)


def result(**changes: Any) -> CaptureResult:
    spread = Spread(p50_s=12e-6, p99_s=0.0023, max_s=1.5)
    pair = PairResult(
        source=A,
        destination=B,
        from_host="h1",
        to_host="h2",
        packets=1000,
        bytes=314_000,
        sent=1000,
        sent_bytes=314_000,
        received=999,
        lost=1,
        reordered=0,
        duplicates=0,
        late=spread,
        transit=spread,
    )
    base = CaptureResult(
        file="x.pcap",
        cluster="c1",
        speed=2.0,
        file_packets=1007,
        left_out={"IP fragments": 7},
        notes=("something [b]is[/b] so",),
        hosts={A: "h1", B: "h2"},
        pairs=(pair,),
        packets=1000,
        bytes=314_000,
        sent=1000,
        received=999,
        lost=1,
        reordered=0,
        duplicates=0,
        unseen=0,
        unexpected=0,
        late=spread,
        transit=spread,
        capture_s=3.0,
        expected_s=1.5,
        sent_s=1.5,
        received_s=1.5,
    )
    return replace(base, **changes)


def test_json() -> None:
    document = json.loads(json.dumps(result().as_json()))
    assert document["kind"] == "capture"
    assert document["pairs"][0]["late"] == {"p50_s": 12e-6, "p99_s": 0.0023, "max_s": 1.5}
    assert document["left_out"] == {"IP fragments": 7}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            ("2 times as fast", "1,000 of 1,007", "192.0.2.1 → 192.0.2.2", "h1 → h2", "12 µs, 2.3 ms, 1.5 s"),
        ),
        ({}, ("Left out: 7 packets, IP fragments.", "Note: something [b]is[/b] so.")),
        ({"speed": 0.0, "expected_s": None, "late": None}, ("as fast as possible", "–")),
        ({"unseen": 5, "unexpected": 6}, ("not looked at, changed", "5, 6")),
    ],
)
def test_tables(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(capture_tables(result(**changes)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in words), text


def test_spread_of_nothing() -> None:
    assert Spread.of(np.zeros(0, np.int64)) is None
    assert Spread.of(np.arange(101) * 10**9) == Spread(p50_s=50.0, p99_s=99.0, max_s=100.0)
