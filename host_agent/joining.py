"""Joining a job: interface, controller, neighbours, connection."""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from controller.api.messages import Gang, Join, Ready, Worker
from controller.security.files import TlsFiles
from host_agent.adapters import Adapter, Transport, fresh_adapter, renumber, transport_of
from host_agent.controller_session import ControllerSession
from host_agent.errors import InterfaceError, QueuePairTakenError, UsageError
from host_agent.membership import Membership
from host_agent.netinfo import Interface, find_backup, find_interface, path_mtu_for, require_path_mtu
from host_agent.runner import Alone, Link
from host_agent.transport import Predecessor, RcDriver, Successor, TransportConfig, TransportError
from host_agent.transport.verbs import VerbsLink
from host_agent.wire.psn import PSN_MODULUS

_LOG = logging.getLogger(__name__)
# A device that gives out the lowest number that is free begins with those that are retired on its host for
# ever: two for each worker that was killed there.
_MOST_OFFERS: Final = 256  # of queue pairs whose numbers the controller does not take
_REMEMBERED: Final = 1024  # numbers that this worker has had, more than it offers at once


def join(
    controller: str,
    *,
    job: str,
    rank: int,
    world_size: int,
    interface: str | None,
    path_mtu: int | None,
    timeout_s: float,
    retry_limit: int,
    transport: Transport | str = Transport.AUTO,
    first_psn: int | None = None,
    tenant: str = "",
    tls: TlsFiles | None = None,
    join_token: str = "",
    elastic: bool = False,
    selective: bool | None = None,
    gang: Gang | None = None,
) -> Place:
    """Join through the controller at "host:port"; see `Communicator.join`.

    `gang`: the job is a plane of it, and `rank` the machine.
    """
    if gang is not None and (wrong := gang.wrong_with(job)):
        raise UsageError(wrong)
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is no rank of a job of {world_size} workers (0..{world_size - 1})")
    if first_psn is not None and not 0 <= first_psn < PSN_MODULUS:
        raise UsageError(f"first_psn {first_psn} is no PSN (0..{PSN_MODULUS - 1})")
    transport = transport_of(transport)
    link_interface = find_interface(interface, controller=controller)
    if path_mtu is not None:
        require_path_mtu(path_mtu, link_interface)
    # Alone, a worker has nobody to talk to: no device is opened for it.
    transport = transport if world_size > 1 else Transport.USERSPACE
    backup = find_backup(controller, link_interface) if world_size > 1 else None
    used: deque[int] = deque(maxlen=_REMEMBERED)

    def request_with(adapter: Adapter) -> Join:
        worker = Worker(
            rank=rank,
            mac=link_interface.mac,
            ip=link_interface.ip,
            qpn_out=adapter.qpn_out,
            psn_out=secrets.randbelow(PSN_MODULUS) if first_psn is None else first_psn,
            qpn_in=adapter.qpn_in,
            hostname=socket.gethostname(),
        )
        asked = Join(
            job=job,
            world_size=world_size,
            worker=worker,
            path_mtu_max=adapter.path_mtu if path_mtu is None else min(path_mtu, adapter.path_mtu),
            rnr_nak=adapter.rnr_nak,
            tenant=tenant,
            join_token=join_token,
            elastic=elastic,
            selective=selective,
            gang=gang,
        )
        if backup is None:
            return asked
        there = path_mtu_for(backup.mtu)
        return replace(asked, backup_mac=backup.mac, backup_ip=backup.ip, backup_path_mtu=there)

    until = time.monotonic() + timeout_s
    adapter = fresh_adapter(transport, link_interface, used)
    try:
        for _ in range(_MOST_OFFERS):
            request = request_with(adapter)
            membership = ControllerSession(controller, tls=tls)
            try:
                return take_place(
                    membership,
                    request,
                    link_interface,
                    adapter,
                    timeout_s=max(0.0, until - time.monotonic()),
                    retry_limit=retry_limit,
                    backup=backup,
                    used=used,
                )
            except QueuePairTakenError as error:
                _LOG.info("rank %d of job %s takes other queue pairs: %s", rank, job, error)
                refusal = error
            renumber(adapter, used)
        raise refusal
    except BaseException:
        adapter.close()
        raise


