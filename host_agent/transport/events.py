"""Reports of an endpoint: events, counters, and its progress."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum


class EventType(IntEnum):
    """Kinds of events. RECEIVED: the receive buffer is complete. COMPLETED: all sent is acknowledged, too."""

    RECEIVED = 1
    COMPLETED = 2
    FAILED = 3


class FailureCode(IntEnum):
    """The reason why an endpoint gave up. Its message's data did not reach the user's buffer as a sum."""

    NOT_A_RESULT = 1  # an aggregated message without the RESULT flag: no switch summed it
    MISMATCH = 2  # the switch saw different headers from different ranks
    BAD_HEADER = 3  # magic or version
    FOREIGN = 4  # another job, generation or rank
    WRONG_MESSAGE = 5  # another message number than the next one
    WRONG_SHAPE = 6  # element count, packets, operation or element type differ from what was posted
    BAD_SEQUENCE = 7  # First/Middle/Last/Only out of order, or a wrong payload length
    RETRY_LIMIT = 8
    REMOTE_ERROR = 9  # a NAK other than PSN sequence error or RNR
    LOCAL_ERROR = 10  # the RDMA device reported an error of its own


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A fatal event: where, why, and the start of the received aggregation header, if it was at fault."""

    code: FailureCode
    message: int
    psn: int
    text: str
    header: bytes


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to the operation `op_id` (0 where it concerns the connection)."""

    type: EventType
    op_id: int
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class Counters:  # in the order of `p4r_counters`
    """Counts since the endpoint was made. Times are of the endpoint's clock, nanoseconds, 0 if never.

    On an RDMA device (`VerbsLink`), what the device does by itself is what its hw_counters say, or 0.
    """

    data_packets_sent: int
    data_bytes_sent: int  # whole frames
    retransmitted_packets: int
    retransmitted_bytes: int
    timeouts: int
    go_backs: int
    acks_sent: int
    naks_sent: int
    rnr_naks_sent: int
    acks_received: int
    naks_received: int
    rnr_naks_received: int
    data_packets_received: int
    data_bytes_received: int
    duplicates_received: int
    out_of_order_received: int
    icrc_errors: int
    malformed: int
    foreign: int  # well-formed frames of another address or QP
    stale_acks: int  # acknowledgements of what is acknowledged already, or was never sent
    messages_sent: int  # acknowledged
    messages_received: int
    results_received: int  # those with the RESULT flag
    implied_acks: int  # messages known to have arrived from a later result
    early_messages: int  # PASS messages that arrived before they were posted
    tail_probes: int  # times that the ends of what was sent were sent again after some silence
    kept_packets: int  # packets behind a gap that were kept, of selective retransmission
    first_sent_ns: int
    last_sent_ns: int
    first_received_ns: int
    last_received_ns: int
    frames_blocked: int  # driver only: the interface was full, sent later
    send_errors: int  # driver only: frames lost because the interface was down
    ring_drops: int  # driver only: frames the kernel had no room for in the receive ring

    @classmethod
    def none(cls) -> Counters:
        """Return zeros."""
        return cls(**{field.name: 0 for field in fields(cls)})

    def __add__(self, later: Counters) -> Counters:
        """Add the counters of two connections, one after the other."""
        sums = {field.name: getattr(self, field.name) + getattr(later, field.name) for field in fields(self)}
        for name in sums:
            if name.endswith("_ns"):
                first, last = getattr(self, name), getattr(later, name)
                sums[name] = (first or last) if name.startswith("first") else (last or first)
        return Counters(**sums)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of an endpoint. Messages count from 0 and wrap after 2^32; PSNs have 24 bits."""

    posted_messages: int  # number of the next message to post
    sent_messages: int  # next message to send
    acked_messages: int  # oldest message not fully acknowledged
    received_messages: int  # next message to receive
    first_unacked_psn: int
    next_psn: int
    expected_psn: int
    oldest_unacked_since_ns: int  # 0: nothing unacknowledged
    timeouts_in_a_row: int
    operations: int  # posted and not completed
    failed: bool
    numbered: int  # `posted_messages` that does not come round
