"""The only place that talks to pyverbs: a worker's two RC queue pairs, their buffers and completions."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from controller.api.messages import RcParameters
from host_agent.transport.config import TransportConfig
from host_agent.transport.errors import TransportError
from host_agent.transport.verbs.discovery import RoceDevice, pyverbs_missing

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

RECEIVE: Final = 1 << 16  # in a completion's wr_id: of a receive; the rest is the slot
MAX_SLOTS: Final = 16  # 2W at most, in each direction
_COMPLETIONS: Final = 4 * MAX_SLOTS
_HOP_LIMIT: Final = 64
# <infiniband/verbs.h>; the module of pyverbs that has them changed its name.
_QPT_RC: Final = 2
_QPS_ERR: Final = 6
_QP_STATE: Final = 1 << 0
_ACCESS_LOCAL_WRITE: Final = 1
_WR_SEND: Final = 2
_PORT_ACTIVE: Final = 4
_EVENT_FILE: Final = "anon_inode:[infinibandevent]"
_SCARCE: Final = "other programs may hold all it has (rdma resource), or locked memory is short (ulimit -l)"
_SEE_LOG: Final = "its log (dmesg) may say more"
_opening = threading.Lock()


class Completion(Protocol):
    """A work completion."""

    wr_id: int
    status: int
    byte_len: int


class QueuePairs:
    """QP_out and QP_in on a device, in the INIT state until `connect`. One thread at a time.

    Buffers are slots of one message: `slots` to send from, as many to receive into. They outlive a fork of
    the process (ibv_fork_init: without it, older kernels leave the device with pages of the child's).
    """

    def __init__(self, device: RoceDevice) -> None:
        """Open the device. TransportError says what is missing."""
        if missing := pyverbs_missing():
            raise TransportError(f"RDMA device {device.name} on {device.interface}: {missing}")
        self.device = device
        self._error: type[Exception] = _pyverbs("pyverbs_error").PyverbsError
        self._closing: list[Any] = []  # what was opened, in this order
        self._spare: list[Any] = []  # queue pairs among it that others have been taken for
        self._sends: dict[tuple[int, int], Any] = {}  # work requests by slot and length, made once
        self._receives: list[Any] = []
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        _prepare_for_forks()
        name = self.device.name
        advice = "is /dev/infiniband there and accessible, and the module ib_uverbs loaded?"
        with self._explained("cannot be opened", advice):
            self._context, self.event_fd = _with_event_file(
                lambda: _pyverbs("device").Context(name=name), f"RDMA device {name}"
            )
            self._closing.append(self._context)
            port = self._context.query_port(self.device.port)
        if port.state != _PORT_ACTIVE:
            raise TransportError(
                f"RDMA device {name}: port {self.device.port} is not active (state {port.state}): bring its "
                f"interface up: ip link set {self.device.interface} up"
            )
        self.path_mtu = 128 << port.active_mtu  # ibv_mtu: 1 is 256
        with self._explained("has no room for two queue pairs", _SCARCE):
            self._pd = self._keep(_pyverbs("pd").PD(self._context))
            self._channel, self.completion_fd = _with_event_file(
                lambda: _pyverbs("cq").CompChannel(self._context), f"RDMA device {name}"
            )
            self._keep(self._channel)
            self._cq = self._keep(_pyverbs("cq").CQ(self._context, _COMPLETIONS, None, self._channel, 0))
            self._make_both()
            self._cq.req_notify()

    def exchange(self) -> None:
        """Take two other queue pairs, before `connect`. TransportError.

        The present ones stay until then, or the device would give their numbers again.
        """
        self._spare += (self._out, self._in)
        with self._explained("has no room for more queue pairs", _SCARCE):
            self._make_both()

    def _make_both(self) -> None:
        self._out = self._keep(self._queue_pair(sends=MAX_SLOTS, receives=1))
        self._in = self._keep(self._queue_pair(sends=1, receives=MAX_SLOTS))
        self.qpn_out, self.qpn_in = int(self._out.qp_num), int(self._in.qp_num)

    def _queue_pair(self, *, sends: int, receives: int) -> Any:
        qp = _pyverbs("qp")
        capacity = qp.QPCap(max_send_wr=sends, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        attributes = qp.QPInitAttr(qp_type=_QPT_RC, scq=self._cq, rcq=self._cq, cap=capacity, sq_sig_all=1)
        return qp.QP(self._pd, attributes, qp.QPAttr(port_num=self.device.port))

    def connect(self, config: TransportConfig, rc: RcParameters, *, slots: int, slot_bytes: int) -> None:
        """Register the buffers, post all receives, and bring both queue pairs up to their neighbours."""
        while self._spare:
            spare = self._spare.pop()
            self._closing.remove(spare)
            self._let_go(spare)
        advice = f"{2 * slots * slot_bytes} bytes of locked memory are needed (ulimit -l)"
        with self._explained("cannot register buffers", advice):
            memory = _pyverbs("mr").MR(self._pd, 2 * slots * slot_bytes, _ACCESS_LOCAL_WRITE)
            self._memory = self._keep(memory)
        base = int(self._memory.buf)
        self.send_buffers: Sequence[int] = [base + slot * slot_bytes for slot in range(slots)]
        self.receive_buffers: Sequence[int] = [base + (slots + slot) * slot_bytes for slot in range(slots)]
        wr = _pyverbs("wr")
        self._receives = [
            wr.RecvWR(wr_id=RECEIVE | slot, num_sge=1, sg=[wr.SGE(address, slot_bytes, self._memory.lkey)])
            for slot, address in enumerate(self.receive_buffers)
        ]
        for slot in range(slots):
            self.post_receive(slot)
        after, before = config.successor, config.predecessor
        self._bring_up(
            self._in, rc, config.path_mtu, before.ip, peer_qpn=before.qpn_out, rq_psn=before.psn_out, sq_psn=0
        )
        self._bring_up(
            self._out, rc, config.path_mtu, after.ip, peer_qpn=after.qpn_in, rq_psn=0, sq_psn=config.psn_out
        )

    def _bring_up(
        self,
        qp: Any,
        rc: RcParameters,
        path_mtu: int,
        peer: IPv4Address,
        *,
        peer_qpn: int,
        rq_psn: int,
        sq_psn: int,
    ) -> None:
        addr = _pyverbs("addr")
        gid = addr.GID(IPv6Address(f"::ffff:{peer}").exploded)
        route = addr.GlobalRoute(dgid=gid, sgid_index=self.device.gid_index, hop_limit=_HOP_LIMIT)
        attributes = _pyverbs("qp").QPAttr(port_num=self.device.port)
        attributes.ah_attr = addr.AHAttr(port_num=self.device.port, is_global=1, gr=route)
        attributes.dest_qp_num = peer_qpn
        attributes.path_mtu = (path_mtu // 128).bit_length() - 1
        attributes.rq_psn, attributes.sq_psn = rq_psn, sq_psn
        attributes.timeout, attributes.retry_cnt = rc.timeout, rc.retry_count
        attributes.rnr_retry, attributes.min_rnr_timer = rc.rnr_retry, rc.min_rnr_timer
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        advice = f"is {peer} in the neighbour table or does it answer ARP (ip neigh show {peer})?"
        with self._explained(f"cannot connect to {peer}, QP {peer_qpn:#08x}", advice):
            qp.to_rts(attributes)

    # What follows runs for every message: no context manager, nothing looked up by name.

    def post_receive(self, slot: int) -> None:
        try:
            self._in.post_recv(self._receives[slot])
        except self._error as error:
            raise self._explanation("refused a receive", error) from error

    def post_send(self, slot: int, length: int) -> None:
        """SEND the first `length` bytes of a slot."""
        request = self._sends.get((slot, length)) or self._send_request(slot, length)
        try:
            self._out.post_send(request)
        except self._error as error:
            raise self._explanation("refused a send", error) from error

    def poll(self, most: int) -> list[Completion]:
        """Return completions that are there, `most` at most."""
        try:
            completions: list[Completion] = self._cq.poll(most)[1]
        except self._error as error:
            raise self._explanation("cannot be asked for completions", error) from error
        return completions

    def take_completion_event(self) -> None:
        """Take the event of a readable `completion_fd`, and ask for the next. Poll until nothing is there."""
        try:
            self._channel.get_cq_event(self._cq)
            self._cq.ack_events(1)
            self._cq.req_notify()
        except self._error as error:
            raise self._explanation("cannot be asked for events", error) from error

    def _send_request(self, slot: int, length: int) -> Any:
        # Made once for each length (whole chunks, so few), then kept: some versions of pyverbs leak a
        # request that is dropped, and changing one would have others free its memory twice.
        wr = _pyverbs("wr")
        sge = wr.SGE(self.send_buffers[slot], length, self._memory.lkey)
        request = wr.SendWR(wr_id=slot, num_sge=1, sg=[sge], opcode=_WR_SEND)
        self._sends[slot, length] = request
        return request

    def take_device_event(self) -> int:
        """Take the event of a readable `event_fd`; return its ibv_event_type."""
        with self._explained("cannot be asked for events"):
            event = self._context.get_async_event()
            event.ack()
        return int(event.event_type)

    def stop(self) -> None:
        """Send and acknowledge nothing more."""
        for qp in (self._out, self._in):
            attributes = _pyverbs("qp").QPAttr(qp_state=_QPS_ERR)
            with self._explained("cannot stop a queue pair"):
                qp.modify(attributes, _QP_STATE)

    def close(self) -> None:
        """Give everything back to the device, in reverse order, and log refusals. Idempotent."""
        self._sends.clear()
        self._receives.clear()
        self._spare.clear()
        while self._closing:
            self._let_go(self._closing.pop())

    def _let_go(self, resource: Any) -> None:
        try:
            resource.close()
        except self._error as error:
            what = f"does not let go of its {type(resource).__name__}"
            _LOG.warning("%s", self._explanation(what, error, "'rdma resource' shows what is left"))

    def _keep(self, resource: Any) -> Any:
        self._closing.append(resource)
        return resource

    @contextmanager
    def _explained(self, what: str, advice: str = _SEE_LOG) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise self._explanation(what, error, advice) from error

    def _explanation(self, what: str, error: Exception, advice: str = _SEE_LOG) -> TransportError:
        return TransportError(f"RDMA device {self.device.name} {what}: {error}; {advice}")


def _pyverbs(module: str) -> Any:
    return importlib.import_module(f"pyverbs.{module}")


@cache
def _prepare_for_forks() -> None:
    """Prepare for forks, before the process opens its first device."""
    try:
        _pyverbs("fork").fork_init()
    except (ImportError, AttributeError):  # this pyverbs does not have it
        _LOG.debug("pyverbs has no fork_init")
    except _pyverbs("pyverbs_error").PyverbsError as error:
        _LOG.warning(
            "RDMA buffers may break when this process forks: %s (was other memory registered before?)", error
        )


def _with_event_file(make: Callable[[], T], what: str) -> tuple[T, int]:
    """Return what `make` makes, and the descriptor of the events it opened, which pyverbs does not tell."""
    for _ in range(3):
        with _opening:
            before = _event_files()
            made = make()
            opened = _event_files() - before
        if len(opened) == 1:
            return made, opened.pop()
        made.close()  # type: ignore[attr-defined]
    raise TransportError(
        f"{what}: cannot tell its events from those of others that this process opens; try again"
    )


def _event_files() -> set[int]:
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed in between
            if os.readlink(path) == _EVENT_FILE:
                found.add(int(path.name))
    return found
