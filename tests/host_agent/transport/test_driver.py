"""The driver on real interfaces: two network namespaces joined by a veth pair."""

from __future__ import annotations

import gc
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from host_agent.transport import (
    EventType,
    ProtocolError,
    RcDriver,
    RetryLimitError,
    TransportClosedError,
    TransportConfig,
    TransportError,
    TransportTimeoutError,
)
from host_agent.wire.headers import RocePacket
from tests.host_agent.transport.fabric import ring_configs
from tests.host_agent.transport.namespaces import inside, run, veth_pair
from tests.host_agent.transport.peer import passing, sum_of

pytestmark = pytest.mark.emulation
PATIENCE_S = 60.0
SO_RCVBUFFORCE = 33


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    with veth_pair() as names:
        yield names


@contextmanager
def drivers(namespaces: list[str], configs: list[TransportConfig]) -> Iterator[list[RcDriver]]:
    with ExitStack() as stack:
        running = []
        for name, config in zip(namespaces, configs, strict=True):
            driver = RcDriver(config, "roce0")
            inside(name, driver.start)
            stack.callback(driver.close)
            running.append(driver)
        yield running


def exchange(pair: list[RcDriver], size: int) -> None:
    """Send `size` random bytes from both to each other."""
    random = np.random.default_rng(size)
    sent = [random.integers(0, 256, size, dtype=np.uint8) for _ in pair]
    received = [np.zeros(size, np.uint8) for _ in pair]
    ids = [d.post(passing(s, r)) for d, s, r in zip(pair, sent, received, strict=True)]
    for driver, op_id in zip(pair, ids, strict=True):
        driver.wait(op_id, timeout_s=PATIENCE_S)
        driver.wait(op_id, timeout_s=PATIENCE_S, until=EventType.COMPLETED)
    for rank in range(2):
        assert np.array_equal(received[rank], sent[1 - rank])


@pytest.mark.parametrize("path_mtu", [256, 512, 1024, 2048, 4096])
def test_megabytes_both_ways(namespaces: list[str], path_mtu: int) -> None:
    configs = ring_configs(2, path_mtu=path_mtu, window=8, message_packets=16, first_psns=[2**24 - 100] * 2)
    with drivers(namespaces, configs) as pair:
        for size in (0, 1, 1_000_003, 4_000_000):
            exchange(pair, size)
        for driver in pair:
            counters = driver.counters()
            assert counters.icrc_errors == counters.malformed == counters.ring_drops == 0
            assert driver.progress().operations == 0


def test_many_small_operations(namespaces: list[str]) -> None:
    """Let the predecessor be ahead or behind, as it happens."""
    with drivers(namespaces, ring_configs(2, path_mtu=1024, window=4, message_packets=4)) as pair:
        for size in range(300):
            exchange(pair, size)


@pytest.mark.parametrize("latency", ["1ms", "50ms"])  # its queue is shorter, or longer, than our send buffer
def test_a_rate_limit_holds_and_is_no_loss(namespaces: list[str], latency: str) -> None:
    """Check that nothing is retransmitted because our own queue is full."""
    for name in namespaces:
        run(f"tc -n {name} qdisc add dev roce0 root tbf rate 50mbit burst 16kb latency {latency}")
    configs = ring_configs(2, path_mtu=1024, window=8, message_packets=16)
    patient = [replace(config, rto_low_s=0, rto_s=PATIENCE_S, rto_max_s=PATIENCE_S) for config in configs]
    with drivers(namespaces, patient) as pair:
        began = time.monotonic()
        exchange(pair, 1_000_000)
        took = time.monotonic() - began
        assert took > 1_000_000 * 8 / 50e6 * 0.9
        assert [driver.counters().retransmitted_packets for driver in pair] == [0, 0]
        assert all(driver.counters().frames_blocked for driver in pair)


def test_a_link_that_goes_down_and_up(namespaces: list[str]) -> None:
    configs = ring_configs(2, path_mtu=1024, window=8, message_packets=16)
    with drivers(namespaces, configs) as pair:
        exchange(pair, 100_000)
        data = np.arange(2_000_000, dtype=np.uint64).astype(np.uint8)
        received = [np.zeros_like(data) for _ in pair]
        run(f"ip -n {namespaces[0]} link set roce0 down")
        ids = [d.post(passing(data, r)) for d, r in zip(pair, received, strict=True)]
        with pytest.raises(TransportTimeoutError, match="message 7 has not arrived"):
            pair[0].wait(ids[0], timeout_s=0.3)
        run(f"ip -n {namespaces[0]} link set roce0 up")
        for driver, op_id, target in zip(pair, ids, received, strict=True):
            driver.wait(op_id, timeout_s=PATIENCE_S, until=EventType.COMPLETED)
            assert np.array_equal(target, data)


