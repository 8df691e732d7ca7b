"""`python -m controller` as a process: with a real switch, and with what makes it refuse to start."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.admin import AdminClient
from controller.api.errors import UnreachableError
from controller.api.messages import Mode
from tests.controller.process import Process, config_of
from tests.controller.running_switch import RunningSwitch
from tests.controller.service.served import Workers

pytestmark = pytest.mark.slow  # switch processes come and go


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Process]]:
    made: list[Process] = []

    def start(config: dict[str, Any]) -> Process:
        made.append(Process(tmp_path, config))
        made[-1].start()
        return made[-1]

    yield start
    for process in made:
        process.stop(signal.SIGKILL)


def test_a_job_on_a_real_switch_survives_the_controllers_death(
    controller: Callable[[dict[str, Any]], Process], switch_process: RunningSwitch
) -> None:
    process = controller(config_of(switch_process.address, heartbeat_interval_s=0.2))
    workers = Workers(process)
    sessions, readies = workers.run(3)
    assert {ready.mode for ready in readies} == {Mode.IN_NETWORK}
    process.stop(signal.SIGKILL)
    process.start()
    with AdminClient(process.unix) as admin:
        assert [flow.on_switch for flow in admin.flows("train")] == [True] * 3
        workers.leave(sessions)
        assert admin.slots() == []
        deadline = time.monotonic() + 10.0  # the workers are told before the switch is cleaned
        while admin.status().switches[0].slots_used and time.monotonic() < deadline:
            time.sleep(0.05)
        assert admin.status().switches[0].slots_used == 0
        assert admin.flows() == []
    for session in sessions:
        session.close()
    assert process.stop() == 0
    assert "Traceback" not in process.log.read_text()


def test_without_its_switch_it_serves_after_a_while_and_says_what_is_missing(
    controller: Callable[[dict[str, Any]], Process],
) -> None:
    process = controller(config_of("127.0.0.1:1", switch_timeout_s=0.5))
    with AdminClient(process.unix) as admin:
        (switch,) = admin.status().switches
        assert not switch.connected
        assert "unreachable" in switch.state
        with pytest.raises(UnreachableError, match="switch s1"):
            admin.ports()
    assert process.stop(signal.SIGINT) == 0
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: (p.directory / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda p: (p.directory / "config.json").unlink(), "cannot read"),
        (lambda p: (p.directory / "c.db").write_text("no database" * 100), "is not a database"),
        (lambda p: setattr(p, "address", "192.0.2.1:80"), "cannot listen on 192.0.2.1:80"),
    ],
    ids=["no JSON", "no file", "no database", "not our address"],
)
def test_what_makes_it_refuse_to_start_is_one_sentence(
    tmp_path: Path, change: Callable[[Process], object], text: str
) -> None:
    process = Process(tmp_path, config_of("127.0.0.1:1", switch_timeout_s=0.1))
    change(process)
    child = process.spawn()
    assert child.wait(30) == 1
    words = process.log.read_text()
    assert text in words
    assert "Traceback" not in words
