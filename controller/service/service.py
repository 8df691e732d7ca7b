"""The gRPC service, between requests or sessions and the registry; exceptions become statuses."""

from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

from controller.api import controller_pb2 as pb
from controller.api.codec import from_worker, to_worker
from controller.api.errors import ControllerError, InvalidRequestError, UnreachableError
from controller.api.messages import Ended
from controller.api.rpc import add_to_server
from controller.configuration.configuration import Configuration
from controller.database.revisions import Revisions
from controller.fabric.trees import Tree
from controller.orchestration.callers import require_host, require_role
from controller.orchestration.planning import spec_from
from controller.orchestration.record import Record
from controller.orchestration.registry import Registry
from controller.orchestration.sessions import Session as WorkerSession
from controller.security.channels import is_unix, server_credentials
from controller.security.files import TlsFiles
from controller.security.limits import Bucket, Peers, TooMuchError
from controller.security.roles import Identity, Role
from controller.service import views
from controller.slots.allocation import Allocation
from controller.switches.switch import CounterCell

logger = logging.getLogger(__name__)

# A worker's machine that vanishes before its job is ready (after that there are heartbeats).
_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # Who connects and does not go on is shown out, and so is who has nothing to say for so long.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_concurrent_streams", 512),  # of one connection
    ("grpc.so_reuseport", 0),  # a second controller at the same address must fail, not share it
)

_BREAK_S = 0.2
FIRST_MESSAGE_S = 10.0  # who opens a session and says nothing is shown out

_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_Method = Callable[["ControllerService", _Request, Any], Awaitable[_Answer]]


class AddressError(Exception):
    """Error about an address where the service cannot listen."""


