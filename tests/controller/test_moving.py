"""Running jobs moved by a real controller: real sessions and communicators, a simulated switch and links."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.api.admin import AdminClient
from controller.api.messages import Join, Mode, Ready, Worker
from controller.entries import Entry, TableEntry
from controller.fabric.routes import rack_entries
from controller.fabric.tables.membership import FLOW
from controller.slots.admission import Quotas, TenantQuota
from controller.switches.updates import SwitchError
from host_agent.communicator import Communicator
from host_agent.controller_session import ControllerSession
from host_agent.errors import JobEndedError, WorkerLostError
from host_agent.joining import transport_config
from host_agent.member import IN_NETWORK_LIMIT
from host_agent.transport import TransportConfig
from p4reduce.simulation.faults.schedule import Rates
from tests.controller.fake_switch import FakeSwitch
from tests.controller.service.served import CONFIG, Served, request_of
from tests.host_agent.fakes import SimulatedFabric, SimulatedLink
from tests.host_agent.rack import Simulation

pytestmark = pytest.mark.filterwarnings("ignore::host_agent.communicator.RingFallbackWarning")

SIZE = 3
NO_ROOM = Quotas(tenants={"default": TenantQuota(slots=0)})


class RackSwitch(FakeSwitch):
    """A switch whose entries are the simulated switch's; it knows the one job or none."""

    rack: Rack | None = None

    async def install(self, entries: Sequence[Entry]) -> None:
        await super().install(entries)
        if self.rack is not None:
            self.rack.installed(entries)

    async def remove(self, entries: Iterable[Entry]) -> None:
        if self.rack is not None:
            self.rack.removed(entries)
        await super().remove(entries)


class Rack:
    """The workers of one job."""

    def __init__(
        self, served: Served, switch: RackSwitch, *, faults: Rates | None = None, first_message: int = 0
    ) -> None:
        self.served = served
        self.sessions = [ControllerSession(served.address) for _ in range(SIZE)]
        self.pool = ThreadPoolExecutor(SIZE + 2)
        requests = [request_of(rank, rnr_nak=False) for rank in range(SIZE)]
        pairs = list(zip(self.sessions, requests, strict=True))
        readies = self.all([partial(s.join, r, timeout_s=10) for s, r in pairs])
        configs = [
            replace(transport_config(request, ready, retry_limit=0), first_message=first_message)
            for request, ready in zip(requests, readies, strict=True)
        ]
        self.faults = faults
        self.first_psns: dict[int, dict[int, int]] = {}  # as the switch has them, by generation and rank
        self.configs: dict[int, dict[int, TransportConfig]] = {}  # by generation and rank
        self.coming_up = threading.Condition()
        self.qpns = itertools.count(0x4000, 2)
        self.simulation = Simulation(configs, faults=faults, seed=2)
        self.fabric = SimulatedFabric(self.simulation)
        if not switch.of_jobs:
            self.simulation.uninstall()
        switch.rack = self
        self.all([partial(s.up, timeout_s=10) for s in self.sessions])
        self.communicators = [
            Communicator(
                rank=rank,
                world_size=SIZE,
                ready=readies[rank],
                link=SimulatedLink(self.fabric, rank),
                membership=self.sessions[rank],
                timeout_s=30,
                queue_pairs=RackPairs(self, requests[rank]),
            )
            for rank in range(SIZE)
        ]

    def all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        futures = [self.pool.submit(call) for call in calls]
        return [future.result(30) for future in futures]

    def installed(self, entries: Sequence[Entry]) -> None:
        for flow in data_flows(entries):
            self.first_psns.setdefault(flow["generation"], {})[flow["rank"]] = flow["first_psn"]

    def removed(self, entries: Iterable[Entry]) -> None:
        with self.fabric.lock:
            generation = self.simulation.workers[0].endpoint.config.generation
            if any(flow["generation"] == generation for flow in data_flows(entries)):
                self.simulation.uninstall()

    def connect(self, config: TransportConfig, mode: Mode) -> SimulatedLink:
        """Return a worker's connection in a new generation, when all workers have theirs."""
        with self.coming_up:
            there = self.configs.setdefault(config.generation, {})
            there[config.rank] = config
            if len(there) == SIZE:
                configs = [there[rank] for rank in range(SIZE)]
                self.simulation = Simulation(configs, faults=self.faults, seed=config.generation)
                self.fabric = SimulatedFabric(self.simulation)
                if mode is Mode.RING:
                    self.simulation.uninstall()
                else:
                    assert self.first_psns[config.generation] == {c.rank: c.psn_out for c in configs}
                self.coming_up.notify_all()
            assert self.coming_up.wait_for(lambda: len(there) == SIZE, timeout=20)
            return SimulatedLink(self.fabric, config.rank)

    def tell(self, call: Callable[[Any], None]) -> None:
        """Call something of the registry in the controller's thread."""
        self.served.loop.call_soon_threadsafe(call, self.served.registry)

    def quotas(self, quotas: Quotas | None) -> None:
        self.tell(lambda registry: registry.waitlist.set_quotas(quotas))

    def move_out(self) -> None:
        self.tell(lambda registry: registry.waitlist.move_out(registry.job("train"), "drained"))

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not reached():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def until_mode(self, mode: Mode) -> None:
        self.until(lambda: all(c.mode is mode for c in self.communicators))

    def more(self, collectives: int) -> None:
        """Wait until all have run so many more."""
        goal = [c.statistics().collectives + collectives for c in self.communicators]
        self.until(
            lambda: all(
                c.statistics().collectives >= g for c, g in zip(self.communicators, goal, strict=True)
            )
        )

    def train(self, dtype: Any, enough: threading.Event) -> list[Future[int]]:
        """Let all ranks add up, and check, until `enough`."""

        def work(c: Communicator) -> int:
            number, last = 0, 0
            while not last:
                mine = ((np.arange(3000) * (number + 3) + c.rank * 17) % 1000 - 500).astype(dtype)
                exact = sum((np.arange(3000) * (number + 3) + rank * 17) % 1000 - 500 for rank in range(SIZE))
                both = [c.all_reduce(mine, async_op=True), c.all_reduce(mine, async_op=True)]
                for future in both:
                    np.testing.assert_array_equal(future.result(30), np.asarray(exact).astype(dtype))
                last = int(c.all_reduce(np.full(1, enough.is_set(), np.int32), "max")[0])
                number += 1
            return number

        return [self.pool.submit(work, c) for c in self.communicators]

    def leave(self) -> None:
        self.all([c.leave for c in self.communicators])

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.pool.shutdown()


