"""Comparison of this switch and BMv2 side by side: same input, and the same has to leave both."""

from __future__ import annotations

from collections.abc import Sequence

from tests.soft_switch.switches import Bench, Fence, Switch

PORTS = (1, 2, 3, 4)
Frames = Sequence[tuple[int, bytes]]
Both = tuple[list[Switch], list[Bench]]


def assert_alike(both: Both, frames: Frames, *, batch: int = 1) -> dict[int, list[bytes]]:
    """Assert that the same leaves both, and return it."""
    switches, benches = both
    ours, theirs = (bench.play(frames, batch=batch) for bench in benches)
    for port in PORTS:
        for number, (a, b) in enumerate(zip(ours[port], theirs[port], strict=False)):
            assert a.hex() == b.hex(), f"frame {number} that left port {port}"
        assert len(ours[port]) == len(theirs[port])
    assert switches[0].counters() == switches[1].counters()
    return ours


class BeforeParser(Fence):
    """Fence for programs that do not look at IP: any frame whose first bytes say `forward to port 1`."""

    def __init__(self, head: bytes) -> None:
        self.head = head

    def frame(self, port: int) -> bytes:
        return self.head
