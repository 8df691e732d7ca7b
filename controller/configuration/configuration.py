"""Plans, application and rollback of the operator's document.

    plan: inspect each switch: wanted_entries(document) against read_entries() ──► changes, drift or not
    apply: one WriteRequest a switch, each in turn ──► all taken? ──► in force, and a new revision

A document is in force once no switch has refused any of it; until then the previous revision is. A switch
that is away gets its part when it is back, together with everything else that it should hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controller.api.errors import ControllerError, NotPossibleError
from controller.configuration.desired import Desired, parse
from controller.configuration.marked import DocumentError
from controller.configuration.vocabulary import Vocabulary
from controller.database.revisions import Revision, Revisions
from controller.entries import key_of
from controller.fabric.routes import base_entries
from controller.orchestration.registry import Registry
from controller.slots.admission import parse_quotas
from controller.switches.difference import NO_DIFFERENCE, Change, Difference, batch, difference
from controller.switches.managed_switch import ManagedSwitch
from controller.switches.pipeline import shipped_program
from controller.switches.updates import SwitchError, Update

logger = logging.getLogger(__name__)

_PATIENCE_S = 2.0  # for what moves, or a switch that has just come and is not ready yet


@dataclass
class SwitchReport:
    """The changes to a switch, planned or made.

    `state`: why nothing is known of a switch that is not connected. `error`: why not all could be done.
    """

    name: str
    connected: bool
    state: str
    replaced: bool = False  # somebody has loaded another program
    found: Difference = NO_DIFFERENCE
    done: set[Change] = field(default_factory=set)
    refused: dict[Change, str] = field(default_factory=dict)
    pushed: bool = False
    error: str = ""


@dataclass(frozen=True)
class Setting:
    """A setting of the controller itself in the document: `what` is "drain" or "quota"."""

    what: str
    key: str
    before: str
    after: str


@dataclass(frozen=True)
class Report:
    """A plan, or the result of carrying it out. `revision`: the one in force."""

    revision: int
    switches: tuple[SwitchReport, ...]
    settings: tuple[Setting, ...]
    applied: bool = False


class Configuration:
    """The operator's document and its revisions. Call `load` before the switches start."""

    def __init__(self, registry: Registry, revisions: Revisions) -> None:
        self.vocabulary = Vocabulary(shipped_program().schema)
        self.broken = ""  # why the document that was applied last is not in force
        self._registry = registry
        self._revisions = revisions
        self._base = {
            switch.name: base_entries(registry.config, switch) for switch in registry.config.switches
        }
        self._in_force = Desired()
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Future[Report]] = set()

    def load(self) -> None:
        """Put the document that was applied last in force. Leave out one that does not fit any more."""
        revision = self._revisions.current()
        try:
            self._put_in_force(self._parse_revision(revision))
        except DocumentError as error:
            self.broken = str(error)
            logger.error("%s; it is not in force", error)

    def revisions(self) -> list[Revision]:
        """Return all revisions that are kept, oldest first."""
        return self._revisions.all()

    async def plan(self, document: str) -> Report:
        """Return the changes that `apply` would make.

        With an empty document, return the differences from the document that was applied last.
        """
        async with self._turn:
            revision = self._revisions.current()
            desired = self._desired(document, revision)
            await self._quiet()
            self._check_ways(desired)
            inspections = [self._inspect(switch, desired) for switch in self._registry.switches.values()]
            switches = await asyncio.gather(*inspections)
            return Report(revision.number, tuple(switches), self._settings(desired))

    async def apply(self, document: str) -> Report:
        """Apply a document. Raise DocumentError.

        The report lists what a switch refused, and is not `applied` then.
        """

        return await self._to_the_end(lambda: (self._desired(document, self._revisions.current()), document))

    async def rollback(self, number: int | None) -> Report:
        """Go back to the document that was applied last, or to a revision, which becomes a new one.

        Raise NotFoundError if there is no such revision.
        """

        def wanted() -> tuple[Desired, str]:
            revision = self._revisions.current() if number is None else self._revisions.get(number)
            return self._parse_revision(revision), revision.document

        return await self._to_the_end(wanted)

    # Inside

    async def _to_the_end(self, wanted: Callable[[], tuple[Desired, str]]) -> Report:
        """Apply it to the end, even if the caller goes away: no switch may stay half written."""

        async def work() -> Report:
            async with self._turn:
                return await self._apply(*wanted())

        task = asyncio.ensure_future(work())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    def _desired(self, document: str, current: Revision) -> Desired:
        return self._parse(document) if document.strip() else self._parse_revision(current)

    def _parse(self, document: str) -> Desired:
        return parse(document, self._registry.links.graph, self.vocabulary, self._base)

    def _parse_revision(self, revision: Revision) -> Desired:
        try:
            return self._parse(revision.document)
        except DocumentError as error:
            raise DocumentError(
                f"revision {revision.number} does not fit this fabric any more: {error}"
            ) from error

    async def _inspect(self, switch: ManagedSwitch, desired: Desired) -> SwitchReport:
        """Compare a switch with a document, while no job of ours is written to it."""
        await _come(switch)
        async with switch.lock:
            return await self._inspect_locked(switch, desired)

    async def _inspect_locked(self, switch: ManagedSwitch, desired: Desired) -> SwitchReport:
        """Compare a switch with a document, also while another controller is the primary."""
        control = switch.switch
        try:
            replaced = not await control.runs_our_program()
            found = set() if replaced else await control.read_entries()
        except SwitchError as error:
            return SwitchReport(switch.name, False, control.state if not control.connected else str(error))
        wanted = self._registry.manager.rerouting.wanted_entries(
            switch.name, drained=desired.drain, extra=desired.on(switch.name)
        )
        report = SwitchReport(switch.name, control.connected and switch.ready, control.state, replaced)
        report.found = self._in_order(difference(found, wanted, control.written))
        return report

    def _in_order(self, found: Difference) -> Difference:
        order = self.vocabulary.order
        return replace(
            found, changes=tuple(sorted(found.changes, key=lambda change: order(key_of(change.entry))))
        )

    def _check_ways(self, desired: Desired) -> None:
        """Raise NotPossibleError if a drain would take away the last working path between two racks."""
        graph, state = self._registry.links.graph, self._registry.links.state
        then = state.draining(desired.drain)
        pair = graph.parted(state, then)
        if pair is not None:
            why = graph.why_apart(pair, then)
            raise NotPossibleError(f"drain: then {why}: wait until another is back, or drain less")

    async def _quiet(self) -> None:
        """Wait for changes that are under way by themselves, so that they are not reported."""
        await self._registry.manager.rerouting.quiet(_PATIENCE_S)

    async def _apply(self, desired: Desired, document: str) -> Report:
        await self._quiet()
        self._check_ways(desired)
        settings = self._settings(desired)
        pushed = await self._load_programs(desired)
        reports: list[SwitchReport] = []
        stopped = False
        async with self._registry.manager.writing():
            for switch in self._registry.switches.values():
                report = await self._inspect_locked(switch, desired)
                if report.connected and not stopped:
                    await self._write(switch, report)
                    stopped = bool(report.error)
                reports.append(report)
            if not stopped:
                self._record(desired, document)
        for report in reports:
            before = pushed.get(report.name)
            if before is not None:
                report.replaced, report.pushed = True, not before.error
                report.error = report.error or before.error
                if report.pushed:
                    report.found, report.done = before.found, set(before.found.changes)
        return Report(self._revisions.current().number, tuple(reports), settings, applied=not stopped)

    async def _load_programs(self, desired: Desired) -> dict[str, SwitchReport]:
        """Load our program into switches that run another one. Return the report on each before that."""
        reports = await asyncio.gather(
            *(self._inspect(switch, desired) for switch in self._registry.switches.values())
        )
        pushed = {report.name: report for report in reports if report.connected and report.replaced}
        for name, report in pushed.items():
            try:
                await self._registry.manager.push(name, force=True)
            except ControllerError as error:
                report.error = str(error)
        return pushed

    async def _write(self, switch: ManagedSwitch, report: SwitchReport) -> None:
        """Write all of a switch's changes in one batch."""
        changes = report.found.changes
        if not changes:
            return
        try:
            failures = await switch.switch.write_batch(batch(changes))
        except SwitchError as error:
            report.error = str(error)
            return
        refused: Mapping[Update, str] = {
            failure.update: f"{failure.code.name}{': ' if failure.message else ''}{failure.message}"
            for failure in failures
        }
        report.refused = {change: refused[change.update] for change in changes if change.update in refused}
        report.done = {change for change in changes if change.update not in refused}
        if refused:
            report.error = f"switch {switch.name} refused {len(refused)} of {len(changes)} updates"
        logger.info("switch %s: %d of %d updates applied", switch.name, len(report.done), len(changes))

    def _record(self, desired: Desired, document: str) -> None:
        """Put a document that no switch refused in force; record a revision if it says something new."""
        if self.broken or not desired.means(self._in_force):
            revision = self._revisions.add(document)
            logger.info("revision %d is in force", revision.number)
        self._put_in_force(desired)
        self.broken = ""

    def _put_in_force(self, desired: Desired) -> None:
        self._in_force = desired
        self._registry.manager.set_configuration(drained=desired.drain, extra=desired.entries)
        self._registry.waitlist.set_quotas(None if desired.quotas is None else parse_quotas(desired.quotas))

    def _settings(self, desired: Desired) -> tuple[Setting, ...]:
        """Return the differences between the document's own settings of the controller and those in force."""
        now = self._in_force
        drained = (dict.fromkeys(now.drain, "drained"), dict.fromkeys(desired.drain, "drained"))
        quotas = (_flat(now.quotas), _flat(desired.quotas))
        return tuple(
            Setting(what, key, before.get(key, ""), after.get(key, ""))
            for what, (before, after) in (("drain", drained), ("quota", quotas))
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
        )


async def _come(switch: ManagedSwitch) -> None:
    """Give a switch that has just come a moment to become ready."""
    if switch.switch.connected:
        await switch.wait_ready(_PATIENCE_S)


def _flat(quotas: Mapping[str, Any] | None, path: str = "") -> dict[str, str]:
    """Return quotas by key: {"tenants.a.weight": "2.0"}."""
    if quotas is None:
        return {"all": "as in the controller's configuration"}
    found: dict[str, str] = {}
    for key, value in quotas.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{path}{key}."))
        elif isinstance(value, list):
            found[f"{path}{key}"] = ", ".join(value)
        else:
            found[f"{path}{key}"] = "no limit" if value is None else str(value).lower()
    return found
