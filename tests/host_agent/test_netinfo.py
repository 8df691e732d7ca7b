"""The interface that carries RoCE, and the path MTU that fits it."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from dataclasses import replace
from ipaddress import IPv4Address
from types import SimpleNamespace

import pytest

from host_agent import netinfo
from host_agent.errors import InterfaceError
from host_agent.netinfo import Interface, find_backup, find_interface, path_mtu_for, require_path_mtu


def interface(name: str, ip: str = "10.1.0.1", mtu: int = 1500) -> Interface:
    return Interface(name=name, mac="02:00:00:00:00:01", ip=IPv4Address(ip), mtu=mtu)


def pretend(monkeypatch: pytest.MonkeyPatch, *interfaces: Interface, down: tuple[str, ...] = ()) -> None:
    """Let this machine have these interfaces, and some that are down."""
    by_name = {i.name: i for i in interfaces}

    def read(name: str) -> Interface:
        if name not in by_name:
            raise InterfaceError(f"network interface {name} is down")
        return by_name[name]

    monkeypatch.setattr(netinfo, "_read", read)
    names = [*by_name, *down]
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names, 1)))


@pytest.mark.parametrize(
    ("link", "path"), [(300, 256), (1099, 1024), (1500, 1024), (2091, 1024), (2092, 2048), (9000, 4096)]
)
def test_the_largest_path_mtu_whose_packets_fit_the_link(link: int, path: int) -> None:
    assert path_mtu_for(link) == path


def test_a_link_that_carries_no_path_mtu_at_all_is_refused() -> None:
    with pytest.raises(InterfaceError, match="link MTU of 299 bytes cannot carry RoCE v2"):
        path_mtu_for(299)


def test_a_path_mtu_that_the_link_cannot_carry_is_refused_with_what_to_do() -> None:
    wanted = (
        r"path MTU 4096 needs a link MTU of 4140 bytes, but h1-eth0 has 1500: .* or ask for path MTU 1024"
    )
    with pytest.raises(InterfaceError, match=wanted):
        require_path_mtu(4096, interface("h1-eth0"))
    assert require_path_mtu(1024, interface("h1-eth0")) == 1024


def test_a_path_mtu_that_roce_does_not_know_is_refused() -> None:
    with pytest.raises(InterfaceError, match="path MTU 1000 is none of RoCE's: 256, 512"):
        require_path_mtu(1000, interface("h1-eth0"))


def test_the_loopback_interface_is_read_from_the_kernel() -> None:
    lo = find_interface("lo")
    assert lo.ip == IPv4Address("127.0.0.1")
    assert lo.mtu >= 1500
    assert lo.mac == "00:00:00:00:00:00"


def test_an_unknown_interface_is_named_with_those_that_exist() -> None:
    with pytest.raises(InterfaceError, match=r"nosuchif0: No such device .*lo"):
        find_interface("nosuchif0")
    with pytest.raises(InterfaceError, match="too long"):
        find_interface("a-name-that-is-too-long")


def test_the_only_candidate_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, interface("lo", "127.0.0.1"), interface("h1-eth0"), down=("h1-eth1",))
    assert find_interface().name == "h1-eth0"


def test_the_management_interface_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, interface("h1-eth0"), interface("h1-mgmt", "192.168.0.1"))
    monkeypatch.setattr(netinfo, "local_address_towards", lambda controller: IPv4Address("192.168.0.1"))
    assert find_interface(controller="192.168.0.254:50051").name == "h1-eth0"


def test_more_than_one_candidate_has_to_be_chosen_from(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, interface("a0"), interface("b0", "10.2.0.1"))
    with pytest.raises(InterfaceError, match=r"a0 \(10.1.0.1\), b0 \(10.2.0.1\); name one with interface="):
        find_interface()


def test_no_candidate_is_an_error_that_says_what_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, interface("lo", "127.0.0.1"), down=("h1-eth0",))
    with pytest.raises(InterfaceError, match="the one that leads to the controller do not count"):
        find_interface()


def test_a_backup_is_another_ethernet_interface_that_leads_to_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roce = Interface(name="h1-eth0", mac="02:00:00:00:01:01", ip=IPv4Address("10.1.0.1"), mtu=4200)
    there = Interface(name="h1-mgmt", mac="02:00:00:00:02:01", ip=IPv4Address("172.31.0.1"), mtu=1500)
    found = {"lo": there, "gone": None, "h1-mgmt": there}

    def read(name: str) -> Interface:
        interface = found[name]
        if interface is None:
            raise InterfaceError("network interface gone is down")
        return interface

    probed: list[tuple[str, int]] = []
    monkeypatch.setattr(netinfo, "local_address_towards", lambda controller: there.ip)
    monkeypatch.setattr("socket.if_nameindex", lambda: list(enumerate(found)))
    monkeypatch.setattr(netinfo, "_read", read)
    monkeypatch.setattr(netinfo, "_is_ethernet", lambda name: name != "lo")
    assert find_backup("c:1", roce) is None  # it is not there, so that no raw frames can be sent
    monkeypatch.setattr("socket.socket", lambda *_: nullcontext(SimpleNamespace(bind=probed.append)))
    assert find_backup("c:1", roce) == there
    assert probed == [("h1-mgmt", 0)]
    for other in (replace(there, mtu=280), roce, None):
        found["h1-mgmt"] = other
        assert find_backup("c:1", roce) is None
    assert find_backup("c:1", there) is None
    monkeypatch.setattr(netinfo, "local_address_towards", lambda controller: IPv4Address("127.0.0.1"))
    assert find_backup("127.0.0.1:50051", roce) is None
