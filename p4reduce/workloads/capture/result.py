"""What became of a capture that was played."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of some times in seconds: the median, what 99 of 100 do not exceed, the largest."""

    p50_s: float
    p99_s: float
    max_s: float

    @staticmethod
    def of(times_ns: NDArray[np.int64]) -> Spread | None:
        """None of none."""
        if not len(times_ns):
            return None
        p50, p99, most = np.percentile(times_ns, (50, 99, 100)) / 1e9
        return Spread(p50_s=float(p50), p99_s=float(p99), max_s=float(most))


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """Of the packets from one address of the capture to another.

    Bytes are of frames, from the Ethernet header on. `reordered`: arrived behind a later one of its
    connection (RFC 4737). `late`: sent behind its time; None where packets have none (speed 0). `transit`:
    from sending to arrival, with the time in the queue of the sender's interface.
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
    """All of it. `left_out` has the packets of the file that cannot be played, by reason.

    `capture_s` is from the capture's first played packet to its last, `expected_s` the same at `speed` (None
    at speed 0), `sent_s` what it took, `received_s` until the last arrival. `unseen` arrived, but too many at
    a time for us to look at; they count as lost. `unexpected` arrived changed.
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
        """For programs; the keys are the names of the fields."""
        return {"kind": "capture", **asdict(self)}
