"""Playing of a capture on a running cluster: first the checks, then the packets, then the figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from p4reduce.workloads.capture.guard import require_no_jobs_packets
from p4reduce.workloads.capture.packets import RocePackets, roce_packets
from p4reduce.workloads.capture.plan import Plan, require_room
from p4reduce.workloads.capture.player import (
    ETHERNET_BYTES,
    NEVER,
    FramePlayer,
    PlayerError,
    PlayHost,
    PlayProgress,
)
from p4reduce.workloads.capture.reading import read
from p4reduce.workloads.capture.result import CaptureResult, PairResult, Spread
from p4reduce.workloads.errors import WorkloadError
from topologies.state import ClusterState, HostState

_LOOK_S: Final = 0.1
_QUIET_S: Final = 1.0  # without an arrival, what has not come does not come any more
_LONGEST_QUEUE_S: Final = 10.0  # unless it still stands in the queue of a slow link

Say = Callable[[str], None]


def _silent(text: str) -> None:
    """Ignore the text."""


def play(
    cluster: ClusterState,
    path: Path,
    *,
    speed: float = 1.0,
    mapping: Mapping[IPv4Address, str] | None = None,
    progress: Say = _silent,
) -> CaptureResult:
    """Play the RoCE v2 packets of a capture on `cluster`, each at its time divided by `speed` (0: at once).

    Every address of the capture becomes a host, chosen by `mapping`, or else in order of first appearance. A
    packet keeps its BTH, payload, size, type of service and UDP source port. Ethernet and IP addresses, IP
    identification, time to live and the checksums are new.

    WorkloadError, before anything is sent, if the file is not such a capture, has more addresses than there
    are hosts, has a packet that the links do not carry, or one that would get into a running job's flow; also
    if the cluster goes down meanwhile.
    """
    if not (speed >= 0 and np.isfinite(speed)):
        raise WorkloadError(f"a capture is played at a speed of 0 (as fast as possible) or more, not {speed}")
    progress(f"reading {path.name}")
    packets = roce_packets(read(path))
    require_room(cluster, packets)
    plan = Plan.of(cluster, packets, mapping or {}, speed=speed)
    notes = require_no_jobs_packets(plan)
    return _played(plan, speed=speed, notes=notes, progress=progress)


def _played(plan: Plan, *, speed: float, notes: Sequence[str], progress: Say) -> CaptureResult:
    hosts = [_play_host(host) for host in plan.hosts]
    try:
        with FramePlayer(plan.packets.capture.data, hosts, plan.played) as player:
            player.start()
            _wait(plan, player, progress=progress)
            player.stop()
            return _result(plan, player, speed=speed, notes=notes)
    except PlayerError as error:
        raise WorkloadError(f"cluster {plan.cluster.name} plays nothing: {error}") from error


def _play_host(host: HostState) -> PlayHost:
    if not host.process.alive():
        raise WorkloadError(f"host {host.name} is gone: take the cluster down ('p4reduce down') and up again")
    return PlayHost(
        ip=IPv4Address(host.ip),
        mac=host.mac,
        interface=host.interface,
        network_namespace=f"/proc/{host.process.pid}/ns/net",
    )


def _wait(plan: Plan, player: FramePlayer, *, progress: Say) -> None:
    """Wait until all was sent, and has arrived or is lost. WorkloadError if it cannot be sent."""
    arrived, since, sent_at, said = 0, time.monotonic(), None, -1
    while True:
        now, state = time.monotonic(), player.progress()
        if state.error:
            name = plan.cluster.name
            raise WorkloadError(f"not all was played: {state.error} (is cluster {name} being taken down?)")
        if state.received != arrived:
            arrived, since = state.received, now
        if state.senders == 0:
            sent_at = sent_at or now
            quiet = now - max(since, sent_at)
            if state.received >= state.sent or quiet > _QUIET_S or now - sent_at > _LONGEST_QUEUE_S:
                return
        if (twentieth := state.sent * 20 // len(plan.played)) != said:
            said = twentieth
            progress(_words(plan, state))
        time.sleep(_LOOK_S)


def _words(plan: Plan, state: PlayProgress) -> str:
    takes = f" (takes {seconds:.0f} s)" if (seconds := float(plan.played["at_ns"][-1]) / 1e9) >= 1 else ""
    return f"playing{takes}: {state.sent:,} of {len(plan.played):,} packets sent, {state.received:,} arrived"


def _result(plan: Plan, player: FramePlayer, *, speed: float, notes: Sequence[str]) -> CaptureResult:
    packets, state = plan.packets, player.progress()
    pairs = tuple(_pair(plan, player, rows, speed=speed) for rows in _pairs(packets))
    late, transit = _times(plan, player, np.arange(len(packets)), speed=speed)
    capture_s = float(packets.times_ns[-1] - packets.times_ns[0]) / 1e9
    return CaptureResult(
        file=str(packets.capture.path),
        cluster=plan.cluster.name,
        speed=speed,
        file_packets=len(packets.capture),
        left_out=packets.left_out,
        notes=(*packets.notes, *notes),
        hosts={str(address): host.name for address, host in plan.endpoints.items()},
        pairs=pairs,
        packets=len(packets),
        bytes=int((packets.lengths + ETHERNET_BYTES).sum()),
        sent=sum(pair.sent for pair in pairs),
        received=sum(pair.received for pair in pairs),
        lost=sum(pair.lost for pair in pairs),
        reordered=sum(pair.reordered for pair in pairs),
        duplicates=sum(pair.duplicates for pair in pairs),
        unseen=state.ring_drops,
        unexpected=state.unexpected,
        late=late,
        transit=transit,
        capture_s=capture_s,
        expected_s=None if speed == 0 else capture_s / speed,
        sent_s=float(player.sent_ns.max()) / 1e9,
        received_s=max(float(player.received_ns.max()), 0.0) / 1e9,
    )


def _pairs(packets: RocePackets) -> list[NDArray[np.int64]]:
    """Return the rows of each pair of addresses, in the order of first appearance."""
    keys = packets.sources << 32 | packets.destinations
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return [np.flatnonzero(inverse == pair) for pair in np.argsort(first)]


def _pair(plan: Plan, player: FramePlayer, rows: NDArray[np.int64], *, speed: float) -> PairResult:
    packets, first = plan.packets, int(rows[0])
    source, destination = (IPv4Address(int(a[first])) for a in (packets.sources, packets.destinations))
    sent = player.sent_ns[rows] != NEVER
    received = player.received_ns[rows] != NEVER
    frames = packets.lengths[rows] + ETHERNET_BYTES
    late, transit = _times(plan, player, rows, speed=speed)
    return PairResult(
        source=str(source),
        destination=str(destination),
        from_host=plan.endpoints[source].name,
        to_host=plan.endpoints[destination].name,
        packets=len(rows),
        bytes=int(frames.sum()),
        sent=int(sent.sum()),
        sent_bytes=int(frames[sent].sum()),
        received=int(received.sum()),
        lost=int((sent & ~received).sum()),
        reordered=int(player.reordered[rows].sum()),
        duplicates=int(player.duplicates[rows].sum()),
        late=late,
        transit=transit,
    )


def _times(
    plan: Plan, player: FramePlayer, rows: NDArray[np.int64], *, speed: float
) -> tuple[Spread | None, Spread | None]:
    """Return how late packets were sent, and how long they were under way."""
    sent, received = player.sent_ns[rows], player.received_ns[rows]
    went, came = sent != NEVER, received != NEVER
    late = None if speed == 0 else Spread.of((sent - plan.played["at_ns"][rows])[went])
    # Not below 0: two clocks, and a frame can arrive before the call that sends it returns.
    return late, Spread.of(np.maximum(received - sent, 0)[came])