def open_capture() -> socket.socket:
    """Return a socket that sees every frame on roce0, in both directions."""
    capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)  # hears nothing until it is bound
    capture.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 2**24)
    capture.bind(("roce0", 3))
    capture.setblocking(False)
    return capture


def test_all_that_is_sent_is_roce_and_the_kernel_is_quiet(namespaces: list[str]) -> None:
    """Check that every frame has a right ICRC, and that the kernel answers none with an ICMP error."""
    capture = inside(namespaces[0], open_capture)
    with capture, drivers(namespaces, ring_configs(2, path_mtu=1024, window=4, message_packets=4)) as pair:
        exchange(pair, 50_000)
        sent = sum(d.counters().data_packets_sent + d.counters().acks_sent for d in pair)
        frames = []
        while select.select([capture], [], [], 0)[0]:
            frames.append(capture.recv(9000))
        ipv4 = [frame for frame in frames if frame[12:14] == b"\x08\x00"]
        assert len(ipv4) == sent
        assert all(RocePacket.parse(frame).icrc_ok() for frame in ipv4)


def test_a_path_mtu_that_the_link_cannot_carry(namespaces: list[str]) -> None:
    run(f"ip -n {namespaces[0]} link set roce0 mtu 1500")
    driver = RcDriver(ring_configs(2, path_mtu=2048)[0], "roce0")
    with pytest.raises(TransportError, match="interface roce0 has MTU 1500: path MTU 2048 needs 2092"):
        inside(namespaces[0], driver.start)


def test_an_interface_that_is_not_there(namespaces: list[str]) -> None:
    driver = RcDriver(ring_configs(2)[0], "roce9")
    with pytest.raises(TransportError, match="cannot read the MTU of interface roce9: No such device"):
        inside(namespaces[0], driver.start)


def test_a_neighbour_that_is_not_there_ends_at_the_retry_limit(namespaces: list[str]) -> None:
    config = replace(ring_configs(2, retry_limit=3)[0], rto_s=0.01)
    with drivers(namespaces[:1], [config]) as (driver,):
        op_id = driver.post(passing(np.zeros(10, np.uint8), None))
        with pytest.raises(
            RetryLimitError, match=r"rank 0: no acknowledgement from the successor 10\.1\.0\.2"
        ) as caught:
            driver.wait(op_id, timeout_s=PATIENCE_S)
        assert caught.value.failure == driver.failure()


def test_what_the_poster_sends_is_repeated_in_time(namespaces: list[str]) -> None:
    """Check that a thread that sleeps, and is not woken, looks at the timers in time."""
    config = replace(ring_configs(2)[0], rto_s=0.05)
    with drivers(namespaces[:1], [config]) as (driver,):
        time.sleep(0.2)
        began = time.monotonic()
        driver.post(passing(np.zeros(10, np.uint8), None))
        while not driver.counters().timeouts:
            assert time.monotonic() - began < PATIENCE_S
            time.sleep(0.001)
        assert time.monotonic() - began >= 0.05


def test_a_contribution_that_no_switch_summed_is_an_error(namespaces: list[str]) -> None:
    with drivers(namespaces, ring_configs(2)) as pair:
        values, result = np.ones(10, np.int32), np.zeros(10, np.int32)
        pair[0].post(sum_of(values))
        while not pair[0].counters().data_packets_sent:
            time.sleep(0.001)
        op_id = pair[1].post(sum_of(values, result))
        with pytest.raises(ProtocolError, match="no switch on the path aggregated it"):
            pair[1].wait(op_id, timeout_s=PATIENCE_S)
        assert not result.any()


@contextmanager
def waiting(driver: RcDriver, op_id: int, *, threads: int) -> Iterator[list[str]]:
    """Let so many threads wait for an operation; yield the list of what ended their waits."""
    said: list[str] = []
    all_here = threading.Barrier(threads + 1)

    def wait() -> None:
        all_here.wait()
        try:
            driver.wait(op_id)
        except TransportClosedError as error:
            said.append(str(error))

    waiters = [threading.Thread(target=wait) for _ in range(threads)]
    for waiter in waiters:
        waiter.start()
    all_here.wait()
    yield said
    for waiter in waiters:
        waiter.join(PATIENCE_S)


def test_ending_a_job_wakes_who_waits(namespaces: list[str]) -> None:
    with drivers(namespaces[:1], [ring_configs(2)[0]]) as (driver,):
        op_id = driver.post(passing(np.zeros(10, np.uint8), None))
        with waiting(driver, op_id, threads=1) as said:
            driver.abort("rank 1 died")
        assert said == ["rank 1 died"]
        with pytest.raises(TransportClosedError, match="rank 1 died"):
            driver.wait(op_id)


