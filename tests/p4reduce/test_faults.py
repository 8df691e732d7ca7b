"""Faults from other processes than the one that keeps the cluster: it takes none of them for an accident."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controller.api.admin import AdminClient
from p4reduce.cli import app as cli
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.team import Team
from soft_switch.faults import FaultKind, Packets
from tests.e2e.conftest import all_reduce
from tests.p4reduce.clusters import Traces, must, ready
from topologies import disk, state
from topologies.faults import ClusterFaults, PacketFault
from topologies.processes import wait_until
from topologies.state import ClusterState
from topologies.switches import BMV2

pytestmark = [pytest.mark.emulation, pytest.mark.usefixtures("own_state"), pytest.mark.timeout(240)]

PATIENCE_S = 60.0
REQUEST = {"elements": 100_003, "dtype": "int32", "seed": 1}


@contextmanager
def detached(name: str, *options: str) -> Iterator[ClusterState]:
    """Yield a rack of three that a process of its own keeps; taken down by yet another, it leaves nothing."""
    must("up", "rack", "--hosts", "3", "--cluster", name, "--detach", *options)
    yield ready(name)
    now = state.load(name)
    assert now is not None
    traces = Traces.of(now)
    must("down")
    assert traces.left() == []
    assert not disk.is_mounted(disk.directory(now.directory))


@contextmanager
def joined(cluster: ClusterState, *, job: str) -> Iterator[Team]:
    with Team(cluster, 3) as team:
        team.join(job)
        yield team


class Commands:
    """`p4reduce fault`, in this process: not the one that keeps the cluster."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def do(self, *words: str) -> str:
        """Run a command, which has to succeed, and return what it says."""
        self._capsys.readouterr()
        assert cli.run(["fault", *words]) == 0, self._capsys.readouterr().err
        return self._capsys.readouterr().out

    def fail(self, *words: str) -> str:
        """Run a command, which has to fail, and return what it complains of."""
        self._capsys.readouterr()
        assert cli.run(["fault", *words]) == 1
        return self._capsys.readouterr().err


