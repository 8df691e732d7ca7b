"""A worker whose collective makes no progress hears whom it waits for."""

from __future__ import annotations

import re

import pytest

from controller.api.messages import Heartbeat, Lacking, Stalled
from controller.config import Spread
from controller.orchestration.sessions import Session
from controller.switches.queries import RESULT, SlotContent
from tests.controller.bench import Bench, fabric
from tests.controller.told import heard

TWO_RACKS = fabric((2, 2), spines=2, spread=Spread.MESSAGES)
ACROSS = (0, 2, 1, 3)  # ranks 0 and 2 behind l1, 1 and 3 behind l2


async def answers(b: Bench, *asking: Session) -> list[str]:
    """Return what each session hears when it asks about collective 3."""
    for session in asking:
        heard(session)
        session.hear(Stalled(3))
    await b.registry.drain()
    said = [heard(session) for session in asking]
    for (event,) in said:
        assert isinstance(event, Lacking)
        assert event.collective == 3
    return [event.who for (event,) in said if isinstance(event, Lacking)]


def runs(session: Session, collective: int | None) -> None:
    """Say which collective the worker is in."""
    session.hear(Heartbeat(generation=session.record.generation or 0, running=collective))


def fill(b: Bench, switch: str, *slots: tuple[int, int, int, int], generation: int | None = None) -> None:
    """Write slots of job "train": place, message, bitmap and flags."""
    record = b.registry.job("train")
    base = record.allocations[switch].region.base
    for place, message, bitmap, flags in slots:
        own = record.generation if generation is None else generation
        content = SlotContent(base + place, own or 0, message, bitmap, 1, flags)
        b.switches[switch].slot_content[base + place] = content


@pytest.mark.parametrize("b", [TWO_RACKS], indirect=True)
@pytest.mark.parametrize(
    ("slots", "says"),
    [
        # At a leaf: bit 0 is rank 0, bit 1 rank 2.
        ({"l1": [(0, 17, 0b01, 0)]}, r"rank 2 \(h2, .*\) has not contributed to message 17"),
        # The oldest counts, also where messages come round.
        ({"l1": [(0, 0, 0b10, 0), (16, 2**32 - 1, 0b01, 0)]}, r"rank 2 \(h2, .*\) has not .* 4294967295"),
        # Whole racks, which a spine lacks: what l1 has whole is on its way.
        ({"l1": [(0, 5, 0b11, 0)], "s1": [(0, 5, 0b01, 0)]}, r"rank 1 .*, rank 3 .* have not .* message 5"),
        ({"l1": [(0, 5, 0b11, 0)], "l2": [(0, 5, 0b11, 0)], "s1": [(0, 5, 0b01, 0)]}, r"is in no collective"),
        # Sums that are there, and what an earlier generation has left, say nothing.
        ({"l1": [(0, 17, 0b01, RESULT)]}, "is in no collective"),
        ({}, r"rank 1 \(h3, 10\.0\.2\.1\) is in no collective, rank 2 \(h2, .*\) is 1 collective behind"),
    ],
)
async def test_slots_say_who_has_not_contributed_and_else_heartbeats(
    b: Bench, slots: dict[str, list[tuple[int, int, int, int]]], says: str
) -> None:
    sessions = await b.run_job("train", ACROSS)
    for session, running in zip(sessions, (3, None, 2, 3), strict=True):
        runs(session, running)
    for switch, content in slots.items():
        fill(b, switch, *content)
    both = await answers(b, sessions[0], sessions[3])
    assert both[0] == both[1]
    assert re.search(says, both[0]), both[0]


@pytest.mark.parametrize("b", [TWO_RACKS], indirect=True)
async def test_a_switch_that_is_away_is_not_asked(b: Bench) -> None:
    sessions = await b.run_job("train", ACROSS)
    for session in sessions:
        runs(session, 3)
    fill(b, "l1", (0, 17, 0b01, 0))
    fill(b, "l2", (0, 17, 0b10, 0))
    b.switches["l1"].connected = False
    assert (await answers(b, sessions[0]))[0].startswith("rank 1 (h3")
    b.switches["l2"].connected = False
    assert await answers(b, sessions[0]) == [""]


async def test_without_slots_heartbeats_alone_say_it(b: Bench) -> None:
    sessions = await b.run_job("train", 2)
    runs(sessions[0], 3)
    assert await answers(b, sessions[0]) == ["rank 1 (h2, 10.0.0.2) is in no collective"]
