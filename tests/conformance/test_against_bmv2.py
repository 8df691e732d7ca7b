"""Comparison with simple_switch_grpc: same program, same requests, same random packets, equal bytes out.

Both get the same P4Runtime requests and must accept the same of them. Packets of BMv2 go over its gRPC data
plane service, which says which packet made which leave, so that each is compared with its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soft_switch.description import Exact, KeyField, Lpm, Match, Optional_, Range, Ternary
from tests.conformance.bmv2 import BMV2
from tests.conformance.pairs import Pair, pair_with
from tests.conformance.programs import program
from tests.soft_switch import bits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.bmv2,
    pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on the PATH"),
    pytest.mark.timeout(600),
]

many = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair_with(program(request.param)) as made:
        yield made


def on(name: str) -> pytest.MarkDecorator:
    """Mark a test with its program."""
    return pytest.mark.parametrize("pair", [name], indirect=True)


def numbers(width: int) -> st.SearchStrategy[int]:
    """Return numbers of a width, often at the edges of signed and unsigned ones."""
    top = (1 << width) - 1
    edges = sorted(
        {value & top for value in (0, 1, 2, 3, top, top - 1, top >> 1, (top >> 1) + 1, 0x55 & top)}
    )
    return st.one_of(st.sampled_from(edges), st.integers(0, top))


def headers(fields: Mapping[str, st.SearchStrategy[int]], layout: bits.Header) -> st.SearchStrategy[bytes]:
    """Return headers of a layout, with some fields drawn from strategies and the others from their widths."""
    return st.fixed_dictionaries(
        {name: fields.get(name, numbers(width)) for name, width in layout.items()}
    ).map(lambda values: bits.pack(layout, values))


def cut(frames: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Cut some of the frames short, and give some a payload."""
    return st.one_of(
        frames,
        st.tuples(frames, st.binary(max_size=40)).map(lambda pair: pair[0] + pair[1]),
        st.tuples(frames, st.integers(1, 30)).map(lambda pair: pair[0][: pair[1]]),
    )


OPERANDS = {
    "a": 32, "b": 32, "s": 16, "t": 16, "n": 7, "m": 9, "shift": 8, "w": 128, "x": 128,
    "y": 520, "z": 520,
}  # fmt: skip


@on("values")
@many
@given(frames=st.lists(cut(headers({}, OPERANDS)), min_size=1, max_size=30))
def test_values(pair: Pair, frames: list[bytes]) -> None:
    """Operators on unsigned, signed, odd and wide numbers."""
    pair.play([(1, frame) for frame in frames])


kinds = st.sampled_from([0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7, 0x17, 0x83, 0x90, 0x91, 0xFF])
small_bytes = st.lists(st.one_of(st.integers(0, 16), st.integers(0, 255)), max_size=30).map(bytes)
kind_first = st.tuples(kinds, small_bytes).map(lambda pair: bytes([pair[0]]) + pair[1])


@on("parsing")
@many
@given(frames=st.lists(kind_first, min_size=1, max_size=40))
def test_parsing(pair: Pair, frames: list[bytes]) -> None:
    """Stacks, unions, varbit, lookahead, selects, errors, frames that end anywhere."""
    pair.play([(1, frame) for frame in frames])


KEY = {"a": 8, "b": 16, "c": 32, "d": 80, "e": 12, "f": 4}
EDGES = {
    "a": [0, 1, 2, 0x15, 0x80, 0xFF],
    "b": [0, 1, 0x0100, 0x1234, 0xFFFF],
    "c": [0, 0x0A000000, 0x0A010203, 0x0A010200, 0xFFFFFFFF],
    "d": [0, 1, 1 << 79, 0x0102030405060708090A, (1 << 80) - 1],
    "e": [0, 5, 7, 8, 100, 0xFFF],
    "f": [0, 1, 15],
}


def edge(field: KeyField) -> st.SearchStrategy[int]:
    """Return values that entries and packets share."""
    name = field.name.rpartition(".")[2]
    top = (1 << field.width) - 1
    return st.sampled_from([value & top for value in EDGES.get(name, [0, 1, 7, 15])])


