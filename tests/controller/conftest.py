"""The switches that the tests of this folder talk to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from controller.config import Target
from tests.controller.running_switch import RunningSwitch

_NO_BMV2 = pytest.mark.skipif(
    shutil.which("simple_switch_grpc") is None, reason="no simple_switch_grpc on the PATH"
)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(Target.EMBEDDED, id="embedded"),
        pytest.param(Target.BMV2, id="bmv2", marks=[pytest.mark.bmv2, pytest.mark.slow, _NO_BMV2]),
    ],
)
def session_switch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningSwitch]:
    """A switch for the session."""
    process = RunningSwitch(request.param, tmp_path_factory.mktemp("switch"))
    try:
        process.start()
        yield process
    finally:
        process.stop()


@pytest.fixture
def switch_process(session_switch: RunningSwitch) -> RunningSwitch:
    """A running switch; what is in it is whatever the test before left there."""
    session_switch.ensure_runs()
    return session_switch
