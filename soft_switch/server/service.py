"""The P4Runtime service: RPCs in, one device behind.

Locks: the device's lock makes writes and reads serial; `_lock` here guards who is primary. The device's may
be held when `_lock` is taken, never the other way round.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import grpc
from finsy.proto import p4r, p4r_grpc

from soft_switch.server.arbitration import Arbiter, Notice
from soft_switch.server.device import Device, Results
from soft_switch.server.errors import (
    ERROR_SPACE,
    P4RuntimeError,
    batch_status,
    code_number,
    denied,
    invalid,
    not_found,
    unimplemented,
)
from soft_switch.server.roles import Access
from soft_switch.server.streams import StreamSession
from soft_switch.server.ticker import Ticker

LOG = logging.getLogger(__name__)

API_VERSION = "1.5.0"  # of p4runtime.proto, the messages served
MAX_STREAMS = 48  # open StreamChannels over all roles; each holds a thread of the server
MAX_IDLE_ENTRIES = 1024  # in one IdleTimeoutNotification, to stay below the 4 MB as well
CHUNK_BYTES = 1 << 20  # a ReadResponse stays well below the 4 MB a client takes by default


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """The six RPCs of `p4.v1.P4Runtime` for one device."""

    def __init__(self, device_id: int, device: Device, arbiter: Arbiter) -> None:
        self._device_id = device_id
        self._device = device
        self._arbiter = arbiter
        self._lock = threading.Lock()
        self._sessions: dict[int, StreamSession] = {}
        self._ids = itertools.count(1)
        self._ticker = Ticker(self._tick, device.delay_ns)

    def start(self) -> None:
        """Begin to watch timeouts."""
        self._ticker.start()

    def stop(self) -> None:
        """Stop all notifications."""
        self._ticker.stop()
        self._device.close()

    # Unary RPCs

    def Write(self, request: p4r.WriteRequest, context: grpc.ServicerContext) -> p4r.WriteResponse:
        """Apply a batch of updates for the primary."""
        try:
            self._check_device(request.device_id)
            results = self._device.write(request, lambda: self._permit(request))
        except P4RuntimeError as error:
            _abort(context, error)
        self._ticker.wake()
        _abort_batch(context, "Write", results)
        return p4r.WriteResponse()

    def Read(self, request: p4r.ReadRequest, context: grpc.ServicerContext) -> Iterator[p4r.ReadResponse]:
        """Answer a batch of queries; anybody may read."""
        try:
            self._check_device(request.device_id)
            with self._lock:
                access = self._arbiter.role_access(request.role)
            entities, results = self._device.read(request.entities, access)
        except P4RuntimeError as error:
            _abort(context, error)
        yield from _chunks(entities)
        _abort_batch(context, "Read", results)

    def SetForwardingPipelineConfig(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Verify, save or commit a pipeline for the primary."""
        try:
            self._check_device(request.device_id)
            self._device.set_config(request, lambda: self._permit(request))
        except P4RuntimeError as error:
            _abort(context, error)
        self._ticker.wake()  # a saved pipeline that is committed may have timeouts
        action = p4r.SetForwardingPipelineConfigRequest.Action.Name(request.action)
        LOG.info("forwarding pipeline config: %s done", action)
        return p4r.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Return the current pipeline; the config is left unset when there is none."""
        try:
            self._check_device(request.device_id)
            config = self._device.get_config(request.response_type)
        except P4RuntimeError as error:
            _abort(context, error)
        return p4r.GetForwardingPipelineConfigResponse(config=config)

    def Capabilities(
        self, request: p4r.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4r.CapabilitiesResponse:
        """Return the version of P4Runtime served."""
        if request.device_id:
            try:
                self._check_device(request.device_id)
            except P4RuntimeError as error:
                _abort(context, error)
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    # The stream

    def StreamChannel(
        self, request_iterator: Iterator[p4r.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageResponse]:
        """Serve a controller's session: arbitration and packets. It lives as long as the stream."""
        with self._lock:
            session = StreamSession(next(self._ids), context.peer())
            full = len(self._sessions) >= MAX_STREAMS
            if not full:
                self._sessions[session.id] = session
        if full:
            _abort(
                context,
                P4RuntimeError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"Too many connections: {MAX_STREAMS} streams are open",
                ),
            )
        try:
            if context.add_callback(session.close):  # False: the client has gone already
                reader = threading.Thread(
                    target=self._read_stream, args=(session, request_iterator), daemon=True
                )
                reader.start()
                yield from session.messages()
        finally:
            self._leave(session)
        if session.error is not None:
            _abort(context, session.error)

    def deliver_packet_in(self, data: bytes) -> None:
        """Hand a packet from the data plane's CPU port to the primary of every role."""
        try:
            message = p4r.StreamMessageResponse(packet=self._device.packet_in(data))
        except P4RuntimeError as error:
            LOG.warning("packet-in of %d bytes dropped: %s", len(data), error.message)
            return
        for session, access in self._primaries():
            if access is None or access.receives(message.packet):
                session.offer(message)

    def deliver_digest(self, name: str, sample: tuple[int, ...]) -> None:
        """Take a digest sample from the data plane."""
        message = self._device.digest(name, sample)
        if message is not None:
            self._send_digest(message)
        else:
            self._ticker.wake()

    def _tick(self) -> None:
        """Send what has become due."""
        digests, entries = self._device.tick()
        for message in digests:
            self._send_digest(message)
        if entries:
            self._send_idle(entries)

    def _send_digest(self, message: p4r.DigestList) -> None:
        message.timestamp = time.time_ns()
        entity = p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=message.digest_id))
        for session, access in self._primaries():
            if access is None or access.allows(entity):
                session.offer(p4r.StreamMessageResponse(digest=message))

    def _send_idle(self, entries: Sequence[p4r.TableEntry]) -> None:
        for session, access in self._primaries():
            mine = [
                entry for entry in entries if access is None or access.allows(p4r.Entity(table_entry=entry))
            ]
            for first in range(0, len(mine), MAX_IDLE_ENTRIES):
                notification = p4r.IdleTimeoutNotification(
                    timestamp=time.time_ns(), table_entry=mine[first : first + MAX_IDLE_ENTRIES]
                )
                session.offer(p4r.StreamMessageResponse(idle_timeout_notification=notification))

    def _primaries(self) -> list[tuple[StreamSession, Access | None]]:
        """Return the primary of every role that has one, with its rights."""
        with self._lock:
            return [
                (self._sessions[session_id], self._arbiter.access(session_id))
                for session_id in self._arbiter.primaries()
            ]

    def _read_stream(self, session: StreamSession, requests: Iterator[p4r.StreamMessageRequest]) -> None:
        """Serve what a controller sends, until it stops, vanishes or breaks the rules."""
        error: P4RuntimeError | None = None
        try:
            for request in requests:
                self._take(session, request)
        except P4RuntimeError as refused:
            error = refused
        except grpc.RpcError:
            LOG.info("controller %s disconnected", session.peer)
        except Exception as fault:
            LOG.exception("stream of controller %s failed", session.peer)
            error = P4RuntimeError(grpc.StatusCode.INTERNAL, f"the switch failed: {fault!r}")
        session.close(error)

    def _take(self, session: StreamSession, request: p4r.StreamMessageRequest) -> None:
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            with self._lock:
                if session.id not in self._sessions:
                    return  # the stream has ended meanwhile
                notices = self._arbiter.update(session.id, request.arbitration)
                later = self._notify(notices)
            self._notify_primary(later)
            return
        try:
            if kind == "packet":
                self._packet_out(session, request.packet)
            elif kind == "digest_ack":
                self._require_primary(session, "acknowledge digests")
                self._device.acknowledge(request.digest_ack)
            elif kind == "other":
                raise unimplemented("this switch has no architecture-specific stream messages")
            else:
                raise invalid("the stream message is empty")
        except P4RuntimeError as error:
            session.offer(p4r.StreamMessageResponse(error=_stream_error(error, request)))

    def _packet_out(self, session: StreamSession, message: p4r.PacketOut) -> None:
        self._require_primary(session, "send packets")
        self._device.packet_out(message)

    def _require_primary(self, session: StreamSession, what: str) -> None:
        with self._lock:
            primary = self._arbiter.is_primary(session.id)
        if not primary:
            raise denied(f"Not primary: only the primary controller may {what}")

    def _leave(self, session: StreamSession) -> None:
        """Forget a stream that has ended; the next controller may become primary."""
        with self._lock:
            del self._sessions[session.id]
            later = self._notify(self._arbiter.leave(session.id))
        self._notify_primary(later)

    def _notify(self, notices: Iterable[Notice]) -> Notice | None:
        """Tell all but the primary, and return the primary's notice; `_lock` is held."""
        primary = None
        for session_id, message in notices:
            if self._arbiter.is_primary(session_id):
                primary = (session_id, message)
            else:
                self._sessions[session_id].send(p4r.StreamMessageResponse(arbitration=message))
        return primary

    def _notify_primary(self, notice: Notice | None) -> None:
        """Tell a controller that it is primary, once the writes of the one before it are done."""
        if notice is None:
            return
        session_id, message = notice
        self._device.drain()
        self._device.forget_digests()
        with self._lock:
            if self._arbiter.is_primary(session_id):
                self._sessions[session_id].send(p4r.StreamMessageResponse(arbitration=message))

    # Checks

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device_id:
            raise not_found(f"there is no device {device_id} here, this is device {self._device_id}")

    def _permit(self, request: p4r.WriteRequest | p4r.SetForwardingPipelineConfigRequest) -> Access | None:
        with self._lock:
            election_id = request.election_id if request.HasField("election_id") else None
            return self._arbiter.check_primary(request.role, election_id)


