"""Hosts that play a capture's addresses."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from p4reduce.workloads.capture.hosts import hosts_for, parse_mapping
from p4reduce.workloads.errors import WorkloadError
from tests.topologies.states import cluster_state, host_state
from topologies.errors import TopologyError
from topologies.state import HostKind

A, B, C = (IPv4Address(f"192.0.2.{number}") for number in (1, 2, 3))
RACK = cluster_state("c1", hosts=[host_state(number) for number in (1, 2, 3)])


def chosen(*endpoints: IPv4Address, **mapping: str) -> list[str]:
    """Return the hosts' names, in the order of the endpoints; `mapping` by the endpoints' letters."""
    letters = {"a": A, "b": B, "c": C}
    hosts = hosts_for(RACK, endpoints, {letters[letter]: name for letter, name in mapping.items()})
    assert list(hosts) == list(endpoints)
    return [host.name for host in hosts.values()]


def test_in_the_order_of_appearance() -> None:
    assert chosen(B, A, C) == ["h1", "h2", "h3"]


def test_the_others_get_what_is_left() -> None:
    assert chosen(A, B, C, b="h1") == ["h2", "h1", "h3"]
    assert chosen(A, B, a="h3", b="h1") == ["h3", "h1"]


def test_a_host_can_play_several_addresses() -> None:
    assert chosen(A, B, C, a="h2", c="h2") == ["h2", "h1", "h2"]


def test_more_addresses_than_hosts() -> None:
    with pytest.raises(WorkloadError, match=r"4 endpoints .* cluster c1 3 hosts: .*--hosts 4"):
        hosts_for(RACK, [A, B, C, IPv4Address("192.0.2.4")], {})


def test_an_address_that_the_capture_does_not_have() -> None:
    with pytest.raises(WorkloadError, match=r"from or to 192\.0\.2\.3: it has 192\.0\.2\.1, 192\.0\.2\.2"):
        chosen(A, B, c="h1")


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(TopologyError, match="has no host 'h9', it has h1, h2, h3"):
        chosen(A, B, a="h9")


def test_machines_with_a_stack_of_their_own_play_nothing() -> None:
    hosts = [RACK.hosts[0], replace(RACK.hosts[1], kind=HostKind.ROCE), RACK.hosts[2]]
    with pytest.raises(WorkloadError, match=r"192\.0\.2\.2 would be played by h2, a machine"):
        hosts_for(replace(RACK, hosts=hosts), [A, B], {})
    assert len(hosts_for(replace(RACK, hosts=hosts), [A, B], {B: "h3"})) == 2


def test_mapping() -> None:
    assert parse_mapping([]) == {}
    assert parse_mapping(["192.0.2.1=h3", " 192.0.2.2=h1"]) == {A: "h3", B: "h1"}


@pytest.mark.parametrize("text", ["", "h3", "192.0.2.1", "192.0.2.1=", "=h1", "192.0.2=h1", "1.2.3.400=h1"])
def test_no_mapping(text: str) -> None:
    with pytest.raises(WorkloadError, match="maps nothing: say ADDRESS=HOST"):
        parse_mapping([text])


def test_a_mapping_that_contradicts_itself() -> None:
    with pytest.raises(WorkloadError, match="mapped twice, to h1 and to h2"):
        parse_mapping(["192.0.2.1=h1", "192.0.2.1=h2"])
