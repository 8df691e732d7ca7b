"""All states of a small gang: the gang and the member that ship, on planes that are numbers.

A state is that of the workers (`mate.py`), what the controller has told each, and how much may still happen.
A worker sees a mate's memory as it was when it looked last; it looks at any time, at one mate, and may miss
what was there in between.

**Planes.** A plane's collective has a result when all its workers have begun it in one generation, and they
call it alike; each gets it at any later time, or never, if it is cut. If they do not, each of them finds
that out instead. A move makes all that begins later in one plane go by ring.

**The controller** renews all planes together: it agrees with all workers by `jobs/renewals.py`, and tells
each in order. It goes on without a machine when that one's workers are over. Each worker hears of the job's
end at any later time.

**In each state**: a call's outcome is that of all others who are in the job, in the same words; its result is
of the same generation, and nobody has dropped it; a call that users make differently has no result; nobody
is told that calls differ if they do not, and a worker that is told hears both. **In the end**: nobody waits;
and such an end can be reached from every state.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from controller.api.messages import Renew, Renewed, Renewing, Start, Up
from controller.jobs.renewals import Cause, Renewal, agree
from host_agent.machine.gang import Stage
from p4reduce.simulation.exhaustive.found import Choice, put
from p4reduce.simulation.exhaustive.gang_scopes import CALLS, CANCEL, LEAVE, MISHAPS, GangScope
from p4reduce.simulation.exhaustive.mate import FIRST, MateFacts, MatePart, Outcome, Runs, ready_of
from p4reduce.simulation.exhaustive.parts import Parts
from p4reduce.simulation.exhaustive.search import Broken, Search
from p4reduce.simulation.faults.machine import words_of

KILLS, RESTARTS, MOVES = range(len(MISHAPS))
IN_NETWORK: Final = -1
_LIVE: Final = 4000
_DIFFER: Final = "calls differ"
_NONE: Final = -1

Numbers = tuple[int, ...]


class State(NamedTuple):
    """A state of the whole.

    `down`: what each worker is told, by number. `renewal`: the newest, and `answers` to it, by number; `up`:
    who is connected; `agreed`: Renewed is said. `ring`: by plane, the number of its first collective that
    goes by ring. `end`: why the job ends.
    """

    workers: Numbers
    dead: tuple[bool, ...]
    down: tuple[Numbers, ...]
    renewal: int
    answers: Numbers
    agreed: bool
    up: tuple[bool, ...]
    ring: tuple[int, ...]
    end: str
    budget: Numbers


class GangExplorer(Search[State]):
    """The explorer of one scope."""

    def __init__(self, scope: GangScope) -> None:
        super().__init__(scope)
        self.of = scope
        self.all = range(scope.machines * scope.gpus)
        self.parts: list[Parts[MateFacts]] = [
            Parts(lambda worker=worker: MatePart(scope, worker), live=_LIVE)  # type: ignore[misc]
            for worker in self.all
        ]
        self.messages: list[Any] = []
        self.numbers: dict[Any, int] = {}

    def first(self) -> State:
        """Return the state in which the job runs, and nobody has called anything."""
        each = len(self.all)
        return State(
            workers=(0,) * each,
            dead=(False,) * each,
            down=((),) * each,
            renewal=FIRST,
            answers=(_NONE,) * each,
            agreed=False,
            up=(False,) * each,
            ring=(IN_NETWORK,) * self.of.gpus,
            end="",
            budget=self.of.budget,
        )

    # Who is who

    def facts(self, state: State, worker: int) -> MateFacts:
        """Return a worker's facts; of a dead one, those that it had last."""
        return self.parts[worker].facts[state.workers[worker]]

    def plane(self, gpu: int, machines: Numbers) -> Numbers:
        """Return the workers of a plane."""
        return tuple(machine * self.of.gpus + gpu for machine in machines)

    def machine(self, worker: int) -> range:
        """Return the workers of a worker's machine."""
        first = worker - worker % self.of.gpus
        return range(first, first + self.of.gpus)

    def machines(self, state: State) -> Numbers:
        """Return the machines of which nobody has died."""
        size = self.of.gpus
        return tuple(m for m in range(self.of.machines) if not any(state.dead[m * size : (m + 1) * size]))

    def members(self, state: State) -> Numbers:
        """Return the workers of these machines."""
        return tuple(w for machine in self.machines(state) for w in self.machine(machine * self.of.gpus))

    # What can happen

    def choices(self, state: State) -> Iterator[Choice]:
        """Yield all that is tried in a state."""
        for worker in self.all:
            facts = self.facts(state, worker)
            if state.dead[worker] or facts.over:
                continue
            yield from self._of_worker(state, worker, facts)
            if state.budget[KILLS]:
                yield Choice("kill", worker)
        if state.end:
            return
        if state.budget[RESTARTS]:
            yield Choice("restart")
        if state.budget[MOVES]:
            for gpu, newest in enumerate(state.ring):
                if newest == IN_NETWORK:
                    yield Choice("move", gpu)

    def _of_worker(self, state: State, worker: int, facts: MateFacts) -> Iterator[Choice]:
        if facts.stage is Stage.IDLE and (facts.call < len(self.of.calls)):
            yield Choice("leave" if self.of.call(worker, facts.call) == LEAVE else "call", worker)
        others = (mate for mate in self.machine(worker) if mate != worker)
        for mate, seen in zip(others, facts.seen, strict=True):
            if self.facts(state, mate).memory != seen:
                yield Choice("see", worker, mate)
        if facts.runs is not None:
            if self._clashes(state, worker, facts.runs):
                yield Choice("clash", worker)
            elif self._have_begun(state, worker, facts.runs):
                yield Choice("finish", worker)
        if facts.repairs is not None and self._may_repair(state, worker, facts):
            yield Choice("repair", worker)
        if state.down[worker]:
            yield Choice("hear", worker)
        if any(state.dead[mate] for mate in self.machine(worker)) or state.end:
            yield Choice("end", worker)

    def _begun(self, state: State, worker: int, runs: Runs) -> list[Runs | None]:
        """Return what each worker of its plane has begun in that generation, at that number or later.

        None: nothing that late.
        """
        found = []
        for other in self.plane(worker % self.of.gpus, runs.members):
            begun = (r for r in self.facts(state, other).entered if r.generation == runs.generation)
            found.append(next((r for r in begun if r.number >= runs.number), None))
        return found

    def _have_begun(self, state: State, worker: int, runs: Runs) -> bool:
        return None not in self._begun(state, worker, runs)

    def _clashes(self, state: State, worker: int, runs: Runs) -> bool:
        """Tell whether another worker of its plane has begun something else under the same number."""
        for other in self._begun(state, worker, runs):
            if other is not None and other.number == runs.number and other != runs:
                return True
        return False

    def _may_repair(self, state: State, worker: int, facts: MateFacts) -> bool:
        """Tell whether all workers of its plane take part in the repair, or have done so."""
        assert facts.repairs is not None
        collective = facts.repairs.collective
        for other in self.plane(worker % self.of.gpus, facts.repairs.view.members):
            theirs = self.facts(state, other)
            done = any(r.generation == state.renewal and r.number > collective for r in theirs.entered)
            is_in = theirs.repairs is not None and theirs.repairs.renewal == facts.repairs.renewal
            if not (is_in or done or (state.agreed and state.up[other] and not state.down[other])):
                return False
        return True

    # What becomes of it

    def after(self, state: State, choice: Choice) -> State:
        """Return the state that a choice leads to. Raise Broken if an invariant is."""
        verb, worker = choice.verb, choice.link
        match verb:
            case "call" | "leave":
                return self._step(state, worker, (verb,))
            case "see":
                memory = self.facts(state, choice.number).memory
                return self._step(state, worker, ("see", choice.number % self.of.gpus, memory))
            case "finish":
                return self._finished(state, worker)
            case "clash":
                self._require_differs(f"worker {worker} hears that its plane's calls differ")
                return self._step(state._replace(end=_DIFFER), worker, ("end", _DIFFER))
            case "repair":
                return self._repaired(state, worker)
            case "hear":
                number, *rest = state.down[worker]
                state = state._replace(down=put(state.down, worker, tuple(rest)))
                return self._step(state, worker, ("hear", self.messages[number]))
            case "end":
                why = state.end or "a worker of its machine died"
                return self._perhaps_agreed(self._step(state, worker, ("end", why)))
            case "kill":
                return self._killed(self._spent(state, KILLS), worker)
            case "restart":
                return self._renewed(self._spent(state, RESTARTS))
            case "move":
                gpu = worker
                begun = [
                    runs.number
                    for w in self.plane(gpu, tuple(range(self.of.machines)))
                    for runs in self.facts(state, w).entered
                ]
                state = state._replace(ring=put(state.ring, gpu, max(begun, default=-1) + 1))
                return self._spent(state, MOVES)
        raise ValueError(verb)

    def _spent(self, state: State, kind: int) -> State:
        return state._replace(budget=put(state.budget, kind, state.budget[kind] - 1))

    def _finished(self, state: State, worker: int) -> State:
        runs = self.facts(state, worker).runs
        assert runs is not None
        newest = state.ring[worker % self.of.gpus]
        by_ring = runs.asks and newest != IN_NETWORK and runs.number >= newest
        return self._step(state, worker, ("result", runs.generation << 1 | by_ring))

    def _repaired(self, state: State, worker: int) -> State:
        repairs = self.facts(state, worker).repairs
        assert repairs is not None
        holder = self.plane(worker % self.of.gpus, repairs.view.members)[repairs.holder]
        return self._step(state, worker, ("repaired", self.facts(state, holder).kept))

    def _killed(self, state: State, worker: int) -> State:
        state = state._replace(dead=put(state.dead, worker, True), down=put(state.down, worker, ()))
        if not self.of.elastic or not self.machines(state):
            return state._replace(end=state.end or "a worker died")
        return self._renewed(state)

    def _renewed(self, state: State) -> State:
        """Let the controller begin a renewal."""
        each = len(self.all)
        state = state._replace(
            renewal=state.renewal + 1, answers=(_NONE,) * each, agreed=False, up=(False,) * each
        )
        for worker in self.members(state):
            state = self._told(state, worker, Renew(state.renewal, "a mishap"))
        return state

    def _told(self, state: State, worker: int, what: Any) -> State:
        return state._replace(down=put(state.down, worker, (*state.down[worker], self._number(what))))

    def _perhaps_agreed(self, state: State) -> State:
        """Let the controller say how the job goes on, if all have answered and lost workers are over."""
        members, machines = self.members(state), self.machines(state)
        if state.agreed or state.renewal == FIRST or any(state.answers[w] == _NONE for w in members):
            return state
        lost = (w for w in self.all if w not in members)
        if not all(state.dead[w] or self.facts(state, w).over for w in lost):
            return state
        planes = []
        for gpu in range(self.of.gpus):
            renewal = Renewal(state.renewal, Cause.SWITCH_RESTARTED, "a mishap", machines, since=0.0)
            for machine, worker in zip(machines, self.plane(gpu, machines), strict=True):
                renewal.answered(machine, self.messages[state.answers[worker]])
            if renewal.apart is not None:
                raise Broken(f"workers of plane {gpu} are too far apart: {renewal.answers}")
            renewal.written({machine: rank for rank, machine in enumerate(machines)}, 0.0)
            planes.append(renewal)
        number = state.renewal if self.of.elastic else 0
        agreed = agree(planes, number, begins_anew=self.of.elastic)
        for gpu, renewal in enumerate(planes):
            for rank, worker in enumerate(self.plane(gpu, machines)):
                said = Renewed(
                    renewal=state.renewal,
                    ready=ready_of(self.of, rank, len(machines), state.renewal),
                    collective=renewal.goes_on_with,
                    holder=renewal.holder,
                    members=machines,
                    **vars(agreed),
                )
                state = self._told(state, worker, said)
        return state._replace(agreed=True)

    def _step(self, state: State, worker: int, given: tuple[Any, ...]) -> State:
        self.checks["steps of a worker"] += 1
        before = self.facts(state, worker)
        step = self.parts[worker].step(state.workers[worker], given)
        if step.wrong:
            raise Broken(step.wrong)
        state = state._replace(workers=put(state.workers, worker, step.state))
        facts = self.facts(state, worker)
        for number in range(len(before.outcomes), len(facts.outcomes)):
            self._check_outcome(state, worker, number, facts.outcomes[number])
        if facts.over and facts.told and given[0] != "end":
            state = self._check_differs(state, worker, facts)
        for said in step.out:
            state = self._heard(state, worker, said)
        return state

    def _heard(self, state: State, worker: int, said: Any) -> State:
        """Let the controller hear a worker."""
        match said:
            case Renewing(renewal=number) if number == state.renewal:
                state = state._replace(answers=put(state.answers, worker, self._number(said)))
                return self._perhaps_agreed(state)
            case Up() if state.agreed:
                state = state._replace(up=put(state.up, worker, True))
                plane = self.plane(worker % self.of.gpus, self.machines(state))
                if all(state.up[other] for other in plane):
                    for other in plane:
                        state = self._told(state, other, Start())
        return state

    def _number(self, message: Any) -> int:
        number = self.numbers.setdefault(message, len(self.messages))
        if number == len(self.messages):
            self.messages.append(message)
        return number

    # What is checked

    def _require_differs(self, what: str) -> None:
        if not self.of.odd:
            raise Broken(f"{what}, and all users call the same")

    def _check_differs(self, state: State, worker: int, facts: MateFacts) -> State:
        self.checks["calls that differ"] += 1
        self._require_differs(f"worker {worker} says: {facts.told}")
        if "disagree about how many" not in facts.told:
            calls = {self.of.call(mate, facts.call) for mate in self.machine(worker)}
            words = {"(cancelled)" if call == CANCEL else words_of(CALLS[call]) for call in calls}
            if len(words) < 2 or not sum(word in facts.told for word in words) >= 2:
                raise Broken(f"worker {worker} does not hear of both calls: {facts.told}")
        return state._replace(end=_DIFFER)

    def _check_outcome(self, state: State, worker: int, number: int, outcome: Outcome) -> None:
        self.checks["outcomes against others'"] += 1
        mine = set(self.machine(worker))
        cancelled = outcome == Outcome(None, None)
        alike = cancelled or self.of.are_alike(number)
        if not alike or {self.of.call(mate, number) for mate in mine} != {self.of.call(worker, number)}:
            raise Broken(f"worker {worker} returns from call {number}, which users make differently")
        for other in self.all:
            theirs = self.facts(state, other)
            lost = any(state.dead[mate] for w in (worker, other) for mate in self.machine(w))
            if other == worker or (lost and other not in mine):
                continue
            local = other not in mine and (cancelled or self.of.calls[number] == "empty")
            if len(theirs.outcomes) > number and theirs.outcomes[number] != outcome and not local:
                raise Broken(
                    f"call {number} comes to {outcome} for worker {worker}, and to "
                    f"{theirs.outcomes[number]} for worker {other}"
                )
            if (number, outcome.made) in theirs.dropped and not local:
                raise Broken(
                    f"worker {worker} returns from call {number} the result of generation {outcome.made}, "
                    f"which worker {other} has dropped"
                )

    def is_end(self, state: State, choices: list[tuple[Choice, bool]]) -> bool:
        """Tell whether nothing more happens, unless something goes wrong."""
        return all(is_same or choice.verb in _PERHAPS for choice, is_same in choices)

    def why_bad_end(self, state: State) -> str:
        """Return what is wrong with an end; empty: nothing."""
        for worker in self.all:
            facts = self.facts(state, worker)
            if not (state.dead[worker] or facts.over or facts.call == len(self.of.calls)):
                return f"nothing will ever happen again: {self.in_words(state)}"
        return ""

    def key(self, state: State) -> bytes:
        return blake2b(marshal.dumps(tuple(state), 2), digest_size=12).digest()

    def close(self) -> None:
        for parts in self.parts:
            parts.close()

    # In words

    def in_words(self, state: State) -> str:
        words = []
        for worker in self.all:
            facts = self.facts(state, worker)
            if state.dead[worker]:
                words.append(f"worker {worker} is dead")
            elif facts.over:
                words.append(f"worker {worker} is over: {facts.told or 'it has left'}")
            else:
                words.append(f"worker {worker} is {facts.stage.name.lower()} in call {facts.call}")
        return "; ".join(words)

    def spell(self, choice: Choice) -> str:
        """Return a choice as `--choices` has it."""
        if choice.verb == "restart":
            return choice.verb
        return f"{choice.verb}:{choice.link}" + f":{choice.number}" * (choice.verb == "see")

    def explain(self, state: State, choice: Choice) -> str:
        """Return a choice in words."""
        worker = choice.link
        if choice.verb == "hear":
            said = self.messages[state.down[worker][0]]
            return f"worker {worker} hears {type(said).__name__} of the controller"
        if choice.verb == "call":
            number = self.facts(state, worker).call
            return f"worker {worker} calls {self.of.call(worker, number)}, call {number}"
        return _WORDS[choice.verb].format(worker, choice.number)


# What need not happen.
_PERHAPS: Final = {"kill", "restart", "move"}
_WORDS: Final = {
    "leave": "worker {} leaves",
    "see": "worker {} sees the memory of worker {} as it is now",
    "finish": "worker {} has the result of its plane",
    "clash": "worker {} hears that its plane's calls differ",
    "repair": "worker {} has a result that another one of its plane had",
    "end": "worker {} hears that its job is over",
    "kill": "worker {} is killed",
    "restart": "the switch restarts: a renewal",
    "move": "plane {} goes over to the ring",
}
