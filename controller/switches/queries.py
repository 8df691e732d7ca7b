"""Reads of slots by packet-out and packet-in, since not every target can read registers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from controller.switches.updates import SwitchUnreachableError

# p4src/query.p4
OP_SEND = 0  # packet-out: the payload is a frame to be sent
OP_QUERY_SLOT = 1  # both ways
OP_ECHO = 2  # packet-in: a probe of a link came back, `index` is its nonce
RESULT = 0x01  # flag of a slot: it holds the sum of all
MAX_OUTSTANDING = 16  # simple_switch_grpc holds few packets to and from the controller
ANSWER_TIMEOUT_S = 0.5
TRIES = 6


@dataclass(frozen=True)
class SlotContent:
    """Contents of one slot: tag, contributors (by local index), chunks of a fragment, RESULT 1, MISMATCH 2.

    `age_us`: time since it was claimed, by the switch's clock.
    """

    index: int
    generation: int
    message: int
    bitmap: int
    chunks: int
    flags: int
    age_us: int = 0


class SlotQueries:
    """The questions under way on one connection."""

    def __init__(self, label: str, *, timeout_s: float = ANSWER_TIMEOUT_S, tries: int = TRIES) -> None:
        self._label = label
        self._timeout_s = timeout_s
        self._tries = tries
        self._turn = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[SlotContent]] = {}

    def answer(self, fields: Mapping[str, int]) -> None:
        """Take a packet-in's metadata; ignore a late one that nobody waits for."""
        if fields.get("op") != OP_QUERY_SLOT:
            return
        waiting = self._waiting.pop(fields["index"], None)
        if waiting is not None and not waiting.done():
            names = ("index", "generation", "message", "bitmap", "chunks", "flags")
            content = SlotContent(**{name: fields[name] for name in names}, age_us=fields.get("age", 0))
            waiting.set_result(content)

    async def ask(
        self, first: int, count: int, send: Callable[[int], Awaitable[None]], *, step: int = 1
    ) -> list[SlotContent]:
        """Read each `step`-th of the slots first..first+count-1.

        `send` sends one question; the question or its answer may get lost.
        """
        wanted, found = range(first, first + count, step), list[SlotContent]()
        async with self._turn:
            for number in range(0, len(wanted), MAX_OUTSTANDING):
                found += await self._ask_some(wanted[number : number + MAX_OUTSTANDING], send)
        return found

    async def _ask_some(self, indexes: range, send: Callable[[int], Awaitable[None]]) -> list[SlotContent]:
        loop = asyncio.get_running_loop()
        futures = {index: loop.create_future() for index in indexes}
        self._waiting = dict(futures)
        try:
            for _ in range(self._tries):
                for index in list(self._waiting):
                    await send(index)
                await asyncio.wait(futures.values(), timeout=self._timeout_s)
                if not self._waiting:
                    return [futures[index].result() for index in indexes]
            raise SwitchUnreachableError(
                f"{self._label} did not say what slot {min(self._waiting)} holds, asked {self._tries} times: "
                "check that it was started with --cpu-port 255"
            )
        finally:
            self._waiting = {}