@pytest.fixture
def fault(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def test_a_running_cluster(name: str, fault: Commands) -> None:
    with detached(name) as cluster:
        with joined(cluster, job="training") as team:
            all_reduce(team, **REQUEST)
            packets(team, fault)
            links_and_workers(team, fault)
            processes(cluster, team, fault)
        anew(cluster, fault)
        fault.do("switch", "pause", "s1")  # it is taken down while it is paused


def packets(team: Team, fault: Commands) -> None:
    said = fault.do("packets", "*", "loss", "--probability", "0.01", "--seed", "7")
    assert said.startswith(
        "fault 1: loss on all links, both directions: any packets (1%); 'p4reduce fault clear"
    )
    one = ("packets", "h2", "duplicate", "--direction", "to-switch", "--packets", "first", "--count", "1")
    assert json.loads(fault.do(*one, "--json"))["number"] == 2
    all_reduce(team, **REQUEST)
    first, second = json.loads(fault.do("list", "--json"))
    assert (first["number"], first["link"], first["kind"], first["seed"]) == (1, "*", "loss", 7)
    assert first["struck"] > 0
    assert (second["link"], second["struck"]) == ("h2", 1)
    table = fault.do("list")
    assert "at most 1" in table
    assert "1%" in table
    assert fault.do("clear", "1") == "fault 1: cleared\n"
    assert "no packet fault 1, there are 2" in fault.fail("clear", "1")
    fault.do("clear")
    assert "packet faults: none" in fault.do("list")
    assert "has no link 'h9': it has h1, h2, h3, and * for all" in fault.fail("packets", "h9", "loss")
    assert "a delay of 0 ms delays nothing" in fault.fail("packets", "h1", "delay")
    assert "copies 3 means nothing to loss" in fault.fail("packets", "h1", "loss", "--copies", "3")
    assert "tcp packets have no message" in fault.fail(
        "packets", "h1", "loss", "--packets", "tcp", "--message", "4"
    )
    assert "tree packets are never on link h1" in fault.fail("packets", "h1", "loss", "--packets", "tree")
    assert "no link 'h1' has a direction a-to-b" in fault.fail(
        "packets", "h1", "loss", "--direction", "a-to-b"
    )


def links_and_workers(team: Team, fault: Commands) -> None:
    fault.do("link", "down", "h3")
    fault.do("worker", "pause", "training", "1")
    fault.do("link", "up", "h3:s1")  # as doctor calls it
    fault.do("worker", "resume", "training", "1")
    all_reduce(team, **REQUEST)
    assert "has no link 'h9': it has h1, h2, h3" in fault.fail("link", "down", "h9")
    unknown = fault.fail("worker", "kill", "training", "7")
    assert "no rank 7 of job 'training': its workers here are 0, 1, 2" in unknown
    assert "no rank 0 of job 'other': workers here are in training" in fault.fail(
        "worker", "kill", "other", "0"
    )
    assert "rank 1 of job 'training' is not paused" in fault.fail("worker", "resume", "training", "1")


def processes(cluster: ClusterState, team: Team, fault: Commands) -> None:
    """Check that the job goes on through all of it; kill a worker at the end."""
    assert "has no switch 's9', it has s1" in fault.fail("switch", "kill", "s9")
    fault.do("controller", "kill")
    assert state.running(cluster.name).controller_killed
    assert "the controller is not running" in fault.fail("controller", "pause")
    all_reduce(team, **REQUEST)
    fault.do("controller", "restart")
    assert state.running(cluster.name).controller_process != cluster.controller_process
    for what in (("controller",), ("switch", "s1")):
        fault.do(what[0], "pause", *what[1:])
        fault.do(what[0], "resume", *what[1:])
        assert "is not paused" in fault.fail(what[0], "resume", *what[1:])
        all_reduce(team, **REQUEST)
    if disk.is_mounted(disk.directory(cluster.directory)):
        assert "is full" in fault.do("disk", "fill")
        all_reduce(team, **REQUEST)
        fault.do("disk", "free")
    fault.do("worker", "pause", "training", "2")
    fault.do("worker", "kill", "training", "2")  # a paused one can be killed too
    with pytest.raises(WorkloadError, match=r"worker 2 (has )?ended: it was killed"):
        team.do("statistics")
    assert "no rank 2 of job 'training'" in fault.fail("worker", "kill", "training", "2")


def anew(cluster: ClusterState, fault: Commands) -> None:
    """Check that what is started again works as before, and has the packet faults that were there."""
    fault.do("packets", "h1", "loss", "--direction", "to-host", "--packets", "nak")
    fault.do("switch", "kill", "s1")
    assert len(json.loads(fault.do("list", "--json"))) == 1
    fault.do("switch", "restart", "s1")
    assert not state.running(cluster.name).switch("s1").killed
    [kept] = ClusterFaults(cluster).faults()
    assert kept[1:] == (
        PacketFault(link="h1", kind=FaultKind.LOSS, direction="to-host", packets=Packets.NAK),
        0,
    )
    fault.do("controller", "restart")
    assert wait_until(lambda: connected(cluster), timeout_s=PATIENCE_S)
    with joined(cluster, job="anew") as team:
        all_reduce(team, **REQUEST)


def connected(cluster: ClusterState) -> bool:
    with AdminClient(f"unix:{cluster.control_socket}") as admin:
        return [switch.state for switch in admin.status().switches] == ["connected"]


@pytest.mark.bmv2
@pytest.mark.skipif(shutil.which(BMV2) is None, reason=f"{BMV2} is not on the PATH")
def test_wires_for_bmv2(name: str) -> None:
    with detached(name, "--switch", "bmv2", "--fault-wires") as cluster, joined(cluster, job="bmv2") as team:
        request: dict[str, Any] = {**REQUEST, "elements": 20_003}
        faults = ClusterFaults(cluster)
        aimed = [
            PacketFault(
                link="h1", direction="to-switch", kind=FaultKind.LOSS, packets=Packets.FIRST, count=1, skip=2
            ),
            PacketFault(
                link="h2", direction="to-host", kind=FaultKind.LOSS, packets=Packets.RESULT, count=1, skip=3
            ),
            PacketFault(
                link="h3",
                direction="to-host",
                kind=FaultKind.CORRUPT,
                packets=Packets.MIDDLE,
                count=1,
                skip=3,
            ),
            PacketFault(
                link="h1",
                direction="to-host",
                kind=FaultKind.DUPLICATE,
                packets=Packets.SEND,
                count=3,
                delay_ms=2,
            ),
            PacketFault(link="h2", kind=FaultKind.REORDER, packets=Packets.SEND, count=2, skip=9),
        ]
        for fault in aimed:
            faults.add(fault)
        all_reduce(team, **request)
        assert [struck for _, _, struck in faults.faults()] == [1, 1, 1, 3, 4]
        faults.clear()
        for number in (1, 2):
            faults.set_link(f"h{number}", up=False)
            faults.set_link(f"h{number}", up=True)
        all_reduce(team, **request)
