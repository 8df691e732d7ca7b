"""Breadth-first exploration of all states of a scope: what is checked in each, and what is left out.

A state is the hosts' and the switch's, the frames under way on each directed link in their order, those that
were overtaken, and how much may still go wrong. A choice lets one thing happen: a frame arrives, is lost, is
doubled or overtaken, a timer is due, the switch restarts, the job is renewed. A host or the switch is asked
once for what it does with a frame in a state of its own (`hosts.py`, `rack.py`); the rest is numbers.

**Counted once.** The ring has no first rank: states that are the same when the ranks are turned are one.
If the ranks are not alike (`Call.disagrees`), none are.

**Left out** (`Scope.reduced`). If a frame has come down to a host, only what can happen to it, the host's
timers, and what was overtaken on the way there are tried. Whatever else may happen, it leaves the head of
that link, that host and the frames it has sent as they are: links are read at one end and written at the
other. So both orders lead to the same state, with the same left of the budget (a persistent set); and as each
arrival shortens a queue, nothing is put off for ever. All ends and all dead ends are found, and all that a
host or the switch is ever given in any state of its own. How far the *others* are just then is not explored.
A slot that is claimed while somebody's copy is merely slow is claimed here, too, but noticed only if that
copy is lost or overtaken: a scope needs one of those. A renewal touches everybody at once; as long as there
can be one, nothing is left out.

**In each state**: what has reached a buffer is right, bit for bit, and a received call is whole; a slot holds
the sum of the ranks in its bitmap; no slot is claimed that somebody lacks; nobody is further ahead than its
window, or sends one kind of message while another is not drained; what is acknowledged has arrived; an RNR
NAK says nothing that the receiver has not said; no endpoint fails. **In the end**: when nothing more can
happen, all calls are complete; and from every state such an end can be reached.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from host_agent.transport import FailureCode
from host_agent.wire import psn as psn_math
from p4reduce.oracle.state import serial_age
from p4reduce.simulation.exhaustive import hosts as of_hosts
from p4reduce.simulation.exhaustive import rack as of_rack
from p4reduce.simulation.exhaustive.found import Choice, put
from p4reduce.simulation.exhaustive.hosts import Hosts
from p4reduce.simulation.exhaustive.rack import Rack
from p4reduce.simulation.exhaustive.scopes import Scope
from p4reduce.simulation.exhaustive.search import Broken, Search
from p4reduce.simulation.exhaustive.values import Meanings, in_words

Queues = tuple[tuple[int, ...], ...]
LOST, DOUBLED, OVERTAKEN, HASTY, RESTARTS, RENEWALS, TOGETHER = range(7)
VERBS = {"arrive": None, "lose": LOST, "double": DOUBLED, "overtake": OVERTAKEN}


@dataclass(frozen=True)
class State:
    """A state: hosts and the switch by their states' numbers; frames by links, up to the switch, then down.

    There is a link in either direction for each rank.
    """

    hosts: tuple[int, ...]
    switch: int
    links: Queues
    late: Queues  # overtaken, or the second of what was doubled
    budget: tuple[int, ...]


class Explorer(Search[State]):
    """The explorer of one scope."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.scope = scope
        self.ranks = scope.ranks
        self.hosts = Hosts(scope, Meanings(scope))
        self.rack = Rack(scope)

    def first(self) -> State:
        """Return the state in which all have posted and sent what may be sent, and nothing has arrived."""
        steps = self.hosts.first
        self._require(*(step.wrong for step in steps))
        ups = tuple(step.sends for step in steps)
        empty: Queues = ((),) * self.ranks
        return State(
            tuple(step.state for step in steps),
            self.rack.first,
            ups + empty,
            empty + empty,
            self.scope.budget,
        )

    # What can happen.

    def choices(self, state: State) -> Iterator[Choice]:
        """Yield all that is tried in a state; none: it is an end."""
        if self.scope.reduced and not state.budget[RENEWALS]:
            for rank in range(self.ranks):
                if state.links[self.ranks + rank]:
                    yield from self._at_link(state, self.ranks + rank)
                    yield from self._timer(state, rank)
                    return
        for link in range(2 * self.ranks):
            yield from self._at_link(state, link)
        for rank in range(self.ranks):
            yield from self._timer(state, rank)
        if state.budget[RESTARTS]:
            yield Choice("restart")
        if state.budget[RENEWALS] and not (self.scope.restarts and state.budget[RESTARTS]):
            yield Choice("renew")

    def _at_link(self, state: State, link: int) -> Iterator[Choice]:
        if state.links[link]:
            for verb, cost in VERBS.items():
                if cost is None or (state.budget[cost] and state.budget[TOGETHER]):
                    yield Choice(verb, link)
        for number in range(len(state.late[link])):
            yield Choice("late", link, number)

    def _timer(self, state: State, rank: int) -> Iterator[Choice]:
        hasty = state.budget[HASTY] and state.budget[TOGETHER]
        if self.hosts.facts[state.hosts[rank]].timer and (hasty or not any(state.links)):
            yield Choice("timer", number=rank)

    # What becomes of it.

    def after(self, state: State, choice: Choice) -> State:
        """Return the state that a choice leads to. Raise Broken if an invariant is."""
        self.checks["states of a host or the switch after a step"] += 1
        verb, link = choice.verb, choice.link
        if verb == "timer":
            hasty = any(state.links)
            budget = _less(state.budget, HASTY) if hasty else state.budget
            return self._host(state, choice.number, of_hosts.TIMER, state.links, state.late, budget)
        if verb == "restart":
            step = self.rack.step(state.switch, 0, of_rack.RESTART, bytes)
            return State(state.hosts, step.state, state.links, state.late, _less(state.budget, RESTARTS))
        if verb == "renew":
            return self._renewed(state)
        if verb == "late":
            frame, links = state.late[link][choice.number], state.links
            rest = state.late[link][: choice.number] + state.late[link][choice.number + 1 :]
            return self._arrives(state, link, frame, links, put(state.late, link, rest), state.budget)
        frame, links = state.links[link][0], put(state.links, link, state.links[link][1:])
        late, budget = state.late, state.budget
        cost = VERBS[verb]
        if cost is not None:
            budget = _less(budget, cost)
        if verb in ("double", "overtake"):
            late = put(late, link, tuple(sorted((*late[link], frame))))
        if verb in ("lose", "overtake"):
            return State(state.hosts, state.switch, links, late, budget)
        return self._arrives(state, link, frame, links, late, budget)

    def _arrives(
        self, state: State, link: int, frame: int, links: Queues, late: Queues, budget: tuple[int, ...]
    ) -> State:
        if link >= self.ranks:
            return self._host(state, link - self.ranks, frame, links, late, budget)
        step = self.rack.step(state.switch, link, frame, lambda: self.hosts.frames[link][frame])
        self._require(step.wrong)
        for claim in step.claims:
            self._check_claim(state, claim)
        for rank, psn in step.not_ready:
            self.checks["RNR NAKs"] += 1
            expected = self.hosts.facts[state.hosts[(rank + 1) % self.ranks]].expected_psn
            if psn_math.compare(expected, psn) < 0:
                raise Broken(
                    f"rank {rank} hears that all before {psn:#x} is there, its peer waits for {expected:#x}"
                )
        for rank, out in step.sends:
            down = self.ranks + rank
            links = put(links, down, (*links[down], self.hosts.meaning(down, out)))
        return State(state.hosts, step.state, links, late, budget)

    def _host(
        self, state: State, rank: int, given: int, links: Queues, late: Queues, budget: tuple[int, ...]
    ) -> State:
        step = self.hosts.step(rank, state.hosts[rank], given)
        self._require(step.wrong)
        hosts = (*state.hosts[:rank], step.state, *state.hosts[rank + 1 :])
        facts = self.hosts.facts[step.state]
        if facts.failed is not None and not self._may_fail(facts.failed, budget):
            raise Broken(step.failure or f"rank {rank} failed: {facts.failed.name}")
        peer = self.hosts.facts[hosts[(rank + 1) % self.ranks]]
        self.checks["acknowledgements against what has arrived"] += 1
        if peer.generation == facts.generation and serial_age(facts.acked, peer.received) < 0:
            raise Broken(
                f"rank {rank} takes {facts.acked} for arrived, its peer has all before {peer.received}"
            )
        links = put(links, rank, links[rank] + step.sends)
        return State(hosts, state.switch, links, late, budget)

    def _renewed(self, state: State) -> State:
        steps = [self.hosts.step(r, s, of_hosts.RENEWAL) for r, s in enumerate(state.hosts)]
        self._require(*(step.wrong for step in steps))
        links = state.links
        for rank, step in enumerate(steps):
            links = put(links, rank, links[rank] + step.sends)
        switch = self.rack.step(state.switch, 0, of_rack.RENEWAL, bytes).state
        hosts = tuple(step.state for step in steps)
        return State(hosts, switch, links, state.late, _less(state.budget, RENEWALS))

    def _check_claim(self, state: State, claim: of_rack.Claim) -> None:
        self.checks["slots claimed from what they held"] += 1
        generation, message = claim.held
        everybody = [self.hosts.facts[host] for host in state.hosts]
        lacking = [
            rank
            for rank, facts in enumerate(everybody)
            if facts.generation == generation and serial_age(message, facts.received) <= 0
        ]
        if lacking:
            raise Broken(f"{claim.tag} overwrites the slot of {claim.held}, which ranks {lacking} lack")

    def _may_fail(self, code: FailureCode, budget: tuple[int, ...]) -> bool:
        """Return whether a host fails for a reason: ranks disagree, or the switch has forgotten them."""
        if self.scope.disagrees:
            return code is FailureCode.MISMATCH
        return budget[RESTARTS] < self.scope.restarts

    def _require(self, *wrong: str) -> None:
        self.checks["buffers and slots"] += 1
        for text in wrong:
            if text:
                raise Broken(text)

    # Ends, and states that are the same.

    def why_bad_end(self, state: State) -> str:
        """Return what is wrong with an end; empty: nothing.

        Either all is complete, or a host has heard that ranks disagree.
        """
        if self.is_told(state) or all(self.hosts.facts[host].complete for host in state.hosts):
            return ""
        return f"nothing will ever happen again: {self.in_words(state)}"

    def is_told(self, state: State) -> bool:
        """Return whether a host has heard that ranks disagree.

        It ends the job, and the controller tells those that have not heard it.
        """
        return self.scope.disagrees and any(self.hosts.facts[host].failed is not None for host in state.hosts)

    def key(self, state: State) -> bytes:
        """Return the key of a state, which it shares with those that are the same with the ranks turned."""
        turns = range(1 if self.scope.disagrees else self.ranks)
        return blake2b(min(marshal.dumps(self._turned(state, k), 2) for k in turns), digest_size=12).digest()

    def _turned(self, state: State, k: int) -> Any:
        if k == 0:
            return (state.hosts, self.rack.turned[state.switch][0], state.links, state.late, state.budget)
        return (
            state.hosts[k:] + state.hosts[:k],
            self.rack.turned[state.switch][k],
            self._turned_links(state.links, k),
            self._turned_links(state.late, k),
            state.budget,
        )

    def _turned_links(self, links: Queues, k: int) -> Queues:
        n = self.ranks
        return links[k:n] + links[:k] + links[n + k :] + links[n : n + k]

    def in_words(self, state: State) -> str:
        return "; ".join(
            f"rank {rank}: sent {f.sent}, received {f.received}, acknowledged {f.acked}"
            + (f", failed ({f.failed.name})" if f.failed else "")
            for rank, f in enumerate(self.hosts.facts[host] for host in state.hosts)
        )

    def spell(self, choice: Choice) -> str:
        """Return a choice as `--choices` has it: links are numbered up to the switch, then down to a rank."""
        if choice.verb in ("restart", "renew"):
            return choice.verb
        if choice.verb == "timer":
            return f"timer{choice.number}"
        return f"{choice.verb}:{choice.link}" + (f".{choice.number}" if choice.verb == "late" else "")

    def explain(self, state: State, choice: Choice) -> str:
        if choice.verb in ("timer", "restart", "renew"):
            words = {"timer": f"a timer of rank {choice.number} is due", "restart": "the switch restarts"}
            return words.get(choice.verb, "the job is renewed")
        link = choice.link
        meaning = state.late[link][choice.number] if choice.verb == "late" else state.links[link][0]
        frame = in_words(self.hosts.frames[link][meaning])
        where = f"rank {link}'s, at the switch" if link < self.ranks else f"at rank {link - self.ranks}"
        done = {"lose": "is lost", "overtake": "will be late", "late": "arrives late"}
        doubled = "arrives, and will once more"
        return f"{where}: {frame} {done.get(choice.verb, doubled if choice.verb == 'double' else 'arrives')}"


def _less(budget: tuple[int, ...], cost: int) -> tuple[int, ...]:
    left = list(budget)
    left[cost] -= 1
    left[TOGETHER] -= cost <= HASTY
    return tuple(left)
