"""The codec: each message of a session, with each value, comes through protobuf unchanged."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from ipaddress import IPv4Address
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api import codec, messages
from controller.api import controller_pb2 as pb
from controller.api.errors import InvalidRequestError
from controller.api.messages import (
    EndCause,
    Ended,
    FromController,
    FromWorker,
    JobSpec,
    Join,
    Mode,
    RcParameters,
    Ready,
    Resume,
    Worker,
)
from controller.security.limits import Limits

NUMBERS = st.integers(0, 2**32 - 1)
SECONDS = st.floats(0, 1e9)
WORKERS = st.builds(Worker, rank=NUMBERS, qpn_out=NUMBERS, psn_out=NUMBERS, qpn_in=NUMBERS)
OPTIONAL = st.none() | NUMBERS


@cache
def said(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for any message of a class, by the types of its fields."""
    by_type: dict[str, st.SearchStrategy[Any]] = {
        "int": NUMBERS,
        "int | None": OPTIONAL,
        "float": SECONDS,
        "tuple[int, ...]": st.lists(NUMBERS).map(tuple),
        "tuple[str, ...]": st.lists(st.text(st.characters(exclude_categories=["Cs"]))).map(tuple),
    }
    given_: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(kind):
        nested = str(field.type).removesuffix(" | None")
        strategy = by_type.get(str(field.type))
        if field.name == "token_hash":
            strategy = st.just("")
        elif nested in ("Worker", "JobSpec", "RcParameters", "Join", "Ready", "Called", "Gang"):
            strategy = said(getattr(messages, nested))
            if nested != field.type:
                strategy |= st.none()
        if strategy is not None:
            given_[field.name] = strategy
    return st.builds(kind, **given_)


@pytest.mark.parametrize("kind", get_args(FromWorker), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_what_workers_say(kind: Any, data: st.DataObject) -> None:
    message = data.draw(said(kind))
    sent = codec.to_controller(message).SerializeToString()
    assert codec.from_worker(pb.WorkerMessage.FromString(sent)) == message


@pytest.mark.parametrize("kind", get_args(FromController), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_what_the_controller_says(kind: Any, data: st.DataObject) -> None:
    message = data.draw(said(kind))
    sent = codec.to_worker(message).SerializeToString()
    assert codec.from_controller(pb.ControllerMessage.FromString(sent)) == message


@pytest.mark.parametrize(
    ("envelope", "union"), [(pb.WorkerMessage, FromWorker), (pb.ControllerMessage, FromController)]
)
def test_every_message_has_its_class_and_every_field_its_place(envelope: Any, union: Any) -> None:
    described = {field.message_type.name: field.message_type for field in envelope.DESCRIPTOR.fields}
    assert described.keys() == {kind.__name__ for kind in get_args(union)}
    inner = [getattr(pb, name).DESCRIPTOR for name in ("Worker", "RcParameters", "JobSpec", "Gang")]
    for descriptor in (*described.values(), *inner):
        kind = getattr(messages, descriptor.name)
        ours = {field.name for field in fields(kind) if field.metadata.get("said", True)}
        not_ours = {"join_token"} if kind is JobSpec else set()  # a secret, which only CreateJob reads
        assert ours == {field.name for field in descriptor.fields} - not_ours, descriptor.name


@pytest.mark.parametrize("kind", [Mode, EndCause])
def test_codes_are_those_of_the_proto(kind: Any) -> None:
    theirs = dict(getattr(pb, kind.__name__).items())
    ours = {value.name: value.value for value in kind}
    assert set(ours.values()) | {0} == set(theirs.values())
    assert all(theirs.get(name, 0) == value for name, value in ours.items())


READY = Ready(
    job_id=3,
    generation=77,
    window=4,
    message_packets=16,
    path_mtu=1024,
    mode=Mode.RING,
    successor=Worker(rank=1, mac="m", ip=IPv4Address("10.0.0.2"), qpn_out=2, psn_out=3, qpn_in=4),
    predecessor=Worker(rank=2, mac="m", ip=IPv4Address("10.0.0.3"), qpn_out=2, psn_out=3, qpn_in=4),
    heartbeat_interval_s=1.0,
    heartbeat_timeout_s=5.0,
)


def test_what_is_absent_has_our_default() -> None:
    proto = codec.to_proto(READY)
    proto.ClearField("rc")
    assert codec.from_proto(Ready, proto).rc == RcParameters()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": 0}, "Ready.mode: there is no mode 0"),
        ({"mode": 7}, "Ready.mode: there is no mode 7"),
        ({"successor": pb.Worker(ip="10.0.0.256")}, "Worker.ip: '10.0.0.256' is not an IPv4 address"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    proto = pb.ControllerMessage(ready=codec.to_proto(READY))
    proto.ready.MergeFrom(pb.Ready(**change)) if change.get("mode") != 0 else proto.ready.ClearField("mode")
    with pytest.raises(InvalidRequestError, match=words):
        codec.from_controller(proto)


def test_a_join_without_its_worker_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"Worker\.ip: '' is not an IPv4 address"):
        codec.from_worker(pb.WorkerMessage(join=pb.Join(job="train")))


def test_what_this_release_does_not_know() -> None:
    later = b"\xfa\x01\x00"  # field 31, of no bytes
    assert codec.from_worker(pb.WorkerMessage.FromString(later)) is None
    assert codec.from_controller(pb.ControllerMessage.FromString(later)) is None
    ended = pb.Ended.FromString(pb.Ended(reason="new").SerializeToString() + b"\x30\x63")  # cause 99
    assert codec.from_proto(Ended, ended) == Ended(reason="new")


@pytest.mark.parametrize(
    ("proto", "cause"),
    [
        (pb.Ended(reason="they disagree", mismatch=True), EndCause.MISMATCH),
        (pb.Ended(reason="rank 1 has died", rank=1), EndCause.WORKER_LOST),
        (pb.Ended(reason="it was deleted"), EndCause.UNSPECIFIED),
    ],
)
def test_an_end_of_a_controller_without_causes(proto: pb.Ended, cause: EndCause) -> None:
    assert codec.from_proto(Ended, proto).cause is cause


def test_agents_without_causes_hear_of_a_mismatch() -> None:
    assert codec.to_proto(Ended(reason="they disagree", cause=EndCause.MISMATCH)).mismatch
    assert not codec.to_proto(Ended(reason="gone", cause=EndCause.WORKER_LOST, rank=1)).mismatch


def test_secrets_are_not_shown() -> None:
    join = Join(job="train", world_size=2, worker=READY.successor, path_mtu_max=1024, join_token="hush")
    ready = replace(READY, resume_token=b"hush")
    resume = Resume(job="train", generation=77, rank=1, token=b"hush", joined=join, ready=ready)
    assert "hush" not in repr((join, ready, resume))


@pytest.mark.parametrize("letter", ["x", "ä", "梯", "\U0001f600", "\udc80", "\0"])
def test_reasons_and_calls_are_cut_to_what_the_controller_takes(letter: str) -> None:
    """Check any script; what cannot be encoded is replaced, as the whole message would be lost."""
    said = messages.Abort(letter * 20_000, messages.Called(3, letter * 20_000))
    written = codec.to_controller(said)
    assert written.ByteSize() < Limits().session_message_bytes
    for text in (written.abort.reason, written.abort.mismatch.what):
        assert len(text) == messages.LONGEST_REASON
        assert text.endswith("…")
    assert codec.from_worker(written) == said


def test_what_is_not_too_long_is_not_cut() -> None:
    reason = "ä" * messages.LONGEST_REASON
    assert messages.Abort(reason).reason == reason
