"""Results of a capture that was played."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median, 99th percentile and maximum of some times, in seconds."""

    p50_s: float
    p99_s: float
    max_s: float

    @staticmethod
    def of(times_ns: NDArray[np.int64]) -> Spread | None:
        """Compute the spread of some times; None if there are none."""
        if not len(times_ns):
            return None
        p50, p99, most = np.percentile(times_ns, (50, 99, 100)) / 1e9
        return Spread(p50_s=float(p50), p99_s=float(p99), max_s=float(most))


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """Results of the packets from one address of the capture to another.

    Bytes are of frames, from the Ethernet header on. `reordered`: arrived behind a later packet of the same
    connection (RFC 4737). `late`: how far packets were sent behind their times; None if they have none
    (speed 0). `transit`: from sending to arrival, with the time in the queue of the sender's interface.
    """

    source: str
    destination: str
    from_host: str
    to_host: str
    packets: int
    bytes: int
    sent: int
    sent_bytes: int
    received: int
    lost: int
    reordered: int
    duplicates: int
    late: Spread | None
    transit: Spread | None


@dataclass(frozen=True, kw_only=True)
class CaptureResult:
    """All results. `left_out` counts the packets of the file that cannot be played, by reason.

    `capture_s` is from the capture's first played packet to its last, `expected_s` the same at `speed` (None
    at speed 0), `sent_s` the time that sending took, `received_s` until the last arrival. `unseen` packets
    arrived, but too many at a time to be looked at; they count as lost. `unexpected` packets arrived changed.
    """

    file: str
    cluster: str
    speed: float
    file_packets: int
    left_out: dict[str, int]
    notes: tuple[str, ...]
    hosts: dict[str, str]
    pairs: tuple[PairResult, ...]
    packets: int
    bytes: int
    sent: int
    received: int
    lost: int
    reordered: int
    duplicates: int
    unseen: int
    unexpected: int
    late: Spread | None
    transit: Spread | None
    capture_s: float
    expected_s: float | None
    sent_s: float
    received_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the results for programs; the keys are the names of the fields."""
        return {"kind": "capture", **asdict(self)}
