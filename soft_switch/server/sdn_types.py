"""Types with `@p4runtime_translation`: what a controller gives and gets for the data plane's numbers.

Numbers (`sdn_bitwidth`) keep their value, only their width differs. Strings (`sdn_string`) each stand for a
number, which `Names` chooses and remembers as long as the pipeline is there; types of one URI share their
names, and a type without a URI has its own. A string gets

    the number that the program gives it       @p4runtime_translation_mappings({ {"default", 0} })
    its own number, if it is a decimal one     "3" is 3
    a free number                              from half of all numbers on, so that small ones stay free

and a number without a string is its decimal one. So a port named "3" is port 3 in entries, packet-in and
packet-out, whichever comes first.

Source: P4Runtime specification, sections "User-defined types", "Trade-off for v1.x Releases" and "PSA
Metadata Translation", which leave the mapping to the switch. The annotation is of SONiC's PINS.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import grpc
from finsy.proto import p4t

from soft_switch.server.bytestrings import decode, encode
from soft_switch.server.errors import P4RuntimeError, exhausted, invalid, out_of_range

_MAPPINGS = "@p4runtime_translation_mappings"
_PAIR = re.compile(r'\{\s*"((?:[^"\\]|\\.)*)"\s*,\s*(?:[0-9]+w)?(0[xX][0-9a-fA-F]+|[0-9]+)\s*,?\s*\}')
_DECIMAL = re.compile(rb"0|[1-9][0-9]*")
_MAX_DIGITS = 10  # of a decimal string: numbers of 32 bits have no more
# Bits of numbers that may all be chosen for strings, so that it has to be remembered which a controller has
# been told. Of wider ones only the upper half will ever be, and packets may bring any number of them.
_FEW = 16


class UnknownName(P4RuntimeError):
    """A string that stands for no number yet, in a request that may not introduce it."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.NOT_FOUND, message)


class Names:
    """Strings and the numbers they stand for, of all types with one URI. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[bytes, int] = {}
        self._numbers: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._width: int | None = None
        self._free: Iterator[int] = iter(())

    def give(self, name: bytes, number: int, what: str) -> None:
        """Map a string as the program says; `what` is whose mapping it is."""
        if self._numbers.get(name, number) != number or self._names.get(number, name) != name:
            raise invalid(f"{what}: {_text(name)} and {number} are mapped to something else already")
        self._given[name] = number
        self._set(name, number)

    def fit(self, width: int, what: str) -> None:
        """Keep numbers within `width` bits, as a field of that width has them too."""
        for name, number in self._given.items():
            if number >> width:
                raise invalid(f"{what}: {_text(name)} is mapped to {number}, which does not fit {width} bits")
        if self._width is None or width < self._width:
            self._width = width
            self._free = _in_order_of_choice(width)

    def adopt(self, other: Names) -> None:
        """Take over the strings of another pipeline, where their numbers are free and fit."""
        with other._lock:  # packets may still bring it names
            items = list(other._numbers.items())
        for name, number in items:
            fits = self._width is not None and not number >> self._width
            if fits and name not in self._numbers and number not in self._names:
                self._set(name, number)

    def number(self, name: bytes, *, new: bool) -> int | None:
        """Look up the number of a string; one that has none gets one if it may be `new`."""
        found = self._numbers.get(name)
        if found is not None:
            return found
        with self._lock:
            found = self._numbers.get(name)
            if found is not None:
                return found
            number = self._decimal(name)
            if number is None and new:
                number = self._choose()
            if number is not None:
                self._set(name, number)
            return number

    def name(self, number: int) -> bytes:
        """Look up the string of a number; one that has none gets its decimal one."""
        found = self._names.get(number)
        if found is not None:
            return found
        with self._lock:
            if number in self._names:
                return self._names[number]
            name = b"%d" % number
            while self._numbers.get(name, number) != number:
                name = b"#" + name  # the program gives the decimal string to another number
            if name.startswith(b"#") or (self._width or 0) <= _FEW:
                self._set(name, number)
            return name

    def _decimal(self, name: bytes) -> int | None:
        """Read the number that a string writes out, if no other string has it."""
        if self._width is None or len(name) > _MAX_DIGITS or not _DECIMAL.fullmatch(name):
            return None
        number = int(name)
        return None if number >> self._width or number in self._names else number

    def _choose(self) -> int:
        for number in self._free:
            if number not in self._names:
                return number
        raise exhausted(
            f": all {1 << (self._width or 0)} numbers of this type have names already: "
            "another pipeline (VERIFY_AND_COMMIT) forgets those of entries that are gone"
        )

    def _set(self, name: bytes, number: int) -> None:
        self._numbers[name] = number
        self._names[number] = name


def _in_order_of_choice(width: int) -> Iterator[int]:
    """Count all numbers of `width` bits: the upper half, then the lower one from its end, so 0 comes last."""
    half = 1 << width >> 1
    yield from range(half, 1 << width)
    yield from range(half - 1, -1, -1)


@dataclass
class SdnBits:
    """A type whose values are numbers of `sdn_width` bits for controllers, and of `width` bits in packets."""

    name: str
    uri: str
    sdn_width: int
    width: int | None = None

    def fit(self, width: int) -> None:
        """Accept the data plane's width."""
        self.width = width

    def decode(self, data: bytes, width: int, what: str, *, new: bool = True) -> int:
        """Read the number that a controller means, for `width` bits of the data plane."""
        number = decode(data, self.sdn_width, what)
        if number >> width:
            raise out_of_range(
                f"{what} is {number:#x}, which does not fit within the {width} bits that {self.name} has in "
                "the data plane"
            )
        return number

    def encode(self, number: int) -> bytes:
        """Make the canonical byte string of a number."""
        return encode(number)


