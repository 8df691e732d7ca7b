"""The slot rules as a table: what a switch does with one packet of a message, and what it counts for it.

    a packet's place ──► case_of: classify ──► rule_of: its row ──► SwitchModel.apply: count, write, send

Fragment i of message m lives in slot (m mod 2W)·P + i of its job, under the tag (generation, m). Four things
decide: where the switch stands, what the packet brings, what its slot holds, and what its sender has done
about that. Each has a column and an enum below. Every case has exactly one row, so their order means nothing.
docs/protocol.md ("Slot rules") has the same rows under the same names, and says why they are safe.

The numbers in rows' names are those of the five rules that all of it comes from. A switch adds every
contributor once (1, 2) and tells everybody when all are there. A contributor that sends again has had no
answer: the switch answers from what it stored (4), or says who is late (3). Nobody needs a packet any more
that is older than its slot (5).

The contributors of a rack are its workers, and those of a spine the job's leaves. A leaf does both halves of
it: it collects its workers as a rack does, sends up what they come to, and gives them the sum when it comes
down.

Index 0 begins with a header, which shows differences between contributors: a shape that differs is no reason
to drop the packet there. If `SwitchModel.compare` finds a difference, it is counted beside what the row
counts, and marks the sum.

A slot's registers keep what older messages, even of other jobs, put there. Its tag and its shape say which of
them this message has written, and no others are read. Every slot knows that by itself: the first packet's
slot, which knows of a mismatch, may be a newer message's by now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple

from host_agent.wire.aggregation import CHUNK_BYTES
from host_agent.wire.headers import RocePacket
from p4reduce.oracle.state import Job, Slot, SpineJob
from p4reduce.oracle.tree_packets import TreePacket


class Word(Enum):
    """A cell of the table, and what it `says`."""

    says: str

    def __new__(cls, value: str, says: str = "") -> Word:
        """Make a member whose value is the word alone."""
        word = object.__new__(cls)
        word._value_, word.says = value, says
        return word


class At(Word):
    """A switch's position in the tree."""

    RACK = "rack", "it has all of the job's workers behind it"
    LEAF = "leaf", "it has some of the job's workers behind it"
    SPINE = "spine", "it has leaves behind it"


class Brings(Word):
    """The kind of a packet, for the slot rules."""

    CONTRIBUTION = "contribution", "what a worker contributes, or, to a spine, a leaf (PARTIAL)"
    RESULT = "RESULT", "the sum of all workers"
    ASK = "ASK", "the question for the sum"


class Holds(Word):
    """The state of the slot: the first of these that is true."""

    DIFFERING = "differing", "ranks differ, as the message's first packet has shown; this is a later one"
    OLDER = "older", "nothing, an older message's, or another generation's"
    NEWER = "newer", "a newer message's"
    OTHER_SHAPE = (
        "other shape",
        "behind the first packet: the first contributor's packet was of another op, or of another size",
    )
    OVER = (
        "over",
        "what would cross the tree once more, though the first packet's slot is a newer message's",
    )
    SUM = "sum", "the sum of all workers"
    ALL = "all", "all contributors are in; on a leaf, as elsewhere that is the sum"
    SOME = "some", "some contributors are in"


class Sender(Word):
    """The sender's part in what the slot holds."""

    NEW = "new", "nothing yet, and others will be missing"
    LAST = "last", "nothing yet, and all others are in"
    SEEN = "seen", "it has contributed"
    AWAITED = (
        "awaited",
        "it has contributed; its NIC takes RNR NAKs, and its receiver waits for just this PSN",
    )


class Writes(Word):
    """The effect of a packet on the slot."""

    NOTHING = "–", "the slot stays as it is"
    CLAIM = "claim", "the slot forgets what it held, and begins with this payload"
    ADD = "add", "the payload is added, lane by lane"
    STORE = "store", "the payload takes the place of what is there"


class Sends(Word):
    """The packets that leave the switch."""

    NOTHING = "–", "nothing leaves"
    ITSELF = "itself", "the packet leaves unchanged, to its receiver"
    SUMS = "sums", "the sum leaves on every flow that ends behind this switch; from a spine, to every leaf"
    SUM = "its sum", "the sum leaves on the sender's own flow; from a spine, to the leaf that sent it"
    UP = "up", "what the slot holds leaves to the message's spine"
    ANSWER = "answer", "what the slot holds leaves to the spine that asks"
    NOT_READY = "NAK", "an RNR NAK leaves to the sender: its receiver is not ready"
    NOT_READY_AND_UP = (
        "NAK, up",
        "an RNR NAK leaves to the sender, and what the slot holds to the message's spine",
    )
    ASK = "ASK", "the question leaves to the leaves that have not contributed"


FIVE: Final = {
    "1": "The first packet for a newer message, or of another generation, claims the slot: tag = m, "
    "bitmap = {r}, accumulators = payload.",
    "2": "Any other contributor's is added as the op says, lane by lane, and its bit is set. When all are "
    "there, the sum leaves on every flow.",
    "3": "What comes again before the sum is there is dropped; or, where its sender's NIC wants it, answered "
    "with an RNR NAK; or whoever is late is asked.",
    "4": "What comes again after the sum is there has lost its copy: it goes on to flow r's "
    "receiver alone, with the stored sum in place of its payload.",
    "5": "What is older than its slot is forwarded unmodified: its receiver has the sum already, and only "
    "acknowledges again.",
}
"""The rules that rows come from, by the number that the rows' names begin with."""

