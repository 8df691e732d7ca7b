"""All states of a small job, its workers and the controller, with the state machines that ship.

A state is that of the workers and of the controller, the messages under way on each worker's stream in either
direction, in order, and how much may still go wrong. Workers and the controller are asked once what they do
with something in a state of their own (`worker.py`, `controller.py`, `parts.py`); the rest is numbers.

**Streams** are gRPC's: messages arrive in order, or the stream breaks, and those under way are lost.
The worker knows at once; the controller may notice at any later time, even after the worker has come back.
When a process dies, the other end hears all that it has said before.

**Collectives** have to be entered by all workers of a generation, in the same mode; then each may finish,
in any order and at any time. If the switch has lost its sums since, or no longer has the generation, a
result may have come before that or not ("late": it may happen, and nobody can wait for it).

**Time** passes when nothing else can happen but mishaps: until all patience is over, or until the controller
says or writes something. The controller hears all the while from the workers that are there. So it does not
give up a worker that is merely slow; it does give up one that is stopped (`stalls`). Questions for a lease
are asked again only when time passes.

**Left out** (`ControlScope.reduced`). If something has come to a worker, and no collective waits for the
worker, only what that worker can do and what may happen to it is tried. Nothing else touches it, or the head
of its stream: both orders lead to the same state. The controller's death does, so while that may happen
nothing is left out.

**In each state**: a collective is entered in the same mode by the same workers, all of them connected; a
user's result is that of all others who are still in the job; a job's phase changes as it may; nobody is told
that the job is over without a reason, and nobody's patience is over before something went wrong. **In the
end**: all have left, or know that the job is over; the controller, its switch and its database hold nothing
of it; and such an end can be reached from every state.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from controller.api.messages import FromWorker, Heartbeat, Join, Mode, Resume
from p4reduce.simulation.exhaustive.control_scopes import MISHAPS, WISHES, ControlScope
from p4reduce.simulation.exhaustive.controller import DEFECTS, ControllerFacts, ControllerPart, Passed
from p4reduce.simulation.exhaustive.found import Choice, Found, put
from p4reduce.simulation.exhaustive.parts import Parts, Step
from p4reduce.simulation.exhaustive.search import Broken, Search
from p4reduce.simulation.exhaustive.worker import Closed, Connected, Enter, WorkerFacts, WorkerPart
from p4reduce.simulation.faults.control import HungUp

KILLS, CRASHES, BREAKS, AWAYS, STALLS = range(len(MISHAPS))
MOVES, RENUMBERS = range(len(MISHAPS), len(MISHAPS) + len(WISHES))
TOGETHER = len(MISHAPS) + len(WISHES)
DEAD: Final = -1
NOBODY: Final = -1
_LIVE_CONTROLLERS, _LIVE_WORKERS = 600, 2000

Queues = tuple[tuple[int, ...], ...]
# Of a generation: its number, whether the switch has lost its sums, who has been connected, and what was
# entered: its kind, number and mode, who has to, who has, and what the holder gives.
Entered = tuple[str, int, int, tuple[int, ...], tuple[int, ...], int]
Generation = tuple[bool, tuple[int, ...], tuple[Entered, ...]]
Wire = tuple[tuple[int, bool, tuple[int, ...], tuple[Entered, ...]], ...]


class State(NamedTuple):
    """A state of the whole.

    `up`, `down`: the messages under way, by worker; `linked`: whether a worker has a stream; `excused`:
    whether it may hear that the job is over.
    """

    workers: tuple[int, ...]
    controller: int
    up: Queues
    down: Queues
    linked: tuple[bool, ...]
    stalled: int
    wire: Wire
    excused: tuple[bool, ...]
    budget: tuple[int, ...]


class ControlExplorer(Search[State]):
    """The explorer of one scope."""

    def __init__(self, scope: ControlScope) -> None:
        super().__init__(scope)
        self.of = scope
        self.ranks = range(scope.workers)
        self.controllers: Parts[ControllerFacts] = Parts(
            lambda: ControllerPart(scope), live=_LIVE_CONTROLLERS
        )
        self.workers: list[Parts[WorkerFacts]] = [
            Parts(lambda rank=rank: WorkerPart(scope, rank), live=_LIVE_WORKERS)  # type: ignore[misc]
            for rank in self.ranks
        ]
        self.messages: list[Any] = []
        self.numbers: dict[Any, int] = {}

    def first(self) -> State:
        """Return the state in which the controller is there, and nobody has joined."""
        nothing: Queues = ((),) * self.of.workers
        return State(
            workers=(0,) * self.of.workers,
            controller=0,
            up=nothing,
            down=nothing,
            linked=(False,) * self.of.workers,
            stalled=NOBODY,
            wire=(),
            excused=(False,) * self.of.workers,
            budget=self.of.budget,
        )

    def explore(self, **how: Any) -> Found:
        """Explore as `Search.explore` does."""
        with self._asking():
            return super().explore(**how)

    def play(self, choices: Sequence[str]) -> Iterator[str]:
        """Play as `Search.play` does."""
        with self._asking():
            yield from super().play(choices)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Keep workers and the controller while the block runs, and close them then."""
        with DEFECTS.heard():
            try:
                yield
            finally:
                asked: list[Parts[Any]] = [self.controllers, *self.workers]
                for parts in asked:
                    parts.close()

    # What can happen

    def facts(self, state: State, rank: int) -> WorkerFacts | None:
        """Return a worker's facts; None: it is dead."""
        number = state.workers[rank]
        return None if number == DEAD else self.workers[rank].facts[number]

    def awake(self, state: State, rank: int) -> WorkerFacts | None:
        """Return a worker's facts; None: it is dead or stopped."""
        return None if state.stalled == rank else self.facts(state, rank)

    def choices(self, state: State) -> Iterator[Choice]:
        """Yield all that is tried in a state."""
        controller = self.controllers.facts[state.controller]
        alone = self._alone(state, controller)
        if alone is not None:
            yield from self._of_worker(state, alone, controller)
            yield from self._to_worker(state, alone)
            return
        found = [choice for rank in self.ranks for choice in self._of_worker(state, rank, controller)]
        found += self._of_controller(state, controller)
        yield from found
        if not found:
            yield from self._in_time(state, controller)
        if not controller.up and not controller.works:
            yield Choice("restart")
        if not controller.switch_up:
            yield Choice("back")
        if state.stalled != NOBODY:
            yield Choice("cont", state.stalled)
        for rank in self.ranks:
            yield from self._to_worker(state, rank)
        yield from self._to_others(state, controller)

    def _alone(self, state: State, controller: ControllerFacts) -> int | None:
        if not self.of.reduced or self._may(state, CRASHES) or not controller.up:
            return None
        for rank in self.ranks:
            facts = self.awake(state, rank)
            if state.down[rank] and facts is not None and facts.waits is None and not facts.settles:
                return rank
        return None

    def _of_worker(self, state: State, rank: int, controller: ControllerFacts) -> Iterator[Choice]:
        facts = self.awake(state, rank)
        if facts is None:
            return
        if facts.state == "new" and not (self.of.in_turn and self._is_early(state, rank)):
            yield Choice("join", rank)
        if state.down[rank]:
            yield Choice("hear", rank)
        for step in facts.steps:
            yield Choice(step.replace("do_work", "renew"), rank)
        if facts.waits is not None and self._may_finish(state, facts.waits, controller):
            yield Choice("finish", rank)
        if facts.settles and self._may_settle(state, facts):
            yield Choice("settle", rank)
        if facts.timer == "open" and controller.up:
            yield Choice("open", rank)

    def _is_early(self, state: State, rank: int) -> bool:
        """Return whether the worker of the rank before has not joined yet."""
        before = self.facts(state, rank - 1) if rank else None
        return before is not None and (before.state == "new" or bool(state.up[rank - 1]))

    def _of_controller(self, state: State, controller: ControllerFacts) -> list[Choice]:
        found = [Choice("work")] if controller.works else []
        if controller.up:
            found += [Choice("say", rank) for rank in self.ranks if state.up[rank]]
            found += [Choice("notice", rank) for rank in sorted(controller.cut)]
        return found

    def _in_time(self, state: State, controller: ControllerFacts) -> Iterator[Choice]:
        for rank in self.ranks:
            facts = self.awake(state, rank)
            if facts is not None and facts.timer == "ask":
                yield Choice("ask", rank)
        if controller.up and controller.switch_up:
            yield Choice("time")

    def _to_worker(self, state: State, rank: int) -> Iterator[Choice]:
        facts = self.facts(state, rank)
        if facts is None or facts.over:
            return
        waits, controller = facts.waits, self.controllers.facts[state.controller]
        all_in = waits is not None and state.stalled != rank and self._all_entered(state, waits)
        if waits is not None and all_in and not self._may_finish(state, waits, controller):
            yield Choice("late", rank)
        if self._may(state, KILLS):
            yield Choice("kill", rank)
        if self._may(state, BREAKS) and state.linked[rank]:
            yield Choice("break", rank)
        if self._may(state, STALLS) and state.stalled == NOBODY and facts.state != "new":
            yield Choice("stall", rank)

    def _to_others(self, state: State, controller: ControllerFacts) -> Iterator[Choice]:
        if self._may(state, CRASHES) and controller.up:
            yield Choice("crash")
        if self._may(state, AWAYS) and controller.switch_up:
            yield Choice("away")
        if state.budget[MOVES] and controller.movable:
            yield Choice("move")
        if state.budget[RENUMBERS] and controller.movable:
            yield Choice("renumber")

    def _may(self, state: State, kind: int) -> bool:
        return bool(state.budget[kind] and state.budget[TOGETHER])

    def _all_entered(self, state: State, waits: Enter) -> bool:
        if len(waits.members) == 1:
            return True
        entered = _known(state, waits.generation)[2]
        there = next((e[4] for e in entered if e[:2] == (waits.kind, waits.collective)), ())
        return set(there) >= set(waits.members)

    def _may_finish(self, state: State, waits: Enter, controller: ControllerFacts) -> bool:
        """Return whether all have entered, and their sums can come."""
        if len(waits.members) > 1:
            lost = _known(state, waits.generation)[0]
            in_network = waits.mode is Mode.IN_NETWORK
            if not controller.switch_up or (
                in_network and (lost or waits.generation not in controller.flows)
            ):
                return False
        return self._all_entered(state, waits)

    def _may_settle(self, state: State, mine: WorkerFacts) -> bool:
        """Return whether all that the worker has sent has arrived."""
        others = [self.facts(state, rank) for rank in mine.members]
        return all(
            facts is not None and facts.generation == mine.generation and facts.finished >= mine.finished
            for facts in others
        )

    # What becomes of it

    def after(self, state: State, choice: Choice) -> State:
        """Return the state that a choice leads to. Raise Broken if an invariant is."""
        verb, rank = choice.verb, choice.link
        if verb in _OF_A_WORKER:
            return self._worker(state, rank, (_OF_A_WORKER[verb],))
        if verb in _OF_THE_CONTROLLER:
            return self._controller(state, (_OF_THE_CONTROLLER[verb],))
        if verb in _SPENDS:
            state = self._spent(state, _SPENDS[verb])
        match verb:
            case "hear":
                number, *rest = state.down[rank]
                state, said = state._replace(down=put(state.down, rank, tuple(rest))), self.messages[number]
                if not isinstance(said, HungUp):
                    return self._worker(state, rank, ("hear", said))
                return self._worker(_streamed(state, rank), rank, ("hung", said))
            case "say":
                number, *rest = state.up[rank]
                state, said = state._replace(up=put(state.up, rank, tuple(rest))), self.messages[number]
                if isinstance(said, Closed):
                    return self._controller(state, ("end", rank, said.told))
                opens = isinstance(said, (Join, Resume))
                return self._controller(state, ("open" if opens else "hear", rank, said))
            case "finish" | "late":
                return self._worker(state, rank, ("get", self._result(state, rank)))
            case "notice":
                return self._controller(state, ("notice", rank))
            case "time":
                return self._time(state)
            case "cont":
                return state._replace(stalled=NOBODY)
            case "kill":
                return self._killed(state, rank)
            case "break":
                return self._cut(state, rank)
            case "stall":
                return state._replace(stalled=rank, excused=put(state.excused, rank, True))
            case "crash":
                return self._crashed(state)
            case "away":
                wire = tuple((number, True, there, entered) for number, _, there, entered in state.wire)
                return self._controller(state._replace(wire=wire), ("away",))
            case "move" | "renumber":
                kind = MOVES if verb == "move" else RENUMBERS
                state = state._replace(budget=_less(state.budget, kind))
                return self._controller(state, (verb,))
        raise ValueError(verb)

    def _spent(self, state: State, kind: int) -> State:
        """Take a mishap from the budget, and excuse workers that may hear of a job's end because of it."""
        controller = self.controllers.facts[state.controller]
        runs = controller.phase == "RUNNING"
        fatal = kind in (KILLS, STALLS) and not (self.of.elastic and runs)
        if fatal or controller.phase not in ("READY", "RUNNING"):
            state = state._replace(excused=(True,) * self.of.workers)
        return state._replace(budget=_less(_less(state.budget, kind), TOGETHER))

    def _result(self, state: State, rank: int) -> int:
        facts = self.facts(state, rank)
        assert facts is not None
        waits = facts.waits
        assert waits is not None
        if waits.kind == "sum":
            return waits.generation
        entered = _known(state, waits.generation)[2]
        return next(e[5] for e in entered if e[:2] == (waits.kind, waits.collective))

    def _killed(self, state: State, rank: int) -> State:
        if state.linked[rank]:
            state = self._said(state, rank, Closed(told=False))
        state = _streamed(state, rank, up=state.up[rank])._replace(
            workers=put(state.workers, rank, DEAD),
            stalled=NOBODY if state.stalled == rank else state.stalled,
        )
        return self._pruned(state)

    def _cut(self, state: State, rank: int) -> State:
        """Break a worker's stream; the worker knows it."""
        opening = self._opens(state, rank)
        state = _streamed(state, rank)
        if not opening:
            state = self._controller(state, ("cut", rank))
        return self._worker(state, rank, _BROKE)

    def _opens(self, state: State, rank: int) -> bool:
        """Return whether the controller has not heard of the stream that a worker has."""
        return any(isinstance(self.messages[number], (Join, Resume)) for number in state.up[rank])

    def _crashed(self, state: State) -> State:
        state = self._controller(state, ("crash",))
        for rank in self.ranks:
            linked = state.linked[rank]
            state = _streamed(state, rank)
            if linked:
                state = self._worker(state, rank, _BROKE)
        return state

    def _time(self, state: State) -> State:
        beating, there = [], []
        for rank in self.ranks:
            facts = self.awake(state, rank)
            if facts is None or facts.over or not state.linked[rank]:
                continue
            there.append(rank)
            if facts.state != "joining":
                beating.append((rank, facts.beat))
        step = self._stepped(self.controllers.step(state.controller, ("time", tuple(beating))))
        idle = any(isinstance(out, Passed) and out.idle for out in step.out)
        if len(step.out) > 1 and state.budget[TOGETHER] == self.of.budget[TOGETHER]:
            rank, said = step.out[0]
            raise Broken(f"nobody failed, and patience was over: rank {rank} is told {_short(said)}")
        state = self._told(state, step)
        for rank in self.ranks:
            facts = self.facts(state, rank)
            if facts is not None and not facts.over and facts.state != "new":
                mine = rank in there
                state = self._worker(state, rank, ("time", mine, idle and mine))
        return state

    def _stepped(self, step: Step) -> Step:
        self.checks["steps of a worker or the controller"] += 1
        if step.wrong:
            raise Broken(step.wrong)
        return step

    def _controller(self, state: State, given: tuple[Any, ...]) -> State:
        return self._told(state, self._stepped(self.controllers.step(state.controller, given)))

    def _told(self, state: State, step: Step) -> State:
        """Put under way what comes out of the controller."""
        down = list(state.down)
        for out in step.out:
            if isinstance(out, Passed):
                continue
            rank, said = out
            if state.linked[rank] and not self._opens(state, rank):  # else it was said in one before
                down[rank] = (*down[rank], self._number(said))
        return state._replace(controller=step.state, down=tuple(down))

    def _worker(self, state: State, rank: int, given: tuple[Any, ...]) -> State:
        before = self.facts(state, rank)
        step = self._stepped(self.workers[rank].step(state.workers[rank], given))
        state = state._replace(workers=put(state.workers, rank, step.state))
        after = self.workers[rank].facts[step.state]
        for out in step.out:
            if isinstance(out, Enter):
                state = self._entered(state, rank, out)
            elif isinstance(out, Connected):
                state = self._connected(state, rank, out.generation)
            elif isinstance(out, (Join, Resume)):
                state = _streamed(state, rank, up=(self._number(out),), linked=True)
            else:
                state = self._said(state, rank, out)
                if isinstance(out, Closed):
                    state = _streamed(state, rank, up=state.up[rank])
        assert before is not None
        if len(after.results) > len(before.results):
            self._check_result(state, rank, after)
        if after.over and not before.over:
            self._check_over(state, rank, after)
        return self._pruned(state)

    def _said(self, state: State, rank: int, said: FromWorker | Closed) -> State:
        if not state.linked[rank]:
            return state
        return state._replace(up=put(state.up, rank, (*state.up[rank], self._number(said))))

    def _number(self, message: Any) -> int:
        number = self.numbers.setdefault(message, len(self.numbers))
        if number == len(self.messages):
            self.messages.append(message)
        return number

    # Collectives

    def _connected(self, state: State, rank: int, generation: int) -> State:
        lost, there, entered = _known(state, generation)
        return _knowing(state, generation, (lost, tuple(sorted({*there, rank})), entered))

    def _entered(self, state: State, rank: int, what: Enter) -> State:
        self.checks["collectives entered"] += 1
        if len(what.members) == 1:
            return state
        lost, connected, entered = _known(state, what.generation)
        where = f"collective {what.collective} of generation {what.generation}"
        if missing := set(what.members) - set(connected):
            raise Broken(f"rank {rank} enters {where}, and {sorted(missing)} are not connected")
        known = {e[:2]: e for e in entered}
        key = (what.kind, what.collective)
        new: Entered = (*key, int(what.mode), what.members, (), 0)
        kind, number, mode, members, there, result = known.get(key, new)
        if rank in there:
            raise Broken(f"rank {rank} enters {where} twice")
        if (mode, members) != (int(what.mode), what.members):
            raise Broken(
                f"rank {rank} enters {where} by {what.mode.name} with {list(what.members)}, others by "
                f"{Mode(mode).name} with {list(members)}"
            )
        known[key] = (kind, number, mode, members, tuple(sorted((*there, rank))), max(result, what.result))
        return _knowing(state, what.generation, (lost, connected, tuple(sorted(known.values()))))

    def _pruned(self, state: State) -> State:
        """Drop the generations that nobody is in any more, or comes to."""
        if not state.wire:
            return state
        alive = [facts.newest for rank in self.ranks if (facts := self.facts(state, rank)) and not facts.over]
        oldest = min(alive, default=1 << 32)
        if state.wire[0][0] >= oldest:
            return state
        return state._replace(wire=tuple(w for w in state.wire if w[0] >= oldest))

    # What is checked

    def _check_result(self, state: State, rank: int, mine: WorkerFacts) -> None:
        """Require that a user's result is the one that all others in the job have, or will have."""
        self.checks["results against others'"] += 1
        number, result = len(mine.results) - 1, mine.results[-1]
        for other in self.ranks:
            theirs = self.facts(state, other)
            if theirs is None or other == rank:
                continue
            apart = rank not in theirs.members and theirs.generation is not None
            has = len(theirs.results) > number
            if has and (apart or other in mine.members) and theirs.results[number] != result:
                raise Broken(
                    f"rank {rank} has the result of collective {number} of generation {result}, rank {other} "
                    f"that of {theirs.results[number]}"
                )
            if apart and theirs.finished <= number:
                raise Broken(
                    f"rank {rank} returns the result of collective {number} after rank {other} has gone on "
                    "without it"
                )

    def _check_over(self, state: State, rank: int, mine: WorkerFacts) -> None:
        self.checks["workers that are over"] += 1
        if mine.state == "left":
            if len(mine.results) != self.of.collectives:
                raise Broken(f"rank {rank} has left after {len(mine.results)} collectives")
        elif not mine.told:
            raise Broken(f"rank {rank} was not told why its job is over")
        elif not state.excused[rank]:
            raise Broken(f"rank {rank} was told that its job is over, for no reason: {mine.told}")

    def is_end(self, state: State, choices: list[tuple[Choice, bool]]) -> bool:
        """Return whether nothing more happens, unless something goes wrong."""
        return all(is_same or choice.verb in _PERHAPS for choice, is_same in choices)

    def why_bad_end(self, state: State) -> str:
        """Return what is wrong with an end; empty: nothing."""
        for rank in self.ranks:
            facts = self.facts(state, rank)
            if facts is not None and not facts.over:
                return f"nothing will ever happen again: {self.in_words(state)}"
        left = self.controllers.facts[state.controller].left
        return f"all workers are over, and {left}" if left else ""

    def key(self, state: State) -> bytes:
        return blake2b(marshal.dumps(tuple(state), 2), digest_size=12).digest()

    # In words

    def in_words(self, state: State) -> str:
        words = [f"rank {rank} {self._worker_in_words(self.facts(state, rank))}" for rank in self.ranks]
        controller = self.controllers.facts[state.controller]
        words.append(f"the controller: {f'job {controller.phase}' if controller.up else 'down'}")
        return "; ".join(words)

    def _worker_in_words(self, facts: WorkerFacts | None) -> str:
        if facts is None:
            return "is dead"
        if facts.over:
            return f"has {facts.state}" + f": {facts.told}" * bool(facts.told)
        text = f"is {facts.state}, {len(facts.results)} results"
        if facts.beat.running is not None:
            text += f", in collective {facts.beat.running}"
        if facts.waits is not None:
            text += f" ({facts.waits.kind}, generation {facts.waits.generation})"
        if facts.generation is None and facts.state == "running":
            text += f", without a connection (renewal {facts.renewal})"
        return text

    def spell(self, choice: Choice) -> str:
        """Return a choice as `--choices` has it."""
        return f"{choice.verb}:{choice.link}" if choice.verb in _OF_WORKERS else choice.verb

    def explain(self, state: State, choice: Choice) -> str:
        """Return a choice in words."""
        rank, verb = choice.link, choice.verb
        if verb == "hear":
            return f"rank {rank} hears {_short(self.messages[state.down[rank][0]])}"
        if verb == "say":
            return f"the controller hears {_short(self.messages[state.up[rank][0]])} of rank {rank}"
        facts = self.facts(state, rank) if verb in _OF_WORKERS else None
        if verb == "finish" and facts is not None and facts.waits is not None:
            waits = facts.waits
            how = waits.mode.name.lower()
            return f"rank {rank} has the result of {waits.kind} {waits.collective}, {how}"
        if verb == "call" and facts is not None:
            last = facts.finished == self.of.collectives
            return f"rank {rank} leaves" if last else f"rank {rank} calls collective {facts.finished}"
        return _WORDS[verb].format(rank)


