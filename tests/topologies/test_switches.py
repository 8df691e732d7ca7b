"""How the two switch targets are started."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from topologies import switches
from topologies.errors import UnsupportedError
from topologies.rack import RackOptions
from topologies.switches import Bmv2Switch, EmbeddedSwitch, SwitchSettings, SwitchTarget


class _Port:
    def __init__(self, name: str) -> None:
        self.name = name


def _switch(kind: type[switches.P4RuntimeSwitch], settings: SwitchSettings) -> switches.P4RuntimeSwitch:
    """A switch node without Mininet's shell behind it."""
    switch = kind.__new__(kind)
    switch.name = "s1"
    switch.settings = settings
    switch.intfs = {0: _Port("lo"), 2: _Port("s1-eth2"), 1: _Port("s1-eth1")}
    return switch


def test_the_embedded_switch(tmp_path: Path) -> None:
    settings = SwitchSettings(
        device_id=1, address="127.0.0.1:9559", directory=tmp_path, pcap=tmp_path, losses=[(2, "in", 0.25)]
    )
    command = _switch(EmbeddedSwitch, settings).command()
    assert command[:3] == [sys.executable, "-m", "soft_switch"]
    assert " ".join(command[3:]) == (
        f"--no-p4 --device-id 1 -i 1@s1-eth1 -i 2@s1-eth2 --pcap={tmp_path} --loss 2:in:0.250000 "
        "-- --grpc-server-addr 127.0.0.1:9559 --cpu-port 255"
    )


def test_bmv2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    settings = SwitchSettings(device_id=1, address="127.0.0.1:9559", directory=tmp_path)
    command = _switch(Bmv2Switch, settings).command()
    assert command[0] == "/somewhere/simple_switch_grpc"
    assert command[-5:] == ["--", "--grpc-server-addr", "127.0.0.1:9559", "--cpu-port", "255"]


def test_bmv2_loses_nothing_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    settings = SwitchSettings(device_id=1, address="a:1", directory=tmp_path, losses=[(1, "in", 0.1)])
    with pytest.raises(UnsupportedError, match="use --switch embedded"):
        _switch(Bmv2Switch, settings).command()


def test_bmv2_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"simple_switch_grpc is not on the PATH .* --switch embedded"):
        RackOptions(name="c1", hosts=2, switch=SwitchTarget.BMV2).validate()
