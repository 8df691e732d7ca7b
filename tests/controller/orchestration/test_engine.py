"""The engine: it carries effects out in the order in which they came up, whatever handlers do."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from controller.jobs.effects import Forgotten, Stayed
from controller.jobs.job import Job
from controller.orchestration.engine import Engine
from controller.orchestration.record import Record
from tests.controller.jobs.made import running


@pytest.fixture
def engine() -> Engine:
    return Engine(lambda: 7.0, Random(), interval_s=1.0)


def test_what_a_handler_brings_up_is_carried_out_behind_what_came_before(engine: Engine) -> None:
    done: list[str] = []

    def stayed(record: Record, effect: Stayed) -> None:
        done.append(effect.reason)
        if effect.reason == "first":
            engine.act(record, lambda job, now: job._effects.append(Stayed("third")))
            done.append("end of first")

    engine.handlers = {Stayed: stayed}
    engine.act(Record(running(1)), lambda job, now: job._effects.extend([Stayed("first"), Stayed("second")]))
    assert done == ["first", "end of first", "second", "third"]


def test_an_effect_that_cannot_be_carried_out_keeps_no_other_from_it(engine: Engine) -> None:
    done: list[str] = []

    def broken(record: Record, effect: Forgotten) -> None:
        raise ValueError(effect.reason)

    engine.handlers = {Forgotten: broken, Stayed: lambda record, effect: done.append(effect.reason)}
    record = Record(running(1))
    with pytest.raises(ValueError, match="one"):
        engine.post(record, Forgotten("one"), Stayed("two"), Forgotten("three"))
    engine.post(record, Stayed("four"))
    assert done == ["two", "four"]


def test_a_call_that_is_refused_leaves_the_queue_as_it_is(engine: Engine) -> None:
    acted: list[None] = []
    engine.on_act.append(lambda: acted.append(None))

    def refuse(job: Job, now: float) -> None:
        raise ValueError(now)

    with pytest.raises(ValueError, match="7"):
        engine.act(Record(running(1)), refuse)
    assert acted == [None]


def test_who_stood_still_holds_it_against_nobody() -> None:
    now, told = 100.0, []
    engine = Engine(lambda: now, Random(), interval_s=2.0)
    engine.stood_still.append(lambda seconds, at: told.append((seconds, at)))
    engine.begin_anew()
    for now in (101.0, 103.0, 110.0):
        assert engine.awake() == now
    assert told == [(5.0, 110.0)]


def test_a_defect_beside_is_logged_and_waited_for(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("once")

    async def work() -> None:
        engine.spawn(fail())
        await engine.drain()

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())
    assert "a defect in the controller" in caplog.text
