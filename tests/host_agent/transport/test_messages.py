"""The engine of whole messages: on simulated adapters in a rack, and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.transport import EventType, FailureCode, SwitchOp
from host_agent.wire.aggregation import CHUNK_BYTES, AggregationHeader, Flags, Kind, Reduction, Stage
from p4reduce.simulation.nic import DEAD, NOT_READY, TAKEN, MessageEngine, NicEndpoint
from tests.host_agent.rack import Simulation
from tests.host_agent.transport.fabric import ring_configs, router
from tests.host_agent.transport.peer import Peer, passing, sum_of
from tests.host_agent.transport.programs import FAULTS, PSNS, SEEDS, programs_of, run, switched

pytestmark = pytest.mark.slow

EVERYBODY = range(256)
KINDS = st.lists(st.sampled_from(["sum", "max", "gather"]), min_size=1, max_size=5)


@settings(deadline=None, max_examples=80)
@given(
    adapters=st.lists(st.booleans(), min_size=2, max_size=5) | st.integers(2, 5).map(lambda n: [True] * n),
    kinds=KINDS,
    elements=st.integers(0, 900),
    path_mtu=st.sampled_from([256, 1024]),
    window=st.sampled_from([1, 2, 8]),
    first_psn=PSNS,
    faults=FAULTS,
    seed=SEEDS,
)
def test_adapters_alone_and_beside_userspace_workers_in_a_faulty_rack(
    adapters: list[bool], kinds: list[str], elements: int, first_psn: int, seed: int, **how: Any
) -> None:
    """Check exact sums in any order of events; the switch model checks that no slot is claimed too early."""
    ranks = len(adapters)
    with_adapter = [rank for rank, adapter in enumerate(adapters) if adapter]
    fabric = switched(ranks, seed=seed, first_psns=[first_psn] * ranks, adapters=with_adapter, **how)
    run(fabric, programs_of(ranks, kinds, elements))


@pytest.mark.parametrize("adapters", [EVERYBODY, (0, 2), (1,)])
def test_a_worker_that_posts_late_is_waited_for(adapters: range | tuple[int, ...]) -> None:
    """Fill its window and its receives with early messages; the rest waits at the senders."""
    configs = ring_configs(3, window=2)
    fabric = Simulation(configs, switch=router(configs), adapters=adapters)
    size = 768 * 30
    sent = [np.full(size, rank + 1, np.uint8) for rank in range(3)]
    received = [np.zeros(size, np.uint8) for _ in range(3)]
    for rank in (0, 2):
        fabric.post(rank, passing(sent[rank], received[rank]))
    fabric.run_for(2.0)
    early = fabric.endpoints[1].progress().expected_psn
    fabric.run_for(2.0)
    assert fabric.endpoints[1].progress().expected_psn == early
    assert fabric.endpoints[1].counters().early_messages == 2
    fabric.post(1, passing(sent[1], received[1]))
    fabric.until(lambda: fabric.completed(1), limit_s=10)
    assert all(np.array_equal(received[rank], sent[rank - 1]) for rank in range(3))


def test_what_the_engine_counts_is_exact() -> None:
    fabric = switched(2, path_mtu=1024, window=8, message_packets=16, adapters=EVERYBODY)
    run(fabric, programs_of(2, ["sum", "gather"], 100_000))
    for endpoint in fabric.endpoints:
        counters, progress = endpoint.counters(), endpoint.progress()
        messages = 25 + 25  # (16 * 1024 - 256) / 4 = 4032 elements a message
        assert counters.messages_sent == counters.messages_received == progress.sent_messages == messages
        assert counters.results_received == 25
        assert counters.data_packets_sent == counters.data_packets_received
        psns = (progress.next_psn - endpoint.config.psn_out) % 2**24
        assert counters.data_packets_sent == psns
        assert progress.first_unacked_psn == progress.next_psn
        assert counters.retransmitted_packets == counters.acks_sent == 0
        assert 0 < counters.first_sent_ns <= counters.last_sent_ns


def sum_engine(elements: int = 100) -> MessageEngine:
    engine = MessageEngine(ring_configs(2)[0])
    engine.post(sum_of(np.ones(elements, np.int32)))
    return engine


def header(message: int = 0, elements: int = 100, **changes: object) -> AggregationHeader:
    return Peer.of().header(message, elements, **changes)


def result(values: object, **changes: object) -> bytes:
    """Return the result of `sum_engine`'s first message, or what `changes` make of it."""
    data = np.asarray(values, np.int32).astype(">i4").tobytes()
    return header(**changes).pack() + data + bytes(-len(data) % CHUNK_BYTES)  # type: ignore[arg-type]