class SilentError(ControllerError):
    """Error about a session that was opened without a first message."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


def _answers(method: _Method[_Request, _Answer]) -> _Method[_Request, _Answer]:
    """Wrap a unary method: check the caller, and turn exceptions into statuses."""

    @functools.wraps(method)
    async def call(self: ControllerService, request: _Request, context: Any) -> _Answer:
        try:
            self.peers.request(context.peer())
            require_role(context, Role.OPERATOR, method.__name__)
            return await method(self, request, context)
        except TooMuchError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except ControllerError as error:
            await context.abort(error.code, str(error))
        except sqlite3.Error as error:
            logger.error("%s: %s", method.__name__, error)
            await context.abort(grpc.StatusCode.INTERNAL, self.registry.store.explain(error))
        raise AssertionError("abort raises")

    return call


class ControllerService:
    """The service's methods. `listening` is for GetStatus; a given `configuration` has been loaded."""

    def __init__(
        self,
        registry: Registry,
        *,
        listening: Sequence[str] = (),
        configuration: Configuration | None = None,
    ) -> None:
        self.registry = registry
        self.configuration = configuration or Configuration(registry, Revisions(registry.store.connection))
        self.listening = list(listening)
        self.peers = Peers(registry.config.limits)

    async def Session(self, requests: AsyncIterator[pb.WorkerMessage], context: Any) -> None:
        """Serve a worker's session, see controller.proto."""
        try:
            with self.peers.session(context.peer()):
                await self._session(requests, context)
        except TooMuchError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def _session(self, requests: AsyncIterator[pb.WorkerMessage], context: Any) -> None:
        limits = self.peers.limits
        requests = _within(requests, self.peers.messages(context.peer()), limits.session_message_bytes)
        try:
            session = await self._begin(requests, require_role(context, Role.WORKER, "a session"))
        except ControllerError as error:
            await context.abort(error.code, str(error))
        except sqlite3.Error as error:
            logger.error("a session is refused: %s", error)
            await context.abort(grpc.StatusCode.INTERNAL, self.registry.store.explain(error))
        if session is None:
            return
        reader = asyncio.ensure_future(_read(requests, session))
        try:
            while (event := await session.events.get()) is not None:
                await context.write(to_worker(event))
            if isinstance(session.told, Ended):
                await self._farewell(session, reader)
        finally:
            # Where the worker has gone, this ends its part; where it was told the end, it does nothing.
            reader.cancel()
            session.broken()
        if self.registry.engine.stopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the controller is being stopped")
        if reader.done() and not reader.cancelled() and (wrong := reader.exception()) is not None:
            if isinstance(wrong, ControllerError):
                await context.abort(wrong.code, str(wrong))
            if isinstance(wrong, sqlite3.Error):  # the worker comes back, and says it again
                logger.error("a session is interrupted: %s", wrong)
                await context.abort(grpc.StatusCode.UNAVAILABLE, self.registry.store.explain(wrong))
            raise wrong  # TooMuchError is answered where it is caught

    async def _farewell(self, session: WorkerSession, reader: asyncio.Future[None]) -> None:
        """Wait until the worker has heard its job's end and ends its side: then it sends no more.

        A written message alone proves nothing: the worker may be out of reach.
        """
        await asyncio.wait({reader}, timeout=self.registry.timing.heartbeat_timeout_s)
        if reader.done() and not reader.cancelled() and reader.exception() is None:
            session.took_end()

    async def _begin(
        self, requests: AsyncIterator[pb.WorkerMessage], identity: Identity | None
    ) -> WorkerSession | None:
        """Begin the session that the first message asks for; return None if there is none."""
        try:
            first = await asyncio.wait_for(_next(requests), FIRST_MESSAGE_S)
        except asyncio.TimeoutError:
            raise SilentError(
                f"a session begins with join or resume, but nothing came within {FIRST_MESSAGE_S:g} s"
            ) from None
        if first is None:
            return None
        said = from_worker(first)
        if said is None:
            raise InvalidRequestError("a session begins with join or resume, not with nothing")
        return self.registry.sessions.begin(said, functools.partial(require_host, identity))

    @_answers
    async def CreateJob(self, request: pb.JobSpec, context: Any) -> pb.JobInfo:
        """Create a job that workers may join."""
        return views.jobs_info(self.registry, self.registry.create_job(spec_from(request)))

    @_answers
    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.JobList:
        """List all jobs, ended ones too."""
        return pb.JobList(jobs=[views.job_info(self.registry, record) for record in self.registry.jobs()])

    @_answers
    async def ShowJob(self, request: pb.JobName, context: Any) -> pb.JobInfo:
        """Show one job, or a gang by its name."""
        return views.jobs_info(self.registry, self.registry.planes(request.name))

    @_answers
    async def DeleteJob(self, request: pb.JobName, context: Any) -> pb.JobInfo:
        """End and forget a job, or a gang by its name."""
        return views.jobs_info(self.registry, self.registry.delete_job(request.name))

    @_answers
    async def ListFlows(self, request: pb.FlowsRequest, context: Any) -> pb.FlowList:
        """List the flows of jobs that run in the network."""
        answer = pb.FlowList()
        found = {}
        for record, allocation in self._allocated(request.job):
            if allocation.role == "spine":
                continue
            if allocation.switch not in found:
                found[allocation.switch] = await self.registry.switches[
                    allocation.switch
                ].switch.read_entries()
            answer.flows.extend(
                views.flow_messages(self.registry, record, allocation, found[allocation.switch])
            )
        return answer

    @_answers
    async def ListSlots(self, request: pb.SlotsRequest, context: Any) -> pb.SlotList:
        """List the contents of jobs' slots."""
        answer = pb.SlotList()
        for record, allocation in self._allocated(request.job):
            switch = self.registry.switches[allocation.switch].switch
            slots = await switch.slots(allocation.region.base, allocation.region.slots)
            answer.slots.extend(
                views.slot_messages(self.registry, record, allocation, slots, unused=request.all)
            )
        return answer

    @_answers
    async def ListCounters(self, request: pb.CountersRequest, context: Any) -> pb.CounterList:
        """List the switches' counters for jobs."""
        answer = pb.CounterList()
        for record, allocation in self._allocated(request.job):
            switch = self.registry.switches[allocation.switch].switch
            count = Tree.of(self.registry.config, record.job.members).flows_on(allocation.switch)
            counters = await switch.flow_counters(allocation.region.flow(0), count)
            answer.flows.extend(views.counter_messages(self.registry, record, allocation, counters))
        return answer

    @_answers
    async def ListPorts(self, request: pb.PortsRequest, context: Any) -> pb.PortList:
        """List the counters by port of the switches that are connected."""
        answer = pb.PortList()
        counters = await self._port_counters()
        for switch in self.registry.switches.values():
            if switch.name in counters:
                answer.ports.extend(views.port_messages(self.registry, switch, counters[switch.name]))
        return answer

    @_answers
    async def ListLinks(self, request: pb.LinksRequest, context: Any) -> pb.LinkList:
        """List the links between switches, whether they can be used, and their counters."""
        counters = await self._port_counters() if self.registry.config.links else {}
        return pb.LinkList(links=views.link_messages(self.registry, counters))

    @_answers
    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanReport:
        """Compare the switches with a document."""
        report = await self.configuration.plan(request.document)
        return views.report_message(report, self.configuration.vocabulary)

    @_answers
    async def Apply(self, request: pb.ApplyRequest, context: Any) -> pb.PlanReport:
        """Make the switches hold the entries of a document."""
        report = await self.configuration.apply(request.document)
        return views.report_message(report, self.configuration.vocabulary)

    @_answers
    async def Rollback(self, request: pb.RollbackRequest, context: Any) -> pb.PlanReport:
        """Make the switches hold the entries of a document that was applied before."""
        number = request.revision if request.HasField("revision") else None
        report = await self.configuration.rollback(number)
        return views.report_message(report, self.configuration.vocabulary)

    @_answers
    async def ListRevisions(self, request: pb.RevisionsRequest, context: Any) -> pb.RevisionList:
        """List the documents that were applied."""
        return views.revision_messages(self.configuration.revisions())

    @_answers
    async def Push(self, request: pb.PushRequest, context: Any) -> pb.PushReport:
        """Load the program again."""
        pushed = await self.registry.manager.push(request.switch, force=request.force)
        return pb.PushReport(switches=[views.switch_info(switch) for switch in pushed])

    @_answers
    async def GetStatus(self, request: pb.StatusRequest, context: Any) -> pb.Status:
        """Return the controller's status."""
        live = [record for record in self.registry.jobs() if record.job.live and record.job.workers]
        return pb.Status(
            switches=[views.switch_info(switch) for switch in self.registry.switches.values()],
            live_jobs=len(live),
            workers=sum(len(record.sessions) for record in live),
            listening=self.listening,
            database=self.registry.store.path,
        )

    def _allocated(self, job: str) -> list[tuple[Record, Allocation]]:
        """Return the live jobs (one, or all) with slots, on each switch that can be asked; leaves must be."""
        chosen = self.registry.planes(job) if job else self.registry.jobs()
        return [
            (record, allocation)
            for record in chosen
            if record.job.live and record.job.plan is not None
            for allocation in record.leaves_first
            if allocation.role == "leaf" or self.registry.switches[allocation.switch].switch.connected
        ]

    async def _port_counters(self) -> dict[str, dict[str, dict[int, CounterCell]]]:
        """Return counters of the connected switches; raise UnreachableError if none is."""
        counters, away = {}, None
        for switch in self.registry.switches.values():
            try:
                ports = views.ports_in_use(self.registry, switch)
                counters[switch.name] = await switch.switch.port_counters(ports)
            except UnreachableError as error:
                away = error
        if away is not None and not counters:
            raise away
        return counters


