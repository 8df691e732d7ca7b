"""The thread between the message engine and a device, on devices that are simulated in this process."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from controller.api.messages import RcParameters
from host_agent.collectives.plan import Steps, Wait
from host_agent.runner import Runner
from host_agent.transport import (
    EventType,
    FailureCode,
    ProtocolError,
    RetryLimitError,
    TransportClosedError,
    TransportError,
    TransportTimeoutError,
)
from host_agent.transport.verbs import RoceDevice, VerbsLink
from host_agent.transport.verbs.completions import DeviceEvent, Status, timeout_text
from host_agent.transport.verbs.queue_pairs import RECEIVE
from tests.host_agent.transport.fabric import ring_configs
from tests.host_agent.transport.peer import passing, sum_of
from tests.host_agent.transport.verbs_wire import FakeCompletion, FakeQueuePairs, FakeWire

PATIENCE_S = 30.0
RC = RcParameters(timeout=16, retry_count=5, rnr_retry=3)


@contextmanager
def rack(ranks: int = 2, **changes: object) -> Iterator[tuple[list[VerbsLink], list[FakeQueuePairs]]]:
    wire = FakeWire()
    configs = ring_configs(ranks, **changes)  # type: ignore[arg-type]
    devices = [FakeQueuePairs(wire, rank) for rank in range(ranks)]
    links = [VerbsLink(config, device, RC) for config, device in zip(configs, devices, strict=True)]
    try:
        for link in links:
            link.start()
        yield links, devices
    finally:
        for link in links:
            link.close()


@contextmanager
def waiting() -> Iterator[tuple[VerbsLink, FakeQueuePairs, int]]:
    """Yield rank 0, which waits for an operation that its neighbour never posts."""
    with rack() as (links, devices):
        yield links[0], devices[0], links[0].post(sum_of(np.ones(100, np.int32)))


def eventually(condition: object) -> None:
    """Wait until another thread makes it true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("window", [1, 8])
def test_bytes_around_the_ring(ranks: int, window: int) -> None:
    random = np.random.default_rng(1)
    with rack(ranks, path_mtu=1024, window=window, message_packets=4) as (links, devices):
        for size in (0, 1, 300_001):
            sent = [random.integers(0, 256, size, dtype=np.uint8) for _ in links]
            received = [np.zeros(size, np.uint8) for _ in links]
            ids = [link.post(passing(s, r)) for link, s, r in zip(links, sent, received, strict=True)]
            for link, op_id in zip(links, ids, strict=True):
                link.wait(op_id, timeout_s=PATIENCE_S)
                link.wait(op_id, timeout_s=PATIENCE_S, until=EventType.COMPLETED)
            assert all(np.array_equal(received[rank], sent[rank - 1]) for rank in range(ranks))
        assert all(device.rc == RC for device in devices)
        assert all(link.counters().messages_sent == link.progress().sent_messages > 0 for link in links)


def test_a_worker_that_posts_late_gets_everything() -> None:
    """Send it 4W messages from four ranks: W are kept early, 2W fill its receives, the rest waits."""
    size, late = 768 * 40, 1
    with rack(5) as (links, devices):
        sent = [np.full(size, rank, np.uint8) for rank in range(5)]
        received = [np.zeros(size, np.uint8) for _ in links]
        ids = {r: links[r].post(passing(sent[r], received[r])) for r in range(5) if r != late}
        eventually(lambda: links[late].counters().early_messages == 2 and not devices[late].receives)
        ids[late] = links[late].post(passing(sent[late], received[late]))
        for rank, op_id in ids.items():
            links[rank].wait(op_id, timeout_s=PATIENCE_S)
        assert all(np.array_equal(received[rank], sent[rank - 1]) for rank in range(5))


def is_send(completion: FakeCompletion) -> bool:
    return not completion.wr_id & RECEIVE


def test_a_slot_is_sent_from_again_when_its_send_is_complete_and_not_before() -> None:
    """Let results come before the acknowledgements that the device waits for: 2W SENDs are under way."""
    window, elements = 8, 192 * 40  # one message has 192
    values = [np.arange(elements, dtype=np.int32) * (rank + 1) for rank in range(3)]
    with rack(3, window=window) as (links, devices):
        devices[0].holds = is_send
        results = [np.zeros_like(value) for value in values]
        ids = [link.post(sum_of(v, r)) for link, v, r in zip(links, values, results, strict=True)]
        eventually(lambda: links[0].progress().received_messages == 2 * window)
        assert len(devices[0].sends) == links[0].progress().sent_messages == 2 * window
        assert links[0].progress().acked_messages == 0
        devices[0].release()
        for link, op_id, result in zip(links, ids, results, strict=True):
            link.wait(op_id, timeout_s=PATIENCE_S)
            link.wait(op_id, timeout_s=PATIENCE_S, until=EventType.COMPLETED)
            assert np.array_equal(result, sum(values))


