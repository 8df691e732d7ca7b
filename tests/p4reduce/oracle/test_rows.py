"""Outcomes of the slot rules' rows where they are played: what leaves, is counted, and stays in the slot.

Rank r's lanes hold 10^r, so that a sum says who is in it. Leaves have the ports 1 and 2 of a spine, and
spines the ports 101 and 102 of a leaf; workers begin at port 1 of theirs. A slot is written as its message,
who is in it, and its last lane.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from p4reduce.oracle.from_entries import EntrySwitch
from p4reduce.oracle.rules import At, Fragment, Rule
from p4reduce.oracle.state import Job, Out, Slot, SpineJob
from p4reduce.oracle.tree_packets import Kind, TreePacket
from tests.p4reduce.oracle.played import PLAYED, world_of
from tests.p4reduce.oracle.racks import host, lanes, tree

SEEN = """
| at    | row          | leaves                 | counts                | slot
| rack  | 1 claim      | –                      | aggregated            | 0: 0: 1
| rack  | 2 add        | –                      | aggregated            | 0: 0, 1: 11
| rack  | 2 complete   | sum 111 to 2, 3, 1     | aggregated, completed | 0: 0, 1, 2: 111, the sum
| rack  | 3 duplicate  | –                      | duplicate             | 0: 0, 1: 11
| rack  | 3 not ready  | NAK to 1               | not_ready             | 0: 0, 1: 11
| rack  | 4 replay     | sum 111 to 2           | replayed              | 0: 0, 1, 2: 111, the sum
| rack  | 5 stale      | itself 1 to 2          | stale                 | 2: 1: 10
| rack  | other shape  | –                      | mismatch              | 0: 0: 1
| rack  | differs      | –                      | mismatch              | –
| leaf  | 1 claim      | –                      | aggregated            | 0: 0: 1
| leaf  | 1 whole rack | up 100 to 101          | aggregated, partials  | 0: 0: 100
| leaf  | 2 add        | –                      | aggregated            | 0: 0, 1: 11
| leaf  | 2 whole rack | up 11 to 101           | aggregated, partials  | 0: 0, 1: 11
| leaf  | 3 duplicate  | –                      | duplicate             | 0: 0, 1: 11
| leaf  | 3 not ready  | NAK to 1               | not_ready             | 0: 0, 1: 11
| leaf  | 3 up again   | up 11 to 101           | partials              | 0: 0, 1: 11
| leaf  | 3 NAK and up | NAK to 1; up 11 to 101 | not_ready, partials   | 0: 0, 1: 11
| leaf  | 4 replay     | sum 111 to 2           | replayed              | 0: 0, 1: 111, the sum
| leaf  | 4 tell sum   | sum 111 to 102         | replayed              | 0: 0, 1: 111, the sum
| leaf  | 4 tell part  | up 11 to 102           | partials              | 0: 0, 1: 11
| leaf  | 5 stale      | itself 10 to 102       | stale                 | 2: 0: 1
| leaf  | 5 over       | itself 10 to 102       | stale                 | 0: 0, 1: 11
| leaf  | 5 stale sum  | –                      | stale                 | 2: 0: 1
| leaf  | sum for rack | sum 111 to 2, 1        | results               | 0: 0, 1: 111, the sum
| leaf  | sum again    | –                      | duplicate             | 0: 0, 1: 111, the sum
| leaf  | late         | –                      | late                  | –
| leaf  | other shape  | –                      | mismatch              | 0: 0: 1
| leaf  | differs      | –                      | mismatch              | –
| spine | 1 claim      | –                      | aggregated            | 0: 0: 100
| spine | 1 by a sum   | sum 100 to 1, 2        | results               | 0: 1: 100, the sum
| spine | 2 add        | –                      | aggregated            | 0: 0, 1: 11
| spine | 2 complete   | sum 111 to 1, 2        | aggregated, completed | 0: 0, 1: 111, the sum
| spine | 3 ask others | ASK 10 to 3            | asked                 | 0: 0, 1: 11
| spine | 4 replay     | sum 111 to 1           | replayed              | 0: 0, 1: 111, the sum
| spine | 5 stale part | –                      | stale                 | 2: 0: 100
| spine | 5 stale sum  | –                      | stale                 | 2: 0: 100
| spine | sum of leaf  | sum 100 to 1, 2        | results               | 0: 0, 1: 100, the sum
| spine | sum again    | –                      | duplicate             | 0: 0, 1: 111, the sum
| spine | other shape  | –                      | mismatch              | 0: 0: 100
| spine | differs      | –                      | mismatch              | –
"""
ROWS = [[cell.strip() for cell in line.split("|")[1:]] for line in SEEN.splitlines()[2:]]


class NotingSwitch(EntrySwitch):
    """Remembers what became of the packet that came last to any of them."""

    seen: ClassVar[list[str]] = []

    def obey(self, rule: Rule, job: Job | SpineJob, slot: Slot, fragment: Fragment) -> list[Out]:
        before = self.counted()
        left = super().obey(rule, job, slot, fragment)
        counted = ", ".join(sorted((self.counted() - before).elements()))
        to: dict[str, list[str]] = {}
        for out in left:
            to.setdefault(said(out), []).append(str(out[0]))
        leaves = "; ".join(f"{what} to {', '.join(ports)}" for what, ports in to.items()) or "–"
        NotingSwitch.seen = [rule.name, leaves, counted, held(slot)]
        return left


def said(out: Out) -> str:
    """Return a packet that leaves, in words."""
    if TreePacket.parse(out[1]) is not None:
        ((_, packet),) = tree([out])
        what = {"PARTIAL": "up", "RESULT": "sum", "ASK": "ASK"}[Kind(packet.kind).name]
        return f"{what} {max(lanes(packet))}"
    ((_, arrives),) = host([out])
    if arrives.aeth is not None:
        return "NAK"
    return f"{'sum' if arrives.bth.reserved else 'itself'} {max(lanes(arrives))}"


def held(slot: Slot) -> str:
    """Return a slot, in words: of which message it is, who is in it, and what its lanes hold."""
    if slot.tag is None:
        return "–"
    who = ", ".join(map(str, sorted(slot.ranks)))
    return f"{slot.tag[1]}: {who}: {slot.chunks[slot.count - 1][-1]}{', the sum' if slot.result else ''}"


@pytest.mark.parametrize(("at", "name"), [(at, name) for at in At for name in PLAYED[at]])
def test_what_a_row_comes_to(at: At, name: str) -> None:
    PLAYED[at][name](world_of(at, name, lambda switch: NotingSwitch()))
    expected = [cells[1:] for cells in ROWS if cells[:2] == [at.value, name]]
    assert [NotingSwitch.seen] == expected
