"""Frames counted at both ends of a link: how many were lost on it, or doubled.

A host's counter and its switch's cannot be read at one moment, and frames are under way: so the host is read
before and after the switch. Samples in which nothing passed between these reads are nearly exact. Between
others, a difference counts only where it is larger than what may be under way.

A switch that is short of time, as after a restart under load, takes frames out of its rings later than they
came in: in one turn of samples that looks as if they were lost, in the next as if there were more. So only
what each turn shows by itself is blamed on a link.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from p4reduce.doctor.facts import Sample

UNDER_WAY: Final = 512  # frames: more than the windows of several jobs on one host
SLACK: Final = 3  # frames; where the ends are quiet: those that a switch has not looked at yet,
SLACK_PART: Final = 0.01  # and of what was sent, this part


@dataclass(frozen=True)
class Bounds:
    """Frames that were surely lost on the way, or came out in addition, between the samples."""

    lost: int = 0
    doubled: int = 0


@dataclass(frozen=True)
class _Reading:
    """Frames that one end had sent and the other received at about one moment: (at least, at most)."""

    sent: tuple[int, int]
    arrived: tuple[int, int]

    @property
    def is_quiet(self) -> bool:
        """True if no frame passed during the reading."""
        return self.sent[0] == self.sent[1] and self.arrived[0] == self.arrived[1]


def to_switch(host: str, turns: Sequence[Sequence[Sample]]) -> Bounds:
    """Return the bounds for the way from the host to its switch.

    Each turn of samples counts by itself; if one turn shows nothing, the bound is 0.
    """
    return _together(
        [
            _Reading((s.hosts[host].up, s.hosts_again[host].up), (s.switches[host].up, s.switches[host].up))
            for s in _complete(host, samples)
        ]
        for samples in turns
    )


def to_host(host: str, turns: Sequence[Sequence[Sample]]) -> Bounds:
    """Return the bounds for the way from the switch to the host, as `to_switch` does."""
    return _together(
        [
            _Reading(
                (s.switches[host].down, s.switches[host].down), (s.hosts[host].down, s.hosts_again[host].down)
            )
            for s in _complete(host, samples)
        ]
        for samples in turns
    )


def is_suspicious(samples: Sequence[Sample]) -> bool:
    """Return whether a turn shows a lost or a doubled frame on any link."""
    hosts = {host for sample in samples for host in sample.hosts}
    return any(way(host, [samples]) != Bounds() for host in hosts for way in (to_switch, to_host))


def _complete(host: str, samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if host in s.hosts and host in s.hosts_again and host in s.switches]


def _together(turns: Iterable[Sequence[_Reading]]) -> Bounds:
    found = [_bounds(_since_last_start(readings)) for readings in turns]
    lost, doubled = [one.lost for one in found], [one.doubled for one in found]
    return Bounds(sum(lost) if all(lost) else 0, sum(doubled) if all(doubled) else 0)


def _since_last_start(readings: Sequence[_Reading]) -> Sequence[_Reading]:
    """Drop readings from before a counter began anew, as a switch's counters do at a restart."""
    starts = [
        number
        for number, (early, late) in enumerate(itertools.pairwise(readings), start=1)
        if late.sent[0] < early.sent[0] or late.arrived[0] < early.arrived[0]
    ]
    return readings[starts[-1] :] if starts else readings


def _bounds(readings: Sequence[_Reading]) -> Bounds:
    if len(readings) < 2:
        return Bounds()
    quiet = [reading for reading in readings if reading.is_quiet]
    if len(quiet) >= 2:
        early, late = quiet[0], quiet[-1]
        lost = late.sent[0] - early.sent[0] - (late.arrived[0] - early.arrived[0])
        if abs(lost) > max(SLACK, SLACK_PART * (late.sent[0] - early.sent[0])):
            return Bounds(max(0, lost), max(0, -lost))
    early, late = readings[0], readings[-1]
    least = late.sent[0] - early.sent[1] - (late.arrived[1] - early.arrived[0])
    most = late.sent[1] - early.sent[0] - (late.arrived[0] - early.arrived[1])
    return Bounds(least if least > UNDER_WAY else 0, -most if most < -UNDER_WAY else 0)