def test_after_abort_the_arrays_are_the_callers_again(namespaces: list[str]) -> None:
    with drivers(namespaces, ring_configs(2, path_mtu=1024, window=4, message_packets=4)) as pair:
        target = np.zeros(1000, np.uint8)
        op_id = pair[0].post(passing(np.ones(1000, np.uint8), target))
        pair[0].abort("given up")
        target[:] = 7
        pair[1].post(passing(np.full(1000, 99, np.uint8), np.zeros(1000, np.uint8)))
        while pair[1].counters().timeouts < 2:  # it was sent more than once, and is not acknowledged
            time.sleep(0.001)
        assert (target == 7).all()
        with pytest.raises(TransportClosedError, match="given up"):
            pair[0].wait(op_id)
        with pytest.raises(TransportClosedError, match="given up"):
            pair[0].post(passing(None, target))


def test_closing_while_others_wait(namespaces: list[str]) -> None:
    with drivers(namespaces[:1], [ring_configs(2)[0]]) as (driver,):
        op_id = driver.post(passing(np.zeros(10, np.uint8), None))
        with waiting(driver, op_id, threads=8) as said:
            driver.close()
        assert said == ["the connection was closed"] * 8


def test_a_driver_that_is_dropped_stops_and_lets_go(namespaces: list[str]) -> None:
    def drivers_threads() -> int:
        names = (task / "comm" for task in Path("/proc/self/task").iterdir())
        return sum(name.exists() and name.read_text() == "p4r-driver\n" for name in names)

    files, threads = set(os.listdir("/proc/self/fd")), drivers_threads()
    driver = RcDriver(ring_configs(2)[0], "roce0")
    inside(namespaces[0], driver.start)
    arrays = [np.ones(100_000, np.uint8) for _ in range(2)]
    driver.post(passing(*arrays))
    alive = [weakref.ref(array) for array in arrays]
    del driver, arrays
    gc.collect()
    assert [array() for array in alive] == [None, None]
    assert set(os.listdir("/proc/self/fd")) <= files
    assert drivers_threads() == threads


AN_EXIT_WITHOUT_CLOSE = """
import sys, threading
import numpy as np
from host_agent.transport import RcDriver
from tests.host_agent.transport.fabric import ring_configs
from tests.host_agent.transport.namespaces import inside
from tests.host_agent.transport.peer import passing

pair = []
for name, config in zip(sys.argv[2:], ring_configs(2, path_mtu=4096, window=8, message_packets=64)):
    driver = RcDriver(config, "roce0")
    inside(name, driver.start)
    driver.post(passing(np.ones(64 << 20, np.uint8), np.zeros(64 << 20, np.uint8)))
    if sys.argv[1] == "waiting":
        threading.Thread(target=driver.wait, args=(1,), daemon=True).start()
    pair.append(driver)
print("done")
"""


@pytest.mark.parametrize("thread", ["waiting", "none"])
def test_a_process_that_exits_without_closing_does_not_crash(namespaces: list[str], thread: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AN_EXIT_WITHOUT_CLOSE, thread, *namespaces],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_closing_leaves_nothing_behind(namespaces: list[str]) -> None:
    def resources() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = resources()
    for _ in range(5):
        with drivers(namespaces, ring_configs(2)) as pair:
            exchange(pair, 1000)
        pair[0].close()
        with pytest.raises(TransportClosedError):
            pair[0].post(passing(None, None))
    assert resources() == before


def test_two_jobs_on_one_interface(namespaces: list[str]) -> None:
    """Use other QPs and other drivers on one UDP port."""
    first = ring_configs(2)
    second = [
        replace(
            c,
            job_id=9,
            qpn_out=c.qpn_out + 0x1000,
            qpn_in=c.qpn_in + 0x1000,
            successor=replace(c.successor, qpn_in=c.successor.qpn_in + 0x1000),
            predecessor=replace(c.predecessor, qpn_out=c.predecessor.qpn_out + 0x1000),
        )
        for c in first
    ]
    with drivers(namespaces, first) as one, drivers(namespaces, second) as two:
        exchange(one, 100_000)
        exchange(two, 100_000)
        assert all(driver.counters().foreign == 0 for driver in (*one, *two))


def test_a_port_that_another_roce_stack_owns_is_an_error(namespaces: list[str]) -> None:
    """Bind UDP port 4791, as the kernel's stack (rdma_rxe) does, which does not share it."""

    def start() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("", 4791))
            RcDriver(ring_configs(2)[0], "roce0").start()

    with pytest.raises(TransportError, match=r"UDP port 4791 is taken.*rdma_rxe.*Address already in use"):
        inside(namespaces[0], start)