TABLE: Final = """
| rule         | at          | brings       | holds      | sender  | writes | sends   | counts
| 1 claim      | any         | contribution | older      | new     | claim  | –       | aggregated
| 1 whole rack | leaf        | contribution | older      | last    | claim  | up      | aggregated, partials
| 1 by a sum   | spine       | RESULT       | older      | any     | claim  | sums    | results
| 2 add        | any         | contribution | some       | new     | add    | –       | aggregated
| 2 complete   | rack, spine | contribution | some       | last    | add    | sums    | aggregated, completed
| 2 whole rack | leaf        | contribution | some       | last    | add    | up      | aggregated, partials
| 3 duplicate  | rack, leaf  | contribution | some       | seen    | –      | –       | duplicate
| 3 not ready  | rack, leaf  | contribution | some       | awaited | –      | NAK     | not_ready
| 3 ask others | spine       | contribution | some       | seen    | –      | ASK     | asked
| 3 up again   | leaf        | contribution | all        | seen    | –      | up      | partials
| 3 NAK and up | leaf        | contribution | all        | awaited | –      | NAK, up | not_ready, partials
| 4 replay     | any         | contribution | sum        | any     | –      | its sum | replayed
| 4 tell sum   | leaf        | ASK          | sum        | any     | –      | answer  | replayed
| 4 tell part  | leaf        | ASK          | all        | any     | –      | answer  | partials
| 5 stale      | rack, leaf  | contribution | newer      | any     | –      | itself  | stale
| 5 over       | leaf        | contribution | over       | any     | –      | itself  | stale
| 5 stale part | spine       | contribution | newer      | any     | –      | –       | stale
| 5 stale sum  | leaf, spine | RESULT, ASK  | newer      | any     | –      | –       | stale
| sum for rack | leaf        | RESULT       | all        | any     | store  | sums    | results
| sum of leaf  | spine       | RESULT       | some       | any     | store  | sums    | results
| sum again    | leaf, spine | RESULT       | sum        | any     | –      | –       | duplicate
| late         | leaf        | RESULT, ASK  | older, over, some | any | –  | –       | late
| other shape  | any         | any          | other shape | any    | –      | –       | mismatch
| differs      | any         | any          | differing  | any     | –      | –       | mismatch
"""


class Rule(NamedTuple):
    """A row: its cases, its effect on the slot, the packets that leave, and the counters that it raises."""

    name: str
    at: tuple[At, ...]
    brings: tuple[Brings, ...]
    holds: tuple[Holds, ...]
    sender: tuple[Sender, ...]
    writes: Writes
    sends: Sends
    counts: tuple[str, ...]


def _rule(line: str) -> Rule:
    cells = [cell.strip() for cell in line.split("|")[1:]]
    kinds: tuple[type[Word], ...] = (At, Brings, Holds, Sender)
    cases: list[Any] = [
        tuple(kind) if cell == "any" else tuple(map(kind, cell.split(", ")))
        for kind, cell in zip(kinds, cells[1:5], strict=True)
    ]
    at, brings, holds, sender = cases
    counts = tuple(cells[7].split(", "))
    return Rule(cells[0], at, brings, holds, sender, Writes(cells[5]), Sends(cells[6]), counts)


RULES: Final = tuple(map(_rule, TABLE.splitlines()[2:]))


@cache
def rule_of(at: At, brings: Brings, holds: Holds, sender: Sender) -> Rule:
    """Return the one row for a case."""
    (rule,) = (
        rule
        for rule in RULES
        if at in rule.at and brings in rule.brings and holds in rule.holds and sender in rule.sender
    )
    return rule


@dataclass
class Fragment:
    """A packet that has found its place.

    `sender`: its number among the slot's contributors. `psn`: the packet's PSN on the flow that leaves the
    rack; in a spine's packet, the PSN on the flow that enters it. `packet`: a host's, or the one that `tree`
    stands for.
    """

    brings: Brings
    message: int
    index: int
    op: int
    sender: int
    psn: int
    port: int
    packet: RocePacket
    frame: bytes = b""
    tree: TreePacket | None = None
    is_awaited: bool = False

    @property
    def chunks(self) -> int:
        """The number of its chunks."""
        return len(self.packet.payload) // CHUNK_BYTES

    @property
    def shape(self) -> tuple[int, int]:
        """Op and chunks."""
        return self.op, self.chunks

    @property
    def flags(self) -> int:
        """The tree packet's flags; 0 for a host's packet."""
        return 0 if self.tree is None else self.tree.flags


def case_of(job: Job | SpineJob, slot: Slot, fragment: Fragment) -> tuple[At, Brings, Holds, Sender]:
    """Return the case of a packet at its slot: the arguments of `rule_of`."""
    at = At.SPINE if isinstance(job, SpineJob) else At.LEAF if job.tree is not None else At.RACK
    message, index, tag = fragment.message, fragment.index, (job.generation, fragment.message)
    seen, everybody = slot.ranks, job.contributors
    if index and job.heard_of_mismatch(message):
        holds = Holds.DIFFERING
    elif slot.behind(tag):
        holds, seen = Holds.OLDER, set()
    elif slot.tag != tag:
        holds = Holds.NEWER
    elif index and fragment.shape != slot.shape:
        holds = Holds.OTHER_SHAPE
    else:
        holds = Holds.SUM if slot.result else Holds.ALL if len(seen) == everybody else Holds.SOME
        crosses = at is At.LEAF and (holds is Holds.ALL or fragment.brings is not Brings.CONTRIBUTION)
        if crosses and job.is_over(message):
            holds = Holds.OVER
    if fragment.sender in seen:
        sender = Sender.AWAITED if fragment.is_awaited else Sender.SEEN
    else:
        sender = Sender.LAST if len(seen) + 1 == everybody else Sender.NEW
    return at, fragment.brings, holds, sender
