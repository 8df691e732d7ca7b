"""Workers that come back to a controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.api.errors import (
    UnreachableError,
)
from controller.api.messages import (
    JobSpec,
    Left,
    Ready,
)
from controller.jobs.specs import Member
from controller.orchestration.adoption import Account
from controller.orchestration.sessions import Session
from tests.controller.orchestration.rack import Bench, member
from tests.controller.told import heard, plan_of, ready_of


def account(ready: Ready, who: Member, size: int) -> Account:
    return Account(
        spec=JobSpec(name="train", world_size=size),
        plan=replace(plan_of(ready), mode_reason=""),
        member=who,
        token=ready.resume_token,
    )


async def run_job(b: Bench, size: int) -> list[Account]:
    """A job that runs, and what its workers know."""
    sessions = await b.run_job("train", size)
    return [account(ready_of(s), member(rank, qp=b.qp), size) for rank, s in enumerate(sessions)]


def resume(b: Bench, known: Account) -> Session:
    return b.registry.sessions.resume("train", known.plan.generation, known.member.rank, known.token, known)


def all_resume(b: Bench, known: Sequence[Account]) -> list[Session]:
    for one in known[:-1]:
        with pytest.raises(UnreachableError, match="to tell of it"):
            resume(b, one)
    return [resume(b, one) for one in known[::-1]][::-1]


async def all_leave(b: Bench, back: Sequence[Session]) -> None:
    """The job is over, and nothing of it is left."""
    await b.leave(back)
    assert [heard(session)[-2:] for session in back] == [[Left(), None]] * len(back)
    assert (b.switch.of_jobs, b.used) == ({}, 0)
