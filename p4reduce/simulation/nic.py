"""A worker whose packets are a simulated RDMA adapter's: the message engine on a small RC transport.

It has an `Endpoint`'s methods, so that a `Fabric` takes it in the place of one.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass, replace

from host_agent.transport import (
    Counters,
    Endpoint,
    Event,
    EventType,
    Failure,
    FailureCode,
    Operation,
    Progress,
    TransportConfig,
    TransportError,
    native,
)
from host_agent.wire.headers import (
    ACK_SYNDROME,
    NAK_SEQUENCE_ERROR,
    RNR_NAK_SYNDROME,
    Aeth,
    Bth,
    Ethernet,
    IPv4,
    Opcode,
    RocePacket,
    Udp,
    parse_mac,
)
from host_agent.wire.psn import PSN_MODULUS, compare

MAX_FRAMES = 64  # at a time
TIMEOUT_NS = 5_000_000
NOT_READY_NS = 10_000_000  # what an RNR NAK has it wait; the timer in it is not looked at
TAKEN, NOT_READY, DEAD = range(3)
KIND = 0xE0  # of a syndrome; the rest is credit, a timer or a reason


class MessageEngine:
    """The native message engine, by ctypes."""

    def __init__(self, config: TransportConfig) -> None:
        self.config = config
        self.lib = native.library()
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        self.handle = self.lib.p4r_messages_new(native.native_config(config), error, len(error))
        if not self.handle:
            raise TransportError(error.value.decode())
        self.capacity = self.lib.p4r_messages_bytes(self.handle)
        self.operations: dict[int, Operation] = {}  # keeps the arrays alive
        self._message = ctypes.create_string_buffer(max(1, self.capacity))
        self._event = native.NativeEvent()

    def __del__(self) -> None:
        if self.handle:
            self.lib.p4r_link_free(self.handle)

    def post(self, operation: Operation) -> int:
        error = ctypes.create_string_buffer(native.ERROR_BYTES)
        raw = native.native_operation(operation)
        op_id = int(self.lib.p4r_link_post(self.handle, raw, error, len(error)))
        if op_id == 0:
            raise ValueError(error.value.decode())
        self.operations[op_id] = operation
        return op_id

    def next_send(self, now: int = 1, capacity: int | None = None) -> bytes:
        """Return the next message; empty: none may be sent."""
        room = self.capacity if capacity is None else capacity
        buffer = self._message if room <= self.capacity else ctypes.create_string_buffer(room)
        length = self.lib.p4r_messages_next_send(self.handle, buffer, room, now)
        return ctypes.string_at(buffer, length)

    def receive(self, message: bytes, now: int = 1) -> int:
        return int(self.lib.p4r_messages_receive(self.handle, message, len(message), now))

    def acknowledged(self, count: int = 1) -> None:
        self.lib.p4r_messages_acknowledged(self.handle, count)

    def done(self, until: EventType) -> int:
        return int(self.lib.p4r_link_done(self.handle, until))

    def fail(self, code: FailureCode, text: str) -> None:
        self.lib.p4r_messages_fail(self.handle, code, text.encode())

    def abort(self) -> None:
        self.lib.p4r_link_abort(self.handle)

    def failure(self) -> Failure | None:
        if not self.lib.p4r_link_failure(self.handle, self._event):
            return None
        return native.failure_of(self._event, self.config)

    def counters(self) -> Counters:
        return native.read_counters(lambda out: self.lib.p4r_link_counters(self.handle, out))

    def progress(self) -> Progress:
        return native.read_progress(lambda out: self.lib.p4r_link_progress(self.handle, out))

    def state(self) -> bytes:
        return native.read_state(lambda out, room: self.lib.p4r_messages_state(self.handle, out, room))


@dataclass(frozen=True)
class Segment:
    """A packet of a message, kept until it is acknowledged."""

    psn: int
    opcode: Opcode
    payload: bytes
    last: bool


class NicEndpoint:
    """An RDMA adapter: 2W receives posted, go-back-N on a NAK and on a timeout, RNR without a receive.

    With a `retry_limit` it gives up after so many timeouts in a row; an RNR NAK is an answer, without limit.
    """

    def __init__(self, config: TransportConfig) -> None:
        self.config = config
        self.engine = MessageEngine(config)
        own = parse_mac(config.mac)
        self.to_successor = Ethernet(dst=parse_mac(config.successor.mac), src=own)
        self.to_predecessor = Ethernet(dst=parse_mac(config.predecessor.mac), src=own)
        self.next_psn = config.psn_out
        self.sent: deque[Segment] = deque()  # not acknowledged
        self.to_send: deque[Segment] = deque()
        self.expected = config.predecessor.psn_out
        self.partial = b""
        self.posted = 2 * config.window
        self.waiting: deque[bytes] = deque()  # received, not taken by the engine
        self.answers: list[tuple[int, int]] = []
        self.nak_sent = False
        self.timer: int | None = None
        self.told_to_wait = False  # the timer is an RNR NAK's
        self.retries = 0  # timeouts since the last answer
        self._position = native.NativeProgress()
        self.reported = {EventType.RECEIVED: 0, EventType.COMPLETED: 0}
        self.failed = False

    def post(self, operation: Operation, now: int) -> int:
        op_id = self.engine.post(operation)
        self._take(now)
        return op_id

    def poll(self, now: int) -> list[bytes]:
        frames = [self._answer(syndrome, psn) for syndrome, psn in self.answers]
        self.answers.clear()
        if self.timer is not None and now >= self.timer:
            self._on_timeout(now)
        while len(frames) < MAX_FRAMES:
            if not self.to_send:
                self._cut(self.engine.next_send(now))
            if not self.to_send:
                break
            segment = self.to_send.popleft()
            self.sent.append(segment)
            frames.append(self._data(segment))
            if self.timer is None:
                self.timer = now + TIMEOUT_NS
        return frames

    def receive(self, frame: bytes, now: int) -> None:
        try:
            packet = RocePacket.parse(frame)
        except ValueError:
            return
        own = self.config.qpn_in if packet.aeth is None else self.config.qpn_out
        if not packet.icrc_ok() or packet.bth.dest_qp != own:
            return
        if packet.aeth is None:
            self._on_data(packet, now)
        else:
            self._on_answer(packet.aeth.syndrome, packet.bth.psn, now)

    def next_timeout_ns(self) -> int | None:
        return self.timer

    def events(self) -> list[Event]:
        found = []
        for kind in (EventType.RECEIVED, EventType.COMPLETED):
            while self.reported[kind] < self.engine.done(kind):
                self.reported[kind] += 1
                found.append(Event(type=kind, op_id=self.reported[kind]))
        failure = self.engine.failure()
        if failure is not None and not self.failed:
            self.failed = True
            found.append(Event(type=EventType.FAILED, op_id=0, failure=failure))
        return found

    def halt(self) -> None:
        self.engine.abort()

    def counters(self) -> Counters:
        return self.engine.counters()

    def progress(self) -> Progress:
        return replace(self.engine.progress(), expected_psn=self.expected)

    def position(self) -> native.NativeProgress:
        """Return the position, as an `Endpoint` does."""
        self.engine.lib.p4r_link_progress(self.engine.handle, self._position)
        self._position.expected_psn = self.expected
        return self._position

    def state(self, now_ns: int) -> bytes:
        """Return the state, as an `Endpoint` does."""
        own = (
            (self.next_psn, self.expected, self.posted, self.nak_sent, self.told_to_wait, self.failed),
            [segment.psn for segment in self.sent],
            [segment.psn for segment in self.to_send],
            (len(self.partial), list(self.waiting), self.answers),
            None if self.timer is None else self.timer - now_ns,
            self.retries if self.config.retry_limit else 0,
        )
        return repr(own).encode() + self.engine.state()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _cut(self, message: bytes) -> None:
        mtu = self.config.path_mtu
        starts = range(0, len(message), mtu)
        for start in starts:
            first, last = start == 0, start == starts[-1]
            opcode = {
                (True, True): Opcode.SEND_ONLY,
                (True, False): Opcode.SEND_FIRST,
                (False, False): Opcode.SEND_MIDDLE,
                (False, True): Opcode.SEND_LAST,
            }[first, last]
            self.to_send.append(Segment(self.next_psn, opcode, message[start : start + mtu], last))
            self.next_psn = (self.next_psn + 1) % PSN_MODULUS

    def _on_timeout(self, now: int) -> None:
        self._go_back()
        self.timer = now + TIMEOUT_NS
        if self.told_to_wait:
            self.told_to_wait = False
            return
        self.retries += 1
        if self.config.retry_limit and self.retries > self.config.retry_limit:
            self.engine.fail(FailureCode.RETRY_LIMIT, f"no answer after {self.retries - 1} retries")
            self.to_send.clear()
            self.timer = None

    def _go_back(self) -> None:
        self.to_send.extendleft(reversed(self.sent))
        self.sent.clear()

    def _on_answer(self, syndrome: int, psn: int, now: int) -> None:
        # A NAK of either kind acknowledges what is before it.
        acknowledged = psn if syndrome & KIND == 0 else psn - 1
        outstanding = [*self.sent, *self.to_send]
        if not outstanding or not 0 <= compare(acknowledged, outstanding[0].psn - 1) <= len(outstanding):
            return
        while outstanding and compare(outstanding[0].psn, acknowledged) <= 0:
            self.timer, self.told_to_wait, self.retries = now + TIMEOUT_NS, False, 0
            if outstanding.pop(0).last:
                self.engine.acknowledged()
        sent = sum(segment in outstanding for segment in self.sent)
        self.sent = deque(outstanding[:sent])
        self.to_send = deque(outstanding[sent:])
        if not self.sent:
            self.timer = None
        if syndrome == NAK_SEQUENCE_ERROR:
            self._go_back()
        if syndrome & KIND == RNR_NAK_SYNDROME and outstanding and outstanding[0].psn == psn:
            self.timer, self.told_to_wait, self.retries = now + NOT_READY_NS, True, 0

    def _on_data(self, packet: RocePacket, now: int) -> None:
        distance = compare(packet.bth.psn, self.expected)
        if distance < 0:
            self.answers.append((ACK_SYNDROME, (self.expected - 1) % PSN_MODULUS))
            return
        if distance > 0:
            if not self.nak_sent:
                self.answers.append((NAK_SEQUENCE_ERROR, self.expected))
            self.nak_sent = True
            return
        if packet.bth.opcode in (Opcode.SEND_FIRST, Opcode.SEND_ONLY) and self.posted == 0:
            self.answers.append((RNR_NAK_SYNDROME | 12, self.expected))
            return
        self.expected = (self.expected + 1) % PSN_MODULUS
        self.nak_sent = False
        self.partial += packet.payload
        last = packet.bth.opcode in (Opcode.SEND_LAST, Opcode.SEND_ONLY)
        if last or packet.bth.ack_req:
            self.answers.append((ACK_SYNDROME, packet.bth.psn))
        if last:
            self.posted -= 1
            self.waiting.append(self.partial)
            self.partial = b""
            self._take(now)

    def _take(self, now: int) -> None:
        while self.waiting and self.engine.receive(self.waiting[0], now) == TAKEN:
            self.waiting.popleft()
            self.posted += 1

    def _answer(self, syndrome: int, psn: int) -> bytes:
        config = self.config
        return RocePacket(
            ethernet=self.to_predecessor,
            ip=IPv4(src=config.ip, dst=config.predecessor.ip, total_length=0),
            udp=Udp(length=0),
            bth=Bth(opcode=Opcode.ACKNOWLEDGE, dest_qp=config.predecessor.qpn_out, psn=psn),
            aeth=Aeth(syndrome=syndrome, msn=0),
        ).build()

    def _data(self, segment: Segment) -> bytes:
        config = self.config
        return RocePacket(
            ethernet=self.to_successor,
            ip=IPv4(src=config.ip, dst=config.successor.ip, total_length=0),
            udp=Udp(length=0),
            bth=Bth(
                opcode=segment.opcode,
                dest_qp=config.successor.qpn_in,
                psn=segment.psn,
                ack_req=segment.last,
            ),
            payload=segment.payload,
        ).build()


AnyEndpoint = Endpoint | NicEndpoint