def _chunks(entities: Iterable[p4r.Entity]) -> Iterator[p4r.ReadResponse]:
    """Yield responses of about CHUNK_BYTES at most; at least one, which clients expect as BMv2 sends it."""
    response, size = p4r.ReadResponse(), 0
    for entity in entities:
        length = entity.ByteSize()
        if size and size + length > CHUNK_BYTES:
            yield response
            response, size = p4r.ReadResponse(), 0
        response.entities.append(entity)
        size += length
    yield response


def _stream_error(error: P4RuntimeError, request: p4r.StreamMessageRequest) -> p4r.StreamError:
    message = p4r.StreamError(
        canonical_code=code_number(error.code), message=error.message, space=ERROR_SPACE
    )
    kind = request.WhichOneof("update")
    if kind == "packet":
        message.packet_out.packet_out.CopyFrom(request.packet)
    elif kind == "digest_ack":
        message.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    elif kind == "other":
        message.other.other.CopyFrom(request.other)
    return message


def _abort(context: grpc.ServicerContext, error: P4RuntimeError) -> NoReturn:
    LOG.debug("%s: %s: %s", context.peer(), error.code.name, error.message)
    context.abort(error.code, error.message)


def _abort_batch(context: grpc.ServicerContext, rpc: str, results: Results) -> None:
    """End an RPC with UNKNOWN and the list of errors, if anything in its batch failed."""
    status = batch_status(rpc, results)
    if status is None:
        return
    LOG.debug("%s: %s", context.peer(), status.message)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, status.message)
