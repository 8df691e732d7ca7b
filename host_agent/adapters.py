"""Choice of the carrier of RoCE v2 on this machine: our userspace transport, or an RDMA device."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from enum import Enum
from typing import Final, TypeAlias

from controller.api.messages import RcParameters
from host_agent.errors import InterfaceError, UsageError
from host_agent.netinfo import Interface, path_mtu_for
from host_agent.transport import RcDriver, TransportConfig, TransportError
from host_agent.transport.verbs import QueuePairs, VerbsLink, find_device, pyverbs_missing
from host_agent.transport.verbs.discovery import SYSFS

_LOG = logging.getLogger(__name__)

# QPNs 0 and 1 are the management QPs of InfiniBand (spec vol. 1, 3.5.3); real adapters start well above.
_FIRST_QPN: Final = 0x100
_LAST_QPN: Final = 0xFFFFFE


class Transport(Enum):
    """The speaker of RoCE v2. AUTO: the interface's RDMA device if it has one, else userspace."""

    AUTO = "auto"
    USERSPACE = "userspace"
    VERBS = "verbs"


def transport_of(transport: Transport | str) -> Transport:
    """Return the transport of that name. UsageError lists the names."""
    try:
        return Transport(transport)
    except ValueError:
        names = ", ".join(known.value for known in Transport)
        raise UsageError(f"transport {transport!r} is none of {names}") from None


class UserspaceAdapter:
    """Queue pairs whose numbers this worker chooses itself.

    `path_mtu`: the largest that it carries. `rnr_nak`: whether the switch shall answer with RNR NAKs what
    waits for a slow worker.
    """

    transport = Transport.USERSPACE
    rnr_nak = False

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self.path_mtu = path_mtu_for(interface.mtu)
        self.exchange()

    def exchange(self) -> None:
        """Take new queue pair numbers at random, so that they hardly ever repeat earlier ones."""
        self.qpn_out, self.qpn_in = _random_qpns()

    def link(self, config: TransportConfig, rc: RcParameters) -> RcDriver:
        """Return a link with a thread on a raw socket. It ignores the limits in `rc`: a job's end ends it."""
        return RcDriver(config, self._interface.name)

    def close(self) -> None:
        """Do nothing: this adapter holds no resources."""


class VerbsAdapter:
    """Queue pairs of an RDMA device."""

    transport = Transport.VERBS
    rnr_nak = True

    def __init__(self, queue_pairs: QueuePairs, interface: Interface) -> None:
        self._queue_pairs = queue_pairs
        self.path_mtu = min(queue_pairs.path_mtu, path_mtu_for(interface.mtu))
        self.qpn_out, self.qpn_in = queue_pairs.qpn_out, queue_pairs.qpn_in

    def exchange(self) -> None:
        """Take another pair; the device holds the present one until there is a link. InterfaceError."""
        try:
            self._queue_pairs.exchange()
        except TransportError as error:
            raise InterfaceError(str(error)) from error
        self.qpn_out, self.qpn_in = self._queue_pairs.qpn_out, self._queue_pairs.qpn_in

    def link(self, config: TransportConfig, rc: RcParameters) -> VerbsLink:
        """Return a link with a thread of its own, which owns the device's queue pairs from now on."""
        return VerbsLink(config, self._queue_pairs, rc)

    def close(self) -> None:
        """Destroy the queue pairs if they got no link. Idempotent."""
        self._queue_pairs.close()


# A worker's two queue pairs before it has joined: they have numbers, but no neighbours yet.
Adapter: TypeAlias = UserspaceAdapter | VerbsAdapter


def choose_adapter(transport: Transport, interface: Interface) -> Adapter:
    """Return the adapter for `interface`. InterfaceError if the transport asked for is missing there."""
    if transport is Transport.USERSPACE:
        return UserspaceAdapter(interface)
    device = find_device(interface.name, interface.ip)
    if device is None:
        if transport is Transport.AUTO:
            return UserspaceAdapter(interface)
        raise InterfaceError(
            f"no RDMA device is behind interface {interface.name}: none in {SYSFS} has a RoCE v2 GID of "
            f"{interface.ip} on it ('rdma link' lists devices; 'rdma link add rxe0 type rxe netdev "
            f"{interface.name}' makes one in software)"
        )
    missing = pyverbs_missing()
    if missing and transport is Transport.AUTO:
        _LOG.warning("RDMA device %s on %s is not used: %s", device.name, interface.name, missing)
        return UserspaceAdapter(interface)
    try:
        return VerbsAdapter(QueuePairs(device), interface)
    except TransportError as error:
        raise InterfaceError(str(error)) from error


def fresh_adapter(transport: Transport, interface: Interface, used: deque[int]) -> Adapter:
    """Choose an adapter as `choose_adapter` does, with no number out of `used`; add its numbers there."""
    adapter = choose_adapter(transport, interface)
    try:
        renumber(adapter, used)
    except BaseException:
        adapter.close()
        raise
    return adapter


def renumber(adapter: Adapter, used: deque[int]) -> None:
    """Give an adapter numbers that are not in `used`, and add them there. InterfaceError.

    A device may give out again the numbers that it got back last. So each number that is in use stays held
    while the device is asked for others.
    """
    known = set(used)
    for _ in range(len(known) + 1):
        if known.isdisjoint({adapter.qpn_out, adapter.qpn_in}):
            used.extend((adapter.qpn_out, adapter.qpn_in))
            return
        adapter.exchange()
    raise InterfaceError(
        f"the RDMA device gave out only numbers of queue pairs that this worker has had, {len(known) + 1} "
        "times: an old packet could be taken for a new one ('rdma resource' shows what is in use)"
    )


def _random_qpns() -> tuple[int, int]:
    first = _FIRST_QPN + secrets.randbelow(_LAST_QPN - _FIRST_QPN)
    while True:
        second = _FIRST_QPN + secrets.randbelow(_LAST_QPN - _FIRST_QPN)
        if second != first:
            return first, second