def test_a_worker_that_is_to_hold_waits_for_acknowledgements() -> None:
    """Check the PSNs, which the device does not tell: they follow from what was sent, a packet each."""
    first_psn, path_mtu = 0xFFFFF0, 256
    lengths: list[int] = []
    with rack(first_psns=[first_psn, 5], path_mtu=path_mtu) as (links, devices):
        post_send = devices[0].post_send

        def noted(slot: int, length: int) -> None:
            lengths.append(length)
            post_send(slot, length)

        def one(size: int) -> Steps[None]:
            yield Wait((yield passing(np.ones(size, np.uint8), np.empty(size, np.uint8))))

        devices[0].post_send = noted  # type: ignore[method-assign]
        runner = Runner(links[0], rank=0)
        for size in (9, 3000, 256):
            links[1].post(passing(np.ones(size, np.uint8), np.empty(size, np.uint8)))
            if size == 256:
                devices[0].holds = is_send
            runner.run(one(size), "passing")
        assert not runner.settle(lambda: False)
        devices[0].release()
        packets = sum(-(-length // path_mtu) for length in lengths)
        assert packets > 16  # the PSN has wrapped
        assert runner.settle(lambda: True)
        assert links[0].progress().next_psn == (first_psn + packets) % 2**24


def test_more_completions_at_once_than_are_taken_at_a_time() -> None:
    """Check that one event covers all; no more come until the neighbours hear of them."""
    window, size = 8, 768 * 40
    with rack(window=window) as (links, devices):
        devices[0].holds = lambda completion: True
        sent = [np.full(size, rank + 1, np.uint8) for rank in range(2)]
        received = [np.zeros(size, np.uint8) for _ in links]
        ids = [link.post(passing(s, r)) for link, s, r in zip(links, sent, received, strict=True)]
        eventually(lambda: len(devices[0].held) == 3 * window)  # 2W received, and W sent
        devices[0].release()
        for link, op_id in zip(links, ids, strict=True):
            link.wait(op_id, timeout_s=PATIENCE_S)
            link.wait(op_id, timeout_s=PATIENCE_S, until=EventType.COMPLETED)
        assert all(np.array_equal(received[rank], sent[rank - 1]) for rank in range(2))


def test_it_sleeps_while_there_is_nothing_to_do() -> None:
    with rack() as (links, devices):
        ids = [link.post(passing(np.zeros(9, np.uint8), np.zeros(9, np.uint8))) for link in links]
        for link, op_id in zip(links, ids, strict=True):
            link.wait(op_id, timeout_s=PATIENCE_S, until=EventType.COMPLETED)
        op_id = links[0].post(sum_of(np.ones(100, np.int32)))
        eventually(lambda: devices[0].sends)
        before = devices[0].polls
        with pytest.raises(TransportTimeoutError, match="message 1 has not arrived"):
            links[0].wait(op_id, timeout_s=0.3)
        assert devices[0].polls - before <= 3


ERRORS = [
    (
        Status.RETRY_EXC_ERR,
        FailureCode.RETRY_LIMIT,
        ["successor 10.1.0.2", "after 5 retransmissions", "268 ms"],
    ),
    (Status.RNR_RETRY_EXC_ERR, FailureCode.RETRY_LIMIT, ["successor 10.1.0.2", "rc_rnr_retry to 7"]),
    (Status.REM_INV_REQ_ERR, FailureCode.REMOTE_ERROR, ["successor 10.1.0.2", "REM_INV_REQ_ERR"]),
    (Status.REM_OP_ERR, FailureCode.REMOTE_ERROR, ["REM_OP_ERR"]),
    (Status.LOC_PROT_ERR, FailureCode.LOCAL_ERROR, ["fake0", "LOC_PROT_ERR", "sending to 10.1.0.2"]),
    (Status.WR_FLUSH_ERR, FailureCode.LOCAL_ERROR, ["fake0", "WR_FLUSH_ERR"]),
    (99, FailureCode.LOCAL_ERROR, ["status 99"]),
]


@pytest.mark.parametrize(("status", "code", "parts"), ERRORS)
def test_a_completion_with_an_error_ends_every_wait(status: int, code: FailureCode, parts: list[str]) -> None:
    with waiting() as (link, device, op_id):
        device.complete(FakeCompletion(0, status=status))
        kind = RetryLimitError if code is FailureCode.RETRY_LIMIT else ProtocolError
        for _ in range(2):
            with pytest.raises(kind) as caught:
                link.wait(op_id, timeout_s=PATIENCE_S)
        failure = link.failure()
        assert failure is not None
        assert failure.code is caught.value.failure.code is code
        assert failure.text.startswith("rank 0: ")
        assert all(part in failure.text for part in parts), failure.text
        eventually(lambda: "stop" in device.calls)
    assert device.calls == ["connect", "stop", "close"]


def test_a_failed_receive_names_the_predecessor() -> None:
    with waiting() as (link, device, op_id):
        device.complete(FakeCompletion(RECEIVE | 1, status=Status.LOC_LEN_ERR))
        with pytest.raises(ProtocolError, match=r"LOC_LEN_ERR.*receiving from 10\.1\.0\.2"):
            link.wait(op_id, timeout_s=PATIENCE_S)


def test_what_is_flushed_after_the_first_error_is_no_news() -> None:
    with waiting() as (link, device, op_id):
        device.complete(FakeCompletion(0, status=Status.RETRY_EXC_ERR))
        for slot in range(3):
            device.complete(FakeCompletion(RECEIVE | slot, status=Status.WR_FLUSH_ERR))
        with pytest.raises(RetryLimitError):
            link.wait(op_id, timeout_s=PATIENCE_S)
        eventually(lambda: not device.completions)
        failure = link.failure()
        assert failure is not None
        assert failure.code is FailureCode.RETRY_LIMIT


@pytest.mark.parametrize("error", [TransportError("RDMA device fake0 is gone"), RuntimeError("a defect")])
def test_an_error_in_the_thread_reaches_who_waits(error: Exception) -> None:
    with waiting() as (link, device, op_id):
        device.refuse(error)
        with pytest.raises(ProtocolError, match=str(error)):
            link.wait(op_id, timeout_s=PATIENCE_S)
        eventually(lambda: "close" in device.calls)


@pytest.mark.parametrize("event", [DeviceEvent.DEVICE_FATAL, DeviceEvent.QP_FATAL, DeviceEvent.CQ_ERR])
def test_a_fatal_event_of_the_device_is_a_failure(event: DeviceEvent) -> None:
    with waiting() as (link, device, op_id):
        device.report(event)
        with pytest.raises(ProtocolError, match=event.name):
            link.wait(op_id, timeout_s=PATIENCE_S)


def test_a_port_that_goes_down_is_logged_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), waiting() as (link, device, op_id):
        for event in (DeviceEvent.PORT_ERR, DeviceEvent.PORT_ACTIVE, 18):
            device.report(event)
        eventually(lambda: not device.device_events)
        with pytest.raises(TransportTimeoutError):
            link.wait(op_id, timeout_s=0.01)
        assert link.failure() is None
    assert "port 1 of RDMA device fake0 is down" in caplog.text


def test_an_abort_ends_waits_and_stops_the_queue_pairs() -> None:
    with waiting() as (link, device, op_id):
        threading.Timer(0.05, link.abort, ["the job ended"]).start()
        with pytest.raises(TransportClosedError, match="the job ended"):
            link.wait(op_id, timeout_s=PATIENCE_S)
        eventually(lambda: "stop" in device.calls)
        with pytest.raises(TransportClosedError, match="the job ended"):
            link.post(sum_of(np.ones(1, np.int32)))
        assert link.failure() is None


def test_close_ends_a_wait_and_is_idempotent() -> None:
    with waiting() as (link, device, op_id):
        threading.Timer(0.05, link.close).start()
        with pytest.raises(TransportClosedError):
            link.wait(op_id, timeout_s=PATIENCE_S)
        eventually(lambda: "close" in device.calls)
        link.close()
        link.close()
        assert device.calls.count("close") == 1
        with pytest.raises(TransportClosedError):
            link.progress()
        with pytest.raises(TransportClosedError):
            link.start()


def test_a_link_that_never_started_gives_its_queue_pairs_back() -> None:
    device = FakeQueuePairs(FakeWire(), 0)
    link = VerbsLink(ring_configs(2)[0], device, RC)
    with pytest.raises(TransportClosedError, match="not started"):
        link.post(sum_of(np.ones(1, np.int32)))
    link.close()
    assert device.calls == ["close"]


def test_a_neighbour_that_cannot_be_connected_to_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = FakeQueuePairs(FakeWire(), 0)

    def connect(*_: object, **__: object) -> None:
        raise TransportError("RDMA device fake0 cannot connect to 10.1.0.2")

    monkeypatch.setattr(device, "connect", connect)
    link = VerbsLink(ring_configs(2)[0], device, RC)
    with pytest.raises(TransportError, match="cannot connect"):
        link.start()
    link.close()
    assert device.calls == ["close"]
    assert not [thread for thread in threading.enumerate() if thread.name == "p4r-verbs"]


def test_a_link_that_is_dropped_is_closed() -> None:
    device = FakeQueuePairs(FakeWire(), 0)
    link = VerbsLink(ring_configs(2)[0], device, RC)
    link.start()
    del link
    gc.collect()
    assert device.calls == ["connect", "stop", "close"]


def test_a_link_that_the_thread_itself_drops_is_closed() -> None:
    """Run the garbage collector in the link's own thread, as it may run in any."""
    device = FakeQueuePairs(FakeWire(), 0)
    links = [VerbsLink(ring_configs(2)[0], device, RC)]
    links[0].start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "p4r-verbs"]
    device.on_event = links.clear
    device.report(DeviceEvent.PORT_ACTIVE)
    thread.join(PATIENCE_S)
    assert device.calls == ["connect", "stop", "close"]


