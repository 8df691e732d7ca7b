"""Packets that should not occur, as switches count them by flow and port (docs/p4-program.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from controller.api import controller_pb2 as pb
from p4reduce.doctor import growing, words
from p4reduce.doctor.earlier import earlier, injected
from p4reduce.doctor.facts import Facts
from p4reduce.doctor.findings import Finding, note, warning
from p4reduce.live.reading import counted

_MANY_COPIES: Final = 10
_DO: Final = {
    **dict.fromkeys(
        ("foreign-traffic", "spoofed"), ("no sum has anything of them; tcpdump at that port shows who sends",)
    ),
    "unnamed-port": (
        "whoever belongs there needs a line in the controller's configuration, with this switch and port",
        "if nobody does, take the cable out: nothing that comes in there goes anywhere",
    ),
}

# What they are, whose they may be.
_OF_FLOWS: Final = {
    "foreign": ("foreign-traffic", "packets for {0}'s queue pair that are not from its peer were dropped"),
    "unplaced": ("unplaced", "packets of {0} that fit no message of its flow were dropped"),
    "mismatch": ("mismatch", "packets of {0} did not fit what the other ranks sent: their calls disagree"),
}
_OF_PORTS: Final = {
    "unnamed": (
        "unnamed-port",
        "frames came in by {0}, which the configuration does not name, and were dropped",
    ),
    "spoofed": (
        "spoofed",
        "RoCE packets with another host's address, or marked as a switch marks sums, came from {0} and were "
        "dropped",
    ),
    "no_job": ("no-job", "partial sums of no job came from {0} and were dropped"),
    "bad_echo": ("bad-echo", "probes that fit no link came from {0} and were dropped"),
}


def unwanted(facts: Facts, *, is_damaged: bool) -> Iterator[Finding]:
    """Report dropped packets by the reason for the drop; a damaged packet may look like any of them."""
    for counter, what in _OF_FLOWS.items():
        for one in growing.flows(facts, counter):
            who = f"job {one.flow.job} {one.who}"
            yield from _dropped(facts, what, who, one.flow.switch, one.total, one.now, is_damaged=is_damaged)
    before = {(port.switch, port.port): port.drops for port in facts.before.ports.value or ()}
    for port in facts.now.ports.value or ():
        past: Mapping[str, pb.CounterValue] = before.get((port.switch, port.port), {})
        for counter, what in _OF_PORTS.items():
            total = counted(port.drops, counter)
            now = growing.growth(total, counted(past, counter))
            behind = port.host or port.peer or f"port {port.port}"
            yield from _dropped(facts, what, behind, port.switch, total, now, is_damaged=is_damaged)


def _dropped(
    facts: Facts, what: tuple[str, str], who: str, switch: str, total: int, now: int, *, is_damaged: bool
) -> Iterator[Finding]:
    code, sentence = what
    if not total:
        return
    if not now or is_damaged or code == "unplaced":  # which is what a loss leads to
        yield earlier(code, f"{total} of {who} on {switch}")
        return
    yield warning(
        code=code,
        says=f"switch {switch}: {sentence.format(who)}: {now} in {words.seconds(facts.seconds)}, "
        f"{total} in all",
        where=switch,
        do=_DO.get(code, ()),
    )


def late_copies(facts: Facts) -> Iterator[Finding]:
    """Report packets of messages that are long over, if nothing was lost: they are copies that came late."""
    for one in growing.flows(facts, "unplaced", "stale"):
        if one.now >= _MANY_COPIES:
            yield warning(
                code="late-copies",
                says=f"switch {one.flow.switch}: {one.now} packets of job {one.flow.job} {one.who} came in "
                f"{words.seconds(facts.seconds)} that belong to messages which are over: copies that were "
                "long under way",
                job=one.flow.job,
                rank=one.flow.rank,
                where=one.flow.switch,
                evidence=("they are dropped or only acknowledged: no sum takes them",),
                do=injected(facts),
            )


def asked_to_wait(facts: Facts) -> Iterator[Finding]:
    """Report RNR NAKs that the switch sent to devices whose peers are late."""
    for one in growing.flows(facts, "not_ready"):
        if one.now:
            yield note(
                code="rnr-waits",
                says=f"job {one.flow.job}: {one.who}'s device was asked to wait (RNR NAK) "
                f"{words.count(one.now, 'time')} in {words.seconds(facts.seconds)}: it sends again while "
                "another rank is late",
                job=one.flow.job,
                rank=one.flow.rank,
                where=one.flow.switch,
            )
