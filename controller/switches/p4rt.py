"""P4Runtime as a client: the stream and its arbitration, the pipeline, batches of updates, reads, packets.

The messages, the service stub and the reading of batch errors are finsy's. The client is our own, for two
reasons. finsy's gives every request ten seconds, and compiling a program can take longer. And it hides the
end of the stream, which tells a controller that a switch has restarted, behind a RuntimeError.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from finsy.p4client import P4RpcStatus
from finsy.proto import U128, p4r, p4r_grpc

from controller.api.errors import plainly
from controller.entries import Entry
from controller.security import diagnosis
from controller.security.channels import open_aio_channel
from controller.security.files import TlsError, TlsFiles
from controller.switches.schema import Schema
from controller.switches.updates import (
    ElectionIdTakenError,
    Failure,
    NotPrimaryError,
    SwitchError,
    SwitchUnreachableError,
    Update,
    WriteError,
)

LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

REQUEST_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 1.0
PIPELINE_TIMEOUT_S = 180.0  # the embedded switch compiles a program that it sees for the first time
MAX_BATCH = 256  # updates in a Write: the errors of all of them must fit into one trailer
_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_metadata_size", 1 << 20),  # the errors of a batch travel in trailing metadata
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a retry connects at once, not after another channel's backoff
]
_HTTP_1 = re.compile(r"Failed parsing HTTP/2|http1\.x server")  # gRPC's
# simple_switch_grpc lets any device id become primary, and fails when that shall get a program: "Error when
# trying to assign device"
_NO_DEVICE = re.compile(r"assign device")
_ELECTION_ID_TAKEN = re.compile(r"election id already", re.IGNORECASE)
_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True)
class Role:
    """Answer of arbitration: whether we are primary, and the primary's (or the highest) election id."""

    primary: bool
    vacant: bool
    election_id: int


@dataclass(frozen=True)
class Pipeline:
    """A switch's forwarding pipeline config as read back."""

    p4info: bytes
    device_config: bytes
    cookie: int


