"""Taking a place in a job: interface, controller, neighbours, connection."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass

from host_agent.controller_session import ControllerSession
from host_agent.errors import InterfaceError, UsageError
from host_agent.membership import JoinRequest, Membership, Ready
from host_agent.netinfo import Interface, find_interface, path_mtu_for, require_path_mtu
from host_agent.runner import Alone, Link
from host_agent.transport import Predecessor, RcDriver, Successor, TransportConfig, TransportError
from host_agent.wire.psn import PSN_MODULUS

# QPNs 0 and 1 are the management QPs of InfiniBand (spec vol. 1, 3.5.3); real adapters start well above.
_FIRST_QPN = 0x100
_LAST_QPN = 0xFFFFFE


@dataclass(frozen=True)
class Place:
    """A worker's place in a job: what the controller set up, and the two connections."""

    ready: Ready
    link: Link
    membership: Membership


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
) -> Place:
    """Join through the controller at "host:port"; see `Communicator.join`."""
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is no rank of a job of {world_size} workers (0..{world_size - 1})")
    link_interface = find_interface(interface, controller=controller)
    largest = path_mtu_for(link_interface.mtu)
    request = JoinRequest(
        job=job,
        world_size=world_size,
        rank=rank,
        mac=link_interface.mac,
        ip=link_interface.ip,
        qpn_out=(qpn_out := _random_qpn()),
        psn_out=secrets.randbelow(PSN_MODULUS),
        qpn_in=_random_qpn(other_than=qpn_out),
        path_mtu_max=require_path_mtu(path_mtu, link_interface) if path_mtu else largest,
        hostname=socket.gethostname(),
    )
    return take_place(
        ControllerSession(controller), request, link_interface, timeout_s=timeout_s, retry_limit=retry_limit
    )


def take_place(
    membership: Membership,
    request: JoinRequest,
    interface: Interface,
    *,
    timeout_s: float,
    retry_limit: int,
) -> Place:
    """Join, bring the connections up, and wait until everybody's are. On an error nothing is left behind."""
    link: Link = Alone()
    try:
        ready = membership.join(request, timeout_s=timeout_s)
        require_path_mtu(ready.path_mtu, interface)
        if request.world_size > 1:
            driver = RcDriver(transport_config(request, ready, retry_limit=retry_limit), interface.name)
            link = driver
            driver.start()
        membership.up(timeout_s=timeout_s)
    except BaseException as error:
        membership.abort(f"rank {request.rank} on {request.hostname} could not start: {error}")
        link.close()
        membership.close()
        if isinstance(error, TransportError):
            raise InterfaceError(str(error)) from error
        raise
    return Place(ready, link, membership)


def transport_config(request: JoinRequest, ready: Ready, *, retry_limit: int) -> TransportConfig:
    """The connections of this worker in the job that `ready` describes."""
    return TransportConfig(
        mac=request.mac,
        ip=request.ip,
        qpn_out=request.qpn_out,
        psn_out=request.psn_out,
        qpn_in=request.qpn_in,
        successor=Successor(mac=ready.successor.mac, ip=ready.successor.ip, qpn_in=ready.successor.qpn_in),
        predecessor=Predecessor(
            mac=ready.predecessor.mac,
            ip=ready.predecessor.ip,
            qpn_out=ready.predecessor.qpn_out,
            psn_out=ready.predecessor.psn_out,
        ),
        path_mtu=ready.path_mtu,
        window=ready.window,
        message_packets=ready.message_packets,
        job_id=ready.job_id,
        generation=ready.generation,
        rank=request.rank,
        world_size=request.world_size,
        retry_limit=retry_limit,
    )


def _random_qpn(*, other_than: int = 0) -> int:
    while True:
        qpn = _FIRST_QPN + secrets.randbelow(_LAST_QPN - _FIRST_QPN)
        if qpn != other_than:
            return qpn
