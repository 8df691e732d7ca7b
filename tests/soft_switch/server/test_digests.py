"""Digests: how samples become lists, and how a controller configures and acknowledges them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from finsy.proto import p4d, p4i, p4r, p4t, rpc_code
from hypothesis import given, settings
from hypothesis import strategies as st

from soft_switch.server import digests
from soft_switch.server.digests import Digests, Learner
from soft_switch.server.operation import Operation
from soft_switch.server.p4data import Fields, Scalar, format_data, parse_type
from soft_switch.server.schema import Digest, Schema
from tests.soft_switch.server.features import LEARN_DIGEST, LEVEL_DIGEST, METER, why

if TYPE_CHECKING:
    from tests.soft_switch.server.conftest import Controller, FakePlane, Switch

DIGEST = Digest(7, "d", Scalar(8), (Scalar(8),))


def make_learner(*, max_timeout_ns: int = 0, max_list_size: int = 0, ack_timeout_ns: int = 0) -> Learner:
    config = p4r.DigestEntry.Config(
        max_timeout_ns=max_timeout_ns, max_list_size=max_list_size, ack_timeout_ns=ack_timeout_ns
    )
    return Learner(DIGEST, config, next_list=1)


def values(message: p4r.DigestList | None) -> list[int] | None:
    return None if message is None else [item.bitstring[0] for item in message.data]


# The state machine


def test_every_sample_is_a_list_by_default() -> None:
    one = make_learner()
    lists = [one.learn((1,), 0), one.learn((1,), 0), one.learn((2,), 5)]
    assert [values(message) for message in lists] == [[1], [1], [2]]
    assert [message.list_id for message in lists if message] == [1, 2, 3]
    assert one.deadline() is None


def test_a_list_is_sent_when_it_is_full() -> None:
    one = make_learner(max_timeout_ns=100, max_list_size=2)
    assert one.learn((1,), 0) is None
    assert one.learn((1,), 1) is None
    assert values(one.learn((2,), 2)) == [1, 2]
    assert one.learn((1,), 3) is None


def test_a_list_is_sent_when_its_first_sample_is_old() -> None:
    one = make_learner(max_timeout_ns=100)
    one.learn((1,), 50)
    one.learn((2,), 140)
    assert one.deadline() == 150
    assert one.tick(149) is None
    assert values(one.tick(150)) == [1, 2]
    assert (one.deadline(), one.tick(1000)) == (None, None)


def test_a_list_without_a_limit_has_one_all_the_same() -> None:
    one = make_learner(max_timeout_ns=10**9)
    sent = [one.learn((number,), 0) for number in range(digests.MAX_LIST)]
    assert sent[:-1] == [None] * (digests.MAX_LIST - 1)
    assert sent[-1] is not None


def test_a_sample_is_learned_again_after_its_acknowledgement() -> None:
    one = make_learner(ack_timeout_ns=1000)
    first = one.learn((1,), 0)
    assert first is not None
    assert one.learn((1,), 1) is None
    one.acknowledge(first.list_id + 1)
    assert one.learn((1,), 2) is None
    one.acknowledge(first.list_id)
    assert values(one.learn((1,), 3)) == [1]


def test_a_sample_is_learned_again_when_nobody_acknowledges_it() -> None:
    one = make_learner(ack_timeout_ns=1000)
    one.learn((1,), 0)
    assert one.learn((1,), 999) is None
    assert values(one.learn((1,), 1000)) == [1]


def test_what_waits_for_acknowledgement_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MAX_UNACKNOWLEDGED", 3)
    one = make_learner(ack_timeout_ns=10**18)
    for number in range(5):
        one.learn((number,), number)
    assert len(one.cache) == len(one.lists) == 3
    assert one.learn((4,), 9) is None
    assert values(one.learn((0,), 9)) == [0]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3) | st.just("ack") | st.just("tick"), max_size=60),
    st.sampled_from([0, 3, 7]),
    st.integers(0, 3),
    st.sampled_from([0, 5, 20]),
)
def test_lists_are_distinct_and_in_time(
    events: list[int | str], max_timeout_ns: int, max_list_size: int, ack_timeout_ns: int
) -> None:
    """Check that no sample is lost or in two waiting lists at once, and none waits longer than it may."""
    one = make_learner(
        max_timeout_ns=max_timeout_ns, max_list_size=max_list_size, ack_timeout_ns=ack_timeout_ns
    )
    pending: dict[int, int] = {}
    waiting: dict[int, tuple[int, list[int]]] = {}
    last = 0
    for now, event in enumerate(events):
        message = None
        if event == "ack":
            if waiting:
                number = next(iter(waiting))
                one.acknowledge(number)
                del waiting[number]
            continue
        message = one.tick(now) if event == "tick" else one.learn((int(event),), now)
        waiting = {n: item for n, item in waiting.items() if now - item[0] < ack_timeout_ns}
        known = {value for _, sent in waiting.values() for value in sent}
        if event != "tick" and int(event) not in known:
            pending.setdefault(int(event), now)
        if message is None:
            due = one.deadline()
            assert due is None or due == min(pending.values()) + max_timeout_ns
            assert (due is None) == (not pending)
            continue
        sent = values(message)
        assert sent == list(pending)
        assert message.list_id == last + 1
        assert max_list_size == 0 or len(sent) <= max_list_size
        assert not known & set(sent)
        last = message.list_id
        pending.clear()
        waiting[last] = (now, sent)


def test_samples_of_unknown_digests_and_of_another_form_are_dropped() -> None:
    machine = Digests(Schema(digests={7: DIGEST}))
    assert machine.learn("d", (1,), 0) is None
    machine.write(Operation.INSERT, p4r.DigestEntry(digest_id=7))
    assert machine.learn("e", (1,), 0) is None
    assert machine.learn("d", (1, 2), 0) is None
    assert values(machine.learn("d", (1,), 0)) == [1]


# Values


def test_values_of_all_types() -> None:
    types = p4t.P4TypeInfo()
    types.serializable_enums["e"].underlying_type.bitwidth = 16
    types.new_types["n"].original_type.bitstring.bit.bitwidth = 9
    inner = types.structs["inner"].members.add(name="x")
    inner.type_spec.bitstring.int.bitwidth = 8
    spec = p4t.P4DataTypeSpec()
    for _ in range(5):
        spec.tuple.members.add()
    spec.tuple.members[0].bool.SetInParent()
    spec.tuple.members[1].serializable_enum.name = "e"
    spec.tuple.members[2].new_type.name = "n"
    spec.tuple.members[3].struct.name = "inner"
    spec.tuple.members[4].bitstring.bit.bitwidth = 300
    kind = parse_type(spec, types, {})
    assert isinstance(kind, Fields)
    data = format_data(kind, iter((1, 0x1234, 0x100, 0xFF, 1 << 299)))
    expected = p4d.P4StructLike(
        members=[
            p4d.P4Data(bool=True),
            p4d.P4Data(enum_value=b"\x12\x34"),
            p4d.P4Data(bitstring=b"\1\0"),
            p4d.P4Data(struct=p4d.P4StructLike(members=[p4d.P4Data(bitstring=b"\xff")])),
            p4d.P4Data(bitstring=b"\x08" + bytes(37)),
        ]
    )
    assert data == p4d.P4Data(tuple=expected)


def test_a_digest_of_what_cannot_be_carried(switch: Switch, features: p4r.ForwardingPipelineConfig) -> None:
    controller = switch.connect()
    controller.become_primary()
    features.p4info.digests[0].type_spec.CopyFrom(p4t.P4DataTypeSpec())
    features.p4info.digests[0].type_spec.header.name = "ethernet_t"
    refusal = controller.refused(controller.set_config, config=features)
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.message.startswith("P4Info: digest learn_t has a field that is not a bit<W>")


# The entity and the stream


def enable(controller: Controller, digest_id: int = LEARN_DIGEST, **config: int) -> None:
    entry = p4r.DigestEntry(digest_id=digest_id, config=p4r.DigestEntry.Config(**config))
    controller.insert(digest_entry=entry)


def test_configurations(learner: Controller) -> None:
    entry = p4r.DigestEntry(
        digest_id=LEARN_DIGEST,
        config=p4r.DigestEntry.Config(max_timeout_ns=1, max_list_size=2, ack_timeout_ns=3),
    )
    everything = p4r.Entity(digest_entry=p4r.DigestEntry())
    assert learner.read(everything) == []
    learner.insert(digest_entry=entry)
    assert learner.read(p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=LEARN_DIGEST))) == [
        p4r.Entity(digest_entry=entry)
    ]
    entry.config.max_list_size = 5
    learner.modify(digest_entry=entry)
    assert learner.read(everything) == [p4r.Entity(digest_entry=entry)]
    learner.delete(digest_entry=p4r.DigestEntry(digest_id=LEARN_DIGEST))
    assert learner.read(everything) == []


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("insert", p4r.DigestEntry(digest_id=LEVEL_DIGEST), "ALREADY_EXISTS: digest level_t is enabled"),
        ("modify", p4r.DigestEntry(digest_id=LEARN_DIGEST), "NOT_FOUND: digest learn_t is not enabled"),
        ("delete", p4r.DigestEntry(digest_id=LEARN_DIGEST), "NOT_FOUND: digest learn_t is not enabled"),
        ("insert", p4r.DigestEntry(), "INVALID_ARGUMENT: the digest id is missing"),
        ("insert", p4r.DigestEntry(digest_id=1), "INVALID_ARGUMENT: there is no digest with id 0x00000001"),
        ("insert", p4r.DigestEntry(digest_id=METER), "INVALID_ARGUMENT: id 0x14000001 is not a digest, it"),
        ("insert", p4r.DigestEntry(digest_id=LEARN_DIGEST, config={"max_list_size": -1}),
         "INVALID_ARGUMENT: digest learn_t: max_list_size is -1, it cannot be negative"),
        ("insert", p4r.DigestEntry(digest_id=LEARN_DIGEST, config={"ack_timeout_ns": -1}),
         "INVALID_ARGUMENT: digest learn_t: ack_timeout_ns is -1"),
    ],
)  # fmt: skip
def test_a_bad_write(learner: Controller, kind: str, entry: p4r.DigestEntry, text: str) -> None:
    enable(learner, LEVEL_DIGEST)
    assert why(learner, kind, digest_entry=entry).startswith(text)


def test_a_bad_read(learner: Controller) -> None:
    refusal = learner.refused(
        learner.read,
        p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=LEARN_DIGEST)),
        p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=1)),
    )
    assert refusal.codes == ["NOT_FOUND", "INVALID_ARGUMENT"]


def test_samples_arrive_as_their_type_says(learner: Controller, plane: FakePlane) -> None:
    plane.learn("learn_t", (1, 2))  # not enabled yet
    enable(learner)
    enable(learner, LEVEL_DIGEST)
    plane.learn("learn_t", (0x020000000001, 3))
    message = learner.receive().digest
    assert (message.digest_id, message.list_id) == (LEARN_DIGEST, 1)
    assert message.timestamp > 10**18
    members = [p4d.P4Data(bitstring=b"\2\0\0\0\0\1"), p4d.P4Data(bitstring=b"\3")]
    assert list(message.data) == [p4d.P4Data(struct=p4d.P4StructLike(members=members))]
    plane.learn("level_t", (0x80, 0x80))
    (data,) = learner.receive().digest.data
    assert [member.bitstring for member in data.struct.members] == [b"\x80", b"\x80"]
    plane.learn("level_t", (0x7F, 0xFF))
    (data,) = learner.receive().digest.data
    assert [member.bitstring for member in data.struct.members] == [b"\x7f", b"\xff"]


def test_a_list_comes_when_its_time_has_come(learner: Controller, plane: FakePlane) -> None:
    enable(learner, max_timeout_ns=20_000_000)
    plane.learn("learn_t", (1, 1))
    plane.learn("learn_t", (2, 1))
    message = learner.receive().digest
    assert len(message.data) == 2


def test_acknowledgements(learner: Controller, plane: FakePlane) -> None:
    enable(learner, ack_timeout_ns=10**15)
    plane.learn("learn_t", (1, 1))
    message = learner.receive().digest
    plane.learn("learn_t", (1, 1))
    learner.send(digest_ack=p4r.DigestListAck(digest_id=LEARN_DIGEST, list_id=99))  # no such list: no error
    learner.send(digest_ack=p4r.DigestListAck(digest_id=LEVEL_DIGEST, list_id=1))  # not enabled: no error
    learner.send(digest_ack=p4r.DigestListAck(digest_id=LEARN_DIGEST, list_id=message.list_id))
    learner.send(digest_ack=p4r.DigestListAck(digest_id=1, list_id=1))
    error = learner.receive().error  # so the acknowledgements before it have been taken
    assert error.canonical_code == rpc_code.INVALID_ARGUMENT
    assert error.digest_list_ack.digest_list_ack.digest_id == 1
    plane.learn("learn_t", (1, 1))
    assert learner.receive().digest.list_id == message.list_id + 1


def test_a_backup_neither_gets_nor_acknowledges_lists(
    learner: Controller, switch: Switch, plane: FakePlane
) -> None:
    backup = switch.connect()
    backup.bid(0)
    assert backup.verdict() == ("ALREADY_EXISTS", 1)
    enable(learner)
    plane.learn("learn_t", (1, 1))
    assert learner.receive().digest.list_id == 1
    assert backup.quiet()
    backup.send(digest_ack=p4r.DigestListAck(digest_id=LEARN_DIGEST, list_id=1))
    assert backup.receive().error.canonical_code == rpc_code.PERMISSION_DENIED


def test_a_new_primary_learns_what_the_old_one_knew(
    learner: Controller, switch: Switch, plane: FakePlane
) -> None:
    enable(learner, ack_timeout_ns=10**15)
    plane.learn("learn_t", (1, 1))
    assert learner.receive().digest.list_id == 1
    other = switch.connect()
    other.become_primary(2)
    plane.learn("learn_t", (1, 1))
    assert other.receive().digest.list_id == 2


def test_disabling_and_another_pipeline_end_it(
    learner: Controller, plane: FakePlane, features: p4r.ForwardingPipelineConfig
) -> None:
    enable(learner)
    plane.learn("learn_t", (1, 1))
    assert learner.receive().digest.list_id == 1
    learner.delete(digest_entry=p4r.DigestEntry(digest_id=LEARN_DIGEST))
    plane.learn("learn_t", (2, 1))
    enable(learner)
    plane.learn("learn_t", (3, 1))
    message = learner.receive().digest
    assert (message.list_id, message.data[0].struct.members[0].bitstring) == (2, b"\3")
    learner.set_config(config=features)
    plane.learn("learn_t", (4, 1))
    assert learner.quiet()


def test_p4info_ids(features: p4r.ForwardingPipelineConfig) -> None:
    ids = {digest.preamble.name: digest.preamble.id for digest in features.p4info.digests}
    assert ids == {"learn_t": LEARN_DIGEST, "level_t": LEVEL_DIGEST}
    assert isinstance(features.p4info, p4i.P4Info)
