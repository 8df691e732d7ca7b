"""Joining: what a worker tells the controller, and that nothing is left behind where it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest

from controller.api.messages import Gang, Join, RcParameters, Ready
from host_agent import adapters, joining
from host_agent.adapters import Transport, UserspaceAdapter, VerbsAdapter
from host_agent.communicator import Communicator
from host_agent.errors import InterfaceError, JobEndedError, JobRefusedError, QueuePairTakenError, UsageError
from host_agent.joining import take_place, transport_config
from host_agent.netinfo import Interface
from host_agent.transport import TransportConfig
from host_agent.transport.verbs import VerbsLink
from p4reduce.simulation.rack import configs
from tests.host_agent.fakes import FakeController, FakeMembership, ready_of
from tests.host_agent.requests import CONFIG, INTERFACE, request
from tests.host_agent.transport.verbs_wire import FakeQueuePairs, FakeWire


class Scripted(FakeMembership):
    """Says what the test wants it to say."""

    def __init__(self, answer: Ready | Exception) -> None:
        super().__init__(FakeController(4), rank=1)
        self.answer = answer
        self.requests: list[Join] = []
        self.is_up = False

    def join(self, request: Join, *, timeout_s: float) -> Ready:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def up(self, *, timeout_s: float) -> None:
        self.is_up = True


def at(monkeypatch: pytest.MonkeyPatch, session: Callable[..., Scripted]) -> None:
    """Let a worker that joins find an interface with jumbo frames, and this in place of a session."""
    link = Interface(name="h2-eth0", mac=CONFIG.mac, ip=IPv4Address("10.1.0.2"), mtu=9000)
    monkeypatch.setattr(joining, "ControllerSession", session)
    monkeypatch.setattr(joining, "find_interface", lambda name, controller: link)


def join(**how: Any) -> Communicator:
    return Communicator.join("c:1", **{"job": "train", "rank": 1, "world_size": 4, **how})


@pytest.mark.parametrize(
    ("gang", "how", "words"),
    [
        (Gang("train", 1, 4), {"job": "train/2"}, "plane 1 of gang train is the job train/1, not train/2"),
        (Gang("train", 4, 4), {"job": "train/4"}, "4 is no plane of gang train with 4 planes"),
        (Gang("train", 0, 9), {"job": "train/0"}, "gang train of 9 planes is not possible: 1 to 8"),
    ],
)
def test_a_plane_that_cannot_be_is_refused(gang: Gang, how: dict[str, Any], words: str) -> None:
    settled: dict[str, Any] = {"interface": None, "path_mtu": None, "timeout_s": 1.0, "retry_limit": 0}
    with pytest.raises(UsageError, match=words):
        joining.join("c:1", rank=1, world_size=4, gang=gang, **settled, **how)


def test_the_controller_is_told_of_the_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = Scripted(JobRefusedError("enough"))
    at(monkeypatch, lambda controller, tls: refuses)
    settled: dict[str, Any] = {"interface": None, "path_mtu": None, "timeout_s": 1.0, "retry_limit": 0}
    with pytest.raises(JobRefusedError, match="enough"):
        joining.join("c:1", job="train/2", rank=1, world_size=4, gang=Gang("train", 2, 4), **settled)
    assert [request.gang for request in refuses.requests] == [Gang("train", 2, 4)]


def test_the_connection_is_what_the_controller_said() -> None:
    assert transport_config(request(), ready_of(CONFIG), retry_limit=0) == CONFIG


def test_the_ring_need_not_be_in_order_of_rank() -> None:
    config = configs(4, path_mtu=1024, ring=(3, 1, 0, 2))[1]
    connection = transport_config(request(), ready_of(config, ring=(3, 1, 0, 2)), retry_limit=0)
    assert connection == config
    assert connection.predecessor_rank == 3


def test_a_refusal_reaches_the_user_and_closes_the_session() -> None:
    membership = Scripted(JobRefusedError("job train: rank 1 is taken by host h7"))
    with pytest.raises(JobRefusedError, match="rank 1 is taken by host h7"):
        take_place(membership, request(), INTERFACE, UserspaceAdapter(INTERFACE), timeout_s=1, retry_limit=0)
    assert membership.closed


def test_a_worker_that_cannot_open_its_interface_tells_the_others_why() -> None:
    membership = Scripted(ready_of(CONFIG))
    with pytest.raises(InterfaceError, match="nosuchif0"):
        take_place(membership, request(), INTERFACE, UserspaceAdapter(INTERFACE), timeout_s=1, retry_limit=0)
    assert membership.closed
    assert not membership.is_up
    ended = membership.controller.ended
    assert ended is not None
    assert "rank 1 on h2 could not start" in ended.reason


def test_a_job_whose_path_mtu_this_link_cannot_carry_is_not_started() -> None:
    membership = Scripted(ready_of(configs(4, path_mtu=2048)[1]))
    with pytest.raises(InterfaceError, match="path MTU 2048 needs a link MTU of 2092"):
        take_place(membership, request(), INTERFACE, UserspaceAdapter(INTERFACE), timeout_s=1, retry_limit=0)
    assert membership.closed


def test_one_worker_joins_without_opening_an_interface() -> None:
    membership = Scripted(ready_of(CONFIG))
    place = take_place(
        membership, request(world_size=1), INTERFACE, UserspaceAdapter(INTERFACE), timeout_s=1, retry_limit=0
    )
    assert membership.is_up
    assert place.link.counters().data_packets_sent == 0


def test_a_rank_outside_the_world_is_refused_before_anything_is_contacted() -> None:
    with pytest.raises(UsageError, match=r"rank 4 is no rank of a job of 4 workers \(0..3\)"):
        Communicator.join("192.0.2.1:50051", job="train", rank=4, world_size=4)


def test_qps_and_psns_are_fresh_and_the_path_mtu_is_what_the_link_carries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memberships: list[Scripted] = []

    def session(controller: str, *, tls: object) -> Scripted:
        memberships.append(Scripted(JobRefusedError("no")))
        return memberships[-1]

    at(monkeypatch, session)
    for path_mtu in (None, 512):
        with pytest.raises(JobRefusedError):
            join(path_mtu=path_mtu)
    first, second = (m.requests[0] for m in memberships)
    assert (first.path_mtu_max, second.path_mtu_max) == (4096, 512)
    one, two = first.worker, second.worker
    assert one.qpn_in != one.qpn_out
    assert (one.qpn_in, one.qpn_out, one.psn_out) != (two.qpn_in, two.qpn_out, two.psn_out)


def test_the_first_psn_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    membership = Scripted(JobRefusedError("no"))
    at(monkeypatch, lambda controller, tls: membership)
    with pytest.raises(JobRefusedError):
        join(first_psn=2**24 - 3, tenant="blue")
    assert membership.requests[0].worker.psn_out == 2**24 - 3
    assert membership.requests[0].tenant == "blue"
    assert not membership.requests[0].rnr_nak
    for psn in (-1, 2**24):
        with pytest.raises(UsageError, match="is no PSN"):
            join(first_psn=psn)


def test_a_transport_of_another_name_is_refused() -> None:
    with pytest.raises(UsageError, match="'tcp' is none of auto, userspace, verbs"):
        join(transport="tcp")


class FakeAdapter(VerbsAdapter):
    """Queue pairs of a device that does not exist."""

    def __init__(self, wire: FakeWire) -> None:
        self.path_mtu = 512
        self.qpn_out, self.qpn_in = 0x21, 0x22
        self.device = FakeQueuePairs(wire, len(wire.devices))
        self.links: list[VerbsLink] = []
        self.rc: RcParameters | None = None

    def link(self, config: TransportConfig, rc: RcParameters) -> VerbsLink:
        self.rc = rc
        self.links.append(VerbsLink(config, self.device, rc))
        return self.links[-1]

    def exchange(self) -> None:
        raise AssertionError("nobody has these numbers")

    def close(self) -> None:
        self.device.close()


def test_a_device_s_queue_pairs_exist_before_joining_and_their_numbers_are_joined_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    membership, adapter = Scripted(JobRefusedError("no")), FakeAdapter(FakeWire())
    at(monkeypatch, lambda controller, tls: membership)
    monkeypatch.setattr(adapters, "choose_adapter", lambda transport, interface: adapter)
    with pytest.raises(JobRefusedError):
        join(path_mtu=1024)
    asked = membership.requests[0]
    assert (asked.worker.qpn_out, asked.worker.qpn_in) == (0x21, 0x22)
    assert (asked.path_mtu_max, asked.rnr_nak) == (512, True)
    assert adapter.device.calls == ["close"]


class Recycling:
    """A device that gives out the lowest numbers that are free."""

    def __init__(self) -> None:
        self.open: set[int] = set()  # of two queue pairs the lower number
        self.made = 0
        self.wire = FakeWire()

    def choose(self, transport: Transport, interface: Interface) -> FakeAdapter:
        return Lowest(self)


class Lowest(FakeAdapter):
    """Queue pairs that a Recycling device gives out."""

    def __init__(self, recycling: Recycling) -> None:
        super().__init__(recycling.wire)
        self.recycling = recycling
        self.mine: set[int] = set()
        self.exchange()

    def exchange(self) -> None:
        open_ = self.recycling.open
        self.qpn_out = next(number for number in range(0x20, 0x2000, 2) if number not in open_)
        self.qpn_in = self.qpn_out + 1
        self.mine.add(self.qpn_out)
        open_.add(self.qpn_out)
        self.recycling.made += 1

    def close(self) -> None:
        self.recycling.open -= self.mine


def test_who_cannot_have_its_numbers_joins_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    device, memberships = Recycling(), list[Scripted]()

    def session(controller: str, *, tls: object) -> Scripted:
        taken = QueuePairTakenError("QP 0x20 of host h2 belongs to rank 0")
        memberships.append(Scripted(taken if len(memberships) < 3 else JobRefusedError("no")))
        return memberships[-1]

    at(monkeypatch, session)
    monkeypatch.setattr(adapters, "choose_adapter", device.choose)
    with pytest.raises(JobRefusedError, match="no"):
        join()
    assert [m.requests[0].worker.qpn_out for m in memberships] == [0x20, 0x22, 0x24, 0x26]
    assert device.open == set()


def test_a_host_where_many_numbers_are_taken_for_ever_locks_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Take two numbers for each worker that was killed on the host."""
    device, taken, asked = Recycling(), {0x20 + 2 * killed for killed in range(100)}, list[int]()

    class Choosy(Scripted):
        def join(self, request: Join, *, timeout_s: float) -> Ready:
            asked.append(request.worker.qpn_out)
            if request.worker.qpn_out in taken:
                raise QueuePairTakenError(f"QP {request.worker.qpn_out:#x} of host h2 belongs to rank 0")
            raise JobRefusedError("no")

    at(monkeypatch, lambda controller, tls: Choosy(ready_of(CONFIG)))
    monkeypatch.setattr(adapters, "choose_adapter", device.choose)
    with pytest.raises(JobRefusedError, match="no"):
        join()
    assert asked == [*sorted(taken), 0x20 + 2 * len(taken)]
    assert device.made == len(asked), "what was refused is held, and not made again"
    assert device.open == set()


