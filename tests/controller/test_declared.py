"""Plan, apply and rollback with `python -m controller` and a real switch that somebody changes by hand."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from controller.api.errors import InvalidRequestError
from controller.api.messages import Mode
from controller.configuration.vocabulary import Vocabulary
from controller.entries import Entry, TableEntry, table_entry
from controller.fabric.tables.forward import ROUTE
from controller.switches.p4rt import P4RuntimeClient
from controller.switches.pipeline import Program, shipped_program
from controller.switches.updates import Update, UpdateKind
from tests.controller.process import Process, config_of
from tests.controller.running_switch import DEVICE_ID, RunningSwitch, run_async
from tests.controller.service.served import Workers

pytestmark = pytest.mark.slow  # switch processes come and go

_PATIENCE_S = 30.0
DOCUMENT = """\
entries:
  s1:
    - {table: route, match: {dst_ip: 10.9.0.0/16}, action: drop}
    - table: mac
      match: {dst_mac: 01:00:5e:00:00:01}
      action: flood
      params: {group: 5000}
groups:
  s1: {5000: [1, 2, {port: 3, instance: 7}]}
"""
DROP = "SwitchIngress.forward.drop"
MINE = table_entry(ROUTE, {"dst_ip": (0x0B000000, 8)}, DROP)
Kinds = pb.Change


@pytest.fixture
def process(tmp_path: Path, switch_process: RunningSwitch) -> Iterator[Process]:
    # With a database of its own, it would leave alone what an earlier test's job has on the switch.
    switch_process.restart()
    made = Process(tmp_path, config_of(switch_process.address, heartbeat_interval_s=0.2))
    made.start()
    yield made
    made.stop(signal.SIGKILL)


def by_hand(switch: RunningSwitch, change: Callable[[set[Entry]], list[Update]]) -> None:
    """Take the switch over, change it, and give it back; `change` is told what it holds."""

    async def main() -> None:
        client = P4RuntimeClient(
            switch.address, device_id=DEVICE_ID, schema=shipped_program().schema, label="by hand"
        )
        async with client:
            assert (await client.open(1 << 21)).primary
            await client.write(change(await client.read_entries()))

    run_async(main())


def held(switch: RunningSwitch) -> set[Entry]:
    """Return the switch's entries, read by a client other than the controller."""

    async def main() -> set[Entry]:
        client = P4RuntimeClient(switch.address, device_id=DEVICE_ID, schema=shipped_program().schema)
        async with client:
            await client.open(1)
            return await client.read_entries()

    return run_async(main())


def plan_when_back(admin: AdminClient, document: str = "") -> pb.PlanReport:
    """Return the plan once the controller has the switch again."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        report = admin.plan(document)
        if report.switches[0].connected or time.monotonic() > deadline:
            return report
        time.sleep(0.05)


def kinds(report: pb.PlanReport) -> list[tuple[int, str, bool]]:
    """Return (kind, what, drift) of each of the only switch's changes."""
    return [(change.kind, change.what, change.drift) for change in report.switches[0].changes]


def test_all_of_it_beside_a_job(process: Process, switch_process: RunningSwitch) -> None:
    workers = Workers(process)
    sessions, readies = workers.run(3)
    assert {ready.mode for ready in readies} == {Mode.IN_NETWORK}
    with AdminClient(process.unix) as admin:
        before = held(switch_process)
        assert kinds(admin.plan()) == []
        report = admin.plan(DOCUMENT)
        assert kinds(report) == [
            (Kinds.ADD, "entry", False),
            (Kinds.ADD, "entry", False),
            (Kinds.ADD, "group", False),
        ]
        assert report.switches[0].unchanged == len(before)
        assert held(switch_process) == before
        assert admin.apply(DOCUMENT).revision == 1
        applied = held(switch_process)
        assert applied > before
        again = admin.apply(DOCUMENT)
        assert (again.applied, again.revision, kinds(again)) == (True, 1, [])

        def change(found: set[Entry]) -> list[Update]:
            ours = next(entry for entry in sorted(applied - before, key=str))
            return [Update(UpdateKind.INSERT, MINE), Update(UpdateKind.DELETE, ours)]

        by_hand(switch_process, change)
        report = plan_when_back(admin)
        assert sorted(kinds(report)) == [
            (Kinds.ADD, report.switches[0].changes[0].what, True),
            (Kinds.DELETE, "entry", True),
        ]
        assert {flow.on_switch for flow in admin.flows("train")} == {True}
        report = admin.rollback()
        assert (report.applied, report.revision) == (True, 1)
        assert held(switch_process) == applied
        assert kinds(admin.plan()) == []

        assert admin.rollback(0).revision == 2
        assert held(switch_process) == before
        assert [revision.number for revision in admin.revisions() if revision.current] == [2]
    workers.leave(sessions)
    for session in sessions:
        session.close()
    assert process.stop() == 0
    assert "Traceback" not in process.log.read_text()


