"""Jobs that run go on under a new generation: a switch lost their sums or is out of reach, or workers died.

`controller/renewals.py` has the steps. This module begins them and does what they ask for: takes the old
generation off the switches but for its guards, makes the plan of the new one, and writes that.

- A number that has once been given out is never given out again, so a generation is new even if nothing else
  can be saved: with a full disk a job goes on by ring, which needs nothing that a restart would have to find.
- The job in the database is the one before until all of the new one is written. A controller that dies in
  between finds that, its workers tell it of a renewal that it knows nothing of, and it begins another.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.api.errors import ControllerError, NotPossibleError
from controller.api.messages import EndCause, Mode
from controller.events import Lost, Superseded
from controller.jobs import Job
from controller.mourning import what_it_lacks
from controller.places import stored
from controller.renewals import PLANNED, Cause
from controller.running import Running
from controller.specs import Phase, Plan
from controller.store import StoredJob, StoreError
from controller.trees import Tree

if TYPE_CHECKING:
    from controller.registry import Registry

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_OLD_SLOTS_S = 5.0  # how long a renumbered job waits for the slots that it had, where there are no others


class Renewer:
    """Belongs to a registry. `begun`: how many renewals, by cause."""

    def __init__(self, registry: Registry) -> None:
        self.begun: Counter[Cause] = Counter()
        self._registry = registry
        self._away_since: dict[Running, float] = {}
        self._said: dict[Running, float] = {}  # when it was last said that a job waits for a switch
        self._again: dict[Running, tuple[int, float]] = {}  # what could not be written, and when to try again
        self._since: dict[Running, float] = {}  # of that
        self._unsaved: dict[Running, float] = {}  # what the database does not know yet, and when to try again
        self._known: tuple[dict[Running, Any], ...] = (
            *(self._away_since, self._said, self._again, self._since, self._unsaved),
        )
        self._rebuilding: set[int] = set()

    # Beginning

    def begin(self, running: Running, cause: Cause, reason: str) -> None:
        """Let a job go on under a new generation. It ends where there is none."""
        registry, job = self._registry, running.job
        try:
            number = registry.store.next_generation()
        except (StoreError, sqlite3.Error) as error:
            why = f"job {job.spec.name} cannot go on: {reason}; and {registry.trouble(error)}"
            registry.act(running, lambda job, now: job.end(why, EndCause.CANNOT_GO_ON))
            return
        self._save_dropped(job)
        self._begin(running, number, cause, reason)

    def begin_planned(self, running: Running, cause: Cause, reason: str) -> None:
        """The same, of a job that could stay as it is. StoreError, or what the database raises."""
        number = self._registry.store.next_generation(spare_reserve=True)
        self._begin(running, number, cause, reason)

    def _begin(self, running: Running, number: int, cause: Cause, reason: str) -> None:
        self.begun[cause] += 1
        level = logging.INFO if cause in PLANNED else logging.WARNING
        logger.log(level, "job %s goes on as generation %d: %s", running.job.spec.name, number, reason)
        self._registry.act(running, lambda job, now: job.renew(number, cause, reason, now))

    def _save_dropped(self, job: Job) -> None:
        """So that a controller that is restarted meanwhile need not wait for the dead again."""
        if job.departed and job.plan is not None:
            try:
                self._registry.store.save_dropped(job.plan.generation, job.departures)
            except sqlite3.Error as error:
                logger.debug("job %s: who was dropped is not saved: %s", job.spec.name, error)

    def forgot(self, running: Running, reason: str) -> None:
        """A leaf has lost sums of a job that nobody else has."""
        if running.job.is_set_up:
            self.begin(running, Cause.SWITCH_RESTARTED, reason)
        else:
            self._registry.act(running, lambda job, now: job.end(reason, EndCause.CANNOT_GO_ON))

    def detach(self, running: Running) -> None:
        """Nothing of the generation so far may be added up any more; its guards stay like an ended job's."""
        if running.installing:
            running.when_written.append(lambda: self.detach(running))
            return
        if not running.places:
            return
        registry, job = self._registry, running.job
        before = Running(Job(job.spec, job.timing, job.explicit, Phase.ENDED, plan=job.plan))
        everybody = {**job.seats, **job.departed}
        before.job.seats = {rank: replace(seat, knows_end=False) for rank, seat in everybody.items()}
        before.job.outcome = Superseded()
        before.places, running.places = running.places, {}
        before.free_at = registry.awake() + registry.guarding_s
        registry.places.holding.remove(running)
        registry.places.holding.append(before)
        running.before.append(before)
        registry.spawn(registry.places.clean(before))

    def stands(self, running: Running, rank: int) -> None:
        """A worker has closed its connections: it sends nothing more in the generations before."""
        running.before = [before for before in running.before if before.places]
        token = running.job.seats[rank].token
        for before in running.before:
            for seat in before.job.seats.values():
                seat.knows_end |= seat.token == token

    # Writing

    async def rebuild(self, running: Running, number: int) -> None:
        """All workers stand still: a plan and places for the new generation."""
        if running.installing:  # a move, which finds out that it is over
            running.when_written.append(lambda: self._registry.spawn(self.rebuild(running, number)))
            return
        job = running.job
        if not job.is_rebuilding(number) or number in self._rebuilding:
            return
        self._rebuilding.add(number)
        draft = self._draft(job)
        try:
            plan = await self._plan(running, draft, number)
            if plan is None:
                self._try_again(running, number)
            elif not job.is_rebuilding(number):
                self._discard(draft)
            else:
                self._commit(running, draft, plan)
        except Exception as error:  # the workers stand still until they hear how it went
            logger.exception("job %s: a defect in the controller", job.spec.name)
            self._discard(draft)
            self._despite(running, number, f"a defect in the controller, its log says more: {error!r}")
        finally:
            self._rebuilding.discard(number)

    def _despite(self, running: Running, number: int, why: str) -> None:
        """What could stay as it was goes on by ring; all else has no way to go on."""
        registry, job = self._registry, running.job
        planned = job.renewal is not None and job.renewal.cause in PLANNED
        if planned and job.is_rebuilding(number) and job.spec.mode is not Mode.IN_NETWORK:
            draft = self._draft(job)
            self._commit(running, draft, registry.installer.by_ring(draft.job, why, generation=number))
        else:
            text = f"job {job.spec.name} cannot go on: {why}"
            registry.act(running, lambda job, now: job.end(text, EndCause.CANNOT_GO_ON))

    def _draft(self, job: Job) -> Running:
        """The job as it will be, to find it a place; nobody but this module and the switches know it."""
        draft = Job(job.spec, job.timing, job.explicit, Phase.INSTALLING)
        for member, rank in zip(job.renewed_members(), sorted(job.seats), strict=True):
            draft.seats[member.rank] = replace(job.seats[rank], member=member)
        return Running(draft, installing=True)

    async def _plan(self, running: Running, draft: Running, number: int) -> Plan | None:
        """None where the job can only wait."""
        registry, job, installer = self._registry, running.job, self._registry.installer
        assert job.plan is not None
        assert job.renewal is not None
        before, cause, reason = job.plan, job.renewal.cause, job.renewal.reason

        def counted(plan: Plan) -> Plan:
            if cause in PLANNED:  # nothing had failed
                return replace(plan, renewals=before.renewals, renewal_reason=before.renewal_reason)
            return replace(plan, renewals=before.renewals + 1, renewal_reason=reason)

        away = self.why_away(draft)
        if away and self._has_backup(draft.job):
            return counted(installer.by_ring(draft.job, away, generation=number, backup=True))
        try:
            draft.job.plan = plan = counted(await installer.set_up(draft, generation=number))
            if cause is Cause.RENUMBERED and plan.mode is Mode.RING and self._may_get_room(running):
                return None
            return plan  # from here on there may be something to take away
        except NotPossibleError as error:  # it must run in the network
            why = str(error)
            if registry.store.is_doubtful(number):  # a switch may have had it, and then refuses it for ever
                if job.is_rebuilding(number):
                    self.begin(running, cause, reason)
                return None
        except (ControllerError, StoreError, sqlite3.Error) as error:
            why = registry.trouble(error)
            if job.spec.mode is not Mode.IN_NETWORK:
                return counted(installer.by_ring(draft.job, why, generation=number))
        since = self._since.setdefault(running, registry.clock())
        if not away and registry.clock() - since > registry.guarding_s:
            text = f"job {job.spec.name} cannot go on: {why}"
            registry.act(running, lambda job, now: job.end(text, EndCause.CANNOT_GO_ON))
        elif running not in self._again:
            logger.warning("job %s waits: %s", job.spec.name, why)
        return None

    def _may_get_room(self, running: Running) -> bool:
        """Whether the slots that a job had a moment ago are still on their way back."""
        since = self._since.setdefault(running, self._registry.clock())
        late = self._registry.clock() - since > _OLD_SLOTS_S
        return not late and any(before.places for before in running.before)

    def _commit(self, running: Running, draft: Running, plan: Plan) -> None:
        registry, job = self._registry, running.job
        self._unsaved.pop(running, None)
        if running.unsaved and job.plan is not None:  # who was dropped from it may still send in it
            running.behind.append(stored(job, job.plan, (), job.phase))
        running.unsaved = False
        try:
            self._supersede(running, stored(draft.job, plan, draft.places.values(), Phase.RUNNING))
        except sqlite3.Error as error:
            why = registry.trouble(error)
            logger.error("job %s: generation %d is not saved: %s", job.spec.name, plan.generation, why)
            if draft.places:  # a restart must find what is on switches
                self._discard(draft)
                draft.unheard = False  # the job keeps the generation, and its row
                draft = Running(draft.job)
                if job.spec.mode is Mode.IN_NETWORK:
                    self._try_again(running, plan.generation)
                    return
                plan = replace(plan, mode=Mode.RING, mode_reason=why)
            self._unsaved[running], running.unsaved = registry.clock() + _RETRY_S, True
        for known in (self._again, self._since, self._away_since, self._said):
            known.pop(running, None)
        running.waits_for = ""
        if draft.places:
            running.places = draft.places
            registry.places.holding[registry.places.holding.index(draft)] = running
        registry.renewed(running, plan)
        registry.upkeep.placed(running)

    def _discard(self, draft: Running) -> None:
        """Take away what was written for a generation that nobody has heard of."""
        draft.installing, draft.unheard = False, True
        if not draft.places:
            return
        draft.job.phase, draft.job.outcome = Phase.ENDED, Superseded()
        draft.free_at = self._registry.awake()
        self._registry.spawn(self._registry.places.clean(draft))

    def _try_again(self, running: Running, number: int) -> None:
        if running.job.is_rebuilding(number):
            self._again[running] = number, self._registry.clock() + _RETRY_S

    # Switches that are away

    def why_away(self, running: Running) -> str:
        """Which switch that a job's workers cannot reach each other without is away; empty if none."""
        registry = self._registry
        tree = Tree.of(registry.config, running.job.members)
        for leaf in tree.leaves:
            switch = registry.switches[leaf]
            if not switch.switch.connected:
                return f"switch {leaf} is away: {switch.switch.state}"
        state = registry.links.state.draining(())
        if tree.two_level and registry.config.links and not tree.spines(state):
            return tree.graph.why_apart(tree.leaves, state)
        return ""

    def _has_backup(self, job: Job) -> bool:
        return job.spec.mode is not Mode.IN_NETWORK and all(member.backup for member in job.members)

    def tick(self) -> None:
        """Time has passed."""
        registry = self._registry
        now = registry.clock()
        jobs = [running for running in registry.jobs() if running.job.is_set_up]
        for known in self._known:
            for running in [running for running in known if not running.job.is_set_up]:
                known.pop(running)
        for running in jobs:
            self._look(running, now)
        for running, (number, at) in list(self._again.items()):
            if not running.job.is_rebuilding(number):
                del self._again[running]
            elif now >= at:
                registry.spawn(self.rebuild(running, number))
        for running, at in list(self._unsaved.items()):
            if now >= at and running.job.renewal is None:
                self._save(running, now)

    def _look(self, running: Running, now: float) -> None:
        job = running.job
        if job.plan is None or job.world_size == 1:
            return
        away = self.why_away(running)
        if not away:
            running.waits_for = ""
            self._away_since.pop(running, None)
            self._said.pop(running, None)
            tree = Tree.of(self._registry.config, job.members)
            if (
                job.plan.backup
                and job.renewal is None
                and all(self._registry.switches[leaf].ready for leaf in tree.leaves)
            ):
                names = ", ".join(tree.leaves)
                self.begin(
                    running,
                    Cause.SWITCH_BACK,
                    f"{'switches' if tree.two_level else 'switch'} {names} can be used again",
                )
            return
        since = self._away_since.setdefault(running, now)
        limit_s = self._registry.config.switch_timeout_s
        if job.plan.backup or now - since <= limit_s:
            return
        text = f"{away}, for more than {limit_s:g} s"
        if job.renewal is None and self._has_backup(job):
            self.begin(running, Cause.SWITCH_AWAY, text)
        elif now - self._said.get(running, since) > limit_s or running not in self._said:
            self._said[running] = now
            why = (
                "it must run in the network"
                if job.spec.mode is Mode.IN_NETWORK
                else "not all of its workers have a backup interface"
            )
            logger.warning("job %s waits for %d s: %s; %s", job.spec.name, now - since, away, why)
            running.waits_for = f"waits: {away}; {why}"

    def save_ended(self, running: Running) -> None:
        """A job has ended in a generation that the database does not know, and where the one before runs."""
        plan = running.job.plan
        assert plan is not None
        self._supersede(running, stored(running.job, plan, running.places.values(), running.job.phase))
        running.unsaved = False

    def _save(self, running: Running, now: float) -> None:
        job = running.job
        assert job.plan is not None
        try:
            self._supersede(running, stored(job, job.plan, running.places.values(), job.phase))
        except sqlite3.Error:
            self._unsaved[running] = now + _RETRY_S
        else:
            del self._unsaved[running]
            running.unsaved = False
            logger.info("job %s: generation %d is saved now", job.spec.name, job.plan.generation)

    def _supersede(self, running: Running, job: StoredJob) -> None:
        """Save a generation; first what the database owes, as that may be to forget a try at the same one."""
        self._registry.places.settle_owed()
        for generation in (*running.behind, job):
            self._registry.store.supersede(generation)
        running.behind.clear()

    # Workers that are lost

    async def bury(self, running: Running, lost: Lost) -> None:
        """Find out what a lost worker had sent, then let its job end, or go on without it."""
        registry = self._registry
        holding = running if running.places else next((b for b in reversed(running.before) if b.places), None)
        message, text = None, lost.reason
        if running.job.has_stopped(lost.token):
            text += "; it sent nothing any more, as the job was being renewed"
        elif holding is not None and holding.job.plan is not None:
            try:
                message, words = await what_it_lacks(registry.config, registry.switches, holding, lost.token)
                text += f"; {words}"
            except Exception:  # the others wait to hear that it is lost
                logger.exception("job %s: a defect in the controller", running.job.spec.name)
        registry.act(running, lambda job, now: job.bury(lost.token, text, message))
