"""STF, p4c's language for packet tests: a script as a list of statements.

The grammar is that of p4c's tools/stf (stf_lexer.py, stf_parser.py) with what backends/bmv2/bmv2stf.py adds:
one statement a line, comments from `#`, numbers with `*` for digits that do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

TOKEN = re.compile(
    r"""\s*(?:
      "(?P<quoted>[^"]+)"
    | (?P<number>0[xX][0-9a-fA-F*]+|0[bB][01*]+|[0-9]+)
    | (?P<word>[a-zA-Z_$][a-zA-Z_$0-9]*)
    | (?P<sign>==|!=|<=|>=|[:,.\[\]()/=<>])
    )""",
    re.VERBOSE,
)
DIRECT = {  # command: the kinds of its arguments (n a number, q a name, N numbers to the end, R meter rates)
    "mirroring_add": "nn",
    "mirroring_add_mc": "nn",
    "mirroring_delete": "n",
    "mirroring_get": "n",
    "mc_mgrp_create": "n",
    "mc_node_create": "nN",
    "mc_node_update": "nN",
    "mc_node_associate": "nn",
    "counter_read": "qn",
    "counter_write": "qnnn",
    "register_read": "qn",
    "register_write": "qnn",
    "register_reset": "q",
    "meter_get_rates": "qn",
    "meter_set_rates": "qnR",
    "meter_array_set_rates": "qR",
}


class StfError(Exception):
    """A line is no STF."""


@dataclass(frozen=True)
class Packet:
    """Send a packet to a port."""

    line: int
    port: int
    data: bytes


@dataclass(frozen=True)
class Expect:
    """A packet leaves on a port. `pattern` has hexadecimal digits and `*`; None: whatever leaves there.

    Without `exact`, more may follow what the pattern says.
    """

    line: int
    port: int
    pattern: str | None
    exact: bool


@dataclass(frozen=True)
class NoPacket:
    """Expectation that nothing leaves anywhere."""

    line: int


@dataclass(frozen=True)
class Call:
    """An action and its arguments by name."""

    action: str
    arguments: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Add:
    """Insert an entry: (key field, number) for each field that is given; a prefix length follows a `/`."""

    line: int
    table: str
    priority: int | None
    match: tuple[tuple[str, str], ...]
    call: Call
    name: str | None


@dataclass(frozen=True)
class SetDefault:
    """Set a table's default action."""

    line: int
    table: str
    call: Call


@dataclass(frozen=True)
class RemoveAll:
    """Remove every entry of every table."""

    line: int


@dataclass(frozen=True)
class CheckCounter:
    """Compare a counter; `index` is a number or the name that an entry was given with `=`."""

    line: int
    counter: str
    index: int | str
    unit: str
    operator: str
    value: int


@dataclass(frozen=True)
class Wait:
    """Statement that waits until the packets so far are through."""

    line: int


@dataclass(frozen=True)
class Command:
    """A command of simple_switch_CLI; arguments that are rates are pairs (per microsecond, burst)."""

    line: int
    name: str
    target: str
    numbers: tuple[int, ...]
    rates: tuple[tuple[float, int], ...] = ()


Statement = Union[Packet, Expect, NoPacket, Add, SetDefault, RemoveAll, CheckCounter, Wait, Command]  # noqa: UP007


def parse(text: str) -> list[Statement]:
    """Return the statements of a script. Raise StfError with the line."""
    statements = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if line:
            try:
                statements.append(_statement(number, line))
            except StfError as error:
                raise StfError(f"line {number}: {error}: {line}") from error
    return statements


def number(text: str) -> int:
    """Return the value of a number without wildcards."""
    if "*" in text:
        raise StfError(f"{text} has wildcards, which do not belong here")
    return int(text, {"0x": 16, "0b": 2}.get(text[:2].lower(), 10))


def _statement(line: int, text: str) -> Statement:
    keyword, _, rest = text.partition(" ")
    keyword = keyword.lower()
    if keyword == "packet":
        port, data = _packet_words(rest)
        return Packet(line, port, bytes.fromhex(data))
    if keyword == "expect":
        port, data = _packet_words(rest)
        return Expect(line, port, data.removesuffix("$") or None, data.endswith("$"))
    tokens = _Tokens(rest)
    readers: dict[str, Callable[[int, _Tokens], Statement]] = {
        "add": _add,
        "setdefault": _set_default,
        "remove": _remove,
        "check_counter": _check_counter,
    }
    if keyword in readers:
        statement = readers[keyword](line, tokens)
    elif keyword == "wait":
        statement = Wait(line)
    elif keyword == "no_packet":
        statement = NoPacket(line)
    elif keyword in DIRECT:
        statement = _command(line, keyword, tokens)
    else:
        raise StfError(f"there is no statement {keyword}")
    tokens.end()
    return statement


