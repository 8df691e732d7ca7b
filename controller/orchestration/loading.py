"""Takeover of the database's jobs when the controller starts; they live on if their workers come back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from controller.api.messages import EndCause, Left, Mode
from controller.database.store import StoredJob, StoreError
from controller.jobs.effects import Superseded
from controller.jobs.job import RESTARTED, Job
from controller.jobs.renewals import Cause
from controller.jobs.specs import Phase, Timing
from controller.orchestration.book import Book
from controller.orchestration.gangs import Gangs
from controller.orchestration.record import Record
from controller.orchestration.renewer import Renewer
from controller.orchestration.switch_manager import SwitchManager

logger = logging.getLogger(__name__)


def load(manager: SwitchManager, book: Book, gangs: Gangs, renewer: Renewer, timing: Timing) -> None:
    """Take over what the database knows. Raise StoreError if it does not fit the configuration."""
    engine = manager.engine
    now = engine.begin_anew()  # a controller may be stopped before its first tick
    for spec in manager.store.specs():
        book.specs[spec.name] = spec
        book.by_name[spec.name] = Record(Job(spec, timing, explicit=True))
    jobs = _without_drafts(manager.store.jobs())
    for known in jobs:
        _load(known, manager, book, renewer.guarding_s, timing, now)
    # Who is in a generation has answered that it left those before; the oldest are first.
    book.retired.all_stopped({t: known.plan.generation for known in jobs for _, t in known.workers}, now)
    for before in manager.allocations.holding:
        after = book.by_name.get(before.job.spec.name)
        if isinstance(before.job.outcome, Superseded) and after is not None:
            after.before.append(before)
    for known in jobs:
        record = book.by_generation.get(known.plan.generation)
        if known.dropped and known.outcome is None and record is not None:
            _drop_again(manager, record, known)
    gangs.loaded()
    for record in list(book.by_name.values()):
        job = record.job
        runs = job.phase is Phase.RUNNING and job.renewal is None
        if not runs or job.plan is None:
            continue
        if job.plan.mode is Mode.IN_NETWORK and not record.allocations:
            renewer.begin(record, Cause.INTERRUPTED, RESTARTED)
        elif not _are_alike(record):  # by an earlier release
            renewer.begin(record, Cause.INTERRUPTED, "its planes were planned apart, with different sizes")


def _are_alike(record: Record) -> bool:
    """Tell whether all planes of a job's gang cut and add up alike."""
    plans = [plane.job.plan for plane in record.live_planes if plane.job.plan is not None]
    return all(plan.is_like(plans[0]) for plan in plans[1:])


def _drop_again(manager: SwitchManager, record: Record, known: StoredJob) -> None:
    manager.engine.act(record, lambda job, now: job.drop_again(known.dropped))


def _load(
    known: StoredJob, manager: SwitchManager, book: Book, guarding_s: float, timing: Timing, now: float
) -> None:
    name, generation = known.spec.name, known.plan.generation
    job = Job.recovered(
        *(known.spec, timing, known.plan, known.workers),
        explicit=known.explicit,
        phase=known.phase,
        now=now,
        outcome=known.outcome,
        dropped=known.dropped,
    )
    record = book.by_generation[generation] = Record(job, deleted=known.deleted, unheard=known.is_draft)
    of_now = known.outcome is None or known.explicit == (name in book.specs)
    if of_now and not known.deleted and not isinstance(known.outcome, Superseded):
        book.by_name[name] = record
    allocations = known.allocations
    if known.outcome is None and known.plan.mode is Mode.RING:
        # It was being moved. Its workers are told to go on by ring, and `settle` takes off what is there.
        for allocation in allocations:
            manager.store.release(generation, allocation.switch)
        allocations = ()
    for allocation in allocations:
        if allocation.switch not in manager.switches:
            logger.warning("job %s was on switch %s, which is gone", name, allocation.switch)
            manager.store.release(generation, allocation.switch)
            if allocation.role == "leaf":
                reason = f"switch {allocation.switch} is no longer in the controller's configuration"
                job.end(reason, EndCause.NOT_CONFIGURED)
    for member in job.members:
        if member.ip not in manager.config.by_ip:
            reason = f"the host of {member} is no longer in the controller's configuration"
            job.end(reason, EndCause.NOT_CONFIGURED)
    try:
        manager.allocations.take_over(record, [p for p in allocations if p.switch in manager.switches])
    except ValueError as error:
        raise StoreError(f"{manager.store.path}: generation {generation}: {error}") from error
    if known.outcome is not None:
        left = isinstance(known.outcome, Left)
        book.retired.retire(job, now + guarding_s if left else None)  # who has stopped is not known
    elif known.phase is Phase.INSTALLING:
        job.end("the controller was restarted while the job was set up", EndCause.NOT_SET_UP)
    manager.engine.post(record, *job.take_effects())
    if not job.live:  # where the database is from a backup, its workers may have heard of it, and send
        record.free_at = now + guarding_s


def _without_drafts(jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """Return the database's jobs; of each name, only the last that workers can have heard of may live.

    A controller that died in the middle of a renewal leaves the job before it, which may be over or deleted
    by now, and one that is half written.
    """
    live = {job.spec.name: job for job in jobs if job.outcome is None and not job.is_draft}
    return [
        job
        if job.outcome is not None or live.get(job.spec.name) is job
        else replace(job, outcome=Superseded())
        for job in jobs
    ]
