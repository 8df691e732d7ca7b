"""A GPU that its machine's others wait for is named in the log, again and again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from host_agent.front import Collectives
from tests.host_agent.machine.machines import Machines
from tests.host_agent.waiting import eventually


def test_who_is_waited_for_is_named_every_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name it every 50 ms here, in two collectives of the same words."""
    monkeypatch.setattr("host_agent.machine.communicator.NOTICE_S", 0.05)
    group = Machines(2, 2, timeout_s=None)
    late = group.communicators[3]
    try:
        for _ in range(2):
            before, goes = len(notices(caplog)), threading.Event()

            def call(c: Collectives, goes: threading.Event = goes) -> int:
                if c is late:
                    assert goes.wait(60)
                return int(c.all_reduce(np.ones(1, np.int32))[0])

            with ThreadPoolExecutor() as pool:
                results = pool.submit(group.run, call)
                try:
                    wanted = before + 3
                    eventually(lambda wanted=wanted: len(notices(caplog)) >= wanted)  # type: ignore[misc]
                finally:
                    goes.set()
                assert results.result() == [4] * 4
    finally:
        group.close()


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    what = "all_reduce(SUM) of 1 int32: GPU 1 (rank 3) of this machine has come no further for"
    return [message for message in caplog.messages if message.startswith(what) and "waiting on" in message]
