"""Captures are played beside a job: all that they may reach arrives, and the job's sums stay right."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from controller.api.admin import AdminClient
from host_agent.wire.aggregation import AggregationHeader, Op
from p4reduce.workloads.capture import CaptureResult, parse_mapping, play
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.team import Team
from tests.e2e.conftest import all_reduce, joined, rack
from tests.p4reduce.workloads.capture.frames import Timed, roce, write_pcap
from topologies.fabric import Fabric

pytestmark = pytest.mark.emulation

WORKERS = 3  # on h1 to h3; h4 is nobody's
MESSAGES = 300
SECONDS = 2.0


@pytest.fixture(scope="module")
def four() -> Iterator[Fabric]:
    with rack(4, path_mtu=1024, rate_mbit=100.0) as running:
        yield running


@contextmanager
def summing(team: Team) -> Iterator[list[int]]:
    """Run checked all-reduces one after the other meanwhile, and yield their number."""
    done, wrong, enough = [0], [], threading.Event()

    def reduce() -> None:
        try:
            while not enough.is_set():
                all_reduce(team, elements=60_000, dtype="int32", seed=done[0])
                done[0] += 1
        except BaseException as error:  # noqa: BLE001 (raised again in the test's thread)
            wrong.append(error)

    thread = threading.Thread(target=reduce)
    thread.start()
    try:
        yield done
    finally:
        enough.set()
        thread.join()
    if wrong:
        raise wrong[0]


def disguised(running: Fabric, *, source: str, destination: str, qp: int) -> list[Timed]:
    """Return messages as a worker's, and others' acknowledgements: the job's number, generation, headers."""
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        job = admin.show_job("e2e")
        flow = next(flow for flow in admin.flows("e2e") if flow.rank == 0)
    frames: list[Timed] = []
    for message in range(MESSAGES):
        at = message * SECONDS / MESSAGES
        head = AggregationHeader(
            job=job.job_id, generation=job.generation, message=message, rank=0, op=Op.SUM, packets=4
        ).pack()
        psn = flow.first_psn + 4 * message
        payloads = [head + bytes([255]) * 768, *([bytes([255]) * 1024] * 3)]
        for index, (opcode, payload) in enumerate(zip((0, 1, 1, 2), payloads, strict=True)):
            number = (psn + index) % 2**24
            frames.append((at, roce(source, destination, qp=qp, psn=number, opcode=opcode, payload=payload)))
        acknowledgement = b"\x1f" + message.to_bytes(3, "big")
        frames.append(
            (at, roce(source, destination, qp=qp, psn=psn % 2**24, opcode=17, payload=acknowledgement))
        )
    return frames


def foreign(running: Fabric) -> int:
    """Return how many packets for the job's queue pairs the switch dropped: they were not from its peers."""
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        return sum(flow.counters["foreign"].packets for flow in admin.counters("e2e"))


def played(running: Fabric, path: Path, frames: list[Timed], **mapping: str) -> CaptureResult:
    write_pcap(path, frames)
    names = {"a": "192.0.2.1", "b": "192.0.2.2"}
    return play(running.state, path, mapping=parse_mapping([f"{names[k]}={v}" for k, v in mapping.items()]))


def test_nothing_of_a_capture_gets_into_a_sum(four: Fabric, tmp_path: Path) -> None:
    path = tmp_path / "capture.pcap"
    with joined(four, WORKERS) as team:
        with AdminClient(f"unix:{four.state.control_socket}") as admin:
            flow = next(flow for flow in admin.flows("e2e") if flow.rank == 0)
            taken = {qp for each in admin.flows("e2e") for qp in (each.dest_qp, each.ack_qp)}
        by_ip = {host.ip: host.name for host in four.state.hosts}
        sender, receiver = by_ip[flow.src_ip], by_ip[flow.dst_ip]
        free = next(qp for qp in range(0x100, 0x200) if qp not in taken)

        with summing(team) as sums:
            same_hosts = disguised(four, source="192.0.2.1", destination="192.0.2.2", qp=free)
            arrived = played(four, path, same_hosts, a=sender, b=receiver)
            before = foreign(four)
            other_host = disguised(four, source="192.0.2.1", destination="192.0.2.2", qp=flow.dest_qp)
            dropped = played(four, path, other_host, a="h4", b=receiver)
            with pytest.raises(WorkloadError, match=r"packet 1 would go .* job 'e2e'"):
                played(four, path, other_host, a=sender, b=receiver)
            after = foreign(four)
        assert sums[0] >= 3, "there was no job beside it"

    # From the job's hosts, to queue pairs that are nobody's: as between any two hosts.
    assert (arrived.sent, arrived.received, arrived.lost, arrived.unexpected) == (
        5 * MESSAGES,
        5 * MESSAGES,
        0,
        0,
    )
    assert (arrived.reordered, arrived.duplicates, arrived.notes) == (0, 0, ())
    # For the job's own queue pair, from another host: the switch drops and counts it.
    assert (dropped.sent, dropped.received) == (5 * MESSAGES, 0)
    assert after - before == 5 * MESSAGES
    assert dropped.notes[0].startswith(f"{5 * MESSAGES} packets are for queue pairs of running jobs")


def test_timing_sizes_and_the_links_rate(four: Fabric, tmp_path: Path) -> None:
    """Check that each address becomes a host, and nothing is sent too early, or faster than the link is."""
    frames = [
        (0.01 * number, roce(f"192.0.2.{1 + number % 4}", f"192.0.2.{1 + (number + 1) % 4}", psn=number))
        for number in range(80)
    ]
    path = write_pcap(tmp_path / "capture.pcap", frames)
    result = play(four.state, path, speed=2.0)
    assert result.hosts == {f"192.0.2.{number}": f"h{number}" for number in (1, 2, 3, 4)}
    assert (result.packets, result.received, len(result.pairs)) == (80, 80, 4)
    assert result.capture_s == pytest.approx(0.79)
    assert result.expected_s == pytest.approx(0.395)
    assert result.sent_s >= 0.395
    assert result.late is not None
    assert result.late.p50_s >= 0
    assert IPv4Address(result.pairs[0].source) == IPv4Address("192.0.2.1")

    many = [(0.0, roce("192.0.2.1", "192.0.2.2", psn=n, payload=bytes(1024))) for n in range(3000)]
    fast = play(four.state, write_pcap(path, many), speed=0)
    assert (fast.received, fast.late, fast.expected_s) == (3000, None, None)
    burst_bytes = 50_000  # what tc lets through at once, and a little more
    assert fast.received_s >= (fast.bytes - burst_bytes) * 8 / 100e6
