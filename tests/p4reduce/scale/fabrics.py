"""Fabrics for tests: those on which payload has exactly the rate that a formula means."""

from __future__ import annotations

from typing import Any

from p4reduce.scale.fabric import Fabric, Framing

FRAMING = Framing()
_MESSAGE = FRAMING.payload_bytes
FACTOR = FRAMING.wire_bytes(_MESSAGE) / _MESSAGE
RATE = 100e9


def fabric(*, hosts: int, gpus_per_host: int, k: float = 12.0, **changes: Any) -> Fabric:
    """Return a fabric with `RATE` left of the NICs' when headers are paid, and next to no latencies."""
    given: dict[str, Any] = {
        "hosts": hosts,
        "gpus_per_host": gpus_per_host,
        "rate": RATE * FACTOR,
        "intra_rate": k * RATE,
        "uplink_rate": 16 * RATE * FACTOR,
        "alpha_s": 1e-9,
    }
    return Fabric(**(given | changes))