def test_it_survives_controller_and_switch(process: Process, switch_process: RunningSwitch) -> None:
    with AdminClient(process.unix) as admin:
        admin.apply(DOCUMENT)
        applied = held(switch_process)
    process.stop(signal.SIGKILL)
    process.start()
    with AdminClient(process.unix) as admin:
        assert held(switch_process) == applied
        assert kinds(admin.plan()) == []
        switch_process.restart()
        report = plan_when_back(admin)
        assert (report.revision, kinds(report)) == (1, [])
        assert held(switch_process) == applied


def test_a_wrong_document_changes_nothing(process: Process, switch_process: RunningSwitch) -> None:
    with AdminClient(process.unix) as admin:
        before = held(switch_process)
        with pytest.raises(InvalidRequestError, match=r"line 1, entries\.s2: there is no switch 's2'"):
            admin.apply(json.dumps({"entries": {"s2": []}, "groups": {"s1": {"5000": [1]}}}))
        assert admin.revisions() == []
        assert held(switch_process) == before


def test_what_a_switch_refuses(process: Process, switch_process: RunningSwitch) -> None:
    """Fill a table up; new entries are written before old ones are removed."""
    size = Vocabulary(shipped_program().schema).tables[ROUTE].size

    def fill(found: set[Entry]) -> list[Update]:
        room = size - sum(isinstance(entry, TableEntry) and entry.table == ROUTE for entry in found)
        return [
            Update(UpdateKind.INSERT, table_entry(ROUTE, {"dst_ip": (0x0B000000 + n, 32)}, DROP))
            for n in range(room)
        ]

    with AdminClient(process.unix) as admin:
        before = held(switch_process)
        by_hand(switch_process, fill)
        plan_when_back(admin)
        report = admin.apply(DOCUMENT)
        assert (report.applied, report.revision) == (False, 0)
        (switch,) = report.switches
        (refused,) = [change for change in switch.changes if not change.applied]
        assert refused.key == f"{ROUTE}[dst_ip=10.9.0.0/16]"
        assert refused.error
        assert f"refused 1 of {len(switch.changes)} updates" in switch.error
        assert admin.rollback().applied
        assert held(switch_process) == before
        assert admin.apply(DOCUMENT).revision == 1


def test_another_program(process: Process, switch_process: RunningSwitch) -> None:
    other = Program.read()
    other = Program(other.device_config, other.schema, other.sha256, other.cookie ^ 1)
    with AdminClient(process.unix) as admin:
        admin.apply(DOCUMENT)
        applied = held(switch_process)

        async def push() -> None:
            client = P4RuntimeClient(switch_process.address, device_id=DEVICE_ID, schema=other.schema)
            async with client:
                assert (await client.open(1 << 21)).primary
                await client.set_pipeline(other.device_config, cookie=other.cookie)
                report = admin.plan()
                assert not report.switches[0].connected
                assert "another controller is primary" in report.switches[0].state
                assert kinds(report)[0] == (Kinds.CHANGE, "pipeline", True)

        run_async(push())
        report = plan_when_back(admin)  # the controller has loaded its own again
        assert kinds(report) == []
        assert held(switch_process) == applied
