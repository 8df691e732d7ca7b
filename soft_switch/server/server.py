"""The gRPC server around the P4Runtime service: address, threads, start and stop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from finsy.proto import p4r_grpc

from controller.security.channels import server_credentials
from controller.security.files import TlsFiles
from soft_switch.dataplane import DataPlane
from soft_switch.server.arbitration import Arbiter
from soft_switch.server.device import Device
from soft_switch.server.service import MAX_STREAMS, P4RuntimeService

DEFAULT_ADDRESS = "0.0.0.0:9559"
MAX_REQUEST_BYTES = 256 << 20  # a BMv2 JSON can exceed gRPC's default of 4 MB
UNARY_THREADS = 16
WAITING_REQUESTS = 64  # for one of these threads; more are answered RESOURCE_EXHAUSTED

OPTIONS = (
    # Who connects and does not go on is shown out.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 256),  # of one connection
    ("grpc.max_send_message_length", -1),
    # Two switches on one port are a mistake, not a way to share it.
    ("grpc.so_reuseport", 0),
    # A controller whose host vanished without a word stops being primary after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


@dataclass(frozen=True, kw_only=True)
class ServerTls:
    """Certificate of the server; with `client_certificates`, clients need one by the same authority."""

    files: TlsFiles
    client_certificates: bool

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for gRPC; TlsError."""
        return server_credentials(self.files, client_certificates=self.client_certificates)


class P4RuntimeServer:
    """Server of P4Runtime for one data plane.

    `address` is HOST:PORT (port 0 takes a free one) or unix:PATH. `promote` chooses what happens when a
    primary leaves, as `soft_switch.server.arbitration` says. With `tls` it takes TLS only; requests of more
    than `max_request_bytes` it takes in no case.
    """

    def __init__(
        self,
        plane: DataPlane,
        *,
        device_id: int = 0,
        address: str = DEFAULT_ADDRESS,
        promote: bool = True,
        tls: ServerTls | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        self._tls = tls
        self._requested = address
        self._address: str | None = None
        self._pool = ThreadPoolExecutor(MAX_STREAMS + UNARY_THREADS, thread_name_prefix="p4runtime")
        self._server = grpc.server(
            self._pool,
            options=(*OPTIONS, ("grpc.max_receive_message_length", max_request_bytes)),
            maximum_concurrent_rpcs=MAX_STREAMS + UNARY_THREADS + WAITING_REQUESTS,
        )
        arbiter = Arbiter(device_id, promote=promote)
        self._service = P4RuntimeService(device_id, Device(plane), arbiter)
        p4r_grpc.add_P4RuntimeServicer_to_server(self._service, self._server)
        plane.on_packet_in(self._service.deliver_packet_in)
        plane.on_digest(self._service.deliver_digest)

    @property
    def address(self) -> str:
        """The address at which the server listens, with the port it was given."""
        if self._address is None:
            raise RuntimeError("the P4Runtime server has not been started")
        return self._address

    def start(self) -> None:
        """Listen. OSError if the address is taken or not this machine's, TlsError."""
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(self._requested)
            else:
                port = self._server.add_secure_port(self._requested, self._tls.credentials())
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {self._requested}: it is in use, or no address of this machine"
            ) from error
        unix = self._requested.startswith(("unix:", "unix-abstract:"))
        host = self._requested.rpartition(":")[0]
        self._address = self._requested if unix else f"{host}:{port}"
        self._service.start()
        self._server.start()

    def stop(self, *, grace_s: float = 0.5) -> None:
        """Refuse new requests, give running ones `grace_s` seconds, then end them and every stream."""
        self._server.stop(grace_s).wait()
        self._pool.shutdown(wait=True)
        self._service.stop()