def matches(field: KeyField) -> st.SearchStrategy[Match]:
    """Return matches of a key field."""
    top = (1 << field.width) - 1
    value = edge(field)
    if field.kind == "exact":
        return value.map(Exact)
    if field.kind == "lpm":
        return st.tuples(value, st.integers(0, field.width)).map(
            lambda pair: Lpm(pair[0] & (top >> pair[1] ^ top), pair[1])
        )
    if field.kind == "range":
        return st.tuples(value, value).map(lambda pair: Range(min(pair), max(pair)))
    if field.kind == "optional":
        return st.one_of(st.none(), value).map(Optional_)
    masks = st.sampled_from([0, top, 1, top >> 1, top ^ 1, 0xFF & top, top << (field.width // 2) & top])
    return st.tuples(value, masks).map(lambda pair: Ternary(pair[0] & pair[1], pair[1]))


KEYS = {
    "exact": [("a", "exact", 8), ("d", "exact", 80)],
    "lpm": [("c", "lpm", 32)],
    "ternary": [("b", "ternary", 16), ("d", "ternary", 80)],
    "range": [("b", "range", 16), ("d", "range", 80)],
    "optional": [("a", "optional", 8), ("f", "optional", 4)],
    "mixed": [
        ("a", "exact", 8),
        ("c", "lpm", 32),
        ("b", "ternary", 16),
        ("e", "range", 12),
        ("f", "optional", 4),
    ],
    "prefixed": [("f", "exact", 4), ("d", "lpm", 80)],
    "presence": [("valid", "exact", 1), ("low", "ternary", 4)],
}
entries = st.sampled_from(sorted(KEYS)).flatmap(
    lambda table: st.tuples(
        st.just(table),
        st.tuples(*(matches(KeyField(*field)) for field in KEYS[table])),
        st.integers(0, 5),
    )
)
keys = headers({name: edge(KeyField(name, "exact", width)) for name, width in KEY.items()}, KEY)


@on("matching")
@many
@given(
    wanted=st.lists(entries, max_size=60),
    frames=st.lists(
        st.one_of(keys, cut(st.tuples(keys, keys).map(b"".join))),
        min_size=1,
        max_size=30,
    ),
)
def test_matching(pair: Pair, wanted: list[tuple[str, tuple[Match, ...], int]], frames: list[bytes]) -> None:
    """Check every kind of match, entries that overlap, tables that are full, defaults and constants."""
    pair.restart()
    for number, (table, match, priority) in enumerate(wanted):
        name = f"MatchingIngress.{table}"
        action, priority = f"{name}_hit", 100 * priority + number  # entries of one priority have no order
        pair.both(lambda c: c.insert(f"{name}_table", match, priority, action, [number]))  # noqa: B023
    pair.play([(1, frame) for frame in frames])


COMMAND = {"index": 8, "value": 16, "wide": 48, "odd": 13, "pad": 3}
SUMS = {"given": 16, "plain": 16, "payload": 16, "flexible": 16, "crc": 32}
flexibles = st.one_of(
    st.just(b""), st.binary(max_size=8).map(lambda data: bytes([len(data)]) + data), st.binary(max_size=3)
)
commands = st.tuples(
    headers({"index": st.one_of(st.integers(0, 3), st.integers(0, 255))}, COMMAND),
    flexibles,
    headers({}, SUMS),
).map(b"".join)


@on("state")
@many
@given(frames=st.lists(cut(commands), min_size=1, max_size=30))
def test_state(pair: Pair, frames: list[bytes]) -> None:
    """Registers, counters, every hash and checksum."""
    pair.restart()
    pair.play([(1, frame) for frame in frames], batch=len(frames))
    for index in range(16):
        pair.same(lambda c: c.counter_read("StateIngress.seen", index))  # noqa: B023


CLONE_EGRESS, RECIRCULATE, MULTICAST = 2, 8, 16  # of passes.p4's op
ROUND = {
    "op": 8, "port": 8, "session": 8, "group": 16, "passes": 8, "kept": 16, "ingress": 32,
    "egress": 32, "length": 32, "instance": 16,
}  # fmt: skip
rounds = headers(
    {
        "op": st.one_of(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.integers(0, 127)),
        "port": st.integers(1, 6),
        "session": st.integers(0, 4),
        "group": st.integers(0, 3),
        **{name: st.just(0) for name in ("passes", "kept", "ingress", "egress")},
    },
    ROUND,
)


@pytest.fixture(scope="module")
def replicating() -> Iterator[Pair]:
    """Yield both switches with groups and sessions, made once: BMv2 keeps them when it loads a program."""
    with pair_with(program("passes")) as pair:
        pair.both(lambda c: c.multicast_set(1, [(1, 1), (2, 2), (3, 5)]))
        pair.both(lambda c: c.multicast_set(2, [(4, 0)]))
        pair.both(lambda c: c.clone_set(1, [(4, 0)]))
        pair.both(lambda c: c.clone_set(2, [(5, 1), (4, 2)]))
        pair.both(lambda c: c.clone_set(3, [(3, 9)]))
        yield pair


@many
@given(frames=st.lists(cut(rounds), min_size=1, max_size=20))
def test_passes(replicating: Pair, frames: list[bytes]) -> None:
    """Clones, resubmitting, recirculating, replicas, truncating and what they have in common."""
    for frame in frames:
        replicating.play([(1, frame)], in_order=not copies_race(frame[0]))


def copies_race(op: int) -> bool:
    """Tell whether copies race: cloned or recirculated replicas take BMv2's egress thread of their port."""
    return bool(op & MULTICAST and op & (CLONE_EGRESS | RECIRCULATE))
