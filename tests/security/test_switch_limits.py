"""P4Runtime of the embedded switch: what is too large or too much is refused, and the switch goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import grpc
import pytest
from finsy.proto import p4r, p4r_grpc

from p4src import JSON_PATH, P4INFO_PATH
from soft_switch.dataplane import DataPlane
from soft_switch.server import P4RuntimeServer

LARGEST = 16 << 20


@pytest.fixture
def server() -> Iterator[P4RuntimeServer]:
    plane = DataPlane()
    running = P4RuntimeServer(plane, device_id=1, address="127.0.0.1:0", max_request_bytes=LARGEST)
    running.start()
    yield running
    running.stop()
    plane.close()


def lives(server: P4RuntimeServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        assert stub.Capabilities(p4r.CapabilitiesRequest(), timeout=10).p4runtime_api_version


def test_a_request_that_is_too_large_is_refused_and_a_program_is_not(server: P4RuntimeServer) -> None:
    assert JSON_PATH.stat().st_size + P4INFO_PATH.stat().st_size < LARGEST
    with grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        for size, code in (
            (LARGEST + 1, grpc.StatusCode.RESOURCE_EXHAUSTED),
            (
                JSON_PATH.stat().st_size,
                grpc.StatusCode.PERMISSION_DENIED,
            ),  # read, and we are nobody's primary
        ):
            request = p4r.SetForwardingPipelineConfigRequest(
                device_id=1, action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
            )
            request.config.p4_device_config = bytes(size)
            with pytest.raises(grpc.RpcError) as error:
                stub.SetForwardingPipelineConfig(request, timeout=30)
            assert error.value.code() is code
    lives(server)


def test_garbage_and_silence_on_the_port(server: P4RuntimeServer) -> None:
    host, port = server.address.split(":")
    connections = [socket.create_connection((host, int(port))) for _ in range(60)]
    for number, connection in enumerate(connections):
        connection.sendall((b"PRI * HTTP/2.0\r\n", b"\xff" * 1000, b"GET / HTTP/1.1\r\n\r\n")[number % 3])
    lives(server)
    for connection in connections:
        connection.close()
    with grpc.insecure_channel(server.address) as channel:
        for method in ("Write", "Read", "SetForwardingPipelineConfig", "Capabilities", "Nothing"):
            call = channel.unary_unary(
                f"/p4.v1.P4Runtime/{method}", request_serializer=bytes, response_deserializer=bytes
            )
            for garbage in (b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x0f", bytes(3)):
                with pytest.raises(grpc.RpcError):
                    call(garbage, timeout=10)
    lives(server)


def test_more_streams_than_there_are_threads_are_refused(server: P4RuntimeServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        done = threading.Event()

        def silent() -> Iterator[p4r.StreamMessageRequest]:
            done.wait(20)
            yield from ()

        streams = [stub.StreamChannel(silent(), timeout=20) for _ in range(150)]
        try:
            refused = {stream.code() for stream in streams[-10:]}
            assert refused == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            lives(server)
        finally:
            done.set()
            for stream in streams:
                stream.cancel()  # type: ignore[no-untyped-call]