@dataclass(frozen=True)
class RackPairs:
    rack: Rack
    request: Join

    @property
    def worker(self) -> Worker:
        return self.request.worker

    def offer(self) -> RackPairs:
        progress = self.rack.simulation.workers[self.worker.rank].endpoint.progress()
        assert progress.operations == 0, "something was in flight"
        qpn = next(self.rack.qpns)
        worker = replace(self.worker, qpn_out=qpn, psn_out=(0xFFFFF0 + qpn) % 2**24, qpn_in=qpn + 1)
        return replace(self, request=replace(self.request, worker=worker))

    def connect(self, ready: Ready) -> SimulatedLink:
        return self.rack.connect(transport_config(self.request, ready, retry_limit=0), ready.mode)

    def close(self) -> None:
        pass


def data_flows(entries: Iterable[Entry]) -> list[dict[str, int]]:
    return [
        dict(entry.params)
        for entry in entries
        if isinstance(entry, TableEntry) and entry.table == FLOW and entry.action.endswith("data_flow")
    ]


@pytest.fixture
def switch() -> RackSwitch:
    return RackSwitch(CONFIG.switches[0], rack_entries(CONFIG.switches[0], CONFIG.hosts))


@pytest.fixture
def served(tmp_path: Path, switch: RackSwitch) -> Iterator[Served]:
    controller = Served(tmp_path / "c.db", switch)
    controller.start()
    yield controller
    controller.stop()


@pytest.fixture
def rack(served: Served, switch: RackSwitch) -> Iterator[Callable[..., Rack]]:
    racks: list[Rack] = []

    def start(
        *, quotas: Quotas | None = NO_ROOM, faults: Rates | None = None, first_message: int = 0
    ) -> Rack:
        set_up = threading.Event()

        def change() -> None:
            assert served.registry is not None
            served.registry.waitlist.set_quotas(quotas)
            set_up.set()

        served.loop.call_soon_threadsafe(change)
        assert set_up.wait(10)
        racks.append(Rack(served, switch, faults=faults, first_message=first_message))
        return racks[-1]

    yield start
    for each in racks:
        each.close()


@pytest.mark.parametrize("dtype", [np.int32, np.float32], ids=lambda dtype: dtype.__name__)
def test_a_job_that_begins_by_ring_is_moved_into_the_switch_and_out_again(
    rack: Callable[..., Rack], served: Served, dtype: Any
) -> None:
    job = rack(faults=Rates(loss=0.01, duplicate=0.01, reorder=0.02))
    assert job.communicators[0].mode_reason.startswith(
        "it needs 256 slots, more than the 0 of tenant default"
    )
    enough = threading.Event()
    running = job.train(dtype, enough)
    job.more(4)
    assert job.simulation.job.counters["aggregated"] == 0
    job.quotas(None)
    job.until_mode(Mode.IN_NETWORK)
    job.more(6)
    assert job.simulation.job.counters["completed"] > 0
    with AdminClient(served.unix, timeout_s=10) as admin:
        info = admin.show_job("train")
        assert (info.mode, info.mode_reason, len(info.places)) == (1, "", 1)
    job.quotas(NO_ROOM)  # so that it stays out
    job.move_out()
    job.until_mode(Mode.RING)
    assert {c.mode_reason for c in job.communicators} == {"drained"}
    job.more(6)
    job.quotas(None)
    job.until_mode(Mode.IN_NETWORK)
    job.more(6)
    enough.set()
    assert len({future.result(60) for future in running}) == 1
    counted = [(c.statistics().in_network, c.statistics().ring) for c in job.communicators]
    assert counted == [counted[0]] * SIZE
    assert min(counted[0]) > 5
    job.leave()