def test_arrays_are_let_go_of_where_the_thread_drops_a_link_with_messages_at_hand() -> None:
    """Collect garbage while it delivers: nothing is written for the rest of the messages."""
    size = 768 * 40
    memory = np.zeros(size, np.uint8)  # stands for what would be given back
    may_drop = threading.Event()
    seen: list[tuple[bool, bytes]] = []  # at the drop: whether arrays were let go of, what was received
    with rack(5) as (links, devices):
        for rank in range(1, 5):
            links[rank].post(passing(np.full(size, rank, np.uint8), np.zeros(size, np.uint8)))
        eventually(lambda: links[0].counters().early_messages == 2 and not devices[0].receives)
        operation = passing(np.zeros(size, np.uint8), memory.view())
        posted = weakref.ref(operation)
        dropped = [links.pop(0)]

        def drop() -> None:
            if dropped:
                assert may_drop.wait(PATIENCE_S)
                dropped.clear()
                gc.collect()
                seen.append((posted() is None, memory.tobytes()))

        devices[0].on_post_receive = drop
        dropped[0].post(operation)
        del operation
        may_drop.set()
        eventually(lambda: "close" in devices[0].calls)
    assert seen == [(True, memory.tobytes())]
    assert 0 < np.count_nonzero(memory) < size
    assert devices[0].calls == ["connect", "stop", "close"]