def test_who_never_can_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = QueuePairTakenError("QP 0x20 of host h2 belongs to rank 0")
    at(monkeypatch, lambda controller, tls: Scripted(refusal))
    device = Recycling()
    monkeypatch.setattr(adapters, "choose_adapter", device.choose)
    with pytest.raises(JobRefusedError, match="belongs to rank 0"):
        join()
    assert device.open == set()


def test_new_queue_pairs_have_none_of_the_numbers_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a device that would give out again what was destroyed just now."""
    device = Recycling()
    monkeypatch.setattr(adapters, "choose_adapter", device.choose)
    first = device.choose(Transport.VERBS, INTERFACE)
    worker = replace(request().worker, qpn_out=first.qpn_out, qpn_in=first.qpn_in)
    asked = replace(request(), worker=worker)
    place = take_place(Scripted(ready_of(CONFIG)), asked, INTERFACE, first, timeout_s=1, retry_limit=0)
    place.link.close()
    first.close()
    had = {first.qpn_out, first.qpn_in}
    for _ in range(40):
        offer = place.queue_pairs.offer()
        assert had.isdisjoint({offer.worker.qpn_out, offer.worker.qpn_in})
        had |= {offer.worker.qpn_out, offer.worker.qpn_in}
        offer.close()
    assert device.open == set()


def test_the_controller_s_parameters_reach_the_device() -> None:
    rc = RcParameters(timeout=18, retry_count=6)
    membership, adapter = Scripted(replace(ready_of(CONFIG), rc=rc)), FakeAdapter(FakeWire())
    place = take_place(membership, request(), INTERFACE, adapter, timeout_s=1, retry_limit=0)
    assert membership.is_up
    assert adapter.rc == adapter.device.rc == rc
    assert adapter.device.calls == ["connect"]
    assert place.queue_pairs.adapter.transport is Transport.VERBS
    place.link.close()


def test_a_job_that_does_not_start_leaves_no_queue_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    membership, adapter = Scripted(ready_of(CONFIG)), FakeAdapter(FakeWire())

    def up(*, timeout_s: float) -> None:
        raise JobEndedError("rank 2 could not start")

    monkeypatch.setattr(membership, "up", up)
    with pytest.raises(JobEndedError):
        take_place(membership, request(), INTERFACE, adapter, timeout_s=1, retry_limit=0)
    assert adapter.device.calls[:3] == ["connect", "stop", "close"]