@pytest.mark.slow
def test_a_job_that_numbers_many_messages_is_renumbered_and_its_user_hears_nothing(
    rack: Callable[..., Rack], served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    assert served.registry is not None
    manager = served.registry.manager
    manager.config = replace(manager.config, renumber_messages=50)
    job = rack(quotas=None)
    first = job.communicators[0].generation
    enough = threading.Event()
    running = job.train(np.float32, enough)
    job.until(lambda: job.communicators[0].generation > first)
    job.more(6)
    assert job.fabric.simulation.job.counters["completed"] > 0
    job.until(lambda: job.communicators[0].statistics().renewals > 1)
    enough.set()
    assert len({future.result(60) for future in running}) == 1
    for c in job.communicators:
        assert c.mode is Mode.IN_NETWORK
        assert c.statistics().ring == 0
    with AdminClient(served.unix, timeout_s=10) as admin:
        info = admin.show_job("train")
        assert (info.mode, info.renewals, info.renewal_reason) == (1, 0, "")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    job.leave()


def test_a_job_whose_controller_gives_it_no_new_generation_goes_by_ring_before_it_is_too_late(
    rack: Callable[..., Rack],
    served: Served,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert served.registry is not None
    job = rack(quotas=None, first_message=IN_NETWORK_LIMIT - 50)
    with monkeypatch.context() as patch:
        patch.setattr(served.registry.waitlist, "_renumber", lambda now: None)  # as if it were away
        enough = threading.Event()
        running = job.train(np.float32, enough)
        job.until(lambda: "by ring all-reduce until the controller gives" in caplog.text)
        job.more(6)
        numbered = [worker.endpoint.progress().numbered for worker in job.simulation.workers]
        assert min(numbered) > IN_NETWORK_LIMIT
        summed = [slot.tag[1] for slot in job.simulation.job.slots if slot.tag is not None]
        assert max(summed) < IN_NETWORK_LIMIT + 50
    first = job.communicators[0].generation
    job.until(lambda: job.communicators[0].generation > first)
    job.more(6)
    enough.set()
    assert len({future.result(60) for future in running}) == 1
    assert job.simulation.job.counters["completed"] > 0
    assert caplog.text.count("by ring all-reduce until the controller gives") == SIZE
    job.leave()


def test_idle_workers_are_moved_as_well_and_a_restart_of_the_controller_is_no_matter(
    rack: Callable[..., Rack], served: Served, switch: RackSwitch
) -> None:
    job = rack()
    job.quotas(None)
    job.until_mode(Mode.IN_NETWORK)
    served.stop()
    enough = threading.Event()
    running = job.train(np.float32, enough)
    job.more(3)
    served.start()
    job.more(3)
    job.until(lambda: len(served.registry.job("train").sessions) == SIZE if served.registry else False)
    job.quotas(NO_ROOM)
    job.move_out()
    job.until_mode(Mode.RING)
    job.more(3)
    enough.set()
    assert len({future.result(60) for future in running}) == 1
    job.leave()
    assert not switch.of_jobs


@pytest.mark.slow
def test_a_controller_that_is_restarted_in_the_middle_of_a_move_begins_anew(
    rack: Callable[..., Rack], served: Served
) -> None:
    job = rack()
    enough = threading.Event()
    running = job.train(np.float32, enough)
    job.more(2)
    hears = job.sessions[2]._listener
    job.sessions[2]._listener = lambda request: None  # it does not answer
    job.quotas(None)
    job.until(lambda: served.registry is not None and served.registry.job("train").job.move is not None)
    served.stop()
    job.sessions[2]._listener = hears
    served.start()
    job.until_mode(Mode.IN_NETWORK)
    job.more(3)
    enough.set()
    assert len({future.result(60) for future in running}) == 1
    job.leave()


@pytest.mark.slow
def test_a_switch_that_refuses_leaves_the_job_where_it_was_and_is_asked_again(
    rack: Callable[..., Rack], switch: RackSwitch
) -> None:
    job = rack()
    enough = threading.Event()
    running = job.train(np.int32, enough)
    switch.fails = SwitchError("switch s1: table full")
    job.quotas(None)
    job.until(lambda: job.communicators[0].mode_reason == "switch s1: table full")
    job.more(3)
    job.until_mode(Mode.IN_NETWORK)
    job.more(3)
    enough.set()
    for future in running:
        future.result(60)
    job.leave()


def test_a_worker_that_dies_while_the_others_are_held_ends_the_job_for_all(
    rack: Callable[..., Rack], served: Served, switch: RackSwitch
) -> None:
    job = rack()
    job.sessions[2]._listener = lambda request: None  # it hears, and says nothing
    waiting = job.pool.submit(job.communicators[0].all_reduce, np.ones(4, np.int32))
    job.quotas(None)
    job.until(lambda: served.registry is not None and served.registry.job("train").job.move is not None)
    job.sessions[2].abort("out of memory")
    with pytest.raises(WorkerLostError, match="out of memory"):
        waiting.result(20)
    with pytest.raises(JobEndedError):
        job.communicators[1].barrier()
    job.until(lambda: not switch.of_jobs)