# What those are given by a choice.
_OF_A_WORKER: Final = {
    **{verb: verb for verb in ("connect", "call", "park")},
    "join": "start",
    "renew": "do_work",
    "settle": "do_work",
    "open": "timer",
    "ask": "timer",
}
_OF_THE_CONTROLLER: Final = {"work": "work", "restart": "start", "back": "back"}
_SPENDS: Final = {"kill": KILLS, "crash": CRASHES, "break": BREAKS, "away": AWAYS, "stall": STALLS}
_BROKE: Final = ("hung", HungUp("the connection broke"))
# What need not happen.
_PERHAPS: Final = {"late", "kill", "break", "stall", "crash", "away", "move", "renumber"}
_WORDS: Final = {
    "join": "rank {} joins",
    "connect": "rank {} has its connection ready",
    "park": "rank {} learns that its collective was cut",
    "renew": "rank {} does what takes time of a renewal",
    "settle": "all that rank {} has sent has arrived",
    "open": "rank {} opens a stream",
    "ask": "rank {} asks again whether it is in the job",
    "notice": "the controller notices that a stream of rank {} is broken",
    "work": "the switch answers the controller",
    "time": "time passes",
    "restart": "the controller is started",
    "back": "the switch is back, empty",
    "cont": "rank {} goes on (SIGCONT)",
    "late": "rank {} has its result, which had come before it was cut off",
    "kill": "rank {} is killed",
    "break": "the stream of rank {} breaks",
    "stall": "rank {} is stopped (SIGSTOP)",
    "crash": "the controller is killed",
    "away": "the switch dies",
    "move": "the job is to move out of the switch",
    "renumber": "the job is to go on under a new generation",
}
_OF_WORKERS: Final = {verb for verb, text in _WORDS.items() if "{}" in text} | {
    "hear",
    "say",
    "finish",
    "call",
}


