"""A worker's connection on an RDMA device: a thread of its own moves whole messages."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Final

from controller.api.messages import RcParameters
from host_agent.transport import native
from host_agent.transport.config import TransportConfig
from host_agent.transport.errors import TransportClosedError, TransportError
from host_agent.transport.events import Counters, FailureCode
from host_agent.transport.link import NativeLink
from host_agent.transport.verbs.completions import (
    FATAL_EVENTS,
    DeviceEvent,
    Status,
    failure_of,
    read_device_counters,
)
from host_agent.transport.verbs.queue_pairs import RECEIVE, Completion, QueuePairs

_LOG = logging.getLogger(__name__)
_BATCH: Final = 16  # completions between two looks at what there is to send
_TAKEN, _NOT_READY, _DEAD = range(3)


class VerbsLink(NativeLink):
    """One worker's messages on two RC queue pairs, which are its own from now on.

    `abort` lets go of the arrays at once, as it does everywhere; the device stops sending soon after.

    Its counts of messages, and of packets and bytes of data without what was repeated, are exact. Counts of
    the device's own doings (`go_backs`, `timeouts`, NAKs, `duplicates_received`, `out_of_order_received`)
    come from its hw_counters since `start`. These count the whole port, with other programs' traffic, and are
    0 if the device does not count. No device tells which packets it sent again, nor its acknowledgements.
    """

    def __init__(self, config: TransportConfig, queue_pairs: QueuePairs, rc: RcParameters) -> None:
        super().__init__(config)
        self.rc = rc
        self._pairs = queue_pairs
        self._pump: _Pump | None = None
        self._before: dict[str, int] = {}

    def start(self) -> None:
        """Connect the queue pairs and start the thread. TransportError names the device and the reason."""
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        with self._lock:
            if self._connection is not None:
                return
            if self._pump is not None:
                raise TransportClosedError(self._ended)  # its queue pairs are gone
            handle = self._lib.p4r_messages_new(native.native_config(self.config), error, len(error))
            if not handle:
                raise TransportError(f"the connection cannot be set up: {error.value.decode()}")
            self._before = read_device_counters(self._pairs.device.hw_counters)
            try:
                self._pump = _Pump(self._lib, handle, self._pairs, self.config, self.rc)
            except BaseException:
                self._lib.p4r_link_free(handle)
                raise
            self._attach(handle, self._pump.stop, self._pump.free)

    def close(self) -> None:
        """Take the queue pairs down; waits in other threads end. Idempotent."""
        super().close()
        if self._pump is None:
            self._pairs.close()

    def counters(self) -> Counters:
        """Return the counts since `start`."""
        counters = super().counters()
        now = read_device_counters(self._pairs.device.hw_counters)
        return replace(counters, **{name: now[name] - self._before.get(name, 0) for name in now})

    def _on_post(self) -> None:
        if self._pump is not None:
            self._pump.wake()

    def _on_abort(self) -> None:
        if self._pump is not None:
            self._pump.abort()


class _Pump:
    """The thread. It alone uses the queue pairs, from its start to their end; it sleeps while it can."""

    def __init__(
        self, lib: ctypes.CDLL, handle: int, pairs: QueuePairs, config: TransportConfig, rc: RcParameters
    ) -> None:
        self._lib = lib
        self._handle = handle
        self._pairs = pairs
        self._config = config
        self._rc = rc
        self._slot_bytes = int(lib.p4r_messages_bytes(handle))
        slots = 2 * config.window  # nobody has more under way: what m - 2W was is known to be received
        self._free = deque(range(slots))
        self._received: deque[tuple[int, int]] = deque()  # slot and bytes, not taken yet
        self._quiet = False  # failed or aborted: what completes now is of no interest
        self._aborted = False
        self._stopping = False
        self._free_at_end = False
        pairs.connect(config, rc, slots=slots, slot_bytes=self._slot_bytes)
        # Guards the life of the wake-up file; taken again where the garbage collector calls `stop` meanwhile.
        self._waking = threading.RLock()
        self._wakeup: int | None = None
        self._poller = select.poll()
        self._thread = threading.Thread(target=self._run, name="p4r-verbs", daemon=True)
        try:
            self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            for file in (self._wakeup, pairs.completion_fd, pairs.event_fd):
                self._poller.register(file, select.POLLIN)
            self._thread.start()
        except (OSError, RuntimeError) as error:
            self._close_wakeup()
            raise TransportError(
                f"no thread for RDMA device {pairs.device.name}: {error}; are there too many threads "
                f"(ulimit -u) or open files (ulimit -n)?"
            ) from error

    def wake(self) -> None:
        with self._waking:
            if self._wakeup is not None:
                os.eventfd_write(self._wakeup, 1)

    def abort(self) -> None:
        """Stop sending soon."""
        self._aborted = True
        self.wake()

    def stop(self) -> None:
        """End the thread, which closes the queue pairs; idempotent.

        Arrays are let go of first. The garbage collector may call this in the thread itself, in the middle of
        what the thread does, which then goes on a little.
        """
        self._lib.p4r_link_abort(self._handle)
        self._aborted = True
        self._stopping = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def free(self, handle: int) -> None:
        """Free the engine, after `stop`; later, where the garbage collector calls in the thread itself."""
        if threading.current_thread() is self._thread:
            self._free_at_end = True
        else:
            self._lib.p4r_link_free(handle)

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._aborted:
                    self._quieten()
                self._complete()
                self._take()
                self._sleep()
        except Exception as error:  # noqa: BLE001  whoever waits has to hear of it, whatever it is
            self._fail(FailureCode.LOCAL_ERROR, str(error) or repr(error))
            if not isinstance(error, TransportError):
                _LOG.exception("rank %d: the verbs thread failed", self._config.rank)
        finally:
            self._close()
            if self._free_at_end:
                self._lib.p4r_link_free(self._handle)

    def _close_wakeup(self) -> None:
        with self._waking:
            wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            os.close(wakeup)

    def _close(self) -> None:
        self._close_wakeup()
        try:
            self._quieten()
        except TransportError as error:  # the device may be gone
            _LOG.warning("rank %d: %s", self._config.rank, error)
        self._pairs.close()

    def _complete(self) -> None:
        """Take note of what completed."""
        while True:
            completions = self._pairs.poll(_BATCH)
            acknowledged = 0
            for completion in completions:
                if completion.status != Status.SUCCESS:
                    self._on_error(completion)
                elif completion.wr_id & RECEIVE:
                    self._received.append((completion.wr_id ^ RECEIVE, completion.byte_len))
                else:
                    acknowledged += 1
                    self._free.append(completion.wr_id)
            if acknowledged:
                self._lib.p4r_messages_acknowledged(self._handle, acknowledged)
            if len(completions) < _BATCH:
                return

    def _take(self) -> None:
        """Deliver what was received, and send what may be sent for it."""
        self._send()
        while self._received and not self._quiet:
            slot, length = self._received[0]
            taken = self._lib.p4r_messages_receive(
                self._handle, self._pairs.receive_buffers[slot], length, time.monotonic_ns()
            )
            if taken == _NOT_READY:
                return  # its receive is not posted again: the device tells the predecessor to wait
            if taken == _DEAD:
                self._quieten()
                return
            self._received.popleft()
            self._pairs.post_receive(slot)
            self._send()

    def _send(self) -> None:
        while self._free and not self._quiet:
            slot = self._free[0]
            length = self._lib.p4r_messages_next_send(
                self._handle, self._pairs.send_buffers[slot], self._slot_bytes, time.monotonic_ns()
            )
            if length == 0:
                return
            self._free.popleft()
            self._pairs.post_send(slot, length)

    def _sleep(self) -> None:
        for file, _ in self._poller.poll():
            if file == self._pairs.completion_fd:
                self._pairs.take_completion_event()
            elif file == self._pairs.event_fd:
                self._on_device_event(self._pairs.take_device_event())
            elif self._wakeup is not None:
                os.eventfd_read(self._wakeup)

    def _on_error(self, completion: Completion) -> None:
        if self._quiet:
            return
        code, text = failure_of(
            completion.status,
            receiving=bool(completion.wr_id & RECEIVE),
            config=self._config,
            rc=self._rc,
            device=self._pairs.device.name,
        )
        self._fail(code, text)
        self._quieten()

    def _on_device_event(self, event: int) -> None:
        device = self._pairs.device
        if event in FATAL_EVENTS:
            self._fail(
                FailureCode.LOCAL_ERROR,
                f"RDMA device {device.name} reported {DeviceEvent(event).name}: its log (dmesg) may say more",
            )
            self._quieten()
        elif event == DeviceEvent.PORT_ERR:
            _LOG.warning(
                "rank %d: port %d of RDMA device %s is down; messages wait until it is up or retries end",
                self._config.rank,
                device.port,
                device.name,
            )
        elif event == DeviceEvent.PORT_ACTIVE:
            _LOG.info("rank %d: port %d of RDMA device %s is up", self._config.rank, device.port, device.name)

    def _fail(self, code: FailureCode, text: str) -> None:
        if not self._aborted:
            self._lib.p4r_messages_fail(self._handle, code, text.encode())

    def _quieten(self) -> None:
        if self._quiet:
            return
        self._quiet = True
        self._pairs.stop()
