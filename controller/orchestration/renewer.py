"""Renewals of running jobs: a switch lost their sums or is out of reach, or workers died.

`jobs/states.py` has the steps. This module begins them and carries them out: it takes the old generation off
the switches except for its guards, plans the new one, and writes it.

- All planes of a gang are renewed when one is: each asks its workers, and then all get slots or none does.
- A generation is never given out twice, so it is new even if nothing else can be saved. With a full disk a
  job goes on by ring, which leaves nothing on switches that a restart would have to find.
- The database keeps the old generation until the new one is written completely. A controller that dies in
  between comes back with the old one. Its workers then tell it of a renewal that it does not know, and it
  begins another.
"""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from controller.api.errors import ControllerError, NotPossibleError
from controller.api.messages import EndCause, Mode
from controller.database.store import StoredJob, StoreError
from controller.fabric.trees import Tree
from controller.jobs.effects import Forgotten, Interrupted, Lost, Rebuild
from controller.jobs.job import Job
from controller.jobs.renewals import PLANNED, Agreed, Cause, agree
from controller.jobs.specs import Phase, Plan, Timing
from controller.jobs.states import State
from controller.orchestration.book import Book
from controller.orchestration.lost import what_it_lacks
from controller.orchestration.record import Record, Retries, stored
from controller.orchestration.retired import STRAGGLERS_S
from controller.orchestration.setup import Installer
from controller.orchestration.switch_manager import SwitchManager

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_OLD_SLOTS_S = 5.0  # how long a renumbered job waits for the slots that it had, where there are no others


