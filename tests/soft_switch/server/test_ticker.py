"""The thread that calls back when something is due."""

from __future__ import annotations

import threading

import pytest

from soft_switch.server.ticker import Ticker

LONGEST_NS = 2**63 - 1  # what a timeout in P4Runtime can be
WAIT_S = 10.0


@pytest.mark.parametrize("delay", [None, LONGEST_NS])
def test_however_far_the_next_deadline_is_it_can_be_woken(
    delay: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    asked, ticked = threading.Event(), threading.Event()

    def delay_ns() -> int | None:
        asked.set()
        return delay

    ticker = Ticker(ticked.set, delay_ns)
    ticker.start()
    assert asked.wait(WAIT_S)
    ticker.wake()
    assert ticked.wait(WAIT_S)
    ticker.stop()
    assert not [record for record in caplog.records if record.name.startswith("soft_switch")]
