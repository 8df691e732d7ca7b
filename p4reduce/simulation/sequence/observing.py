"""Links and switches that report to an observer what passes them, and otherwise work as without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any, Final, TypeAlias

from host_agent.transport import TransportConfig
from p4reduce.oracle.rules import At, Brings, Fragment, Holds, Rule, Sender, Sends, Writes, case_of
from p4reduce.oracle.state import Job, Out, Slot, SpineJob
from p4reduce.simulation.faults.links import StrikesOfLink, Wire
from p4reduce.simulation.faults.loop import Clock
from p4reduce.simulation.faults.node import GhostSwitch
from p4reduce.simulation.faults.scene import Receiver
from p4reduce.simulation.faults.schedule import Mishap, Schedule, Strike
from p4reduce.simulation.sequence.packets import Packet, Packets, slot_numbers
from p4reduce.simulation.sequence.steps import Arrow, Mark, Parts, Step
from p4reduce.simulation.sequence.words import Position, Said, at_host, at_switch, sent
from p4reduce.simulation.watched import Knowledge

MOST_STEPS: Final = 2000  # of a page
Case: TypeAlias = "tuple[At, Brings, Holds, Sender]"
Pair: TypeAlias = "tuple[Receiver, TransportConfig]"  # a worker and one of its connections


class ObservedWire(Wire):
    """A link that reports each frame as it leaves and as it comes, and what the link does to it."""

    def __init__(self, observer: SequenceObserver, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self._observer = observer
        self._strikes: list[Strike] = []  # of the frame that is sent

    def send(self, frame: bytes) -> None:
        self._leaves_ns = max(self._free_ns, self.clock.now_ns)
        self._whole, self._strikes = frame, []
        self._ends = self._observer.ends_of(self.faults.name, frame)
        self._packet, self._is_again = self._observer.read(self._ends[0], frame)
        super().send(frame)

    def _struck(self, frame: bytes, arrives: int, strikes: list[Strike]) -> None:
        self._strikes = strikes
        if any(strike.kind == "loss" for strike in strikes):
            self._observer.leaves(self._arrow(self._packet, arrives, ("loss",), lost="the link loses it"))
        super()._struck(frame, arrives, strikes)

    def _under_way(self, frame: bytes, arrives: int) -> None:
        late = arrives - self._leaves_ns - self.delay_ns
        copies = [strike.kind for strike in self._strikes if strike.kind in ("duplicate", "stale") and late]
        marks = copies[:1] or ["reorder"] * (late > 0)
        packet = self._packet
        if frame != self._whole:
            marks.append("corrupt")
            packet = replace(packet, kind="broken", layers=self._observer.packets.read(frame).layers)
        arrow = self._arrow(packet, arrives, tuple(marks), late_ns=late)
        self._observer.leaves(arrow)
        self.clock.at(arrives, self._observed, arrow, frame)

    def _arrow(self, packet: Packet, arrives: int, marks: tuple[str, ...], **more: Any) -> Arrow:
        again = self._is_again and not {"duplicate", "stale"} & set(marks)
        return Arrow(*self._ends, self._leaves_ns, arrives, packet, marks, again=again, **more)

    def _observed(self, arrow: Arrow, frame: bytes) -> None:
        if self.down:
            arrow.lost = "the link is down"
        with self._observer.arrival(arrow, frame):
            super()._arrive(frame)


class ObservedSwitch(GhostSwitch):
    """A switch that reports the rule by which it takes a packet, its counts, and its slots afterwards."""

    def __init__(self, observer: SequenceObserver, *words: Any) -> None:
        super().__init__(*words)
        self._observer = observer

    def process(self, port: int, frame: bytes) -> list[Out]:
        self._observer.takes()
        self.settle()  # before anything is counted
        before = self._all_counted()
        left = super().process(port, frame)
        self._observer.processed(self._all_counted() - before)
        return left

    def _all_counted(self) -> Counter[str]:
        ports = {reason: sum(by_port.values()) for reason, by_port in self.port_counters.items()}
        return self.counted() + Counter(ports)

    def obey(self, rule: Rule, job: Job | SpineJob, slot: Slot, fragment: Fragment) -> list[Out]:
        index = next(n for n, known in self.registers.items() if known is slot)
        self._observer.met(rule, case_of(job, slot, fragment), f"{self.name}/{index}")
        left = super().obey(rule, job, slot, fragment)
        if rule.writes is not Writes.NOTHING:
            self._observer.wrote(self.name, index, job, slot, fragment, more=rule.sends is Sends.NOTHING)
        return left

    def restart(self) -> None:
        self._observer.emptied(self.name, list(self.registers))
        super().restart()


class SequenceObserver:
    """The observer of one run.

    `packets` reads its frames; `parts`: the steps that a page has room for; `marks`: all that broke;
    `last_ns`: the time of the last step.
    """

    def __init__(self, schedule: Schedule, *, most: int = MOST_STEPS, from_ns: int | None = None) -> None:
        self.config = schedule.config()
        self.parts = Parts(most, from_ns)
        self.marks: list[Mark] = []
        self._away: dict[str, Mark] = {}  # switches that have no program
        self.clock = Clock()  # the run's, when there is one
        self.last_ns = 0  # when the last step was
        self.packets = Packets()
        self._hosts = {host.ip: host.name for host in self.config.hosts}
        self._leaves = {(link.b, link.b_port): link.a for link in self.config.links}
        self._pairs: dict[tuple[IPv4Address, int], Pair] = {}
        self._at: dict[str, list[Pair]] = {}  # by host: those that have been opened last
        self._open: Step | None = None  # a packet is being taken
        self._pending: Step | None = None  # may become more, in the same event
        self._is_up = False  # the switch that it came to

    # What the run makes and says: `scene.Observer`

    def wire(
        self,
        clock: Clock,
        faults: StrikesOfLink,
        arrive: Callable[[bytes], None],
        *,
        delay_ns: int,
        gap_ns: int,
    ) -> Wire:
        """Make a direction of a link."""
        self.clock = clock
        return ObservedWire(self, clock, faults, arrive, delay_ns=delay_ns, gap_ns=gap_ns)

    def switch(self, name: str, world: Knowledge, sums: dict[tuple[int, int, int], bytes]) -> GhostSwitch:
        """Make a switch's data plane."""
        return ObservedSwitch(self, name, world, sums)

    def opened(self, receiver: Receiver, config: TransportConfig) -> None:
        """Note that a worker has brought up its queue pairs."""
        self.packets.opened(config)
        self._hosts[config.ip] = receiver.host.name  # of the backup network, too
        for qpn in (config.qpn_in, config.qpn_out):
            self._pairs[config.ip, qpn] = receiver, config
        at = self._at.setdefault(receiver.host.name, [])
        at[:] = [*(pair for pair in at if pair[0] is not receiver), (receiver, config)]

    def happened(self, mishap: Mishap, where: tuple[str, ...]) -> None:
        """Note that something breaks."""
        until_ns = self.clock.now_ns + mishap.lasts_ns if mishap.lasts_ns else None
        self.marks.append(Mark(self.clock.now_ns, until_ns, mishap.kind, where))
        if mishap.kind == "switch-restart":
            self._away.setdefault(where[0], self.marks[-1])
        self._step("fault", where[0] if len(where) == 1 else "")

    def note(self, what: str) -> None:
        """Note a line of the trace."""
        if self._open is not None:
            self._open.said.append(what)
            return
        pending = self._pending
        if pending is None or pending.kind == "sends" or pending.event != self.clock.events:
            pending = self._step("note")
        pending.said.append(what)

    def ended(self, error: str) -> None:
        """Note that the run is over; `error`: why it failed, or empty."""
        if error:
            self._step("error").said.append(error)
        self._close()

    # What its links say

    def ends_of(self, link: str, frame: bytes) -> tuple[str, str]:
        """Return the names of a frame's sender and receiver on a link."""
        source, between, target = link.partition(">")
        if between:
            return source, target
        addresses = IPv4Address(frame[26:30]), IPv4Address(frame[30:34])
        return tuple(self._hosts.get(address, str(address)) for address in addresses)  # type: ignore[return-value]

    def read(self, source: str, frame: bytes) -> tuple[Packet, bool]:
        """Return the packet that a frame is, and whether its host has sent it before."""
        packet = self.packets.read(frame)
        flow = packet.flow
        if flow is None or packet.kind not in ("data", "pass") or source not in self._hosts.values():
            return packet, False
        again = packet.psn in flow.sent
        flow.sent.add(packet.psn)
        return packet, again

    def leaves(self, arrow: Arrow) -> None:
        """Note that a frame is under way, or lost at once."""
        step = self._open
        if step is None:
            step, source = self._pending, arrow.source
            if step is None or (step.kind, step.where, step.event) != ("sends", source, self.clock.events):
                step = self._step("sends", source)
            self._note_workers(step, source)
        step.left.append(arrow)

    @contextmanager
    def arrival(self, arrow: Arrow, frame: bytes) -> Iterator[None]:
        """Note that a frame comes, and for its step all that is done while the block runs.

        A frame may be lost on its last bit.
        """
        self._close()
        step = self._open = Step(self.clock.now_ns, self.clock.events, "arrives", arrow.target, came=arrow)
        self._is_up = False
        receiver = self._receiver_of(frame) if arrow.target in self._hosts.values() else None
        before, stopped = self._position(receiver), receiver is not None and receiver[0].stopped_until_ns > 0
        try:
            yield
        finally:
            self._open = None
            said = self._said(step, arrow, receiver, before, stopped=stopped)
            step.mark = said.mark
            step.said.insert(0, said.text)
            self._note_workers(step, arrow.target)
            self._add(step)

    def _said(
        self, step: Step, arrow: Arrow, receiver: Pair | None, before: Position | None, *, stopped: bool
    ) -> Said:
        packet, where = arrow.packet, arrow.target
        if arrow.lost:
            return Said(f"{packet.label} is lost: {arrow.lost}")
        if where not in self._hosts.values():
            if self._is_up:
                return at_switch(where, packet, step.rule, step.counts, sends=len(step.left))
            arrow.lost = "the switch is down, or has no program yet"
            return Said(f"{packet.label} is lost: {where} is down, or has no program yet")
        after = self._position(receiver)
        if receiver is None or before is None or after is None:
            return Said(f"nobody at {where} takes {packet.label}: there is no such queue pair", "nobody's")
        return at_host(f"rank {receiver[1].rank} ({where})", packet, before, after, stopped=stopped)

    # What its switches say

    def takes(self) -> None:
        """Note that a switch is up, and takes the packet."""
        self._is_up = True

    def processed(self, counts: Counter[str]) -> None:
        """Note what the switch has counted for the packet."""
        if self._open is not None:
            self._open.counts = dict(counts)

    def met(self, rule: Rule, case: Case, slot: str) -> None:
        """Note the packet's rule, its case and its slot."""
        if self._open is not None:
            self._open.rule, self._open.case, self._open.touched = rule, case, slot

    def wrote(
        self, switch: str, index: int, job: Job | SpineJob, slot: Slot, fragment: Fragment, *, more: bool
    ) -> None:
        """Note the slot as it is now; `more`: contributions will be added."""
        assert slot.tag is not None
        if isinstance(job, SpineJob):
            of = [self._leaves.get((switch, port), str(port)) for port in job.leaves]
        else:
            of = [str(flow.rank) for flow in job.flows]
        if self._open is not None:
            self._open.changes[f"{switch}/{index}"] = {
                "switch": switch,
                "slot": index,
                "generation": slot.tag[0],
                "message": slot.tag[1],
                "index": fragment.index,
                "of": of,
                "in": sorted(slot.ranks),
                "sum": slot.result,
                "mismatch": slot.mismatch,
                "numbers": slot_numbers(slot, fragment.index, fragment.op, more=more),
            }

    def emptied(self, switch: str, slots: Sequence[int]) -> None:
        """Note that a switch's registers are empty again: it has died, or it has a program again."""
        mark = self._away.get(switch)
        if mark is not None and self.clock.now_ns > mark.from_ns:
            self._away.pop(switch).until_ns = self.clock.now_ns
        if slots:
            pending = self._pending
            if pending is None or pending.event != self.clock.events:
                pending = self._step("note", switch)
            pending.said.append(f"{switch} has lost what its slots held")
            pending.changes.update((f"{switch}/{slot}", None) for slot in slots)

    # Steps

    def _step(self, kind: str, where: str = "") -> Step:
        """Begin a step that may become more."""
        self._close()
        self._pending = Step(self.clock.now_ns, self.clock.events, kind, where)
        return self._pending

    def _close(self) -> None:
        step, self._pending = self._pending, None
        if step is not None:
            if step.kind == "sends":
                step.said.append(sent(step.where, step.left))
            self._add(step)

    def _add(self, step: Step) -> None:
        self.last_ns = step.now_ns
        self.parts.add(step)

    def _note_workers(self, step: Step, host: str) -> None:
        """Note in a step the positions of the workers at a host."""
        for pair in self._at.get(host, ()):
            position, (receiver, config) = self._position(pair), pair
            if position is not None:
                waits = self.packets.place(config.ip, config.qpn_in, position.expected)
                step.changes[f"worker {receiver}"] = {
                    "worker": str(receiver),
                    "host": host,
                    "rank": config.rank,
                    "generation": config.generation,
                    "posted": position.posted,
                    "acked": position.acked,
                    "received": position.received,
                    "expects": f"0x{position.expected:06x}" + (f" {waits}" if waits else ""),
                }

    def _receiver_of(self, frame: bytes) -> Pair | None:
        return self._pairs.get((IPv4Address(frame[30:34]), int.from_bytes(frame[47:50], "big")))

    def _position(self, of: Pair | None) -> Position | None:
        if of is None or of[0].endpoint is None or of[0].endpoint.config is not of[1]:
            return None
        return Position.of(of[0].endpoint.position())
