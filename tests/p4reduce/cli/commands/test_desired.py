"""`p4reduce plan`, `apply`, `rollback` and `revisions`, with a controller that is only pretended."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from controller.api.errors import InvalidRequestError, NotFoundError
from p4reduce.cli import app as cli
from p4reduce.cli.commands import desired as commands

ROUTE = "SwitchIngress.forward.route[dst_ip=10.9.0.0/16]"
DOCUMENT = "drain: [s2]\n"


def report(*, done: bool = False) -> pb.PlanReport:
    """Return a plan with a change of each kind, one of them by hand, and a switch that is away."""
    kinds = pb.Change
    return pb.PlanReport(
        revision=3,
        applied=done,
        settings=[pb.Change(kind=kinds.ADD, what="drain", key="s2", after="drained", applied=done)],
        switches=[
            pb.SwitchPlan(
                name="l1",
                connected=True,
                state="connected",
                unchanged=12,
                changes=[
                    pb.Change(
                        kind=kinds.CHANGE,
                        what="entry",
                        key=ROUTE,
                        before="drop()",
                        after="next_hop(port=4)",
                        drift=True,
                        applied=done,
                    ),
                    pb.Change(
                        kind=kinds.DELETE,
                        what="group",
                        key="multicast group 5000",
                        before="port 1 instance 1",
                        applied=done,
                    ),
                ],
            ),
            pb.SwitchPlan(name="l2", connected=False, state="unreachable: it was unplugged"),
            pb.SwitchPlan(name="s1", connected=True, state="connected", unchanged=7),
        ],
    )


def nothing(*, done: bool = False) -> pb.PlanReport:
    switch = pb.SwitchPlan(name="l1", connected=True, state="connected", unchanged=12)
    return pb.PlanReport(revision=3, applied=done, switches=[switch])


def refused() -> pb.PlanReport:
    answer = report()
    switch = answer.switches[0]
    switch.error = "switch l1 refused 1 of 2 updates"
    switch.changes[0].error = "RESOURCE_EXHAUSTED: the table is full"
    switch.changes[1].applied = True
    return answer


class FakeAdmin:
    """Gives the answers it was made with, and remembers what it was asked."""

    def __init__(self, answer: pb.PlanReport | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Any]] = []

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def plan(self, document: str) -> pb.PlanReport:
        return self._answer("plan", document)

    def apply(self, document: str) -> pb.PlanReport:
        return self._answer("apply", document)

    def rollback(self, revision: int | None) -> pb.PlanReport:
        return self._answer("rollback", revision)

    def revisions(self) -> list[pb.Revision]:
        return [
            pb.Revision(number=1, applied_at=1e9, document=DOCUMENT),
            pb.Revision(number=2, applied_at=2e9, document="# why\ndrain: []", current=True),
        ]

    def _answer(self, what: str, value: Any) -> pb.PlanReport:
        self.asked.append((what, value))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Callable[[pb.PlanReport | Exception], FakeAdmin]:
    def make(answer: pb.PlanReport | Exception) -> FakeAdmin:
        admin = FakeAdmin(answer)
        monkeypatch.setattr(commands, "client", lambda cluster: admin)
        return admin

    return make


Controller = Callable[["pb.PlanReport | Exception"], FakeAdmin]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "wanted.yaml"
    path.write_text(DOCUMENT)
    return path


def test_plan_says_what_would_change(controller: Controller, file: Path, capsys: Captured) -> None:
    admin = controller(report())
    assert cli.run(["plan", str(file)]) == 0
    assert admin.asked == [("plan", DOCUMENT)]
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "controller",
        "  + drain s2: drained",
        "l1",
        f"  ~ entry {ROUTE}  (changed by hand)",
        "      drop()",
        "      => next_hop(port=4)",
        "  - group multicast group 5000",
        "      port 1 instance 1",
        "Plan: 1 to add, 1 to change, 1 to delete. 1 of them because of changes by hand. "
        "Revision 3 is in force.",
    ]
    assert "l2 cannot be written now (unreachable: it was unplugged): it gets its part when" in captured.err


def test_plan_of_no_changes(controller: Controller, capsys: Captured) -> None:
    admin = controller(nothing())
    assert cli.run(["plan"]) == 0
    assert admin.asked == [("plan", "")]
    assert capsys.readouterr().out == "No changes: all switches are as wanted. Revision 3 is in force.\n"


@pytest.mark.parametrize(("answer", "code"), [(report(), 2), (nothing(), 0)])
def test_detailed_exit_codes(controller: Controller, answer: pb.PlanReport, code: int) -> None:
    controller(answer)
    assert cli.run(["plan", "--detailed-exitcode"]) == code
    assert cli.run(["plan", "--detailed-exitcode", "--json"]) == code


def test_json_has_all_of_it(controller: Controller, file: Path, capsys: Captured) -> None:
    controller(report())
    assert cli.run(["plan", str(file), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["summary"] == {"add": 1, "change": 1, "delete": 1, "drift": 1}
    assert [switch["name"] for switch in row["switches"]] == ["l1", "l2", "s1"]
    assert row["switches"][0]["changes"][0] == {
        "kind": "change",
        "what": "entry",
        "key": ROUTE,
        "before": "drop()",
        "after": "next_hop(port=4)",
        "drift": True,
        "applied": False,
        "error": None,
    }


def test_apply(controller: Controller, file: Path, capsys: Captured) -> None:
    admin = controller(report(done=True))
    assert cli.run(["apply", str(file)]) == 0
    assert admin.asked == [("apply", DOCUMENT)]
    assert "Applied: 1 added, 1 changed, 1 deleted. Revision 3 is in force.\n" in capsys.readouterr().out


def test_apply_again_is_a_no_op(controller: Controller, file: Path, capsys: Captured) -> None:
    controller(nothing(done=True))
    assert cli.run(["apply", str(file)]) == 0
    assert capsys.readouterr().out.startswith("No changes")


def test_apply_that_a_switch_refuses(controller: Controller, file: Path, capsys: Captured) -> None:
    controller(refused())
    assert cli.run(["apply", str(file)]) == 1
    captured = capsys.readouterr()
    assert (
        f"~ entry {ROUTE}  (changed by hand)  NOT DONE: RESOURCE_EXHAUSTED: the table is full" in captured.out
    )
    assert "- group multicast group 5000\n" in captured.out
    assert "switch l1 refused 1 of 2 updates" in captured.err
    assert "'p4reduce rollback' makes the switches hold that again" in captured.err


@pytest.mark.parametrize(("words", "asked"), [([], None), (["2"], 2), (["0"], 0)])
def test_rollback(controller: Controller, words: list[str], asked: int | None) -> None:
    admin = controller(nothing(done=True))
    assert cli.run(["rollback", *words]) == 0
    assert admin.asked == [("rollback", asked)]


def test_rollback_to_what_is_not_there(controller: Controller, capsys: Captured) -> None:
    controller(NotFoundError("there is no revision 9: known are 1 to 2"))
    assert cli.run(["rollback", "9"]) == 1
    assert "there is no revision 9" in capsys.readouterr().err


def test_mistakes_are_told_with_the_file(controller: Controller, file: Path, capsys: Captured) -> None:
    controller(InvalidRequestError("line 1, drain[0]: 's9' is neither a spine nor a link"))
    assert cli.run(["apply", str(file)]) == 1
    assert f"p4reduce: {file}, line 1, drain[0]: 's9' is neither" in capsys.readouterr().err
    controller(InvalidRequestError("line 1, a: b\nline 2, c: d"))
    assert cli.run(["plan", str(file)]) == 1
    assert f"{file} is wrong:\n  line 1, a: b\n  line 2, c: d\n" in capsys.readouterr().err


def test_an_empty_file_wants_nothing(controller: Controller, file: Path) -> None:
    admin = controller(nothing(done=True))
    file.write_text(" \n")
    assert cli.run(["apply", str(file)]) == 0
    assert cli.run(["apply"]) == 0
    assert admin.asked == [("apply", "{}"), ("apply", "")]


def test_standard_input(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = controller(nothing())
    monkeypatch.setattr("sys.stdin", io.StringIO(DOCUMENT))
    assert cli.run(["plan", "-"]) == 0
    assert admin.asked == [("plan", DOCUMENT)]


def test_files_that_cannot_be_read(controller: Controller, tmp_path: Path, capsys: Captured) -> None:
    controller(nothing())
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert cli.run(["plan", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml: No such file" in capsys.readouterr().err
    assert cli.run(["plan", str(tmp_path / "binary")]) == 1
    assert "is not text in UTF-8" in capsys.readouterr().err


def test_revisions(controller: Controller, capsys: Captured) -> None:
    controller(nothing())
    assert cli.run(["revisions"]) == 0
    printed = capsys.readouterr().out
    assert "drain: [s2]" in printed
    assert "# why ... (2 lines)" in printed
    assert cli.run(["revisions", "--json"]) == 0
    assert [row["number"] for row in json.loads(capsys.readouterr().out)] == [1, 2]
    assert cli.run(["revisions", "1"]) == 0
    assert capsys.readouterr().out == DOCUMENT
    assert cli.run(["revisions", "7"]) == 1
    assert "there is no revision 7" in capsys.readouterr().err
