"""The rack's switch: the rules as they are, in every state that they were found in.

If a slot holds the sum of the ranks in its bitmap, a state names these instead of the sum. So two states that
are the same when the ranks are turned around the ring are found to be.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from host_agent.transport import TransportConfig
from host_agent.wire.aggregation import CHUNK_BYTES, RANK_OFFSET
from p4reduce.oracle.rules import Fragment
from p4reduce.oracle.slot_rules import SwitchModel
from p4reduce.oracle.state import Job, Out, Slot, SpineJob, Tag
from p4reduce.simulation.exhaustive.hosts import Host
from p4reduce.simulation.exhaustive.scopes import Call, Scope
from p4reduce.simulation.exhaustive.values import configs_of, part, sum_of
from p4reduce.simulation.rack import job_of, routes_of

RESTART, RENEWAL = -1, -2  # what the switch is given, where it is no frame
ADAPTERS_RNR = 0x38


@dataclass(frozen=True)
class Claim:
    """A slot that was taken for `tag` from what it held."""

    held: Tag
    tag: Tag


@dataclass(frozen=True)
class Step:
    """The switch's step: its next state, frames by ports' ranks, and what others' invariants need."""

    state: int
    sends: tuple[tuple[int, bytes], ...]
    claims: tuple[Claim, ...] = ()
    not_ready: tuple[tuple[int, int], ...] = ()  # sender's rank, PSN
    wrong: str = ""


class NotingSwitch(SwitchModel):
    """A switch that writes down the slots that it claims, and the RNR NAKs that it sends."""

    claims: list[Claim]
    told: list[tuple[int, int]]

    def claim(self, job: Job | SpineJob, slot: Slot, tag: Tag) -> None:
        if slot.tag is not None:
            self.claims.append(Claim(slot.tag, tag))
        super().claim(job, slot, tag)

    def not_ready(self, job: Job, fragment: Fragment) -> Out:
        self.told.append((job.flows[fragment.sender].rank, fragment.psn))
        return super().not_ready(job, fragment)


def install(workers: list[TransportConfig], adapters: bool, before: Job | None) -> NotingSwitch:
    """Make a switch with a job's entries. Registers are what `before` left in them."""
    job = job_of(workers)
    job.flows = tuple(
        replace(
            flow,
            first_psn=workers[flow.rank].psn_out,
            rnr_syndrome=ADAPTERS_RNR if adapters else 0,
        )
        for flow in job.flows
    )
    if before is not None:
        take_over(before, job)
    return NotingSwitch([job], routes_of(workers))


def take_over(before: Job, job: Job) -> None:
    """Keep the registers of a job whose entries are gone.

    What they say of flows is believed by the same generation alone.
    """
    job.slots = before.slots
    if before.generation == job.generation:
        job.records, job.latest = before.records, before.latest
        job.awaited, job.first_psns = before.awaited, before.first_psns


