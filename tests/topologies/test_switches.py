"""Starts of the two switch targets."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import cast

import pytest

from controller.config import Target
from topologies import switches
from topologies.errors import TopologyError, UnsupportedError
from topologies.rack import RackOptions
from topologies.switches import Bmv2Switch, EmbeddedSwitch, SwitchSettings, start_all


class _Port:
    def __init__(self, name: str) -> None:
        self.name = name


def _switch(kind: type[switches.P4RuntimeSwitch], settings: SwitchSettings) -> switches.P4RuntimeSwitch:
    """Return a switch node without Mininet's shell behind it."""
    switch = kind.__new__(kind)
    switch.name = "s1"
    switch.settings = settings
    switch.intfs = {0: _Port("lo"), 2: _Port("s1-eth2"), 1: _Port("s1-eth1")}
    return switch


def test_the_embedded_switch(tmp_path: Path) -> None:
    settings = SwitchSettings(
        device_id=1, address="127.0.0.1:9559", directory=tmp_path, pcap=tmp_path, loss=0.25
    )
    command = _switch(EmbeddedSwitch, settings).command()
    assert command[:3] == [sys.executable, "-m", "soft_switch"]
    assert " ".join(command[3:]) == (
        f"--no-p4 --device-id 1 -i 1@s1-eth1 -i 2@s1-eth2 --pcap={tmp_path} "
        f"--metrics=unix:{tmp_path}/metrics/switch-s1.sock --faults=unix:{tmp_path}/faults-s1.sock "
        "--loss 1:in:0.250000 --loss 1:out:0.250000 --loss 2:in:0.250000 --loss 2:out:0.250000 "
        "-- --grpc-server-addr 127.0.0.1:9559 --cpu-port 255"
    )


def test_bmv2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    settings = SwitchSettings(device_id=1, address="127.0.0.1:9559", directory=tmp_path)
    command = _switch(Bmv2Switch, settings).command()
    assert command[0] == "/somewhere/simple_switch_grpc"
    assert command[-5:] == ["--", "--grpc-server-addr", "127.0.0.1:9559", "--cpu-port", "255"]


def test_bmv2_loses_nothing_on_request() -> None:
    with pytest.raises(UnsupportedError, match="use the embedded switch"):
        RackOptions(name="c1", hosts=2, switch=Target.BMV2, switch_loss=0.1).validate()


def test_bmv2s_of_one_namespace_share_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    seen: set[str] = set()
    for number, name in enumerate(("l1", "l2", "s1")):
        settings = SwitchSettings(device_id=7, address="a:1", directory=tmp_path, number=number)
        switch = _switch(Bmv2Switch, settings)
        switch.name = name
        command = switch.command()
        own = {command[command.index(option) + 1] for option in ("--thrift-port", "--notifications-addr")}
        assert not own & seen
        seen |= own


class _Process:
    """A switch's process that serves after so many looks."""

    starting = 0
    most = 0

    def __init__(self, name: str, looks: int) -> None:
        self.name, self.looks = name, looks
        self.target = Target.EMBEDDED

    def launch(self) -> None:
        _Process.starting += 1
        _Process.most = max(_Process.most, _Process.starting)

    def serves(self) -> bool:
        self.looks -= 1
        if self.looks == 0:
            _Process.starting -= 1
        return self.looks <= 0

    def failure(self) -> TopologyError:
        return TopologyError(f"{self.name} does not start")


def test_switches_start_side_by_side_but_not_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    nodes = [_Process(f"l{index}", looks=index) for index in range(1, 9)]
    said: list[str] = []
    recorded: list[str] = []
    start_all(
        cast("list[switches.P4RuntimeSwitch]", nodes),
        progress=said.append,
        started=lambda node: recorded.append(node.name),
    )
    assert recorded == [node.name for node in nodes]
    assert said[0] == "switch l1 (embedded)"
    assert (_Process.starting, _Process.most) == (0, 3)


def test_a_switch_that_never_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "START_TIMEOUT_S", 0.0)
    node = _Process("l1", looks=1 << 30)
    with pytest.raises(TopologyError, match="l1 does not start"):
        start_all(
            cast("list[switches.P4RuntimeSwitch]", [node]),
            progress=lambda text: None,
            started=lambda node: None,
        )


def test_bmv2_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        UnsupportedError, match=r"simple_switch_grpc is not on the PATH .* use the embedded switch"
    ):
        RackOptions(name="c1", hosts=2, switch=Target.BMV2).validate()
