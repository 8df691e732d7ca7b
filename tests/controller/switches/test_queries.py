from __future__ import annotations

import asyncio

import pytest

from controller.switches.queries import MAX_OUTSTANDING, OP_QUERY_SLOT, SlotContent, SlotQueries
from controller.switches.updates import SwitchUnreachableError


def content(index: int) -> SlotContent:
    return SlotContent(index=index, generation=9, message=index + 1, bitmap=3, chunks=4, flags=0)


class LossySwitch:
    """Answers every question but the first `losses` about each slot."""

    def __init__(self, queries: SlotQueries, losses: int = 0) -> None:
        self.queries = queries
        self.losses = losses
        self.asked: dict[int, int] = {}
        self.most_outstanding = 0
        self._outstanding = 0

    async def send(self, index: int) -> None:
        self._outstanding += 1
        self.most_outstanding = max(self.most_outstanding, self._outstanding)
        self.asked[index] = self.asked.get(index, 0) + 1
        asyncio.get_running_loop().call_soon(self.answer, index)

    def answer(self, index: int) -> None:
        self._outstanding -= 1
        if self.asked[index] > self.losses:
            self.queries.answer({"op": OP_QUERY_SLOT, **vars(content(index))})


async def test_every_slot_is_answered_in_order_and_few_questions_are_out_at_once() -> None:
    queries = SlotQueries("switch s1")
    switch = LossySwitch(queries)
    assert await queries.ask(100, 50, switch.send) == [content(index) for index in range(100, 150)]
    assert switch.most_outstanding <= MAX_OUTSTANDING


async def test_only_some_slots_are_asked_for() -> None:
    queries = SlotQueries("switch s1")
    switch = LossySwitch(queries)
    found = await queries.ask(64, 256, switch.send, step=4)
    assert [slot.index for slot in found] == list(range(64, 320, 4))
    assert switch.most_outstanding <= MAX_OUTSTANDING


async def test_what_is_lost_is_asked_again() -> None:
    queries = SlotQueries("switch s1", timeout_s=0.01, tries=3)
    switch = LossySwitch(queries, losses=2)
    assert await queries.ask(0, 3, switch.send) == [content(index) for index in range(3)]
    assert switch.asked == {0: 3, 1: 3, 2: 3}


async def test_a_slot_that_is_never_answered_is_named() -> None:
    queries = SlotQueries("switch s1", timeout_s=0.01, tries=2)
    with pytest.raises(SwitchUnreachableError, match=r"^switch s1 .* slot 7 .*asked 2 times"):
        await queries.ask(7, 2, LossySwitch(queries, losses=9).send)
    assert await queries.ask(7, 1, LossySwitch(queries).send) == [content(7)]


async def test_other_packets_and_late_answers_are_ignored() -> None:
    queries = SlotQueries("switch s1")
    queries.answer({"op": OP_QUERY_SLOT, **vars(content(3))})
    queries.answer({"op": 77})
    assert await queries.ask(3, 1, LossySwitch(queries).send) == [content(3)]


async def test_two_who_ask_take_turns() -> None:
    queries = SlotQueries("switch s1")
    switch = LossySwitch(queries)
    one, two = await asyncio.gather(queries.ask(0, 20, switch.send), queries.ask(0, 20, switch.send))
    assert one == two == [content(index) for index in range(20)]
    assert switch.most_outstanding <= MAX_OUTSTANDING