def _packet_words(text: str) -> tuple[int, str]:
    words = text.split()
    if not words or not words[0].isdigit():
        raise StfError("a port is missing")
    data = "".join(words[1:])
    if not re.fullmatch(r"[0-9a-fA-F*]*\$?", data):
        raise StfError("packet data are hexadecimal digits")
    return int(words[0]), data


class _Tokens:
    """The tokens of a line, left to right."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise StfError(f"what is {text[at:].strip()!r}?")
            kind = found.lastgroup or ""
            self._tokens.append(("word" if kind == "quoted" else kind, found[kind]))
            at = found.end()
        self._at = 0

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ("end", "")

    def take(self, kind: str) -> str:
        found, text = self.peek()
        if found != kind:
            raise StfError(f"a {kind} is missing before {text!r}")
        self._at += 1
        return text

    def sign(self, text: str) -> bool:
        """Tell whether this sign comes next, and take it then."""
        if self.peek() != ("sign", text):
            return False
        self._at += 1
        return True

    def need(self, text: str) -> None:
        if not self.sign(text):
            raise StfError(f"{text!r} is missing before {self.peek()[1]!r}")

    def end(self) -> None:
        if self.peek()[0] != "end":
            raise StfError(f"{self.peek()[1]!r} is too much")

    def number(self) -> int:
        return number(self.take("number"))

    def qualified_name(self) -> str:
        name = self.take("word")
        while True:
            if self.sign("["):
                name += f"[{self.take('number')}]"
                self.need("]")
            elif self.sign("."):
                name += f".{self.take('word')}"
            else:
                return name

    def call(self) -> Call:
        action = self.qualified_name()
        arguments: list[tuple[str, int]] = []
        self.need("(")
        while not self.sign(")"):
            if arguments:
                self.need(",")
            name = self.take("word")
            self.need(":")
            arguments.append((name, self.number()))
        return Call(action, tuple(arguments))


def _add(line: int, tokens: _Tokens) -> Add:
    table = tokens.qualified_name()
    priority = tokens.number() if tokens.peek()[0] == "number" else None
    match = []
    while True:
        start = tokens._at
        field = tokens.qualified_name()
        if not tokens.sign(":"):
            tokens._at = start
            break
        value = tokens.take("number")
        if tokens.sign("/"):
            value += f"/{tokens.take('number')}"
        match.append((field, value))
    call = tokens.call()
    name = tokens.take("word") if tokens.sign("=") else None
    return Add(line, table, priority, tuple(match), call, name)


def _set_default(line: int, tokens: _Tokens) -> SetDefault:
    return SetDefault(line, tokens.qualified_name(), tokens.call())


def _remove(line: int, tokens: _Tokens) -> RemoveAll:
    if tokens.take("word").lower() != "all":
        raise StfError("only `remove all` is known")
    return RemoveAll(line)


def _check_counter(line: int, tokens: _Tokens) -> CheckCounter:
    counter = tokens.qualified_name()
    tokens.need("(")
    index: int | str = tokens.number() if tokens.peek()[0] == "number" else tokens.take("word")
    tokens.need(")")
    if tokens.peek()[0] == "end":
        return CheckCounter(line, counter, index, "packets", "==", 0)
    unit, operator = tokens.take("word").lower(), tokens.take("sign")
    if unit not in ("packets", "bytes"):
        raise StfError("counters count packets or bytes")
    return CheckCounter(line, counter, index, unit, operator, tokens.number())


def _command(line: int, name: str, tokens: _Tokens) -> Command:
    target, numbers, rates = "", [], []
    for kind in DIRECT[name]:
        if kind == "q":
            target = tokens.qualified_name()
        elif kind == "n":
            numbers.append(tokens.number())
        elif kind == "N":
            while tokens.peek()[0] == "number":
                numbers.append(tokens.number())
        else:
            while tokens.peek()[0] == "number":
                rate = tokens.take("number")
                if tokens.sign("."):
                    rate += f".{tokens.take('number')}"
                tokens.need(":")
                rates.append((float(rate), tokens.number()))
    return Command(line, name, target, tuple(numbers), tuple(rates))