class P4RuntimeClient(AbstractAsyncContextManager["P4RuntimeClient"]):
    """One connection with one device, from `open` to `close`; all errors are SwitchErrors.

    `on_packet` gets every packet-in. `label` names the switch in errors. With `tls` the switch's certificate
    has to be for `name` (None: for the address).
    """

    def __init__(
        self,
        address: str,
        *,
        device_id: int,
        schema: Schema,
        label: str | None = None,
        on_packet: Callable[[p4r.PacketIn], None] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        tls: TlsFiles | None = None,
        name: str | None = None,
    ) -> None:
        self.label = label or f"switch at {address}"
        self._tls = tls
        self._name = name
        self._address = address
        self._device_id = device_id
        self._schema = schema
        self._on_packet = on_packet
        self._timeout_s = timeout_s
        self._election_id = 0
        self._roles: asyncio.Queue[Role | SwitchError] = asyncio.Queue()
        self._channel: grpc.aio.Channel | None = None
        self._greeted = False  # the switch has answered on the stream
        self._ended: SwitchError | None = None
        self._reader: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()  # two writes at a time break a stream of grpc.aio
        self._stub: Any = None
        self._stream: Any = None
        self._writable = {t.preamble.id for t in schema.p4info.tables if not t.is_const_table}

    # The stream

    async def open(self, election_id: int) -> Role:
        """Connect and claim to be primary. Return the role that this got."""
        try:
            self._channel = open_aio_channel(self._address, self._tls, options=_OPTIONS, name=self._name)
        except TlsError as error:
            raise SwitchUnreachableError(f"{self.label}: {error}") from error
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._stream = self._stub.StreamChannel()
        self._reader = asyncio.create_task(self._read_stream())
        try:
            return await self.claim(election_id)
        except SwitchError as error:
            if error.code is grpc.StatusCode.INTERNAL:
                # A write into a stream that the server has just refused hides why; a request is told.
                await self.cookie()
            if isinstance(error, SwitchUnreachableError):
                why = await asyncio.to_thread(
                    diagnosis.why, self._address, self._tls, what=self.label, name=self._name
                )
                if why is not None:
                    raise SwitchUnreachableError(why) from error
            raise

    async def claim(self, election_id: int) -> Role:
        """Claim with an election id, and with the highest one seen where the switch has no primary.

        A switch that follows the specification to the letter waits for that when its primary has left.
        """
        role = await self._claim(election_id)
        if role.vacant and not role.primary:
            role = await self._claim(max(role.election_id, election_id))
        return role

    async def next_role(self) -> Role:
        """Wait for the next role. Raise the error that ended the stream."""
        role = await self._roles.get()
        if isinstance(role, SwitchError):
            self._roles.put_nowait(role)  # whoever asks next hears the same
            raise role
        return role

    async def send_packet(self, payload: bytes, **metadata: int) -> None:
        """Send a packet-out with the program's metadata."""
        message = p4r.StreamMessageRequest(packet=self._schema.packet_out(payload, **metadata))
        await self._send(message)

    async def close(self) -> None:
        """Leave. A switch that answers has taken us out of arbitration when this returns."""
        if self._reader is not None:
            if self._greeted and not self._reader.done():
                try:
                    await asyncio.wait_for(self._alone(self._stream.done_writing), LEAVE_TIMEOUT_S)
                    await asyncio.wait([self._reader], timeout=LEAVE_TIMEOUT_S)
                except (asyncio.TimeoutError, asyncio.InvalidStateError, grpc.aio.AioRpcError, SwitchError):
                    LOG.debug("%s: the stream broke before it was closed", self.label)
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            await self._channel.close(None)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Requests

    async def pipeline(self) -> Pipeline | None:
        """Return the pipeline config of the switch; None if it waits for a program."""
        types = p4r.GetForwardingPipelineConfigRequest
        config = await self._get_config(types.ALL)
        if config is None or not (config.p4_device_config or config.HasField("p4info")):
            return None
        return Pipeline(
            config.p4info.SerializeToString(deterministic=True), config.p4_device_config, config.cookie.cookie
        )

    async def cookie(self) -> int | None:
        """Return the cookie of the running program; None without a program or without a cookie."""
        config = await self._get_config(p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY)
        return config.cookie.cookie if config is not None and config.HasField("cookie") else None

    async def set_pipeline(self, device_config: bytes, *, cookie: int) -> None:
        """Load a program with the schema's P4Info. This removes all entries."""
        actions = p4r.SetForwardingPipelineConfigRequest
        config = p4r.ForwardingPipelineConfig(p4info=self._schema.p4info, p4_device_config=device_config)
        config.cookie.cookie = cookie
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            election_id=U128.encode(self._election_id),
            action=actions.VERIFY_AND_COMMIT,
            config=config,
        )
        await self._call(
            self._stub.SetForwardingPipelineConfig, request, "the program", timeout_s=PIPELINE_TIMEOUT_S
        )

    async def write(self, updates: Sequence[Update]) -> None:
        """Apply updates, in any order that the switch likes. Raise WriteError with all that were refused."""
        failures: list[Failure] = []
        for first in range(0, len(updates), MAX_BATCH):
            failures += await self.write_batch(updates[first : first + MAX_BATCH])
        if failures:
            raise WriteError(self.label, failures, updates=len(updates))

    async def read_entries(self) -> set[Entry]:
        """Return every entry that a controller can have written: table entries and multicast groups."""
        wanted = [p4r.Entity(table_entry=p4r.TableEntry(table_id=table)) for table in sorted(self._writable)]
        found: set[Entry] = set()
        for entity in await self._read([*wanted, _all_groups()]):
            if entity.HasField("table_entry") and entity.table_entry.is_default_action:
                continue
            found.add(self._schema.decode(entity))
        return found

    async def read_groups(self) -> list[Entry]:
        """Return the multicast groups, whatever program runs, as these belong to no program."""
        return [self._schema.decode(entity) for entity in await self._read([_all_groups()])]

    async def read_counters(
        self, cells: Iterable[tuple[str, int | None]]
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (packets, bytes) of counter cells, each given by P4Info's name and an index.

        Index None: all cells of that counter.
        """
        ids = self._schema.counters
        names = {number: name for name, number in ids.items()}
        request = [
            p4r.Entity(
                counter_entry=p4r.CounterEntry(
                    counter_id=ids[name], index=None if index is None else p4r.Index(index=index)
                )
            )
            for name, index in cells
        ]
        found = {}
        for entity in await self._read(request):
            entry = entity.counter_entry
            values = (entry.data.packet_count, entry.data.byte_count)
            found[names[entry.counter_id], entry.index.index] = values
        return found

    async def reset_counters(self, cells: Sequence[tuple[str, int]]) -> None:
        """Set counter cells to zero."""
        for first in range(0, len(cells), MAX_BATCH):
            request = self._write_request()
            for name, index in cells[first : first + MAX_BATCH]:
                entry = request.updates.add(type=p4r.Update.MODIFY).entity.counter_entry
                entry.counter_id = self._schema.counters[name]
                entry.index.index = index
                entry.data.SetInParent()
            await self._call(self._stub.Write, request, "the reset of counters")

    # Inside

    async def _claim(self, election_id: int) -> Role:
        self._election_id = election_id
        message = p4r.StreamMessageRequest()
        message.arbitration.device_id = self._device_id
        message.arbitration.election_id.CopyFrom(U128.encode(election_id))
        try:
            return await asyncio.wait_for(self._ask(message), self._timeout_s)
        except asyncio.TimeoutError as error:
            raise SwitchUnreachableError(
                f"{self.label} did not answer within {self._timeout_s:g} s: check that what listens there is "
                "a P4Runtime switch"
            ) from error

    async def _ask(self, message: p4r.StreamMessageRequest) -> Role:
        await self._send(message)
        return await self.next_role()

    async def _send(self, message: p4r.StreamMessageRequest) -> None:
        try:
            # grpc.aio ends a stream when somebody who writes to it is cancelled.
            writing = asyncio.ensure_future(self._write_to_stream(message))
            writing.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(writing)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            # The stream has ended; why, only the reader is told.
            if self._reader is not None:
                await asyncio.wait([self._reader], timeout=self._timeout_s)
            raise self._ended or SwitchUnreachableError(f"{self.label} takes no messages") from error

    async def _write_to_stream(self, message: p4r.StreamMessageRequest) -> None:
        async with self._sending:
            await self._alone(lambda: self._stream.write(message))

    async def _read_stream(self) -> None:
        """Hand out the switch's messages until the stream ends."""
        try:
            while True:
                message = await self._stream.read()
                if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                    break
                self._take(message)
            code, details = await self._stream.code(), await self._stream.details()
            self._ended = self._of_status(code, details or "", "the stream")
        except grpc.aio.AioRpcError as error:
            self._ended = self._error(error, "the stream")
        except asyncio.CancelledError:
            self._ended = SwitchUnreachableError(f"{self.label}: the stream was cancelled")
            raise
        finally:
            self._roles.put_nowait(self._ended or SwitchUnreachableError(f"{self.label}: the stream broke"))

    def _take(self, message: p4r.StreamMessageResponse) -> None:
        kind = message.WhichOneof("update")
        if kind == "arbitration":
            self._greeted = True
            code = _CODES.get(message.arbitration.status.code, grpc.StatusCode.UNKNOWN)
            self._roles.put_nowait(
                Role(
                    primary=code is grpc.StatusCode.OK,
                    vacant=code is grpc.StatusCode.NOT_FOUND,
                    election_id=U128.decode(message.arbitration.election_id),
                )
            )
        elif kind == "packet":
            if self._on_packet is not None:
                self._on_packet(message.packet)
        elif kind == "error":
            LOG.warning("%s refused a stream message: %s", self.label, message.error.message)
        else:
            LOG.debug("%s sent %s, which nobody asked for", self.label, kind)

    async def _get_config(self, response_type: Any) -> p4r.ForwardingPipelineConfig | None:
        request = p4r.GetForwardingPipelineConfigRequest(
            device_id=self._device_id, response_type=response_type
        )
        try:
            response = await self._call(
                self._stub.GetForwardingPipelineConfig, request, "to read its program"
            )
        except SwitchError as error:
            # simple_switch_grpc: "No forwarding pipeline config set for this device"
            if error.code is grpc.StatusCode.FAILED_PRECONDITION:
                return None
            raise
        config: p4r.ForwardingPipelineConfig = response.config
        return config if response.HasField("config") else None

    def _write_request(self) -> p4r.WriteRequest:
        return p4r.WriteRequest(device_id=self._device_id, election_id=U128.encode(self._election_id))

    async def write_batch(self, updates: Sequence[Update]) -> list[Failure]:
        """Apply updates with one request, and return those refused. The others have been applied."""
        request = self._write_request()
        for update in updates:
            request.updates.add(type=update.kind.value, entity=self._schema.encode(update.entry))
        try:
            await self._alone(lambda: self._stub.Write(request, timeout=self._timeout_s))
        except grpc.aio.AioRpcError as error:
            failures = [
                Failure(updates[index], _CODES[detail.canonical_code.value], detail.message)
                for index, detail in P4RpcStatus.from_rpc_error(error).details.items()
                if index < len(updates)
            ]
            if failures:
                return failures
            raise self._error(error, f"a write of {len(updates)} updates, the first {updates[0]}") from error
        return []

    async def _read(self, entities: Sequence[p4r.Entity]) -> list[p4r.Entity]:
        if not entities:
            return []
        request = p4r.ReadRequest(device_id=self._device_id, entities=entities)

        async def collect() -> list[p4r.Entity]:
            responses = self._stub.Read(request, timeout=self._timeout_s)
            return [entity async for response in responses for entity in response.entities]

        return await self._answer(collect, "a read")

    async def _alone(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Await something of grpc.aio in a task of its own.

        When the channel is closed, grpc.aio raises CancelledError in those who wait: our callers would take
        that for a cancellation of their own.
        """

        async def await_it() -> _T:
            return await work()

        task = asyncio.ensure_future(await_it())
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            raise SwitchUnreachableError(f"{self.label}: the connection was closed meanwhile")
        try:
            return task.result()
        except grpc.aio.UsageError as error:  # "Channel is closed."
            raise SwitchUnreachableError(f"{self.label}: the connection is closed") from error

    async def _call(self, rpc: Any, request: Any, what: str, *, timeout_s: float | None = None) -> Any:
        return await self._answer(lambda: rpc(request, timeout=timeout_s or self._timeout_s), what)

    async def _answer(self, work: Callable[[], Awaitable[_T]], what: str) -> _T:
        try:
            return await self._alone(work)
        except grpc.aio.AioRpcError as error:
            raise self._error(error, what) from error

    def _error(self, error: grpc.aio.AioRpcError, what: str) -> SwitchError:
        status = P4RpcStatus.from_rpc_error(error)
        details = next((detail.message for detail in status.details.values()), error.details() or "")
        return self._of_status(error.code(), details, what)

    def _of_status(self, code: grpc.StatusCode, details: str, what: str) -> SwitchError:
        """Return the exception for a status, or for the text of a switch that we know."""
        said = f" ({plainly(details)})" if details else ""
        if code is grpc.StatusCode.UNAVAILABLE and _HTTP_1.search(details):
            return SwitchUnreachableError(
                f"{self.label} is no P4Runtime switch: an HTTP server answers there; check the port"
            )
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.OK):
            if self._greeted:
                return SwitchUnreachableError(f"{self.label}: the connection broke{said}")
            return SwitchUnreachableError(
                f"{self.label} cannot be reached{said}: check the address and that the switch runs"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return SwitchUnreachableError(f"{self.label} did not answer {what} in time")
        if code is grpc.StatusCode.UNIMPLEMENTED and not self._greeted:
            return SwitchError(
                f"{self.label} is no P4Runtime switch: a gRPC server without that service answers "
                f"there{said}; check the port",
                code=code,
            )
        if _NO_DEVICE.search(details) or (code is grpc.StatusCode.NOT_FOUND and "device" in details):
            return SwitchError(
                f"{self.label} has no device id {self._device_id}{said}", code=grpc.StatusCode.NOT_FOUND
            )
        if _ELECTION_ID_TAKEN.search(details):
            return ElectionIdTakenError(f"{self.label}: another controller has our election id{said}")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return NotPrimaryError(f"{self.label}: another controller is primary{said}")
        return SwitchError(f"{self.label} refused {what}: {code.name}{said}", code=code)


def _all_groups() -> p4r.Entity:
    """Return the request for all multicast groups."""
    entity = p4r.Entity()
    entity.packet_replication_engine_entry.multicast_group_entry.SetInParent()
    return entity