def test_a_message_is_header_and_lanes_in_whole_chunks() -> None:
    engine = sum_engine()
    message = engine.next_send()
    sent = AggregationHeader.unpack(message)
    assert sent == replace(header(), rank=0, flags=Flags(0))
    assert message[CHUNK_BYTES:] == np.ones(100, ">i4").tobytes() + bytes(112)
    assert engine.next_send() == b""


def test_a_result_is_delivered() -> None:
    engine = MessageEngine(ring_configs(2)[0])
    values = np.arange(100, dtype=np.int32)
    engine.post(sum_of(values))
    engine.next_send()
    assert engine.receive(result(3 * np.arange(100))) == TAKEN
    assert np.array_equal(values, 3 * np.arange(100))
    assert (engine.done(EventType.RECEIVED), engine.done(EventType.COMPLETED)) == (1, 0)
    engine.acknowledged()
    assert engine.done(EventType.COMPLETED) == 1


WRONG = [
    (lambda: result(range(100), flags=Flags(0)), FailureCode.NOT_A_RESULT, "not a result"),
    (lambda: result(range(100), flags=Flags.RESULT | Flags.MISMATCH), FailureCode.MISMATCH, "do not agree"),
    (lambda: result(range(100), job=8), FailureCode.FOREIGN, "job 8"),
    (lambda: result(range(100), generation=4), FailureCode.FOREIGN, "generation 4"),
    (lambda: result(range(100), rank=0), FailureCode.FOREIGN, "rank 0"),
    (lambda: result(range(100), message=1), FailureCode.WRONG_MESSAGE, "message 1 arrived"),
    (lambda: result(range(100), elements=99), FailureCode.WRONG_SHAPE, "tensor size 99"),
    (
        lambda: result(range(100), elements=99, tensor_elements=100),
        FailureCode.WRONG_SHAPE,
        "element count 99",
    ),
    (lambda: result(range(100), reduction=Reduction.AVG), FailureCode.WRONG_SHAPE, "reduction 2"),
    (lambda: result(range(100), kind=Kind.REDUCE), FailureCode.WRONG_SHAPE, "kind of collective 2"),
    (lambda: result(range(100), root=255), FailureCode.WRONG_SHAPE, "root 255"),
    (lambda: result(range(100), stage=Stage.TOGETHER), FailureCode.WRONG_SHAPE, "stage 3"),
    (lambda: bytes(512), FailureCode.BAD_HEADER, "magic 0x00000000"),
    (lambda: result(range(100))[:-256], FailureCode.BAD_SEQUENCE, "packet 1 of 3"),
    (lambda: result(range(100)) + bytes(256), FailureCode.BAD_SEQUENCE, "packet 2 of 3"),
    (lambda: result(range(100))[:-1], FailureCode.BAD_SEQUENCE, "packet 2 of 3"),
    (lambda: b"P4RD", FailureCode.BAD_SEQUENCE, "holds 4 bytes"),
    (lambda: b"", FailureCode.BAD_SEQUENCE, "holds 0 bytes"),
]


@pytest.mark.parametrize(("message", "code", "text"), WRONG)
def test_what_contradicts_the_post_is_fatal(message: object, code: FailureCode, text: str) -> None:
    engine = sum_engine()
    engine.next_send()
    assert engine.receive(message()) == DEAD  # type: ignore[operator]
    failure = engine.failure()
    assert failure is not None
    assert failure.code is code
    assert "rank 0" in failure.text
    assert text in failure.text
    assert engine.next_send() == b""
    assert engine.progress().failed


def test_a_sum_that_nobody_here_asked_for_is_fatal() -> None:
    engine = MessageEngine(ring_configs(2)[0])
    assert engine.receive(result(range(100))) == DEAD
    failure = engine.failure()
    assert failure is not None
    assert failure.code is FailureCode.WRONG_MESSAGE