@dataclass
class SdnString:
    """A type whose values are strings for controllers, and numbers of `width` bits in packets."""

    name: str
    uri: str
    names: Names
    sdn_width: int = 0
    width: int | None = None

    def fit(self, width: int) -> None:
        """Accept the data plane's width."""
        self.width = width
        self.names.fit(width, f"P4Info: type {self.name}")

    def decode(self, data: bytes, width: int, what: str, *, new: bool = True) -> int:
        """Look up the number of a string; UnknownName where it has none and must not be `new`."""
        number = self.names.number(data, new=new)
        if number is None:
            raise UnknownName(
                f"{what} is {_text(data)}, which no entry has given to a value of {self.name} since the "
                "pipeline was pushed"
            )
        return number

    def encode(self, number: int) -> bytes:
        """Look up the string of a number."""
        return self.names.name(number)


SdnType = SdnBits | SdnString
SdnTypes = Mapping[str, SdnType]  # by name


def parse_sdn_types(types: p4t.P4TypeInfo) -> dict[str, SdnType]:
    """Read the translated types of a P4Info, by name; INVALID_ARGUMENT says which is wrong."""
    found: dict[str, SdnType] = {}
    shared: dict[str, Names] = {}
    for name, spec in sorted(types.new_types.items()):
        if spec.WhichOneof("representation") != "translated_type":
            continue
        translation = spec.translated_type
        if translation.WhichOneof("sdn_type") == "sdn_string":
            names = shared.setdefault(translation.uri, Names()) if translation.uri else Names()
            for text, number in _mappings(spec.annotations, name).items():
                names.give(text, number, f"P4Info: type {name}")
            found[name] = SdnString(name, translation.uri, names)
        elif translation.sdn_bitwidth > 0:
            found[name] = SdnBits(name, translation.uri, translation.sdn_bitwidth)
        else:
            raise invalid(
                f"P4Info: type {name} is translated to bit<{translation.sdn_bitwidth}>: its sdn_bitwidth has "
                "to be 1 at least"
            )
    return found


def port_type(types: SdnTypes) -> SdnString | None:
    """Find the type of the strings that ports of replicas and watch ports are, None where these are numbers.

    P4Info does not say which it is: it has the name that PSA has for it, PortId_t or port_id_t, or it has
    that at the end of its URI.
    """
    for kind in types.values():
        names = (kind.name, kind.uri.rpartition("/")[2])
        if isinstance(kind, SdnString) and any(n.replace("_", "").lower() == "portidt" for n in names):
            return kind
    return None


def decode_port(kind: SdnString, data: bytes, width: int, what: str) -> int:
    """Look up the port that a string names; INVALID_ARGUMENT where it is not known."""
    try:
        return kind.decode(data, width, what, new=False)
    except UnknownName as error:
        raise invalid(error.message) from error


def adopt_names(types: SdnTypes, before: SdnTypes) -> None:
    """Keep the strings of a pipeline in the one after it, for types of the same name."""
    for name, kind in types.items():
        old = before.get(name)
        if isinstance(kind, SdnString) and isinstance(old, SdnString):
            kind.names.adopt(old.names)


def _mappings(annotations: Iterable[str], name: str) -> dict[bytes, int]:
    """Read the strings that the program maps itself, from the text of the annotation."""
    found: dict[bytes, int] = {}
    for annotation in annotations:
        if not annotation.startswith(_MAPPINGS):
            continue
        body = annotation[len(_MAPPINGS) :]
        if re.sub(r"[\s,(){}]", "", _PAIR.sub("", body)):
            raise invalid(
                f"P4Info: type {name}: {annotation} cannot be read: write pairs of a string and a number, as "
                f'in {_MAPPINGS}({{ {{"default", 0}} }})'
            )
        for text, number in _PAIR.findall(body):
            plain = re.sub(r"\\(.)", r"\1", text)
            found[plain.encode()] = int(number, 0)
    return found


def _text(name: bytes) -> str:
    return '"' + name.decode(errors="backslashreplace") + '"'