class Rack:
    """All states that the switch was found in, by number, and the steps that were tried there."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.numbers: dict[Any, int] = {}
        self.switches: list[NotingSwitch | None] = []
        self.renewed: list[int] = []
        self.turned: list[tuple[int, ...]] = []  # the numbers of the states with the ranks turned
        self.steps: dict[tuple[int, int, int], Step] = {}
        before = None if scope.earlier is None else self._earlier(scope)
        self.first = self._number(install(configs_of(scope, 0), scope.adapters, before), 0)

    def step(self, state: int, port: int, meaning: int, frame: Callable[[], bytes]) -> Step:
        """Return the step from a state when a frame comes in from a rank, or something else happens."""
        known = self.steps.get((state, port, meaning))
        if known is None:
            known = self._step(state, port, meaning, frame)
            self.steps[state, port, meaning] = known
        return known

    def _step(self, state: int, port: int, meaning: int, frame: Callable[[], bytes]) -> Step:
        renewed = self.renewed[state]
        workers = configs_of(self.scope, renewed)
        if meaning == RESTART:
            return Step(self._number(NotingSwitch([], routes_of(workers)), renewed), ())
        before = self.switches[state]
        assert before is not None
        switch = _copy(before)
        if meaning == RENEWAL:
            job = next(iter(job for job, _, _ in switch.members.values()), None)
            workers = configs_of(self.scope, renewed + 1)
            return Step(self._number(install(workers, self.scope.adapters, job), renewed + 1), ())
        left = switch.process(port + 1, frame())
        sends = tuple((out - 1, made) for out, made in left)
        number = self._number(switch, renewed)
        return Step(number, sends, tuple(switch.claims), tuple(switch.told), self._wrong(switch))

    def _number(self, switch: NotingSwitch, renewed: int) -> int:
        """Return the number of its state, and note those that it is with the ranks turned."""
        job = next(iter(job for job, _, _ in switch.members.values()), None)
        ranks = self.scope.ranks
        shapes = [(renewed, None if job is None else self._shape(job, turn)) for turn in range(ranks)]
        number = self._intern(shapes[0])
        if self.switches[number] is None:
            self.switches[number], self.renewed[number] = switch, renewed
            self.turned[number] = tuple(self._intern(shape) for shape in shapes)
        return number

    def _intern(self, shape: Any) -> int:
        number = self.numbers.setdefault(shape, len(self.numbers))
        if number == len(self.switches):
            self.switches.append(None)
            self.renewed.append(0)
            self.turned.append(())
        return number

    def _shape(self, job: Job, turn: int) -> Any:
        """Return all that its registers hold, with rank `turn` in the place of rank 0."""
        ranks = len(job.flows)
        order = [(place + turn) % ranks for place in range(ranks)]
        slots = tuple(
            (
                slot.tag,
                sum(1 << (place - turn) % ranks for place in slot.ranks),
                slot.mismatch,
                slot.result,
                slot.shape,
                self._held(slot, n % job.packets),
            )
            for n, slot in enumerate(job.slots)
        )
        records = tuple(tuple(sorted(job.records[p].items(), key=lambda item: item[0])) for p in order)
        latest = tuple(job.latest[p] for p in order)
        return (
            slots,
            records,
            latest,
            tuple(job.awaited[p] for p in order),
            tuple(tuple(job.first_psns[p]) for p in order),
        )

    def _held(self, slot: Slot, index: int) -> bytes:
        """Return a slot's header, and its lanes unless they are what the ranks in its bitmap contributed."""
        head = slot.header[:RANK_OFFSET] + slot.header[RANK_OFFSET + 1 : 64] if index == 0 else b""
        return head if self._is_right(slot, index) else head + _lanes(slot, index)

    def _is_right(self, slot: Slot, index: int) -> bool:
        if slot.tag is None:
            return not any(chunk.any() for chunk in slot.chunks)
        generation, message = slot.tag
        right = sum_of(generation, frozenset(slot.ranks), message, self.scope.packets)
        return _lanes(slot, index) == part(right, index).astype(">i4").tobytes()

    def _wrong(self, switch: NotingSwitch) -> str:
        """Return which slot is not the sum of the ranks in its bitmap; empty: none."""
        if self.scope.disagrees:
            return ""
        for job in {id(job): job for job, _, _ in switch.members.values()}.values():
            for n, slot in enumerate(job.slots):
                index = n % job.packets
                if slot.tag is not None and not self._is_right(slot, index):
                    return f"the switch: {slot.tag}, index {index}, is no sum of ranks {sorted(slot.ranks)}"
        return ""

    def _earlier(self, scope: Scope) -> Job:
        """Return what is left of a job that came and went without any fault."""
        assert scope.earlier is not None
        past = replace(
            scope,
            generation=scope.earlier.generation,
            first_message=scope.earlier.first_message,
            first_psn=scope.earlier.first_psn,
            calls=(Call("sum", 2 * scope.window),),
            earlier=None,
        )
        switch = install(configs_of(past, 0), scope.adapters, None)
        switch.claims, switch.told = [], []
        job = next(iter(switch.members.values()))[0]
        hosts = [Host(past, rank) for rank in range(scope.ranks)]
        under_way = [(rank, frame) for rank, host in enumerate(hosts) for frame in host.run()[0]]
        while under_way:
            rank, frame = under_way.pop(0)
            for port, left in switch.process(rank + 1, frame):
                sent, wrong = hosts[port - 1].apply(0, left)
                assert not wrong, wrong
                under_way += [(port - 1, frame) for frame in sent]
        assert all(host.facts().complete for host in hosts)
        return job


def _lanes(slot: Slot, index: int) -> bytes:
    stored = slot.load(index, slot.shape)
    return stored[CHUNK_BYTES:] if index == 0 else stored


def _copy(switch: NotingSwitch) -> NotingSwitch:
    """Return a copy with registers of its own."""
    found = copy.copy(switch)
    found.claims, found.told = [], []
    jobs = {id(job): job for job, _, _ in switch.members.values()}
    copies = {number: _copy_of(job) for number, job in jobs.items()}
    found.members = {key: (copies[id(job)], flow, role) for key, (job, flow, role) in switch.members.items()}
    return found


def _copy_of(job: Job) -> Job:
    found = copy.copy(job)
    found.slots = []
    for slot in job.slots:
        mine = copy.copy(slot)
        mine.ranks, mine.chunks, mine.psns = set(slot.ranks), list(slot.chunks), dict(slot.psns)
        found.slots.append(mine)
    found.records = [dict(records) for records in job.records]
    found.latest, found.awaited = list(job.latest), list(job.awaited)
    found.first_psns = [list(psns) for psns in job.first_psns]
    return found