@pytest.mark.parametrize("broken", ["eventfd", "poll", "thread"])
def test_a_thread_that_cannot_start_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    class Poll:
        def register(self, *_: object) -> None:
            raise OSError(12, "Cannot allocate memory")

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files") if broken == "eventfd" else RuntimeError("can't start new")

    device = FakeQueuePairs(FakeWire(), 0)
    link = VerbsLink(ring_configs(2)[0], device, RC)
    where, what = {
        "eventfd": ("os.eventfd", refuse),
        "poll": ("select.poll", Poll),
        "thread": ("threading.Thread.start", refuse),
    }[broken]
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(f"host_agent.transport.verbs.link.{where}", what)
        with pytest.raises(TransportError, match=r"no thread for RDMA device fake0: .*ulimit -n"):
            link.start()
    assert os.listdir("/proc/self/fd") == before
    link.close()
    assert device.calls == ["connect", "close"]


def test_an_operation_that_cannot_be_sent_is_refused() -> None:
    with rack() as (links, _), pytest.raises(ValueError, match="cut_elements is less"):
        links[0].post(passing(np.zeros(9, np.uint8), None, cut_elements=3))


def test_what_the_device_counts_is_counted_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(**counters: int) -> None:
        for name, value in counters.items():
            (tmp_path / name).write_text(f"{value}\n")

    monkeypatch.setattr(RoceDevice, "hw_counters", tmp_path)
    count(completer_retry_err=7, rcvd_seq_err=3, duplicate_request=1, sent_pkts=1000)
    with rack() as (links, _):
        count(completer_retry_err=9, rcvd_seq_err=4)
        counters = links[0].counters()
    assert (counters.go_backs, counters.naks_received, counters.duplicates_received) == (2, 1, 0)
    assert counters.timeouts == counters.retransmitted_packets == 0


def test_timeouts_in_words() -> None:
    assert [timeout_text(exponent) for exponent in (0, 14, 16)] == ["no limit", "67.1 ms", "268 ms"]
