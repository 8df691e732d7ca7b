"""RDMA that is not ours crosses the same switch as it is, while a job runs there; every packet is right."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.config import Target
from host_agent.wire.headers import Opcode
from p4reduce.workloads.team import Team
from tests.e2e.captures import captured_in, require_roce_v2
from tests.e2e.conftest import TARGETS, all_reduce, rack
from tests.roce.conftest import joined_machines, run_in
from tests.roce.needed import machines
from topologies import launch
from topologies.fabric import Fabric

pytestmark = [pytest.mark.emulation, pytest.mark.roce, pytest.mark.timeout(900), machines]

_PERFTEST = ("-d", "rxe0", "-x", "1", "-n", "100", "-s", "16384", "-F", "-u", "18")
_WRITE_FIRST, _READ_REQUEST, _READ_RESPONSE_FIRST = 0x06, 0x0C, 0x0D


def between(running: Fabric, server: Sequence[str], client: Sequence[str], *, serves_on: bool = False) -> str:
    """Run a server in h1 and its client in h2 until both end; what the client printed.

    A server that `serves_on` has no end of its own, and is stopped after its client's.
    """
    process = launch.start(
        running.state,
        running.state.host("h1"),
        server,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        # The client is refused until the server listens.
        retried = 'for i in 1 2 3 4 5 6 7 8 9 10; do "$@" && exit 0; sleep 1; done; exit 1'
        output = run_in(running, "h2", "sh", "-c", retried, "client", *client, timeout_s=90)
        if not serves_on:
            said, _ = process.communicate(timeout=30)
            assert process.returncode == 0, said
    finally:
        launch.stop(running.state, [process])
    return output


@contextmanager
def sums_meanwhile(team: Team) -> Iterator[None]:
    """Run one all-reduce after the other, without a pause; all of them have to be exact."""
    over = threading.Event()

    def sum_on() -> None:
        for seed in itertools.count(1):
            (answer, *_) = all_reduce(team, elements=100_003, dtype="int32", seed=seed)
            assert answer["check"]["exact"]
            if over.is_set() and seed > 1:  # one may have taken all that time on a busy machine
                return

    with ThreadPoolExecutor() as pool:
        sums = pool.submit(sum_on)
        try:
            yield
        finally:
            over.set()
        sums.result()


@pytest.mark.parametrize("target", TARGETS)
def test_plain_rdma_beside_a_job(target: Target, captures: Path) -> None:
    kinds = ("roce", "roce", "emulated")
    with (
        rack(3, target=target, path_mtu=4096, host_kinds=kinds, pcap=captures) as running,
        joined_machines(running, 3, kinds=("verbs", "verbs", "userspace")) as team,
    ):
        h1 = running.state.host("h1").ip
        for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
            with sums_meanwhile(team):
                report = between(running, [tool, *_PERFTEST], [tool, *_PERFTEST, h1])
            assert "16384" in report, report
        with sums_meanwhile(team):
            client = ["rping", "-c", "-a", h1, "-C", "10", "-v", "-V"]
            # A server for one client (without -P) may end with an error after the last ping: a thread of it
            # still reads the event channel that the main one has closed.
            report = between(running, ["rping", "-s", "-P", "-a", h1], client, serves_on=True)
        assert report.count("ping data") >= 10, report
    opcodes: Counter[int] = Counter()
    for path in captured_in(captures):
        opcodes += require_roce_v2(path, scapy_every=100)
    ours = {Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST, Opcode.ACKNOWLEDGE}
    assert set(opcodes) >= ours | {_WRITE_FIRST, _READ_REQUEST, _READ_RESPONSE_FIRST}
