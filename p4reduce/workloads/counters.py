"""Meaning of each of a flow's counters (docs/p4-program.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEANING: Final[Mapping[str, str]] = {
    "aggregated": "added to a sum, or the first of one",
    "completed": "of these, the ones that completed a sum",
    "partials": "a rack's sums that went up to a spine, repeated ones too",
    "results": "sums of all racks that came down and were kept",
    "passed": "not summed but sent on, as ring and broadcast do",
    "acks": "acknowledgements that went through",
    "asked": "questions of a leaf for a sum that a spine did not have yet; it answers when it has",
    "late": "a result or question that came when its slot had nothing for it; dropped",
    "duplicate": "came again before its sum was complete; dropped",
    "replayed": "came again after its sum was complete; answered with the sum",
    "stale": "of a message that is over; its sender gets no sum for it",
    "not_ready": "came again before its sum was complete; a NIC was asked to wait (RNR NAK)",
    "mismatch": "the workers' calls disagree about size, type or operation",
    "no_uplink": "there was no spine to send a rack's sum to; dropped",
    "bad_icrc": "damaged on the way (ICRC); dropped",
    "unplaced": "belongs to no message that the flow may be at; dropped",
    "foreign": "aimed at a worker's queue pair, but not from its peer; dropped",
}
AGAIN: Final = ("duplicate", "replayed")
SENT_AGAIN: Final = (
    "Nothing has to be lost for packets to be sent again: who hears nothing for a while repeats what may be "
    "missing, as when another worker is late or the machine is busy, and what comes twice is dropped"
)