class Renewer:
    """Renewals of jobs. `begun`: the number of renewals begun, by cause."""

    def __init__(self, manager: SwitchManager, book: Book, installer: Installer, timing: Timing) -> None:
        self.begun: Counter[Cause] = Counter()
        self._manager = manager
        self._store = manager.store
        self._allocations = manager.allocations
        self._engine = manager.engine
        self._book = book
        self._installer = installer
        # How long an ended job has guards where not all workers are known to know.
        self.guarding_s = timing.patience_s + STRAGGLERS_S

    # Beginning

    def begin(self, record: Record, cause: Cause, reason: str) -> None:
        """Let a job, with all planes of its gang, go on under new generations. It ends if there are none."""
        planes = [plane for plane in record.live_planes if plane.job.is_set_up]
        try:
            numbers = [self._store.next_generation() for _ in planes]
        except (StoreError, sqlite3.Error) as error:
            self._end(record, f"{reason}; and {self._store.explain(error)}")
            return
        for plane in planes:
            self._save_dropped(plane.job)
        self._begin(planes, numbers, cause, reason)

    def begin_planned(self, record: Record, cause: Cause, reason: str) -> None:
        """Begin the renewal of a job that could stay as it is.

        Raise StoreError, or the database's error.
        """
        planes = record.live_planes
        numbers = [self._store.next_generation(spare_reserve=True) for _ in planes]
        self._begin(planes, numbers, cause, reason)

    def _begin(self, planes: Sequence[Record], numbers: Sequence[int], cause: Cause, reason: str) -> None:
        level = logging.INFO if cause in PLANNED else logging.WARNING
        for record, number in zip(planes, numbers, strict=True):
            if not record.job.is_set_up:  # it has ended by what was done for another plane
                continue
            self.begun[cause] += 1
            logger.log(level, "job %s goes on as generation %d: %s", record.job.spec.name, number, reason)
            renew = functools.partial(_renew, number=number, cause=cause, reason=reason)
            self._engine.act(record, renew)

    def _end(self, record: Record, why: str) -> None:
        text = f"{record.what} cannot go on: {why}"
        self._engine.act(record, lambda job, now: job.end(text, EndCause.CANNOT_GO_ON))

    def _save_dropped(self, job: Job) -> None:
        """Save who was dropped: a controller that is restarted need not wait for them again."""
        if job.workers.departed and job.plan is not None:
            try:
                self._store.save_dropped(job.plan.generation, job.workers.departures)
            except sqlite3.Error as error:
                logger.debug("job %s: who was dropped is not saved: %s", job.spec.name, error)

    def interrupted(self, record: Record, effect: Interrupted) -> None:
        """Renew a job that can go on only under a new generation, unless it has ended meanwhile."""
        if record.job.is_set_up:
            self.begin(record, effect.cause, effect.reason)

    def forgotten(self, record: Record, effect: Forgotten) -> None:
        """Renew a job after a leaf has lost sums of it that nobody else has."""
        if record.job.is_set_up:
            if record.job.state is State.ASKING and not record.allocations:
                return  # another plane has lost its own, too: all go on under new generations already
            self.begin(record, Cause.SWITCH_RESTARTED, effect.reason)
        else:
            self._engine.act(record, lambda job, now: job.end(effect.reason, EndCause.CANNOT_GO_ON))

    def detach(self, record: Record) -> None:
        """Take the generation so far off the switches, except its guards, which stay like an ended job's."""
        if record.installing:
            record.when_written.append(lambda: self.detach(record))
            return
        if not record.allocations:
            return
        before = Record(record.job.generation_so_far())
        before.allocations, record.allocations = record.allocations, {}
        before.free_at = self._engine.awake() + self.guarding_s
        self._allocations.holding.remove(record)
        self._allocations.holding.append(before)
        record.before.append(before)
        self._engine.spawn(self._allocations.clean(before))

    def stopped(self, record: Record, token: bytes) -> None:
        """Note that a worker has closed its connections: it sends no more in the generations before."""
        record.before = [before for before in record.before if before.allocations]
        for before in record.before:
            for worker in before.job.workers.values():
                worker.knows_end |= worker.token == token

    # Writing

    async def rebuild(self, record: Record) -> None:
        """Plan and allocate the new generations once the workers of all planes stand still.

        A job of its own is a gang of one plane.
        """
        planes = record.live_planes
        busy = next((plane for plane in planes if plane.installing), None)
        if busy is not None:  # a move, which finds out that it is over
            busy.when_written.append(lambda: self._engine.spawn(self.rebuild(record)))
            return
        numbers = [plane.job.renewal.number if plane.job.renewal is not None else 0 for plane in planes]
        if not planes or not _are_rebuilding(planes, numbers) or _are_rebuilt(planes, numbers):
            return
        if _leases_run(planes, self._engine.clock()):
            self._try_again(planes, numbers)
            return
        for plane, number in zip(planes, numbers, strict=True):
            plane.rebuilding = number
        # Only this module and the switches know these.
        drafts = [Record(plane.job.draft(), installing=True) for plane in planes]
        for draft in drafts:
            draft.planes = drafts
        try:
            plans = await self._plan(planes, drafts, numbers)
            if plans is None:
                self._try_again(planes, numbers)
            elif not _are_rebuilding(planes, numbers):
                self._discard(drafts)
                for plane, number in zip(planes, numbers, strict=True):
                    if plane.job.is_rebuilding(number):  # another plane has left: the rest goes on
                        self._engine.post(plane, Rebuild(number))
            else:
                self._commit(planes, drafts, plans)
        except Exception as error:  # the workers stand still until they hear how it went
            logger.exception("%s: a defect in the controller", record.what)
            self._discard(drafts)
            self._despite(planes, numbers, f"a defect in the controller, its log says more: {error!r}")
        finally:
            for plane, number in zip(planes, numbers, strict=True):
                if plane.rebuilding == number:
                    plane.rebuilding = None

    def _despite(self, planes: Sequence[Record], numbers: Sequence[int], why: str) -> None:
        """Let a job that could have stayed as it was go on by ring; end any other, which cannot go on."""
        renewal = planes[0].job.renewal
        planned = renewal is not None and renewal.cause in PLANNED
        if planned and _are_rebuilding(planes, numbers) and not _must_be_in_network(planes):
            drafts = [Record(plane.job.draft(), installing=True) for plane in planes]
            jobs = [draft.job for draft in drafts]
            self._commit(planes, drafts, self._installer.by_ring(jobs, why, generations=numbers))
        else:
            self._end(planes[0], why)

    async def _plan(
        self, planes: Sequence[Record], drafts: Sequence[Record], numbers: Sequence[int]
    ) -> list[Plan] | None:
        """Plan the new generations; return None if the job can only wait."""
        record, installer, jobs = planes[0], self._installer, [draft.job for draft in drafts]
        job, retries = record.job, record.retries
        assert job.renewal is not None
        cause, reason = job.renewal.cause, job.renewal.reason
        if cause in PLANNED:
            drafts[0].granted = record.leader.granted

        def counted(plans: Sequence[Plan]) -> list[Plan]:
            return [self._counted(plane, plan) for plane, plan in zip(planes, plans, strict=True)]

        whys = (self._manager.why_away(one.members, usable=False) for one in jobs)
        away = next(filter(None, whys), "")
        if away and all(map(_has_backup, jobs)):
            return counted(installer.by_ring(jobs, away, generations=numbers, backup=True))
        try:
            plans = counted(await installer.set_up(drafts, generations=numbers))
            for draft, plan in zip(drafts, plans, strict=True):
                draft.job.plan = plan
            if cause is Cause.RENUMBERED and plans[0].mode is Mode.RING and self._may_get_room(planes):
                return None
            return plans  # from here on there may be something to take away
        except NotPossibleError as error:  # it must run in the network
            why = str(error)
            if any(
                map(self._store.is_doubtful, numbers)
            ):  # a switch may have had it, and refuses it for ever
                if _are_rebuilding(planes, numbers):
                    self.begin(record, cause, reason)
                return None
        except (ControllerError, StoreError, sqlite3.Error) as error:
            why = self._store.explain(error)
            if not _must_be_in_network(planes):
                return counted(installer.by_ring(jobs, why, generations=numbers))
        now = self._engine.clock()
        retries.failing_since = now if retries.failing_since is None else retries.failing_since
        if not away and now - retries.failing_since > self.guarding_s:
            self._end(record, why)
        elif retries.rebuild is None:
            logger.warning("%s waits: %s", record.what, why)
        return None

    def _counted(self, record: Record, plan: Plan) -> Plan:
        """Return the plan with the number of the job's renewals."""
        before, renewal = record.job.plan, record.job.renewal
        if before is None or renewal is None:
            return plan
        if renewal.cause in PLANNED:  # nothing had failed
            return replace(plan, renewals=before.renewals, renewal_reason=before.renewal_reason)
        return replace(plan, renewals=before.renewals + 1, renewal_reason=renewal.reason)

    def _may_get_room(self, planes: Sequence[Record]) -> bool:
        """Tell whether the slots that a job had a moment ago are still on their way back."""
        now, retries = self._engine.clock(), planes[0].retries
        retries.failing_since = now if retries.failing_since is None else retries.failing_since
        return now - retries.failing_since <= _OLD_SLOTS_S and any(
            before.allocations for record in planes for before in record.before
        )

    def _commit(self, planes: Sequence[Record], drafts: Sequence[Record], plans: Sequence[Plan]) -> None:
        for record in planes:
            job = record.job
            if record.unsaved and job.plan is not None:  # who was dropped from it may still send in it
                record.behind.append(stored(job, job.plan, (), job.phase))
            record.unsaved, record.retries.save_at = False, None
        wanted = [
            stored(draft.job, plan, draft.allocations.values(), Phase.RUNNING)
            for draft, plan in zip(drafts, plans, strict=True)
        ]
        try:
            self._supersede(planes, wanted)
        except sqlite3.Error as error:
            why = self._store.explain(error)
            logger.error("%s: generation %d is not saved: %s", planes[0].what, plans[0].generation, why)
            if any(draft.allocations for draft in drafts):  # a restart must find what is on switches
                self._discard(drafts)
                for draft in drafts:
                    draft.unheard = False  # the job keeps the generation, and its row
                drafts = [Record(draft.job) for draft in drafts]
                if _must_be_in_network(planes):
                    self._try_again(planes, [plan.generation for plan in plans])
                    return
                plans = [replace(plan, mode=Mode.RING, mode_reason=why) for plan in plans]
            for record in planes:
                record.unsaved = True
        for record, draft in zip(planes, drafts, strict=True):
            record.retries, record.waits_for, record.stuck = Retries(), "", False
            if record.unsaved:
                record.retries.save_at = self._engine.clock() + _RETRY_S
            if draft.allocations:
                record.allocations = draft.allocations
                self._allocations.holding[self._allocations.holding.index(draft)] = record
        agreed = _agreed(planes, plans)
        for record, plan in zip(planes, plans, strict=True):
            self._renewed(record, plan, agreed)
            self._manager.rerouting.allocated(record)

    def _renewed(self, record: Record, plan: Plan, agreed: Agreed) -> None:
        """Let a job go on that has its allocations in a new generation."""
        record.refused = 0
        self._book.by_generation[plan.generation] = record
        self._leave_later(record)
        logger.info(
            "job %s: generation %d, %d workers, %s%s%s",
            *(record.job.spec.name, plan.generation, record.job.world_size, plan.mode.name),
            " over the backup interfaces" if plan.backup else "",
            f" ({plan.mode_reason})" if plan.mode_reason else "",
        )
        self._engine.act(record, lambda job, now: job.renewed(plan, now, agreed))

    def _leave_later(self, record: Record) -> None:
        """Free generations that only workers knew of: all have answered a Renew, so these are over."""
        later, record.later = record.later, {}
        workers = {worker.token: worker for worker in record.job.workers.values()}
        qps = frozenset(
            (int(workers[token].member.ip), qpn)
            for token, (_, qpns) in later.items()
            for qpn in qpns
            if token in workers
        )
        generations = frozenset(generation for generation, _ in later.values())
        away = frozenset(int(worker.member.ip) for worker in record.job.workers.departed.values())
        if qps:
            self._engine.spawn(self._allocations.outgrown(generations, qps, away))

    def _discard(self, drafts: Iterable[Record]) -> None:
        """Take away what was written for generations that nobody has heard of."""
        for draft in drafts:
            draft.installing, draft.unheard = False, True
            if draft.allocations and draft.job.live:
                draft.job.discard()
                draft.free_at = self._engine.awake()
                self._engine.spawn(self._allocations.clean(draft))

    def _try_again(self, planes: Sequence[Record], numbers: Sequence[int]) -> None:
        for plane, number in zip(planes, numbers, strict=True):
            if plane.job.is_rebuilding(number):
                plane.retries.rebuild = number, self._engine.clock() + _RETRY_S
                break

    # Switches that are away

    def tick(self) -> None:
        """Check switches that jobs need, and try again what is due."""
        now = self._engine.clock()
        for record in self._book:
            if not record.job.is_set_up:
                record.retries = Retries()
                continue
            self._check_switches(record, now)
            if record.retries.rebuild is not None:
                number, at = record.retries.rebuild
                if not record.job.is_rebuilding(number):
                    record.retries.rebuild = None
                elif now >= at:
                    self._engine.spawn(self.rebuild(record))
            save_at = record.retries.save_at
            if save_at is not None and now >= save_at and record.job.renewal is None:
                self._save(record, now)

    def _check_switches(self, record: Record, now: float) -> None:
        job, retries, manager = record.job, record.retries, self._manager
        if job.plan is None or job.world_size == 1 or manager.rival_at(job.members):
            return
        away = manager.why_away(job.members, usable=False)
        if not away:
            record.waits_for, retries.away_since, retries.warned_at = "", None, None
            tree = Tree.of(manager.config, job.members)
            if (
                job.plan.backup
                and job.renewal is None
                and all(manager.switches[leaf].ready for leaf in tree.leaves)
            ):
                names = f"{'switches' if tree.two_level else 'switch'} {', '.join(tree.leaves)}"
                self.begin(record, Cause.SWITCH_BACK, f"{names} can be used again")
            return
        since = retries.away_since = now if retries.away_since is None else retries.away_since
        limit_s = manager.config.switch_timeout_s
        if job.plan.backup or now - since <= limit_s:
            return
        if job.renewal is None and _has_backup(job):
            self.begin(record, Cause.SWITCH_AWAY, f"{away}, for more than {limit_s:g} s")
        elif retries.warned_at is None or now - retries.warned_at > limit_s:
            retries.warned_at = now
            why = (
                "it must run in the network"
                if job.spec.mode is Mode.IN_NETWORK
                else "not all of its workers have a backup interface"
            )
            logger.warning("job %s waits for %d s: %s; %s", job.spec.name, now - since, away, why)
            record.waits_for = f"waits: {away}; {why}"

    # The database

    def save_generation(self, record: Record) -> None:
        """Save a generation that the database lacks, in place of the one before."""
        plan = record.job.plan
        assert plan is not None
        self._supersede([record], [stored(record.job, plan, record.allocations.values(), record.job.phase)])
        record.unsaved = False

    def _save(self, record: Record, now: float) -> None:
        try:
            self.save_generation(record)
        except sqlite3.Error:
            record.retries.save_at = now + _RETRY_S
        else:
            record.retries.save_at = None
            logger.info("job %s: generation %d is saved now", record.job.spec.name, record.generation)

    def _supersede(self, planes: Sequence[Record], jobs: Sequence[StoredJob]) -> None:
        """Save generations, after what the database owes: that may be to forget a try at the same ones."""
        self._allocations.settle_owed()
        for record in planes:
            for generation in record.behind:
                self._store.supersede(generation)
        self._store.supersede(*jobs)
        for record in planes:
            record.behind.clear()

    # Workers that are lost

    async def go_on_without(self, record: Record, lost: Lost) -> None:
        """Find out what a lost worker had sent, then let its job end, or go on without it."""
        manager = self._manager
        holding = (
            record
            if record.allocations
            else next((b for b in reversed(record.before) if b.allocations), None)
        )
        message, text = None, lost.reason
        if record.job.has_stopped(lost.token):
            text += "; it sent nothing any more, as the job was being renewed"
        elif holding is not None and holding.job.plan is not None:
            try:
                message, words = await what_it_lacks(manager.config, manager.switches, holding, lost.token)
                text += f"; {words}"
            except Exception:  # the others wait to hear that it is lost
                logger.exception("job %s: a defect in the controller", record.job.spec.name)
        self._engine.act(record, lambda job, now: job.go_on_without(lost.token, text, message))


