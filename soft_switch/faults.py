"""Faults on purpose: their rules, and a port's faults by themselves, for given frames and times.

native/faults.h carries rules out: in the switch's ports, in the wires of `soft_switch.wires`, and here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from ctypes import c_double, c_int64, c_uint32, c_uint64
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any, Final, TypeVar

from soft_switch import native_api as api
from soft_switch.errors import FaultError

Rule = TypeVar("Rule", bound="FaultRule")

DIRECTIONS: Final = ("in", "out")
WORD_MASK: Final = (1 << 64) - 1
ANY_COUNT: Final = WORD_MASK
MAX_COPIES: Final = 1000
MAX_BITS: Final = 1000
MAX_DELAY_MS: Final = 600_000.0
NEVER_US: Final = WORD_MASK


class FaultKind(str, Enum):
    """The effect on a frame; in the order of native/faults.h."""

    LOSS = "loss"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    DELAY = "delay"
    CORRUPT = "corrupt"


class Packets(str, Enum):
    """The frames that a rule means; in the order of native/faults.h."""

    ANY = "any"
    ROCE = "roce"
    SEND = "send"
    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    ONLY = "only"
    ACK = "ack"
    NAK = "nak"
    RNR = "rnr"
    RESULT = "result"
    TREE = "tree"
    PARTIAL = "partial"
    TREE_RESULT = "tree-result"
    ASK = "ask"
    TCP = "tcp"


TREE_PACKETS: Final = (Packets.TREE, Packets.PARTIAL, Packets.TREE_RESULT, Packets.ASK)
# Of which kinds an option is, with what it is without; which packets have no such field.
_OPTIONS: Final = {
    "copies": (1, (FaultKind.DUPLICATE,)),
    "bits": (1, (FaultKind.CORRUPT,)),
    "delay_ms": (0, (FaultKind.DELAY, FaultKind.REORDER, FaultKind.DUPLICATE)),
}
_LACKING: Final = {
    "message": (Packets.TCP,),
    "psn": (Packets.TCP,),
    "qpn": (Packets.TCP, *TREE_PACKETS),
}


class NativeRule(ctypes.Structure):
    """FaultRule of native/faults.h."""

    _fields_ = [
        ("id", c_uint64),
        ("seed", c_uint64),
        ("probability", c_double),
        ("message", c_int64),
        ("psn", c_int64),
        ("qpn", c_int64),
        ("skip", c_uint64),
        ("count", c_uint64),
        ("delay_us", c_uint64),
        ("kind", c_uint32),
        ("packets", c_uint32),
        ("copies", c_uint32),
        ("bits", c_uint32),
    ]


class NativeReport(ctypes.Structure):
    """FaultReport of native/faults.h."""

    _fields_ = [("id", c_uint64), ("matched", c_uint64), ("struck", c_uint64)]


@dataclass(frozen=True, kw_only=True)
class FaultRule:
    """A fault at a port, in one direction. FaultError where it makes no sense.

    `packets` says which frames are meant, further narrowed by the number of the `message` they belong to (as
    the First or Only packet has it; packets that follow on the connection, and their acknowledgements, belong
    to it), by `psn` and by destination `qpn`. The first `skip` of them pass; each later one is struck with
    `probability`, as `seed` decides, until `count` were.

    duplicate: `copies`, each `delay_ms` after the one before. delay: `delay_ms`, and what comes behind waits
    too. reorder: held back `delay_ms` while others pass; without a delay, until the next has passed. corrupt:
    `bits` bits behind the Ethernet header are flipped.
    """

    kind: FaultKind
    probability: float = 1.0
    packets: Packets = Packets.ANY
    message: int | None = None
    psn: int | None = None
    qpn: int | None = None
    skip: int = 0
    count: int | None = None
    delay_ms: float = 0.0
    copies: int = 1
    bits: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in (("kind", FaultKind), ("packets", Packets)):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, kind(value))
            except ValueError:
                known = ", ".join(member.value for member in kind)
                what = "kind of fault" if name == "kind" else "kind of packet"
                raise FaultError(f"{value!r} is no {what}, there are {known}") from None
        for field in fields(FaultRule):
            value = getattr(self, field.name)
            if field.name in ("kind", "packets") or (value is None and field.default is None):
                continue
            real = field.name in ("probability", "delay_ms")
            if isinstance(value, bool) or not isinstance(value, (int, float) if real else int):
                raise FaultError(f"{field.name} {value!r} is no {'number' if real else 'whole number'}")
        self._check()

    def _check(self) -> None:
        if not 0 < self.probability <= 1:
            raise FaultError(f"a probability of {self.probability:g} is not above 0 and at most 1")
        if not 0 <= self.delay_ms <= MAX_DELAY_MS:
            raise FaultError(f"a delay of {self.delay_ms:g} ms is not within 0 and {MAX_DELAY_MS:g}")
        if self.kind is FaultKind.DELAY and not self.delay_ms:
            raise FaultError("a delay of 0 ms delays nothing: give delay_ms (--delay-ms)")
        limits = (
            ("message", self.message, 0, 0xFFFFFFFF),
            ("psn", self.psn, 0, 0xFFFFFF),
            ("qpn", self.qpn, 0, 0xFFFFFF),
            ("skip", self.skip, 0, WORD_MASK),
            ("count", self.count, 1, WORD_MASK - 1),
            ("copies", self.copies, 1, MAX_COPIES),
            ("bits", self.bits, 1, MAX_BITS),
            ("seed", self.seed, 0, WORD_MASK),
        )
        for name, value, low, high in limits:
            if value is not None and not low <= value <= high:
                raise FaultError(f"{name} {value} is not within {low} and {high}")
        self._check_options()

    def _check_options(self) -> None:
        """Raise FaultError for options that would change nothing, or strike nothing."""
        for name, (usual, kinds) in _OPTIONS.items():
            value = getattr(self, name)
            if value != usual and self.kind not in kinds:
                others = ", ".join(kind.value for kind in kinds)
                raise FaultError(
                    f"{name} {value:g} means nothing to {self.kind.value}: it is of {others}. "
                    f"Leave {_option(name)} out"
                )
        for name, packets in _LACKING.items():
            if getattr(self, name) is not None and self.packets in packets:
                raise FaultError(
                    f"{self.packets.value} packets have no {name}, so that none would ever be struck: leave "
                    f"{_option(name)} out, or mean others (--packets)"
                )

    @classmethod
    def decode(cls: type[Rule], raw: Any) -> Rule:
        """Make a rule from what `encode` made; FaultError if it is something else."""
        if not isinstance(raw, Mapping):
            raise FaultError(f"{raw!r} is no fault: give an object with its fields")
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(raw) - known)
        if unknown or "kind" not in raw:
            what = f"has no field {unknown[0]!r}" if unknown else "needs a kind"
            raise FaultError(f"a fault {what}; its fields are {', '.join(sorted(known))}")
        return cls(**raw)

    def encode(self) -> dict[str, Any]:
        """Return the rule for JSON."""
        return {**asdict(self), "kind": self.kind.value, "packets": self.packets.value}

    def native(self, number: int) -> NativeRule:
        """Return the rule as the engine takes it, with its number."""
        return NativeRule(
            id=number,
            seed=self.seed,
            probability=self.probability,
            message=-1 if self.message is None else self.message,
            psn=-1 if self.psn is None else self.psn,
            qpn=-1 if self.qpn is None else self.qpn,
            skip=self.skip,
            count=ANY_COUNT if self.count is None else self.count,
            delay_us=math.ceil(self.delay_ms * 1000),
            kind=list(FaultKind).index(self.kind),
            packets=list(Packets).index(self.packets),
            copies=self.copies,
            bits=self.bits,
        )


@dataclass(frozen=True, kw_only=True)
class PlacedFault:
    """A rule at a port: how many frames it meant, and how many it struck."""

    number: int
    port: int
    direction: str
    rule: FaultRule
    matched: int
    struck: int


class PortFaults(AbstractContextManager["PortFaults"]):
    """A port's faults, applied to frames without a port and without a clock. A context manager."""

    def __init__(self) -> None:
        self._library = api.engine_library()
        self._handle: int | None = self._library.faults_create()
        self._next = 1

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._library.faults_destroy(self._handle)
        self._handle = None

    def add(self, direction: str, rule: FaultRule) -> int:
        """Add a rule to a direction ("in", "out"); return its number."""
        number, self._next = self._next, self._next + 1
        native = rule.native(number)
        self._library.faults_add(self._handle, DIRECTIONS.index(direction), ctypes.byref(native))
        return number

    def remove(self, direction: str, number: int) -> None:
        """Remove a rule; FaultError if there is none of that number."""
        if self._library.faults_remove(self._handle, DIRECTIONS.index(direction), number) < 0:
            raise FaultError(f"there is no fault {number}")

    def struck(self, direction: str) -> dict[int, tuple[int, int]]:
        """Return for each rule, by number, how many frames it meant, and how many it struck."""
        reports = read_reports(
            lambda to, room: self._library.faults_report(self._handle, DIRECTIONS.index(direction), to, room)
        )
        return {report.id: (report.matched, report.struck) for report in reports}

    def pass_(self, direction: str, frame: bytes, *, now_us: int) -> list[bytes]:
        """Return the frames that go on because of one: itself, changed or not, copies, and overtaken ones."""
        copy = ctypes.create_string_buffer(frame, len(frame))
        out = DIRECTIONS.index(direction)
        collector = self._library.faults_pass(self._handle, out, copy, len(frame), now_us)
        return [data for _, data in self._collected(collector)]

    def release(self, *, now_us: int) -> list[tuple[str, bytes]]:
        """Return the frames that were held back and are due, with their directions."""
        return self._collected(self._library.faults_release(self._handle, now_us))

    @property
    def due_us(self) -> int | None:
        """The time at which the next held frame is due; None: none is held."""
        due: int = self._library.faults_due_us(self._handle)
        return None if due == NEVER_US else due

    @property
    def active(self) -> bool:
        """True if frames have to be looked at: there is a rule, or a frame is held."""
        return bool(self._library.faults_active(self._handle))

    def _collected(self, collector: int) -> list[tuple[str, bytes]]:
        return [(DIRECTIONS[out], data) for out, data in api.collected(self._library, collector)]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_reports(read: Any) -> list[NativeReport]:
    """Return all reports; `read(to, room)` fills an array as far as it has room and returns their number."""
    room = 16
    while True:
        reports = (NativeReport * room)()
        count = read(reports, room)
        if count <= room:
            return list(reports[: max(0, count)])
        room = count
