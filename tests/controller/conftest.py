"""The switches that the tests of this folder talk to."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from controller.config import Config, Target
from tests.controller.bench import RACK, Bench
from tests.controller.running_switch import RunningSwitch, run_async

_NO_BMV2 = pytest.mark.skipif(
    shutil.which("simple_switch_grpc") is None, reason="no simple_switch_grpc on the PATH"
)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in an event loop, with the async context managers among its arguments entered."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def test() -> None:
        async with AsyncExitStack() as stack:
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**given)

    run_async(test())
    return True


@pytest.fixture
def b(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """The bench: what `parametrize("b", …, indirect=True)` says, the module's CONFIG, or one rack."""
    config: Config = getattr(request, "param", getattr(request.module, "CONFIG", RACK))
    return Bench(tmp_path / "c.db", config)


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
