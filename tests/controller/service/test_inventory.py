"""The inventory over the service: slots, flows, counters, ports and links of a fabric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from controller.api.errors import UnreachableError
from controller.service.service import ControllerService
from controller.service.views import job_info
from controller.switches.queries import SlotContent
from controller.switches.switch import CounterCell
from tests.controller.bench import Bench, fabric

CONFIG = fabric((2, 2), spines=2)
ACROSS = (0, 2, 1)  # ranks 0 and 2 behind l1, 1 behind l2


class Context:
    """Context of a call that does not fail."""

    def peer(self) -> str:
        return "unix:"

    async def abort(self, code: object, text: str) -> None:
        raise UnreachableError(text)


class RunningBench(Bench):
    """A bench with a running job across racks."""

    async def __aenter__(self) -> RunningBench:
        await super().__aenter__()
        await self.run_job("train", ACROSS)
        return self


@pytest.fixture(name="b")
def bench(tmp_path: Path) -> RunningBench:
    return RunningBench(tmp_path / "c.db", CONFIG)


@pytest.fixture
def service(b: RunningBench) -> ControllerService:
    return ControllerService(b.registry)


def filled(b: Bench, name: str, *slots: tuple[int, int, int, int]) -> None:
    """Write slots of the job on a switch: offset, bitmap, flags, age in microseconds."""
    place = b.registry.job("train").allocations[name]
    generation = b.registry.job("train").generation or 0
    for offset, bitmap, flags, age_us in slots:
        index = place.region.base + offset
        b.switches[name].slot_content[index] = SlotContent(index, generation, 5, bitmap, 4, flags, age_us)


async def slots(service: ControllerService, **request: Any) -> list[pb.Slot]:
    return list((await service.ListSlots(pb.SlotsRequest(**request), Context())).slots)


async def test_slots_that_wait_come_first_and_say_for_whom(b: Bench, service: ControllerService) -> None:
    filled(b, "l1", (0, 3, 1, 10), (1, 2, 0, 1_500_000), (2, 3, 0, 250_000))
    filled(b, "s2", (7, 1, 0, 0), (3, 3, 3, 0))
    found = await slots(service)
    assert [(s.switch, s.role, s.index % 256, s.state, list(s.ranks), list(s.missing)) for s in found] == [
        ("l1", "leaf", 1, "adding", [2], [0]),
        ("l1", "leaf", 2, "sent up", [0, 2], []),
        ("l1", "leaf", 0, "complete", [0, 2], []),
        ("s2", "spine", 7, "adding", [0, 2], [1]),
        ("s2", "spine", 3, "complete", [0, 2, 1], []),
    ]
    assert (found[0].age_s, found[0].bytes, found[0].message, found[0].job) == (1.5, 1024, 5, "train")
    everything = await slots(service, job="train", all=True)
    assert len(everything) == 4 * 256
    assert [s.state for s in everything[:4]] == ["complete", "adding", "sent up", "unused"]
    assert not everything[3].missing


async def test_in_one_rack_a_slot_that_has_all_is_complete(b: Bench, service: ControllerService) -> None:
    b.registry.delete_job("train")
    await b.registry.drain()
    await b.run_job("train", (2, 3))
    filled(b, "l2", (0, 3, 0, 0), (1, 1, 0, 0))
    assert [s.state for s in await slots(service)] == ["adding", "complete"]


async def test_a_jobs_places_and_ring(b: Bench, service: ControllerService) -> None:
    info = job_info(b.registry, b.registry.job("train"))
    assert list(info.ring) == [0, 2, 1]
    assert [(p.switch, p.role, p.slots, list(p.ranks)) for p in info.places] == [
        ("l1", "leaf", 256, [0, 2]),
        ("l2", "leaf", 256, [1]),
        ("s1", "spine", 256, [0, 2, 1]),
        ("s2", "spine", 256, [0, 2, 1]),
    ]


async def test_each_flow_is_shown_once_where_it_begins(b: Bench, service: ControllerService) -> None:
    answer = await service.ListFlows(pb.FlowsRequest(), Context())
    assert [
        (f.rank, f.switch, f.ingress_port, f.egress_port, f.dst_ip, f.first_psn, f.on_switch)
        for f in answer.flows
    ] == [
        (0, "l1", 1, 2, "10.0.1.2", 0, True),
        (2, "l1", 2, 0, "10.0.2.1", 2000, True),
        (1, "l2", 1, 0, "10.0.1.1", 1000, True),
    ]
    l2 = b.switches["l2"]
    del l2.entries[next(key for key, e in l2.of_jobs.items() if "data_flow" in str(e))]
    answer = await service.ListFlows(pb.FlowsRequest(), Context())
    assert [f.on_switch for f in answer.flows] == [True, True, False]


async def test_counters_of_a_spine_are_by_rack(b: Bench, service: ControllerService) -> None:
    answer = await service.ListCounters(pb.CountersRequest(job="train"), Context())
    assert [(f.switch, f.rank, f.counters["aggregated"].packets) for f in answer.flows] == [
        ("l1", 0, 0),
        ("l1", 2, 1),
        ("l2", 1, 0),
        ("s1", 0, 0),
        ("s1", 1, 1),
        ("s2", 0, 0),
        ("s2", 1, 1),
    ]
    assert "partials" in answer.flows[0].counters


def count(b: Bench) -> None:
    """Let every port have sent its number of packets, and 1000 more on spines."""
    for name, switch in b.switches.items():
        more = 1000 * (name[0] == "s")

        async def counters(
            ports: Iterable[int] = (), switch: Any = switch, more: int = more
        ) -> dict[str, dict[int, CounterCell]]:
            switch._check()
            cells = {port: CounterCell(port + more, 9) for port in ports}
            return {"port_tx": cells, "port_rx": {}, "no_route": {}}

        switch.port_counters = counters  # type: ignore[method-assign]


async def test_ports_that_nobody_named_are_listed_where_something_came_in(
    b: Bench, service: ControllerService
) -> None:
    named = len((await service.ListPorts(pb.PortsRequest(), Context())).ports)

    async def counters(ports: Iterable[int] = ()) -> dict[str, dict[int, CounterCell]]:
        return {"unnamed": {1: CounterCell(0, 0), 9: CounterCell(7, 700), 2: CounterCell(0, 0)}}

    b.switches["l1"].port_counters = counters  # type: ignore[method-assign]
    ports = (await service.ListPorts(pb.PortsRequest(), Context())).ports
    assert len(ports) == named + 1
    (stranger,) = [port for port in ports if not port.host and not port.peer]
    assert (stranger.switch, stranger.port) == ("l1", 9)
    assert stranger.drops["unnamed"].packets == 7


async def test_links_are_counted_where_a_frame_was_sent(b: Bench, service: ControllerService) -> None:
    count(b)
    b.registry.manager.set_configuration(drained=frozenset({"l2:s1"}), extra={})
    await b.lose("s2")
    answer = await service.ListLinks(pb.LinksRequest(), Context())
    assert [
        (k.a, k.a_port, k.b, k.b_port, k.up, k.state, k.a_to_b.packets, k.b_to_a.packets)
        for k in answer.links
    ] == [
        ("l1", 101, "s1", 1, True, "up", 101, 1001),
        ("l1", 102, "s2", 1, False, "s2 is away", 102, 0),
        ("l2", 101, "s1", 2, True, "drained", 101, 1002),
        ("l2", 102, "s2", 2, False, "s2 is away", 102, 0),
    ]


async def test_ports_say_who_is_behind_them(b: Bench, service: ControllerService) -> None:
    count(b)
    answer = await service.ListPorts(pb.PortsRequest(), Context())
    assert [(p.switch, p.port, p.host, p.peer, p.sent.packets) for p in answer.ports][:5] == [
        ("l1", 1, "h1", "", 1),
        ("l1", 2, "h2", "", 2),
        ("l1", 101, "", "s1 port 1", 101),
        ("l1", 102, "", "s2 port 1", 102),
        ("l2", 1, "h3", "", 1),
    ]
    assert [(p.port, p.peer) for p in answer.ports if p.switch == "s2"] == [
        (1, "l1 port 102"),
        (2, "l2 port 102"),
    ]
    await b.lose("l2")
    answer = await service.ListPorts(pb.PortsRequest(), Context())
    assert {p.switch for p in answer.ports} == {"l1", "s1", "s2"}, "what is there is shown"
    for name in ("l1", "s1", "s2"):
        await b.lose(name)
    with pytest.raises(UnreachableError, match="it was unplugged"):
        await service.ListPorts(pb.PortsRequest(), Context())


async def test_a_link_without_answers_says_for_how_long(b: Bench, service: ControllerService) -> None:
    link = b.registry.links.graph.links[0]
    b.registry.links._prober._links[link.name].down = True
    assert b.registry.links.words(link) == "no answer"
    b.registry.links._prober._links[link.name].answered_at = b.now - 12
    assert b.registry.links.words(link) == "no answer for 12 s"
    b.config = replace(b.config)
