"""Sentences about what a host or a switch did with a packet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from host_agent.transport import native
from host_agent.wire import psn as psn_math
from p4reduce.oracle.rules import Rule
from p4reduce.simulation.sequence.packets import Packet
from p4reduce.simulation.sequence.steps import Arrow

_MOST_NAMED: Final = 4

REASONS: Final = {
    "bad_icrc": "its checksum (ICRC) is wrong",
    "unplaced": "it fits no message that the switch knows: its First never came, or is too long ago",
    "foreign": "it is aimed at a job's queue pair and not from its peer",
    "spoofed": "a host sends with its own address, and never as a switch marks its packets",
    "unnamed": "the port is named by nobody",
    "no_job": "the switch knows no such job",
    "no_uplink": "there is no way up to the message's spine",
    "bad_echo": "its checksum (ICRC) is wrong",
}
"""Reasons to drop a packet that met no slot rule, by the counter (docs/protocol.md)."""


@dataclass(frozen=True)
class Position:
    """An endpoint's position in its messages."""

    posted: int
    sent: int
    acked: int
    received: int
    first_unacked: int
    expected: int

    @classmethod
    def of(cls, progress: native.NativeProgress) -> Position:
        """Read the position that an endpoint reports."""
        return cls(
            posted=progress.posted_messages,
            sent=progress.sent_messages,
            acked=progress.acked_messages,
            received=progress.received_messages,
            first_unacked=progress.first_unacked_psn,
            expected=progress.expected_psn,
        )


class Said(NamedTuple):
    """A sentence; `mark`: a word beside the lifeline, "" if only the packet's way is to be seen."""

    text: str
    mark: str = ""


def sent(who: str, arrows: Sequence[Arrow]) -> str:
    """Say what leaves a host by itself, or a switch because the controller asks for it."""
    labels = [("again " if arrow.again else "") + arrow.packet.label for arrow in arrows if not arrow.is_copy]
    if arrows[0].packet.kind == "probe":
        return f"{who} sends a probe of the link, as the controller asks"
    if len(labels) > _MOST_NAMED:
        return f"{who} sends {len(labels)} packets, {labels[0]} to {labels[-1]}"
    return f"{who} sends {', '.join(labels)}"


def at_switch(name: str, packet: Packet, rule: Rule | None, counts: Mapping[str, int], *, sends: int) -> Said:
    """Say what a switch does with a packet."""
    if rule is not None:
        whose = "" if packet.flow is None else f" of rank {packet.flow.rank}"
        return Said(f"{name} takes {packet.label}{whose} by rule “{rule.name}”", rule.name)
    for reason, why in REASONS.items():
        if counts.get(reason):
            return Said(f"{name} drops {packet.label} and counts it as {reason}: {why}", reason)
    if packet.kind == "probe":
        return Said(
            f"{name} {'answers a probe of the link' if sends else 'tells the controller of the probe'}"
        )
    if not sends:
        return Said(f"{name} drops {packet.label}: there is no way to its receiver", "no route")
    how = " untouched, as PASS messages are" if counts.get("passed") else ""
    return Said(f"{name} forwards {packet.label}{how}")


def at_host(who: str, packet: Packet, before: Position, after: Position, *, stopped: bool) -> Said:
    """Say what a worker does with a packet for one of its queue pairs."""
    if stopped:
        return Said(f"{who} is stopped: {packet.label} waits in its queue", "waits")
    if packet.kind == "broken":
        return Said(f"{who} drops {packet.label}: its checksum (ICRC) is wrong", "bad ICRC")
    if packet.kind in ("ack", "nak", "rnr"):
        return _acknowledged(who, packet, before, after)
    if after.expected != before.expected:
        got = after.received - before.received
        whole = f", and has {'all of it' if got == 1 else f'{got} messages'} now" if got else ""
        return Said(f"{who} takes {packet.label}, in order{whole}")
    ahead = psn_math.compare(packet.psn, before.expected)
    at = None if packet.flow is None else packet.flow.place(before.expected)
    if ahead > 0:
        waits = str(at) if at is not None else f"PSN 0x{before.expected:06x}"
        return Said(f"{who} sees a gap: {waits} is missing, and this is {packet.label}", "gap")
    if ahead < 0:
        return Said(f"{who} has had {packet.label} already", "had it")
    return Said(f"{who} does not take {packet.label}", "not taken")


def _acknowledged(who: str, packet: Packet, before: Position, after: Position) -> Said:
    new = psn_math.distance(before.first_unacked, after.first_unacked)
    heard = f"; {new} packet{'s are' if new > 1 else ' is'} acknowledged" if new else ""
    if packet.kind == "nak":
        return Said(f"{who} hears that {packet.label.removeprefix('NAK ')} is missing{heard}")
    if packet.kind == "rnr":
        return Said(f"{who} hears that its receiver is not ready: again later{heard}")
    return Said(f"{who} hears {packet.label}{heard or ', which says nothing new'}")