def _streamed(state: State, rank: int, *, up: tuple[int, ...] = (), linked: bool = False) -> State:
    """Return the state with a new or no stream: `up` is under way from the worker, and nothing to it."""
    return state._replace(
        up=put(state.up, rank, up),
        down=put(state.down, rank, ()),
        linked=put(state.linked, rank, linked),
    )


def _known(state: State, generation: int) -> Generation:
    return next((wire[1:] for wire in state.wire if wire[0] == generation), (False, (), ()))


def _knowing(state: State, generation: int, known: Generation) -> State:
    others = [wire for wire in state.wire if wire[0] != generation]
    return state._replace(wire=tuple(sorted([*others, (generation, *known)])))


def _short(message: Any) -> str:
    if isinstance(message, HungUp):
        return f"that its stream is over ({message.why})"
    if isinstance(message, Closed):
        return "the end"
    if isinstance(message, Heartbeat):
        return f"Heartbeat {message.number}"
    fields = ("generation", "renewal", "move", "collective", "mode", "next_collective", "reason", "holder")
    known = {name: getattr(message, name) for name in fields if hasattr(message, name)}
    text = ", ".join(
        f"{name} {getattr(value, 'name', value)}" for name, value in known.items() if value != ""
    )
    return type(message).__name__ + f" ({text})" * bool(text)


def _less(budget: tuple[int, ...], kind: int) -> tuple[int, ...]:
    return put(budget, kind, max(0, budget[kind] - 1))