def pass_message(message: int, data: bytes = b"x") -> bytes:
    """Return what rank 1 passes to rank 0, one message an operation."""
    after = header(
        message,
        len(data),
        op=SwitchOp.PASS,
        element_type=0,
        reduction=Reduction.NONE,
        flags=Flags(0),
        tensor_elements=0,
        packets=2,
    )
    return after.pack() + data + bytes(-len(data) % CHUNK_BYTES)


def test_early_messages_wait_for_their_operation_as_far_as_the_window_goes() -> None:
    engine = MessageEngine(ring_configs(2, window=2)[0])
    assert [engine.receive(pass_message(m, bytes([m]))) for m in range(3)] == [TAKEN, TAKEN, NOT_READY]
    assert engine.receive(pass_message(2)) == NOT_READY
    received = [np.zeros(1, np.uint8) for _ in range(3)]
    for count, array in enumerate(received, 1):
        engine.post(passing(np.zeros(1, np.uint8), array))
        assert engine.done(EventType.RECEIVED) == (count if count < 3 else 2)
    assert engine.receive(pass_message(2, b"\x02")) == TAKEN
    assert [int(array[0]) for array in received] == [0, 1, 2]


def test_an_early_message_of_another_shape_is_fatal_when_its_operation_comes() -> None:
    engine = MessageEngine(ring_configs(2)[0])
    assert engine.receive(pass_message(0, b"abc")) == TAKEN
    engine.post(passing(np.zeros(1, np.uint8), np.zeros(1, np.uint8)))
    failure = engine.failure()
    assert failure is not None
    assert failure.code is FailureCode.WRONG_SHAPE


def test_the_result_is_the_credit_and_acknowledgements_are_not() -> None:
    engine = MessageEngine(ring_configs(2, window=2)[0])
    size = 192 * 5  # (4 * 256 - 256) / 4 elements a message
    engine.post(sum_of(np.zeros(size, np.int32)))
    assert engine.next_send()
    assert engine.next_send()
    engine.acknowledged(2)
    assert engine.next_send() == b""
    engine.receive(result(np.zeros(192), elements=192, tensor_elements=size, packets=4))
    assert engine.next_send()
    assert engine.next_send() == b""


def test_a_passed_message_needs_its_acknowledgement_and_the_predecessors_message() -> None:
    engine = MessageEngine(ring_configs(2, window=1)[0])
    for _ in range(2):
        engine.post(passing(np.zeros(1, np.uint8), np.zeros(1, np.uint8)))
    assert engine.next_send()
    engine.receive(pass_message(0))
    assert engine.next_send() == b""
    engine.acknowledged()
    assert engine.next_send()


def test_a_buffer_that_is_too_small_takes_nothing() -> None:
    engine = sum_engine()
    assert engine.next_send(capacity=engine.capacity - 1) == b""
    assert engine.next_send(capacity=engine.capacity) != b""


def test_after_an_abort_no_array_is_touched() -> None:
    engine = MessageEngine(ring_configs(2)[0])
    values = np.ones(100, np.int32)
    engine.post(sum_of(values))
    engine.next_send()
    engine.abort()
    assert engine.receive(result(range(100))) == DEAD
    assert (values == 1).all()
    assert engine.next_send() == b""
    assert engine.failure() is None


def test_what_the_adapter_reports_is_the_failure_and_the_first_one_counts() -> None:
    engine = sum_engine()
    engine.fail(FailureCode.RETRY_LIMIT, "no acknowledgement")
    engine.fail(FailureCode.LOCAL_ERROR, "flushed")
    failure = engine.failure()
    assert failure is not None
    assert (failure.code, failure.text, failure.message) == (
        FailureCode.RETRY_LIMIT,
        "rank 0: no acknowledgement",
        0,
    )


def test_a_failure_of_one_worker_is_seen_on_a_simulated_adapter() -> None:
    fabric = switched(2, adapters=EVERYBODY)
    fabric.post(0, sum_of(np.zeros(10, np.int32)))
    fabric.post(1, sum_of(np.zeros(10, np.int32), collective=2))
    fabric.run_for(1.0)
    failures = [worker.failure for worker in fabric.workers if worker.failure is not None]
    assert [failure.code for failure in failures] == [FailureCode.MISMATCH] * 2
    assert all(isinstance(endpoint, NicEndpoint) for endpoint in fabric.endpoints)
