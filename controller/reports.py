"""Plans and revisions as the service's messages."""

from __future__ import annotations

from collections.abc import Sequence

from controller.api import controller_pb2 as pb
from controller.configuration import Report, Setting, SwitchReport
from controller.difference import Change
from controller.entries import Group
from controller.push import shipped_program
from controller.revisions import Revision
from controller.updates import UpdateKind
from controller.vocabulary import Vocabulary

_KINDS = {
    UpdateKind.INSERT: pb.Change.ADD,
    UpdateKind.MODIFY: pb.Change.CHANGE,
    UpdateKind.DELETE: pb.Change.DELETE,
}


def report_message(report: Report, vocabulary: Vocabulary) -> pb.PlanReport:
    """A plan, or what came of it."""
    return pb.PlanReport(
        revision=report.revision,
        switches=[_switch(switch, vocabulary) for switch in report.switches],
        applied=report.applied,
        settings=[_setting(setting, applied=report.applied) for setting in report.settings],
    )


def revision_messages(revisions: Sequence[Revision]) -> pb.RevisionList:
    """All revisions; the last is current."""
    return pb.RevisionList(
        revisions=[
            pb.Revision(
                number=revision.number,
                applied_at=revision.applied_at,
                document=revision.document,
                current=revision is revisions[-1],
            )
            for revision in revisions
        ]
    )


def _switch(report: SwitchReport, vocabulary: Vocabulary) -> pb.SwitchPlan:
    message = pb.SwitchPlan(
        name=report.name,
        connected=report.connected,
        state=report.state,
        unchanged=report.found.unchanged,
        error=report.error,
    )
    if report.replaced:
        message.changes.add(
            kind=pb.Change.CHANGE,
            what="pipeline",
            key="forwarding pipeline config",
            before="another program",
            after=f"the controller's, SHA-256 {shipped_program().sha256[:12]}",
            drift=True,
            applied=report.pushed,
        )
    message.changes.extend(
        _change(change, vocabulary, applied=change in report.done, error=report.refused.get(change, ""))
        for change in report.found.changes
    )
    return message


def _change(change: Change, vocabulary: Vocabulary, *, applied: bool, error: str) -> pb.Change:
    return pb.Change(
        kind=_KINDS[change.kind],
        what="group" if isinstance(change.entry, Group) else "entry",
        key=vocabulary.key_words(change.entry),
        before=vocabulary.value_words(change.before) if change.before is not None else "",
        after=vocabulary.value_words(change.after) if change.after is not None else "",
        drift=change.drift,
        applied=applied,
        error=error,
    )


def _setting(setting: Setting, *, applied: bool) -> pb.Change:
    if not setting.before:
        kind = pb.Change.ADD
    else:
        kind = pb.Change.CHANGE if setting.after else pb.Change.DELETE
    return pb.Change(
        kind=kind,
        what=setting.what,
        key=setting.key,
        before=setting.before,
        after=setting.after,
        applied=applied,
    )