@dataclass(frozen=True)
class QueuePairs:
    """A worker's two queue pairs, with the numbers that its neighbours are told: `request` names them.

    `used`: numbers that this worker has had, these included.
    """

    request: Join
    adapter: Adapter
    interface: Interface
    retry_limit: int
    backup: Interface | None = None
    used: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def __post_init__(self) -> None:
        self.used.extend({self.worker.qpn_out, self.worker.qpn_in} - set(self.used))

    @property
    def worker(self) -> Worker:
        """The worker as its neighbours reach it."""
        return self.request.worker

    def offer(self) -> QueuePairs:
        """Return fresh queue pairs, with numbers that this worker has not had. InterfaceError."""
        adapter = fresh_adapter(self.adapter.transport, self.interface, self.used)
        psn_out = secrets.randbelow(PSN_MODULUS)
        worker = replace(self.worker, qpn_out=adapter.qpn_out, psn_out=psn_out, qpn_in=adapter.qpn_in)
        return replace(self, request=replace(self.request, worker=worker), adapter=adapter)

    def connect(self, ready: Ready) -> Link:
        """Return the connection to the neighbours, started. InterfaceError, TransportError."""
        if (ready.world_size or self.request.world_size) == 1:
            return Alone()
        link = self._link(ready)
        try:
            link.start()
        except BaseException:
            link.close()
            raise
        return link

    def _link(self, ready: Ready) -> RcDriver | VerbsLink:
        if not ready.backup:
            require_path_mtu(ready.path_mtu, self.interface)
            config = transport_config(self.request, ready, retry_limit=self.retry_limit)
            return self.adapter.link(config, ready.rc)
        if self.backup is None:
            raise InterfaceError(
                f"the job goes over the workers' backup interfaces ({ready.mode_reason}), and here is none"
            )
        require_path_mtu(ready.path_mtu, self.backup)
        worker = replace(self.request.worker, mac=self.backup.mac, ip=self.backup.ip)
        request = replace(self.request, worker=worker)
        self.adapter.close()  # an RDMA device has no part in it
        return RcDriver(transport_config(request, ready, retry_limit=self.retry_limit), self.backup.name)

    def close(self) -> None:
        """Let go of queue pairs that got no connection; idempotent."""
        self.adapter.close()


@dataclass(frozen=True)
class Place:
    """A worker's place in a job: what the controller set up, and the two connections."""

    ready: Ready
    link: Link
    membership: Membership
    queue_pairs: QueuePairs


def take_place(
    membership: Membership,
    request: Join,
    interface: Interface,
    adapter: Adapter,
    *,
    timeout_s: float,
    retry_limit: int,
    backup: Interface | None = None,
    used: deque[int] | None = None,
) -> Place:
    """Join, bring the connections up, and wait until everybody's are.

    On an error nothing is left behind but the adapter: it can take other numbers after QueuePairTakenError.
    """
    link: Link = Alone()
    numbers = deque[int](maxlen=_REMEMBERED) if used is None else used
    pairs = QueuePairs(request, adapter, interface, retry_limit, backup, numbers)
    try:
        ready = membership.join(request, timeout_s=timeout_s)
        link = pairs.connect(ready)
        membership.up(timeout_s=timeout_s)
    except BaseException as error:
        who = request.worker
        membership.abort(f"rank {who.rank} on {who.hostname} could not start: {error}")
        link.close()
        membership.close()
        if isinstance(error, TransportError):
            raise InterfaceError(str(error)) from error
        raise
    return Place(ready, link, membership, pairs)


def transport_config(request: Join, ready: Ready, *, retry_limit: int) -> TransportConfig:
    """Return the connections of this worker in the job that `ready` describes."""
    worker = request.worker
    return TransportConfig(
        mac=worker.mac,
        ip=worker.ip,
        qpn_out=worker.qpn_out,
        psn_out=worker.psn_out,
        qpn_in=worker.qpn_in,
        successor=Successor(mac=ready.successor.mac, ip=ready.successor.ip, qpn_in=ready.successor.qpn_in),
        predecessor=Predecessor(
            mac=ready.predecessor.mac,
            ip=ready.predecessor.ip,
            qpn_out=ready.predecessor.qpn_out,
            psn_out=ready.predecessor.psn_out,
            rank=ready.predecessor.rank,
        ),
        path_mtu=ready.path_mtu,
        window=ready.window,
        message_packets=ready.message_packets,
        job_id=ready.job_id,
        generation=ready.generation,
        rank=ready.rank if ready.world_size else worker.rank,
        world_size=ready.world_size or request.world_size,
        retry_limit=retry_limit,
        selective=ready.selective,
    )
