"""The operator's document: the entries that switches should hold besides those of jobs. No I/O.

    drain: [s2, l1:s1]                # spines and links that take no new traffic
    quotas: {job_slots: 2048}         # instead of the configuration's
    entries:
      s1:
        - table: route                # P4Info's name, or its end
          match: {dst_ip: 10.9.0.0/16}
          action: next_hop
          params: {port: 4, src_mac: "02:70:00:01:00:04", dst_mac: "02:00:00:00:00:04"}
    groups:
      s1: {5000: [1, 2, {port: 3, instance: 7}]}

It neither lists nor changes the entries that the fabric and the jobs need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from controller.configuration.marked import DocumentError, Marked, read
from controller.configuration.vocabulary import Vocabulary, WordError
from controller.entries import Entry, Group, Key, TableEntry, key_of
from controller.fabric.flows import JOB_GROUPS, JOB_TABLES
from controller.fabric.graph import ALL_UP, Graph
from controller.fabric.marks import MARK_GROUP
from controller.fabric.tables.forward import FLOOD
from controller.slots.admission import QuotaError, parse_quotas
from controller.slots.allocator import FLOOD_GROUP
from p4src import AGAIN_GROUP, CPU_PORT, DROP_PORT, MAX_PORTS

_AGAIN = range(AGAIN_GROUP, AGAIN_GROUP + 4 * MAX_PORTS)  # a leaf's partial up, and its answer back
_MAX_GROUP = (1 << 16) - 1
_MAX_INSTANCE = (1 << 16) - 1
_MOST_SLOTS = 1 << 31
_PARTS = ("drain", "quotas", "entries", "groups")
_SHOWN = 3000  # characters of mistakes: they travel in gRPC's trailer


@dataclass(frozen=True)
class Desired:
    """A document's meaning. `quotas` is as JSON has it (None: the configuration's)."""

    drain: frozenset[str] = frozenset()
    quotas: Mapping[str, Any] | None = None
    entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)

    def on(self, switch: str) -> tuple[Entry, ...]:
        """Return the entries and groups of one switch."""
        return self.entries.get(switch, ())

    def means(self, other: Desired) -> bool:
        """Tell whether two documents say the same."""
        return (
            self.drain == other.drain
            and self.quotas == other.quotas
            and all(set(self.on(name)) == set(other.on(name)) for name in {*self.entries, *other.entries})
        )


def parse(text: str, graph: Graph, vocabulary: Vocabulary, base: Mapping[str, Sequence[Entry]]) -> Desired:
    """Return a document's meaning. Raise DocumentError with all mistakes, each with line and key.

    `base`: the entries that the fabric itself needs on each switch, however it is drained.
    """
    top = read(text).mapping()
    reader = _Reader(graph, vocabulary, base)
    parts = {
        "drain": reader.read_drain,
        "quotas": reader.read_quotas,
        "groups": reader.read_groups,  # before entries, which may name them
        "entries": reader.read_entries,
    }
    for name in top.keys() - parts.keys():
        with reader.mistakes.noting():
            raise top[name].wrong(f"{name!r} is not known here; known are {', '.join(_PARTS)}")
    for name, read_part in parts.items():
        with reader.mistakes.noting():
            read_part(top.get(name))
    reader.mistakes.raise_if_any()
    return Desired(
        frozenset(reader.drain),
        reader.quotas,
        {name: tuple(found.values()) for name, found in reader.found.items() if found},
    )


class _Mistakes:
    """The mistakes so far: the document's author sees all of them at once."""

    def __init__(self) -> None:
        self.found: list[DocumentError] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        try:
            yield
        except DocumentError as error:
            self.note(error)

    def note(self, error: DocumentError) -> None:
        self.found.append(error)

    def mapping(self, given: Marked, known: tuple[str, ...] | None = None) -> dict[str, Marked]:
        """Return its keys and values without the wrong keys, and note these."""
        return given.mapping(known, note=self.note)

    def raise_if_any(self) -> None:
        if self.found:
            lines = [str(mistake) for mistake in sorted(self.found, key=lambda mistake: mistake.line)]
            shown = [lines[0]]
            while len(shown) < len(lines) and sum(map(len, shown)) < _SHOWN:
                shown.append(lines[len(shown)])
            more = [f"... and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
            raise DocumentError("\n".join([*shown, *more]))


class _Reader:
    """A reader of the document's four parts."""

    def __init__(self, graph: Graph, vocabulary: Vocabulary, base: Mapping[str, Sequence[Entry]]) -> None:
        self.graph = graph
        self.switches = (*graph.leaves, *graph.spines)
        self.vocabulary = vocabulary
        self.base = {name: {key_of(entry) for entry in entries} for name, entries in base.items()}
        self.mistakes = _Mistakes()
        self.drain: set[str] = set()
        self.quotas: dict[str, Any] | None = None
        self.found: dict[str, dict[Key, Entry]] = {name: {} for name in self.switches}
        self.lines: dict[tuple[str, Key], int] = {}
        self.groups: set[tuple[str, int]] = set()  # wrong ones too, so that one mistake is not told twice

    # Drain.

    def read_drain(self, given: Marked | None) -> None:
        if given is None:
            return
        known = (*self.graph.spines, *(link.name for link in self.graph.links))
        for item in given.items():
            with self.mistakes.noting():
                name = item.text()
                if not known:
                    raise item.wrong("there is nothing to drain: this fabric has no spines")
                if name in self.graph.leaves:
                    raise item.wrong(
                        f"{name} is a leaf, its hosts have no other: spines and links can be drained, "
                        f"{', '.join(known)}"
                    )
                if name not in known:
                    raise item.wrong(f"{name!r} is neither a spine nor a link; known are {', '.join(known)}")
                if name in self.drain:
                    raise item.wrong(f"{name} is given twice")
                self.drain.add(name)
        parted = self.graph.parted(ALL_UP, ALL_UP.draining(self.drain))
        if parted is not None:
            raise given.wrong(
                f"that leaves no way between {' and '.join(parted)}: keep a spine that both have a link to"
            )

    # Quotas.

    def read_quotas(self, given: Marked | None) -> None:
        if given is None or given.is_null:
            return
        read = {"job_slots": _slots, "tenants": self._tenants, "preemption": Marked.flag}
        quotas: dict[str, Any] = {}
        for name, value in self.mistakes.mapping(given, tuple(read)).items():
            with self.mistakes.noting():
                quotas[name] = read[name](value)
        try:
            parse_quotas(quotas)
        except QuotaError as error:
            raise given.wrong(str(error)) from error
        self.quotas = quotas

    def _tenants(self, given: Marked) -> dict[str, Any]:
        tenants = {}
        for name, tenant in self.mistakes.mapping(given).items():
            with self.mistakes.noting():
                tenants[name] = self._tenant(tenant)
        return tenants

    def _tenant(self, given: Marked) -> dict[str, Any]:
        read = {"weight": Marked.positive, "slots": _slots, "hosts": _hosts}
        tenant: dict[str, Any] = {}
        for name, value in self.mistakes.mapping(given, tuple(read)).items():
            with self.mistakes.noting():
                tenant[name] = read[name](value)
        return tenant

    # Groups.

    def read_groups(self, given: Marked | None) -> None:
        for switch, groups in self._by_switch(given):
            with self.mistakes.noting():
                for text, replicas in self.mistakes.mapping(groups).items():
                    number = None
                    with self.mistakes.noting():
                        number = _group_number(replicas, text)
                        self.groups.add((switch, number))
                    with self.mistakes.noting():
                        found = self._replicas(replicas)
                        if number is not None:
                            self._add(switch, Group(number, found), replicas)

    def _replicas(self, given: Marked) -> tuple[tuple[int, int], ...]:
        """Return (port, instance) of each replica, sorted; a bare port has instance 1."""
        found: set[tuple[int, int]] = set()
        items = given.items()
        if not items:
            raise given.wrong("a group needs at least one port")
        for item in items:
            with self.mistakes.noting():
                replica = self._replica(item)
                if replica in found:
                    port, instance = replica
                    raise item.wrong(f"port {port} with instance {instance} is given twice")
                found.add(replica)
        return tuple(sorted(found))

    def _replica(self, item: Marked) -> tuple[int, int]:
        if not item.is_mapping:
            return _port(item), 1
        values = self.mistakes.mapping(item, ("port", "instance"))
        instance = 1
        if "instance" in values:
            with self.mistakes.noting():
                instance = values["instance"].number(0, _MAX_INSTANCE)
        if "port" not in values:
            raise item.wrong("a replica has a port: 'port' is missing")
        return _port(values["port"]), instance

    # Entries.

    def read_entries(self, given: Marked | None) -> None:
        counts: dict[tuple[str, str], int] = {}
        for switch, entries in self._by_switch(given):
            with self.mistakes.noting():
                for item in entries.items():
                    with self.mistakes.noting():
                        entry = self._entry(item, switch)
                        if entry is not None:
                            self._add(switch, entry, item)
                            self._room(switch, entry, item, counts)

    def _entry(self, item: Marked, switch: str) -> TableEntry | None:
        """Read an entry. Note all mistakes in it, and return None if there are any."""
        before = len(self.mistakes.found)
        values = self.mistakes.mapping(item, ("table", "match", "action", "params"))
        missing = [name for name in ("table", "match", "action") if name not in values]
        if missing:
            self.mistakes.note(
                item.wrong(
                    "an entry has a table, a match, an action and its params: "
                    f"{', '.join(map(repr, missing))} {_is(missing)} missing"
                )
            )
        if "table" not in values:  # which says what all else may be
            return None
        with _words(values["table"]):
            table = self.vocabulary.table(values["table"].text())
        if table.name in JOB_TABLES:
            raise values["table"].wrong(
                f"{table.name} belongs to the jobs: the controller fills it when workers join"
            )
        match: list[tuple[str, int | tuple[int, int]]] = []
        with self.mistakes.noting():
            if "match" in values:
                named = self._named(values["match"], table.fields, f"table {table.name}", at=item)
                for key in table.fields:
                    if key.name in named:
                        with self.mistakes.noting(), _words(named[key.name]):
                            match.append((key.name, self.vocabulary.match(key, named[key.name].text())))
        given: list[tuple[str, int]] = []
        if "action" not in values:  # which says what its parameters may be
            return None
        with _words(values["action"]):
            action = self.vocabulary.action(table, values["action"].text())
        params = self._named(values.get("params"), table.actions[action], f"action {action}", at=item)
        for param in table.actions[action]:
            if param.name in params:
                with self.mistakes.noting(), _words(params[param.name]):
                    given.append((param.name, self.vocabulary.param(param, params[param.name].text())))
        if len(self.mistakes.found) > before:
            return None
        entry = TableEntry(table.name, tuple(match), action, tuple(given))
        self._check_group(entry, params, switch)
        return entry

    def _named(
        self, given: Marked | None, fields: Sequence[Any], of: str, *, at: Marked
    ) -> dict[str, Marked]:
        """Return the values of fields by name. Note unknown and missing ones."""
        names = [field.name for field in fields]
        has = f"{of} has {', '.join(names) or 'none'}"
        values = {} if given is None else self.mistakes.mapping(given)
        for name, value in values.items():
            if name not in names:
                self.mistakes.note(value.wrong(f"there is no {name!r} here: {has}"))
        missing = [name for name in names if name not in values]
        if missing and values.keys() <= {*names}:  # else a wrong name may stand for what is missing
            self.mistakes.note((given or at).wrong(f"{', '.join(missing)} {_is(missing)} missing: {has}"))
        return values

    def _check_group(self, entry: TableEntry, params: Mapping[str, Marked], switch: str) -> None:
        if entry.action != FLOOD:
            return
        number = dict(entry.params)["group"]
        if number != FLOOD_GROUP and (switch, number) not in self.groups:
            raise params["group"].wrong(
                f"{switch} has no group {number}: say under groups.{switch} which ports it goes to"
            )

    # Both.

    def _by_switch(self, given: Marked | None) -> Iterator[tuple[str, Marked]]:
        for name, value in self.mistakes.mapping(given).items() if given is not None else ():
            with self.mistakes.noting():
                if name not in self.found:
                    raise value.wrong(f"there is no switch {name!r}; known are {', '.join(self.switches)}")
                yield name, value

    def _add(self, switch: str, entry: Entry, where: Marked) -> None:
        key = key_of(entry)
        if key in self.base.get(switch, ()):
            raise where.wrong(
                f"{self.vocabulary.key_words(entry)} is the fabric's own on {switch}: the controller makes "
                "it from the configuration"
            )
        if key in self.found[switch]:
            raise where.wrong(
                f"{self.vocabulary.key_words(entry)} is given on line {self.lines[switch, key]} already"
            )
        self.found[switch][key] = entry
        self.lines[switch, key] = where.line

    def _room(
        self, switch: str, entry: TableEntry, where: Marked, counts: dict[tuple[str, str], int]
    ) -> None:
        place = (switch, entry.table)
        if place not in counts:
            counts[place] = sum(key[0] == entry.table for key in self.base.get(switch, ()))
        counts[place] += 1
        size = self.vocabulary.tables[entry.table].size
        if counts[place] > size:
            raise where.wrong(f"{entry.table} on {switch} is full: it has room for {size} entries")


@contextmanager
def _words(where: Marked) -> Iterator[None]:
    """Turn a WordError into a DocumentError about that place."""
    try:
        yield
    except WordError as error:
        raise where.wrong(str(error)) from error


def _slots(given: Marked) -> int | None:
    return None if given.is_null else given.number(0, _MOST_SLOTS)


def _hosts(given: Marked) -> list[str] | None:
    return None if given.is_null else [item.text() for item in given.items()]


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _group_number(where: Marked, text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        raise where.wrong(f"{text!r} is no group: groups have numbers") from None
    if number == FLOOD_GROUP:
        raise where.wrong(f"group {number} is the fabric's own: broadcasts go there")
    if number in JOB_GROUPS:
        raise where.wrong(f"groups {JOB_GROUPS[0]}..{JOB_GROUPS[-1]} belong to the jobs")
    if number in _AGAIN:
        raise where.wrong(f"groups {_AGAIN[0]}..{_AGAIN[-1]} are the fabric's own, for repeated partials")
    if number == MARK_GROUP:
        raise where.wrong(f"group {number} is the fabric's own, it says which generations the switch has had")
    if not 0 < number <= _MAX_GROUP:
        raise where.wrong(f"group {number} is not within 1..{_MAX_GROUP}")
    return number


def _port(given: Marked) -> int:
    port = given.number(0, MAX_PORTS - 1)
    if port in (CPU_PORT, DROP_PORT):
        raise given.wrong(f"port {port} is the {'CPU' if port == CPU_PORT else 'drop'} port")
    return port
