"""Parts that all tests have in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Which version of a program runs must not depend on how fast this machine compiles.
os.environ.setdefault("SOFT_SWITCH_COMPILE", "wait")

# Several processes test at once: threads of their own, which wait in a loop, take what others need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that runs the tests in the background has them ignore Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nor must the outcome of a test: Hypothesis fails examples that take 200 ms, and input that is slow to draw.
settings.register_profile("any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("any-speed"), max_examples=20)  # of 'make check'
settings.load_profile("any-speed")

# A shell without job control has what it starts in the background ignore Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _ctrl_c_stays() -> Iterator[None]:
    """Fail the test that leaves Ctrl-C to a handler of its own: later ones would not hear it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    after = signal.getsignal(signal.SIGINT)
    if after is not before:
        signal.signal(signal.SIGINT, before)
        pytest.fail(f"this test has left {after} to handle SIGINT: let it put back {before}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules that take long first, so that several processes end at about the same time."""
    long = {
        item.path
        for item in items
        if {"emulation", "slow", "long"} & {mark.name for mark in item.iter_markers()}
    }
    items.sort(key=lambda item: item.path not in long)
