"""simple_switch_grpc without interfaces, so without root: packets go in and out over gRPC.

The service is services/p4/bm/dataplane_interface.proto of behavioral-model. A stream that its client has
closed ends when every packet is through, so there is nothing to wait for by the clock.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from tests.soft_switch.switches import TIMEOUT_S, Controller

BMV2 = shutil.which("simple_switch_grpc")
PACKET_STREAM = "/p4.bm.DataplaneInterface/PacketStream"
ID, PORT, PACKET = 1, 3, 4  # fields of both messages; device_id is 2
Outputs = list[list[tuple[int, bytes]]]


class Bmv2:
    """A running simple_switch_grpc; `controller` is its primary."""

    def __init__(self, packets: grpc.Channel, controller: Controller) -> None:
        self.controller = controller
        self._stream = packets.stream_stream(
            PACKET_STREAM, request_serializer=encode, response_deserializer=decode
        )

    def process(self, packets: Sequence[tuple[int, bytes]]) -> Outputs:
        """Return what each packet (port, data) made leave, as (port, packet), in order on each port."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._process(packets)
            except grpc.RpcError as error:
                # It takes no packets until its threads run, a moment after its first program is there.
                if error.details() != "not ready" or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _process(self, packets: Sequence[tuple[int, bytes]]) -> Outputs:
        outputs: Outputs = [[] for _ in packets]
        requests = ({ID: number, PORT: port, PACKET: data} for number, (port, data) in enumerate(packets, 1))
        for response in self._stream(requests, timeout=TIMEOUT_S):
            number, port, data = (response.get(field, 0) for field in (ID, PORT, PACKET))
            outputs[int(number) - 1].append((int(port), data or b""))
        return outputs


@contextmanager
def running_bmv2() -> Iterator[Bmv2]:
    """Yield BMv2, without a program."""
    assert BMV2 is not None
    with tempfile.TemporaryDirectory(prefix="bmv2") as folder:
        runtime, dataplane = f"unix:{folder}/runtime", f"unix:{folder}/dataplane"
        command = [BMV2, "--no-p4", "--device-id", "0", "--log-console", "-L", "error"]
        command += ["--notifications-addr", f"ipc://{folder}/notify"]
        command += ["--thrift-port", str(free_port())]  # it listens there whether anybody wants it or not
        command += ["--", "--grpc-server-addr", runtime, "--dp-grpc-server-addr", dataplane]
        log = Path(folder, "log")
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            with grpc.insecure_channel(dataplane) as packets, _primary(packets, runtime, log) as controller:
                yield Bmv2(packets, controller)
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _primary(packets: grpc.Channel, address: str, log: Path) -> Iterator[Controller]:
    """Yield the primary controller, as soon as the switch answers."""
    try:
        grpc.channel_ready_future(packets).result(timeout=TIMEOUT_S)
        controller = Controller(address)
    except (grpc.FutureTimeoutError, grpc.RpcError) as error:
        raise RuntimeError(f"simple_switch_grpc does not answer: {log.read_text()[-2000:]}") from error
    try:
        yield controller
    finally:
        controller.close()


def free_port() -> int:
    """Return a TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


Message = dict[int, "int | bytes"]


def encode(message: Message) -> bytes:
    """Encode a message as Protocol Buffers do: varints and bytes."""
    result = b""
    for field, value in message.items():
        if isinstance(value, int):
            result += _varint(field << 3) + _varint(value)
        else:
            result += _varint(field << 3 | 2) + _varint(len(value)) + value
    return result


def decode(data: bytes) -> Message:
    """Return the fields that a message has."""
    message: Message = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if tag & 7 == 2:
            message[tag >> 3] = data[at : at + value]
            at += value
        else:
            message[tag >> 3] = value
    return message


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at
