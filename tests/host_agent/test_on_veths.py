"""Communicators on real interfaces: veth pairs, with the switch's model at the other ends. Needs root."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from host_agent.communicator import Communicator
from host_agent.errors import MismatchError, WorkerLostError
from host_agent.quantisation import error_bound
from host_agent.transport import RcDriver
from p4reduce.oracle.slot_rules import SwitchModel
from p4reduce.simulation.rack import configs, job_of, routes_of
from tests.host_agent.fakes import FakeController, FakeMembership, on_all, ready_of

pytestmark = [
    pytest.mark.emulation,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for veths and raw sockets"),
]


def ip(*words: str) -> None:
    """Run an ip command; what it wrote is in the error."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class ModelSwitch(threading.Thread):
    """Runs the model on raw sockets; port r + 1 is `interfaces[r]`."""

    def __init__(self, model: SwitchModel, interfaces: list[str]) -> None:
        super().__init__(name="model-switch")
        self.model = model
        self.sockets = {port: self.open(name) for port, name in enumerate(interfaces, 1)}
        self.wake, self.stopper = socket.socketpair()

    @staticmethod
    def open(name: str) -> socket.socket:
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)  # hears nothing until it is bound
        port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        port.bind((name, 0x0003))
        return port

    def run(self) -> None:
        ports = {s.fileno(): port for port, s in self.sockets.items()}
        poller = select.poll()
        for number in (*ports, self.wake.fileno()):
            poller.register(number, select.POLLIN)
        while True:
            for number, _ in poller.poll():
                if number == self.wake.fileno():
                    return
                frame, address = self.sockets[ports[number]].recvfrom(65536)
                if address[2] == socket.PACKET_OUTGOING:
                    continue
                for port, out in self.model.process(ports[number], frame):
                    with suppress(BlockingIOError):
                        self.sockets[port].send(out)

    def stop(self) -> None:
        self.stopper.send(b"x")
        self.join()
        for each in (*self.sockets.values(), self.wake, self.stopper):
            each.close()


@contextmanager
def rack(world_size: int, *, path_mtu: int = 1024) -> Iterator[list[Communicator]]:
    workers = configs(world_size, path_mtu=path_mtu, window=8, packets=16)
    tag = f"ha{os.getpid() % 100000}"
    names = [(f"{tag}h{rank}", f"{tag}s{rank}") for rank in range(world_size)]
    links: list[RcDriver] = []
    switch = None
    try:
        for config, (host, port) in zip(workers, names, strict=True):
            ip("link", "add", host, "type", "veth", "peer", "name", port)
            ip("link", "set", host, "address", config.mac, "mtu", "9000", "up")
            ip("link", "set", port, "mtu", "9000", "up")
        model = SwitchModel([job_of(workers)], routes_of(workers))
        switch = ModelSwitch(model, [port for _, port in names])
        switch.start()
        links = [RcDriver(config, host) for config, (host, _) in zip(workers, names, strict=True)]
        for link in links:
            link.start()
        controller = FakeController(world_size)
        yield [
            Communicator(
                rank=config.rank,
                world_size=world_size,
                ready=ready_of(config),
                link=links[config.rank],
                membership=FakeMembership(controller, config.rank),
                timeout_s=20,
            )
            for config in workers
        ]
    finally:
        for link in links:
            link.close()
        if switch is not None:
            switch.stop()
        for host, _ in names:
            subprocess.run(["ip", "link", "delete", host], capture_output=True, check=False)


def run(communicators: list[Communicator], work: Any) -> list[Any]:
    def target(c: Communicator) -> Any:
        with c:
            return work(c)

    return on_all(communicators, target)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("path_mtu", [256, 1024, 4096])
def test_every_collective_works_on_real_interfaces(world_size: int, path_mtu: int) -> None:
    def work(c: Communicator) -> Any:
        rng = np.random.default_rng(c.rank)
        ints = rng.integers(-(2**31), 2**31, 70001).astype(np.int32)
        floats = rng.standard_normal(70001).astype(np.float32)
        c.barrier()
        results = [c.all_reduce(ints), c.all_reduce(ints, strategy="ring"), c.all_reduce(floats)]
        results += [c.broadcast(floats, root=1), c.all_gather(floats[:1000]), c.all_reduce(floats, "max")]
        return ints, floats, results

    with rack(world_size, path_mtu=path_mtu) as communicators:
        outcomes = run(communicators, work)
    ints, floats = [o[0] for o in outcomes], [o[1] for o in outcomes]
    bound = error_bound(10, world_size=world_size, dtype=np.float32)
    for _, _, (switched, ringed, summed, copied, gathered, largest) in outcomes:
        np.testing.assert_array_equal(switched, np.sum(ints, axis=0, dtype=np.int32))
        np.testing.assert_array_equal(switched, ringed)
        assert np.abs(summed - np.sum(floats, axis=0, dtype=np.float64)).max() <= bound
        assert summed.tobytes() == outcomes[0][2][2].tobytes()
        np.testing.assert_array_equal(copied, floats[1])
        np.testing.assert_array_equal(gathered, [f[:1000] for f in floats])
        np.testing.assert_array_equal(largest, np.max(floats, axis=0))


def test_workers_that_disagree_get_errors_and_nobody_hangs() -> None:
    with rack(3) as communicators:
        errors = run(communicators, lambda c: c.all_reduce(np.zeros(5000 + c.rank, np.float32)))
    assert all(isinstance(error, (MismatchError, WorkerLostError)) for error in errors), errors
    assert any(isinstance(error, MismatchError) for error in errors)