def _renew(job: Job, now: float, *, number: int, cause: Cause, reason: str) -> None:
    job.renew(number, cause, reason, now)


def _are_rebuilding(planes: Sequence[Record], numbers: Sequence[int]) -> bool:
    """Tell whether these renewals wait for plans."""
    return all(plane.job.is_rebuilding(number) for plane, number in zip(planes, numbers, strict=True))


def _are_rebuilt(planes: Sequence[Record], numbers: Sequence[int]) -> bool:
    """Tell whether these renewals are being planned."""
    return all(plane.rebuilding == number for plane, number in zip(planes, numbers, strict=True))


def _leases_run(planes: Sequence[Record], now: float) -> bool:
    """Tell whether a worker that an elastic gang goes on without may still return a result with its part."""
    for plane in planes[0].planes:
        plane.leases = {token: until for token, until in plane.leases.items() if until > now}
    return any(plane.leases for plane in planes[0].planes)


def _agreed(planes: Sequence[Record], plans: Sequence[Plan]) -> Agreed:
    """Tell which collective of all GPUs an elastic gang begins anew, and from which call on ranks are new.

    If some GPU has finished a collective, no machine lacks its result for good: each plane has a holder of
    it. So the first collective that nobody has finished is done as a whole without the lost machines. If a
    plane has left, all of its workers had finished all collectives.
    """
    spec = planes[0].job.spec
    is_elastic_gang = spec.gang is not None and spec.elastic
    return agree(
        [plane.job.renewal for plane in planes if plane.job.renewal is not None],
        max(plan.generation for plan in plans) if is_elastic_gang else 0,
        begins_anew=is_elastic_gang and planes[0].is_whole,
    )


def _must_be_in_network(planes: Sequence[Record]) -> bool:
    """Tell whether it runs in the network or not at all."""
    return any(plane.job.spec.mode is Mode.IN_NETWORK for plane in planes)


def _has_backup(job: Job) -> bool:
    return job.spec.mode is not Mode.IN_NETWORK and all(member.backup for member in job.members)
