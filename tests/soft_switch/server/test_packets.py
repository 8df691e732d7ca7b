"""Packet-out and packet-in, and streams that break."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from finsy.proto import p4r, rpc_code
from hypothesis import given
from hypothesis import strategies as st

from soft_switch.description import Param
from soft_switch.server.packet_io import decode_packet_in, encode_packet_out
from soft_switch.server.streams import MAX_QUEUED, MAX_QUEUED_BYTES, StreamSession

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane, Switch

PAYLOAD = bytes(range(60))


def packet_out(payload: bytes = PAYLOAD, **metadata: bytes) -> p4r.PacketOut:
    ids = {"egress_port": 1, "_pad": 2, "queue": 3, "unknown": 9}
    items = [p4r.PacketMetadata(metadata_id=ids[name], value=value) for name, value in metadata.items()]
    return p4r.PacketOut(payload=payload, metadata=items)


def test_packet_out_carries_its_metadata_in_the_header(controller: Controller, plane: FakePlane) -> None:
    controller.send(packet=packet_out(egress_port=b"\1\x02", _pad=b"\0", queue=b"\x07"))
    # bit<9> 0x102, bit<7> 0, bit<8> 7
    assert plane.packets.get(timeout=10) == bytes([0x81, 0x00, 0x07]) + PAYLOAD


def test_only_padding_may_be_left_out(controller: Controller, plane: FakePlane) -> None:
    controller.send(packet=packet_out(egress_port=b"\3", queue=b"\7"))
    assert plane.packets.get(timeout=10) == bytes([0x01, 0x80, 0x07]) + PAYLOAD


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"egress_port": b"\1"}, "packet-out: metadata field queue (3) is missing"),
        ({"egress_port": b"\2\0", "queue": b"\1"}, "packet-out, metadata field egress_port is 0x200, which"),
        ({"egress_port": b"", "queue": b"\1"}, "packet-out, metadata field egress_port is an empty byte st"),
        ({"egress_port": b"\1", "queue": b"\1", "unknown": b"\1"}, "packet-out: the P4Info has no metadata "
                                                                   "field with id 9"),
    ],
)  # fmt: skip
def test_a_bad_packet_out_is_dropped_and_reported(
    controller: Controller, plane: FakePlane, metadata: dict[str, bytes], text: str
) -> None:
    sent = packet_out(**metadata)
    controller.send(packet=sent)
    error = controller.receive().error
    assert error.canonical_code == rpc_code.INVALID_ARGUMENT
    assert error.message.startswith(text)
    assert error.space == "soft_switch"
    assert error.packet_out.packet_out == sent
    assert plane.packets.empty()


def test_metadata_given_twice(controller: Controller) -> None:
    sent = packet_out(egress_port=b"\1", queue=b"\1")
    sent.metadata.add(metadata_id=1, value=b"\2")
    controller.send(packet=sent)
    assert controller.receive().error.message == "packet-out: a metadata field is given twice"


def test_packet_out_without_a_cpu_port(controller: Controller) -> None:
    controller.send(packet=packet_out(b"no cpu port", egress_port=b"\1", queue=b"\1"))
    error = controller.receive().error
    assert error.canonical_code == rpc_code.FAILED_PRECONDITION
    assert error.message == "packet-out: the switch has no CPU port: start it with --cpu-port"


def test_packet_out_is_the_primarys(switch: Switch, controller: Controller, plane: FakePlane) -> None:
    backup = switch.connect()
    backup.send(packet=packet_out(egress_port=b"\1", queue=b"\1"))  # not even arbitrated
    assert backup.receive().error.canonical_code == rpc_code.PERMISSION_DENIED
    backup.bid(0)
    assert backup.verdict() == ("ALREADY_EXISTS", 1)
    backup.send(packet=packet_out(egress_port=b"\1", queue=b"\1"))
    error = backup.receive().error
    assert (error.canonical_code, error.message) == (
        rpc_code.PERMISSION_DENIED,
        "Not primary: only the primary controller may send packets",
    )
    assert plane.packets.empty()


def test_packet_out_without_a_pipeline(switch: Switch) -> None:
    controller = switch.connect()
    controller.become_primary()
    controller.send(packet=packet_out())
    error = controller.receive().error
    assert error.canonical_code == rpc_code.FAILED_PRECONDITION
    assert error.message.startswith("No forwarding pipeline config set for this device")


def test_packet_in_reaches_the_primary_with_its_metadata(
    switch: Switch, controller: Controller, plane: FakePlane
) -> None:
    backup = switch.connect()
    backup.bid(0)
    assert backup.verdict() == ("ALREADY_EXISTS", 1)
    plane.send_up(bytes([0x81, 0x05, 0x12, 0x34]) + PAYLOAD)
    packet = controller.receive().packet
    assert packet.payload == PAYLOAD
    metadata = {item.metadata_id: item.value for item in packet.metadata}
    assert metadata == {1: b"\1\x02", 2: b"\x05", 3: b"\x12\x34"}
    assert backup.quiet()


def test_packet_in_reaches_the_primary_of_every_role(
    switch: Switch, controller: Controller, plane: FakePlane
) -> None:
    named = switch.connect(role="packets")
    named.become_primary()
    plane.send_up(bytes(4) + PAYLOAD)
    assert controller.receive().packet.payload == PAYLOAD
    assert named.receive().packet.payload == PAYLOAD


def test_packet_in_that_nobody_can_take_is_dropped(
    switch: Switch, config: p4r.ForwardingPipelineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    switch.plane.send_up(bytes(4))  # no pipeline
    controller = switch.connect()
    controller.become_primary()
    controller.set_config(config=config)
    switch.plane.send_up(bytes(3))  # shorter than the header
    assert "packet-in of 3 bytes is shorter than its controller header of 4" in caplog.text
    controller.half_close()
    with pytest.raises(EOFError):
        controller.receive()
    switch.plane.send_up(bytes(4))  # no primary


def test_packets_follow_the_primary(switch: Switch, controller: Controller, plane: FakePlane) -> None:
    successor = switch.connect()
    successor.become_primary(2)
    assert controller.verdict() == ("ALREADY_EXISTS", 2)
    plane.send_up(bytes(4) + b"one")
    assert successor.receive().packet.payload == b"one"
    successor.close()  # vanishes in the middle of the stream
    assert controller.verdict() == ("OK", 1)
    plane.send_up(bytes(4) + b"two")
    assert controller.receive().packet.payload == b"two"


@pytest.mark.slow
def test_clients_that_vanish_while_packets_flow_do_no_harm(
    switch: Switch, controller: Controller, plane: FakePlane
) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            plane.send_up(bytes(4) + PAYLOAD)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        for election_id in range(2, 12):
            guest = switch.connect()
            guest.bid(election_id)
            while guest.receive().WhichOneof("update") != "packet":
                continue
            guest.close()
    finally:
        stop.set()
        flooding.join()
    switch.connect().become_primary(99)
    while True:  # packets and notices of being backup, until the notice of the last one
        message = controller.receive()
        if message.WhichOneof("update") == "arbitration" and message.arbitration.election_id.low == 99:
            break


def test_a_controller_that_does_not_read_loses_packets_not_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = StreamSession(1, "ipv4:192.0.2.1:1")
    message = p4r.StreamMessageResponse(packet=p4r.PacketIn())
    for _ in range(MAX_QUEUED + 100):
        session.offer(message)
    notice = p4r.StreamMessageResponse(arbitration=p4r.MasterArbitrationUpdate(device_id=1))
    session.send(notice)  # what must arrive is never lost
    session.close()
    messages = list(session.messages())
    assert len(messages) == MAX_QUEUED + 1
    assert messages[-1] == notice
    assert session.dropped == 100
    assert len(caplog.records) == 7  # at 1, 2, 4, ... 64


def test_what_waits_is_bounded_in_bytes_too() -> None:
    session = StreamSession(1, "ipv4:192.0.2.1:1")
    message = p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=bytes(65000)))
    fit = MAX_QUEUED_BYTES // message.ByteSize()
    for _ in range(fit + 10):
        session.offer(message)
    assert session.dropped == 10
    messages = session.messages()
    for _ in range(fit):
        next(messages)
    for _ in range(fit):  # there is room again
        session.offer(message)
    assert session.dropped == 10


fields = st.lists(st.integers(1, 48), min_size=0, max_size=6)


@given(widths=fields, payload=st.binary(max_size=64), data=st.data())
def test_headers_are_packed_as_p4_lays_them_out(widths: list[int], payload: bytes, data: Any) -> None:
    """Check any header, also one that is not whole bytes: what goes out comes back in."""
    header = tuple(Param(f"f{index}", width, index) for index, width in enumerate(widths, 1))
    values = [data.draw(st.integers(0, 2**width - 1)) for width in widths]
    items = [
        p4r.PacketMetadata(metadata_id=index, value=value.to_bytes(8, "big"))
        for index, value in enumerate(values, 1)
    ]
    raw = encode_packet_out(header, p4r.PacketOut(payload=payload, metadata=reversed(items)))
    bits = "".join(f"{value:0{width}b}" for value, width in zip(values, widths, strict=True))
    bits += "0" * (-len(bits) % 8)
    assert raw == bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)) + payload
    packet = decode_packet_in(header, raw)
    assert packet.payload == payload
    assert [int.from_bytes(item.value, "big") for item in packet.metadata] == values
