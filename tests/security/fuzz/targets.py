"""One function a target: any bytes in, an exception that is no part of the promise is a finding."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from google.protobuf.message import DecodeError

from controller.api import controller_pb2 as pb
from controller.api.codec import from_worker
from controller.api.errors import ControllerError
from controller.api.messages import Abort, Called, Heartbeat, Join, Resume
from controller.config import ConfigError, parse_config
from controller.configuration.configuration import Configuration
from controller.configuration.marked import DocumentError
from controller.database.revisions import Revisions
from controller.database.store import Store
from controller.fabric.routes import base_entries
from controller.orchestration.callers import in_one_line
from controller.orchestration.planning import member_from, spec_from
from controller.orchestration.registry import Registry
from controller.switches.managed_switch import ManagedSwitch
from host_agent.quantisation import (
    BIAS,
    block_exponent,
    from_fixed,
    from_ordered,
    max_abs,
    scale_of,
    to_fixed,
    to_ordered,
)
from host_agent.wire.aggregation import AggregationHeader, NotAnAggregationHeader
from host_agent.wire.headers import (
    Bth,
    Ethernet,
    IPv4,
    MalformedPacket,
    Opcode,
    RocePacket,
    Udp,
    parse_mac,
)
from host_agent.wire.icrc import icrc
from p4reduce.oracle.tree_packets import TreePacket
from p4reduce.simulation.network import fabric_config
from p4reduce.workloads.capture.packets import roce_packets
from p4reduce.workloads.capture.reading import read
from p4reduce.workloads.errors import WorkloadError
from tests.controller.fake_switch import FakeSwitch
from tests.host_agent.transport.peer import Peer, passing, sum_of

LANES = 192
FIRST = 2000  # the predecessor's first PSN
Target = Callable[[bytes], None]


class Bytes:
    """Values out of bytes; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken.ljust(count, b"\0")

    def number(self, below: int) -> int:
        size = max(1, (below.bit_length() + 7) // 8)
        return int.from_bytes(self.take(size), "big") % below


def agent(data: bytes) -> None:
    """Disturb an endpoint in the middle of a transfer: whatever comes, in the end it has the switch's sum.

    Frames are mutated where a stranger can: they are not both from the peer's address and for this queue pair
    with a right ICRC, unless their PSN is none that the peer would use next. So none may be in the result.
    """
    source = Bytes(data)
    peer = Peer.of(selective=source.number(2) == 1)
    result = np.full(LANES, -1, np.int32)
    peer.endpoint.post(sum_of(np.zeros(LANES, np.int32), result), peer.now)
    peer.poll()
    header = peer.header(0, LANES)
    good = peer.message(FIRST, header, np.arange(LANES, dtype=">i4").tobytes())
    place = 0
    for _ in range(40):
        if not source:
            break
        peer.now += 1 + source.number(1 << 24)
        if source.number(4) == 0 and place < len(good):
            peer.give(good[place])
            place += 1
        else:
            peer.give(strange(source, peer, good[source.number(len(good))]))
        assert len(peer.endpoint.poll(peer.now, 64)) <= 64
        assert peer.failure_if_any() is None
    for frame in good[place:]:
        peer.give(frame)
    assert (result == np.arange(LANES)).all(), "a stranger's bytes are in the sum, or it is not there"


def strange(source: Bytes, peer: Peer, good: bytes) -> bytes:
    """Return a frame that is not the peer's: wild bytes, a damaged one, or a well-formed one of others."""
    kind = source.number(8)
    if kind == 0:
        return source.take(source.number(300))
    if kind == 1:  # damaged, and the ICRC is right again; but then it is not for this queue pair
        frame = bytearray(good)
        for _ in range(1 + source.number(6)):
            frame[source.number(len(frame))] ^= source.number(256)
        frame[47] = good[47] ^ 0x80
        return with_icrc(bytes(frame[: source.number(len(frame) + 1)] if source.number(3) == 0 else frame))
    if kind == 2:
        frame = bytearray(good)
        frame[54 + source.number(len(frame) - 54)] ^= 1 << source.number(8)  # the ICRC covers all of that
        return bytes(frame)
    packet = RocePacket.parse(good)
    if kind == 3:
        return replace(packet, ip=replace(packet.ip, src=packet.ip.src + 1 + source.number(9))).build()
    if kind == 4:
        return replace(packet, ip=replace(packet.ip, dst=packet.ip.dst + 1 + source.number(9))).build()
    if kind == 5:
        return replace(
            packet, bth=replace(packet.bth, dest_qp=packet.bth.dest_qp ^ 1 + source.number(255))
        ).build()
    if kind == 6:  # as from the peer, but ahead or behind of all that it may send
        psn = (FIRST + (40 + source.number(1 << 22)) * (1 if source.number(2) else -1)) % 2**24
        opcode = (0, 1, 2, 4)[source.number(4)]
        return replace(
            packet, bth=replace(packet.bth, psn=psn, opcode=opcode), payload=source.take(256)
        ).build()
    bth = replace(packet.bth, opcode=5 + source.number(12), pad_count=source.number(4))  # none of ours
    return replace(packet, bth=bth, payload=source.take(source.number(300))).build()


def neighbour(data: bytes) -> None:
    """Let the peers send nonsense with right addresses and ICRC: it is a failure with words, no crash."""
    source = Bytes(data)
    selective = source.number(2) == 1
    peer = Peer.of(selective=selective)
    result = np.full(2 * LANES, -1, np.int32)
    peer.endpoint.post(sum_of(np.zeros(2 * LANES, np.int32), result), peer.now)
    peer.endpoint.post(passing(np.zeros(100, np.uint8), None), peer.now)
    config = peer.config
    while source:
        peer.now += 1 + source.number(1 << 28)
        kind = source.number(4)
        if kind == 0:
            syndrome = (0x1F, 0x60, 0x2C, source.number(256))[source.number(4)]
            psn = (1000 - 20 + source.number(60)) % 2**24
            arrived = (psn + source.number(40) - 10) % 2**24 if selective else 0
            peer.acknowledge(syndrome, psn, msn=arrived, run=source.number(64) if selective else 0)
        else:
            changed: dict[str, Any] = {
                name: source.number(below) for name, below in _HEADER[source.number(len(_HEADER))]
            }
            header = replace(peer.header(source.number(3), LANES), **changed)
            payload = header.pack() if kind == 1 else b""
            frame = RocePacket(
                ethernet=Ethernet(dst=parse_mac(config.mac), src=parse_mac(config.predecessor.mac)),
                ip=IPv4(src=config.predecessor.ip, dst=config.ip, total_length=0, tos=source.number(256)),
                udp=Udp(length=0),
                bth=Bth(
                    opcode=(0, 1, 2, 4, source.number(256))[source.number(5)] % 256,
                    dest_qp=config.qpn_in,
                    psn=(FIRST - 4 + source.number(20)) % 2**24,
                    ack_req=bool(source.number(2)),
                    reserved=0x40 * source.number(2),
                    pad_count=source.number(4),
                ),
                payload=payload + source.take(source.number(6) * 128),
            )
            if frame.bth.opcode != Opcode.ACKNOWLEDGE:
                peer.give(frame.build())
        assert len(peer.endpoint.poll(peer.now, 64)) <= (32 if selective else 17)
        failure = peer.failure_if_any()
        if failure is not None:
            assert str(failure).strip()
            return


_HEADER = (
    (),
    (("message", 1 << 32),),
    (("rank", 256), ("packets", 65)),
    (("elements", 1 << 32),),
    (("tensor_elements", 1 << 32), ("collective", 1 << 32)),
    (("generation", 1 << 32),),
    (("job", 1 << 16),),
)


def with_icrc(frame: bytes) -> bytes:
    """Return the frame with a right ICRC at the end of what the IP header says, if that is there."""
    if len(frame) < 60:
        return frame
    end = 14 + int.from_bytes(frame[16:18], "big")
    if not 58 <= end <= len(frame):
        return frame
    return frame[: end - 4] + icrc(frame[14 : end - 4]) + frame[end:]


def wire(data: bytes) -> None:
    """Check that what can be read is written again as it was."""
    with contextlib.suppress(NotAnAggregationHeader):
        header = AggregationHeader.unpack(data)
        assert AggregationHeader.unpack(header.pack()) == header
    with contextlib.suppress(MalformedPacket):
        packet = RocePacket.parse(data)
        assert RocePacket.parse(packet.build()) == packet
        packet.icrc_ok()
    tree = TreePacket.parse(data)
    if tree is not None:
        tree.icrc_ok()


def quantise(data: bytes) -> None:
    """Quantise any bits as tensors: errors are within the promised bound, and the order is kept."""
    for dtype in (np.float32, np.float16):
        array = np.frombuffer(data[: len(data) // 4 * 4], dtype)
        finite = array[np.isfinite(array)]
        ordered = to_ordered(finite)
        assert (from_ordered(ordered, dtype) == finite).all()
        assert (np.diff(finite[np.argsort(ordered, kind="stable")].astype(np.float64)) >= 0).all()
        for world_size in (2, 7, 256):
            if finite.size == 0:
                continue
            scale = scale_of(block_exponent(finite), world_size, half=False)
            lanes = to_fixed(finite, scale)
            assert int(np.abs(lanes.astype(np.int64)).max()) * world_size < 2**31
            back = from_fixed(lanes, scale, np.float64)
            bound = 2.0**-scale
            assert (np.abs(back - finite.astype(np.float64)) <= bound).all()
        if finite.size:
            assert float(max_abs(finite)) < 2.0 ** (block_exponent(finite) - BIAS)


def capture(data: bytes) -> None:
    """Read a capture file: it has RoCE packets, or is refused with a sentence."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(WorkloadError):
            roce_packets(read(Path(file.name)))


def config(data: bytes) -> None:
    """Parse a controller's configuration."""
    with contextlib.suppress(ConfigError, ValueError, RecursionError):
        document = json.loads(data)
        try:
            parse_config(document)
        except ConfigError:
            raise
        except (ValueError, RecursionError) as error:
            raise AssertionError(f"{type(error).__name__} is no answer: {error}") from error


def document(data: bytes) -> None:
    """Parse a document of desired state, YAML or JSON."""
    text = data.decode(errors="replace")
    try:
        _configuration()._parse(text)
    except (DocumentError, RecursionError):
        pass
    except yaml.YAMLError as error:
        raise AssertionError(f"YAML's own error is no answer: {error}") from error


def messages(data: bytes) -> None:
    """Say anything as workers and operators do: it is done, or is a ControllerError."""
    registry = _registry()
    for kind in (pb.WorkerMessage, pb.JobSpec):
        try:
            message = kind.FromString(data)
        except DecodeError:
            continue
        with contextlib.suppress(ControllerError):
            say(registry, message)


def say(registry: Registry, message: pb.WorkerMessage | pb.JobSpec) -> None:
    """Do what a message says as the service does, but for what takes a switch."""
    if isinstance(message, pb.JobSpec):
        registry.create_job(spec_from(message))
        registry.delete_job(message.name)
        return
    said = from_worker(message)
    if isinstance(said, (Join, Resume)):
        if isinstance(said, Join) and said.world_size <= 1:  # it would be set up, by a task
            member_from(registry.config, said)
            return
        session = registry.sessions.begin(said)
        session.hear(Heartbeat())
        session.hear(Abort("fuzz"))
        with contextlib.suppress(ControllerError):
            registry.delete_job(said.job)
    elif isinstance(said, (Abort, Called)):
        assert in_one_line(said.reason if isinstance(said, Abort) else said.what).isprintable()


@functools.lru_cache(maxsize=1)
def _registry() -> Registry:
    directory = tempfile.TemporaryDirectory()
    _KEPT.append(directory)
    config = fabric_config(1, [4])
    store = Store(Path(directory.name) / "fuzz.db")
    store.__enter__()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    switches = [ManagedSwitch(FakeSwitch(switch, base_entries(config, switch))) for switch in config.switches]
    registry = Registry(config, store, switches)
    registry.load()
    return registry


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@functools.lru_cache(maxsize=1)
def _configuration() -> Configuration:
    registry = _registry()
    return Configuration(registry, Revisions(registry.store.connection))


TARGETS: dict[str, Target] = {
    "agent": agent,
    "neighbour": neighbour,
    "wire": wire,
    "quantise": quantise,
    "capture": capture,
    "config": config,
    "document": document,
    "messages": messages,
}