async def _within(
    requests: AsyncIterator[pb.WorkerMessage], bucket: Bucket | None, most_bytes: int
) -> AsyncIterator[pb.WorkerMessage]:
    """Yield a session's messages; raise TooMuchError if they are too many or too large."""
    async for message in requests:
        if bucket is not None and not bucket.take():
            raise TooMuchError("this session sends more messages than a worker has to say: it is ended")
        if message.ByteSize() > most_bytes:
            raise TooMuchError(f"a message of {message.ByteSize()} bytes, {most_bytes} are possible")
        yield message


async def _next(requests: AsyncIterator[pb.WorkerMessage]) -> pb.WorkerMessage | None:
    """Return the next message; None if the worker has ended its side."""
    async for message in requests:
        return message
    return None


async def _read(requests: AsyncIterator[pb.WorkerMessage], session: WorkerSession) -> None:
    """Act on a worker's messages until it ends its side. Raise ControllerError for a forbidden one."""
    try:
        async for message in requests:
            said = from_worker(message)
            if said is None:
                raise InvalidRequestError("an empty message in the middle of a session")
            session.hear(said)
        # Requests end when the worker ends its side, and also when the call breaks; then we are cancelled.
        await asyncio.sleep(_BREAK_S)
        session.closed()
    finally:
        session.events.put_nowait(None)


def make_server(
    service: ControllerService, addresses: Sequence[str], *, tls: TlsFiles | None = None
) -> tuple[grpc.aio.Server, list[str]]:
    """Bind a server to "IP:port" and "unix:/path" addresses, without starting it; port 0 takes a free one.

    With `tls`, IP addresses accept only clients with a certificate; a Unix socket is its owner's in any case.
    Raise AddressError if an address cannot be had, or TlsError.
    """
    credentials = None if tls is None else server_credentials(tls)
    limits = service.peers.limits
    server = grpc.aio.server(options=(*_OPTIONS, ("grpc.max_receive_message_length", limits.message_bytes)))
    add_to_server(service, server)
    bound = []
    for address in addresses:
        try:
            if credentials is None or is_unix(address):
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
            if address.startswith("unix:"):
                Path(address.removeprefix("unix:")).chmod(0o600)
        except (RuntimeError, OSError) as error:
            raise AddressError(
                f"cannot listen on {address}: it is in use, or no address of this machine"
            ) from error
        bound.append(address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}")
    service.listening = bound
    return server, bound
