"""The interface that can stand in for RoCE's, on namespaces of our own."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from host_agent import backup, netinfo
from host_agent.backup import find_backup
from host_agent.errors import InterfaceError
from host_agent.netinfo import Interface, interface_towards

ROCE = Interface(name="h1-eth0", mac="02:00:00:00:01:01", ip=IPv4Address("10.1.0.1"), mtu=4200)
MANAGEMENT = Interface(name="h1-mgmt", mac="02:00:00:00:02:01", ip=IPv4Address("172.31.0.1"), mtu=1500)


def test_the_loopback_leads_to_no_backup() -> None:
    assert interface_towards("127.0.0.1:50051") is None
    assert find_backup("127.0.0.1:50051", ROCE) is None


def test_the_interface_that_leads_to_the_controller_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netinfo, "local_address_towards", lambda controller: MANAGEMENT.ip)
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "gone"), (3, "h1-mgmt")])

    def read(name: str) -> Interface:
        if name == "gone":
            raise InterfaceError("network interface gone is down")
        return MANAGEMENT if name == "h1-mgmt" else Interface(**{**vars(ROCE), "name": name})

    monkeypatch.setattr(netinfo, "_read", read)
    for ethernet in (True, False):
        monkeypatch.setattr(netinfo, "_is_ethernet", lambda name, ethernet=ethernet: ethernet)
        assert interface_towards("172.31.255.254:50051") == (MANAGEMENT if ethernet else None)


def test_what_cannot_stand_in_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Interface(name="h1-mgmt", mac=MANAGEMENT.mac, ip=MANAGEMENT.ip, mtu=280)
    for found in (ROCE, small, None):
        monkeypatch.setattr(backup, "interface_towards", lambda controller, found=found: found)
        assert find_backup("c:1", ROCE) is None
    # No raw frames: not this user's, or no such interface.
    monkeypatch.setattr(backup, "interface_towards", lambda controller: MANAGEMENT)
    assert find_backup("c:1", ROCE) is None
