"""Diagnoses by `p4reduce doctor` of every fault on a running rack, and its health afterwards.

One job of four workers sums all the time, its PSNs wrap soon after it began; faults come and go under it. The
order matters: what ends the job comes last.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from controller.api import controller_pb2 as pb
from controller.api.admin import AdminClient
from controller.config import Target
from host_agent.wire.headers import Aeth, Bth, Ethernet, IPv4, RocePacket, Udp, parse_mac
from p4reduce.cli import app as cli
from p4reduce.doctor import words
from p4reduce.doctor.diagnosis import diagnose
from p4reduce.doctor.findings import Diagnosis, Severity
from p4reduce.doctor.observations import gather
from p4reduce.workloads.errors import WorkloadError
from p4reduce.workloads.team import Team
from soft_switch.faults import FaultKind, Packets
from tests.e2e.conftest import TARGETS, rack, unique
from topologies import namespaces, state
from topologies.fabric import Fabric
from topologies.faults import ClusterFaults, PacketFault
from topologies.namespaces import run_inside
from topologies.spine_leaf import SpineLeafOptions
from topologies.state import HostState
from topologies.wires import HOLE

pytestmark = pytest.mark.emulation

PATIENCE_S = 60.0
WORKERS = 4
NEAR_THE_WRAP = (1 << 24) - 500
SEED = 7
TIGHT = "tight"  # a tenant whose quota is one job of this size
CONTROLLER = {
    "quotas": {"tenants": {TIGHT: {"slots": 256}}},
    "lost_timeout_s": 2.0,
    "switch_timeout_s": 2.5,
}
BREATH_S = 0.02  # the machine has few cores, and whoever looks needs one of them


class Streaming:
    """A job that sums all the time, until it fails."""

    def __init__(self, team: Team) -> None:
        self.error: Exception | None = None
        self._team = team
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._team.do(
                "all_reduce",
                elements=20_000,
                dtype="int32",
                repeat=1_000_000,
                late_s=BREATH_S,
                timeout_s=3600.0,
            )
        except WorkloadError as error:
            self.error = error


@pytest.fixture(scope="module")
def running() -> Iterator[Fabric]:
    """Yield a rack of four hosts."""
    with rack(WORKERS, controller_options=CONTROLLER) as made:
        yield made


@pytest.fixture(scope="module")
def train(running: Fabric) -> Iterator[Streaming]:
    """Yield the job."""
    create(running, "train", WORKERS, tenant=TIGHT)
    with Team(running.state, WORKERS) as team:
        team.join("train", first_psn=NEAR_THE_WRAP)
        yield Streaming(team)


@pytest.fixture
def faults(running: Fabric) -> Iterator[ClusterFaults]:
    """Yield faults of the rack, which has none afterwards."""
    made = ClusterFaults(running.state)
    yield made
    made.clear()


def create(running: Fabric, job: str, workers: int, **settings: Any) -> None:
    """Create a job that waits for its workers."""
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        admin.create_job(job, workers, **settings)


def ask(running: Fabric, job: str | None = None) -> Diagnosis:
    """Return what doctor finds."""
    now = state.load(running.state.name)
    assert now is not None
    return diagnose(gather(now), job)


def text(found: Diagnosis) -> str:
    """Return all that people see of a diagnosis."""
    return "\n".join(line for line, _ in words.lines(found))


def until(running: Fabric, true: Callable[[Diagnosis], bool], job: str | None = None) -> Diagnosis:
    """Ask until it says so."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = ask(running, job)
        if true(found):
            return found
        assert time.monotonic() < deadline, text(found)


def until_healthy(running: Fabric, job: str | None = None) -> Diagnosis:
    """Wait until all is well, and return that diagnosis."""
    return until(running, lambda found: found.is_healthy, job)


def test_a_job_whose_psns_wrap_is_healthy(running: Fabric, train: Streaming) -> None:
    found = until(running, lambda found: found.is_healthy and found.codes[0] == "runs")
    assert found.verdict.startswith("All is well: job train runs")
    assert train.error is None


PACKET_FAULTS = [
    pytest.param(
        {"link": "h2", "direction": "to-switch", "kind": "loss", "probability": 0.05},
        "loss",
        "link h2:s1 loses packets from h2 to s1",
        id="loss-to-switch",
    ),
    pytest.param(
        {"link": "h2", "direction": "to-host", "kind": "loss", "probability": 0.05},
        "loss",
        "link h2:s1 loses packets from s1 to h2",
        id="loss-to-host",
    ),
    pytest.param(
        {"link": "*", "kind": "loss", "probability": 0.02},
        "loss",
        "links lose packets: ",
        id="loss-everywhere",
    ),
    pytest.param(
        {"link": "h1", "direction": "to-switch", "kind": "duplicate", "probability": 0.5},
        "duplication",
        "link h1:s1 doubles packets from h1 to s1",
        id="duplication-to-switch",
    ),
    pytest.param(
        {"link": "h1", "direction": "to-host", "kind": "duplicate", "probability": 0.5},
        "duplication",
        "link h1:s1 doubles packets from s1 to h1",
        id="duplication-to-host",
    ),
    pytest.param(
        {
            "link": "h2",
            "direction": "to-switch",
            "kind": "duplicate",
            "packets": "send",
            "probability": 0.1,
            "delay_ms": 300,
        },
        "late-copies",
        "belong to messages which are over: copies that were long under way",
        id="stale-duplicates",
    ),
    pytest.param(
        {"link": "h3", "direction": "to-host", "kind": "reorder", "probability": 0.05},
        "reordering",
        "packets overtake each other on link h3:s1, from s1 to h3",
        id="reordering-to-host",
    ),
    pytest.param(
        {"link": "h3", "direction": "to-switch", "kind": "reorder", "probability": 0.1},
        "reordering",
        "packets overtake each other on",
        id="reordering-to-switch",
    ),
    pytest.param(
        {"link": "h4", "kind": "delay", "delay_ms": 60},
        "delay",
        "link h4:s1 is slow: a ping over it takes 1",
        id="delay",
    ),
    pytest.param(
        {"link": "h2", "direction": "to-switch", "kind": "corrupt", "probability": 0.1},
        "corruption",
        "link h2:s1 damages packets from h2 to s1",
        id="bit-errors-to-switch",
    ),
    pytest.param(
        {"link": "h2", "direction": "to-host", "kind": "corrupt", "probability": 0.1},
        "corruption",
        "link h2:s1 damages packets from s1 to h2",
        id="bit-errors-to-host",
    ),
    pytest.param(
        {"link": "h1", "direction": "to-host", "kind": "loss", "packets": "result"},
        "waits:loss",
        "does not reach rank 0 (h1)",
        id="results-to-one-worker",
    ),
    pytest.param(
        {"link": "h1", "direction": "to-switch", "kind": "loss", "packets": "send"},
        "waits:loss",
        "rank 0 sent it, but it did not arrive",
        id="all-that-one-worker-sends",
    ),
    pytest.param(
        {"link": "h4", "kind": "loss"},
        "waits:cut-off",
        "waits for rank 3 (h4): link h4:s1 is up, but nothing comes through it",
        id="a-link-that-carries-nothing",
    ),
]


@pytest.mark.parametrize(("fault", "code", "says"), PACKET_FAULTS)
def test_packets_that_are_struck(
    running: Fabric, train: Streaming, faults: ClusterFaults, fault: dict[str, Any], code: str, says: str
) -> None:
    faults.add(PacketFault(seed=SEED, **fault))
    # Not at once: where processors are busy, a fault's own process delays packets, which is then the worst.
    found = until(running, lambda found: found.codes[:1] == (code,) and says in text(found))
    assert not found.is_healthy
    said = text(found)
    assert f"a fault is injected on purpose: #{faults.faults()[0][0]} {fault['kind']}" in said
    assert "-> p4reduce fault clear" in said
    assert train.error is None


@pytest.mark.parametrize("packets", ["first", "last", "ack", "result"])
def test_single_packets_that_are_lost_are_repaired(
    running: Fabric, train: Streaming, faults: ClusterFaults, packets: str
) -> None:
    way = "to-host" if packets == "result" else "to-switch"
    faults.add(PacketFault(link="h1", direction=way, kind=FaultKind.LOSS, packets=Packets(packets), count=1))
    until(running, lambda found: bool(faults.faults()[0][2]))
    lost = "from s1 to h1" if way == "to-host" else "from h1 to s1"
    says = re.compile(rf"packets were lost earlier, and sent again: .*\d+ {lost}")
    until(running, lambda found: found.is_healthy and bool(says.search(text(found))))
    assert train.error is None


def test_a_host_link_that_is_down_and_up_again(
    running: Fabric, train: Streaming, faults: ClusterFaults
) -> None:
    faults.set_link("h3", up=False)
    try:
        found = until(running, lambda found: found.codes[0] == "waits:link-down")
        assert "job train: waits for rank 2 (h3): link h3:s1 is down" in found.verdict
        assert "-> p4reduce fault link up h3" in text(found)
    finally:
        faults.set_link("h3", up=True)
    until_healthy(running)
    assert train.error is None


def test_a_worker_that_is_paused_and_resumed(
    running: Fabric, train: Streaming, faults: ClusterFaults
) -> None:
    faults.pause_worker("train", 2)
    try:
        found = until(running, lambda found: "ranks have contributed" in found.verdict)
        assert "job train: waits for rank 2 (h3): its process (" in found.verdict
        assert "is stopped (SIGSTOP). 3 of 4 ranks have contributed to message" in found.verdict
        said = text(found)
        assert "-> kill -CONT " in said
        assert "rank 0 (h1): in " in said
        assert "timeouts in a row" in said
    finally:
        faults.resume_worker("train", 2)
    until_healthy(running)
    assert train.error is None


def test_a_controller_that_is_paused(running: Fabric, train: Streaming, faults: ClusterFaults) -> None:
    faults.pause_controller()
    try:
        found = ask(running)
        assert "controller-stopped" in found.codes
        assert "the controller (process " in text(found)
        assert "runs" in found.codes, "workers tell it themselves"
        faults.pause_worker("train", 1)
        try:
            found = until(running, lambda found: "waits:worker-stopped" in found.codes)
            assert "waits for rank 1 (h2)" in found.verdict
        finally:
            faults.resume_worker("train", 1)
    finally:
        faults.resume_controller()
    until_healthy(running)
    assert train.error is None


def test_a_controller_that_is_killed_and_restarted(
    running: Fabric, train: Streaming, faults: ClusterFaults
) -> None:
    faults.fill_disk()
    faults.kill_controller()
    found = ask(running)
    assert {"controller-dead", "disk-full"} <= set(found.codes)
    faults.free_disk()
    found = ask(running)
    assert found.codes[:2] == ("controller-dead", "runs")
    said = text(found)
    assert "the controller is dead: sums in the network go on" in said
    assert "the end of its log: " in said
    assert "p4reduce fault controller restart" in said
    faults.restart_controller()
    until_healthy(running)
    assert train.error is None


def test_a_full_disk(running: Fabric, train: Streaming, faults: ClusterFaults) -> None:
    faults.fill_disk()
    try:
        found = until(running, lambda found: "disk-full" in found.codes)
        assert found.verdict == (
            "the disk under the controller's database is full: jobs that run go on, new ones are refused."
        )
        assert "runs" in found.codes
    finally:
        faults.free_disk()
    until_healthy(running)
    assert train.error is None


def test_a_host_that_does_not_reach_the_controller(
    running: Fabric, train: Streaming, faults: ClusterFaults
) -> None:
    host = running.state.host("h2")
    run_inside(host.process.pid, "ip", "link", "set", "h2-mgmt", "down")
    try:
        found = ask(running)
        assert "no-way-to-controller" in found.codes
        assert "h2 does not reach the controller at " in text(found)
    finally:
        run_inside(host.process.pid, "ip", "link", "set", "h2-mgmt", "up")
    until_healthy(running)
    assert train.error is None


def test_a_switch_that_is_paused(running: Fabric, train: Streaming, faults: ClusterFaults) -> None:
    faults.pause_switch("s1")
    try:
        found = ask(running)
        assert found.codes[0] == "waits:switch-stopped"
        assert found.verdict.startswith("job train waits: switch s1 is stopped (process ")
    finally:
        faults.resume_switch("s1")
    until_healthy(running)
    assert train.error is None


def test_a_switch_that_is_killed_and_restarted(
    running: Fabric, train: Streaming, faults: ClusterFaults
) -> None:
    faults.kill_switch("s1")
    found = ask(running)
    assert found.findings[0].where == "s1"
    assert "switch s1 is dead, its process has ended: nothing gets through for its hosts" in text(found)
    assert "-> p4reduce fault switch restart s1" in text(found)
    faults.restart_switch("s1")
    found = until(running, lambda found: found.is_healthy and "renewed" in found.codes)
    assert re.search(r"went on under a new generation (1 time|\d+ times), last because: .*s1", text(found))
    assert train.error is None


def test_a_switch_that_stays_away_and_the_ring_beside_it(
    running: Fabric, train: Streaming, faults: ClusterFaults
) -> None:
    """The job goes on over the management network: no link of the fabric is blamed for what happens there."""
    faults.kill_switch("s1")
    try:
        found = until(running, lambda found: {"ring-fallback", "runs"} <= set(found.codes))
        assert "switch s1 is dead, its process has ended" in found.verdict
        said = text(found)
        assert "job train runs by ring all-reduce, not in the network: " in said
        assert "switch s1 is away" in said
        assert not {"loss", "corruption", "duplication", "delay", "reordering", "gaps"} & set(found.codes), (
            said
        )
    finally:
        faults.restart_switch("s1")
    found = until_healthy(running)
    assert "ring-fallback" not in found.codes
    assert train.error is None


TAKE_OVER = """
import asyncio, sys
from ipaddress import IPv4Address
from controller.entries import TableEntry
from controller.fabric.flows import FLOW
from controller.switches.p4rt import P4RuntimeClient
from controller.switches.updates import Update, UpdateKind
from controller.switches.pipeline import shipped_program

async def main(address, device_id, host):
    schema = shipped_program().schema
    async with P4RuntimeClient(address, device_id=int(device_id), schema=schema) as client:
        assert (await client.open(1 << 20)).primary
        flows = [
            entry
            for entry in await client.read_entries()
            if isinstance(entry, TableEntry)
            and entry.table == FLOW
            and entry.action.endswith("data_flow")
            and dict(entry.match).get("src_ip") == int(IPv4Address(host))
        ]
        await client.write([Update(UpdateKind.DELETE, entry) for entry in flows])
        print("taken", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_switch_that_another_controller_has_taken() -> None:
    """Check that a flow's entry that it deletes is missed, and put back by the controller when it has gone.

    The rack waits long for a switch: else the job goes on by ring, which waits for no flow.
    """
    with (
        rack(3, controller_options={"switch_timeout_s": 600.0}) as running,
        Team(running.state, 3) as team,
    ):
        team.join("train")
        train = Streaming(team)
        with taken_from(running, host="h3"):
            found = until(running, lambda found: "waits:flow-missing" in found.codes)
        said = text(found)
        assert (
            "job train: waits for rank 2 (h3): the entries of its flow are not on its switch" in found.verdict
        )
        assert "switch s1 is taken by another P4Runtime controller" in said
        assert "switch s1 was changed by hand: " in said
        assert "missing: entry SwitchIngress.membership.flow[" in said
        until_healthy(running)
        assert train.error is None


@contextmanager
def taken_from(running: Fabric, *, host: str) -> Iterator[None]:
    """Let another controller be primary of the switch, and delete the entry of a host's flow."""
    switch = running.state.switches[0]
    # A process of its own: threads of gRPC that this one has already may be in another test's namespace.
    taker = subprocess.Popen(
        [
            *(sys.executable, "-c", TAKE_OVER),
            *(switch.address, str(switch.device_id), str(running.state.host(host).ip)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "taken\n"
        yield
    finally:
        taker.communicate()  # its input ends, and so does it
    assert taker.returncode == 0


@pytest.fixture(scope="module")
def pair(running: Fabric) -> Iterator[Team]:
    """Yield two more workers, for jobs that end badly beside the other one."""
    with Team(running.state, 2) as team:
        yield team


def test_a_job_that_waits_for_slots(running: Fabric, train: Streaming, pair: Team) -> None:
    create(running, "queued", 2, tenant=TIGHT)
    pair.join("queued")
    found = until(running, lambda found: "waits-for-slots" in found.codes, "queued")
    assert "job queued runs by ring: it is number 1 in the queue for slots, for " in text(found)
    assert "256" in text(found)
    assert "less at once: p4reduce job create ... --window 2" in text(found)
    pair.do("leave")


def test_traffic_that_is_nobodys(running: Fabric, train: Streaming) -> None:
    """Acknowledgements for rank 0 from a host that is not its peer; RoCE under another host's name."""
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        member = admin.show_job("train").workers[0].worker
    third, fourth = running.state.host("h3"), running.state.host("h4")
    frames = [_forged(fourth, fourth.ip, member, member.qpn_out), _forged(fourth, third.ip, member, 77)]
    with namespaces.entered(Path(f"/proc/{fourth.process.pid}/ns/net")):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with raw as out:
        out.bind((fourth.interface, 0))
        over = threading.Event()

        def send() -> None:
            while not over.wait(0.02):
                for frame in frames:
                    out.send(frame)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            found = until(running, lambda found: {"foreign-traffic", "spoofed"} <= set(found.codes))
        finally:
            over.set()
            sender.join()
    said = text(found)
    assert "queue pair that are not from its peer were dropped: " in said
    assert "RoCE packets with another host's address, or marked as a switch marks sums, came from h4 " in said
    assert "runs" in found.codes, said
    until_healthy(running)
    assert train.error is None


def _forged(host: HostState, source: str, member: pb.Worker, qpn: int) -> bytes:
    return RocePacket(
        ethernet=Ethernet(dst=parse_mac(member.mac), src=parse_mac(host.mac)),
        ip=IPv4(src=IPv4Address(source), dst=IPv4Address(member.ip), total_length=0),
        udp=Udp(length=0),
        bth=Bth(opcode=0x11, psn=member.psn_out, dest_qp=qpn),
        aeth=Aeth(0x1F, 0),
    ).build()


def test_an_elastic_job_that_lost_a_worker(running: Fabric, train: Streaming) -> None:
    with Team(running.state, 3) as team, ThreadPoolExecutor(1) as pool:
        team.join("shrinks", elastic=True)
        going = pool.submit(team.try_, "all_reduce", ranks=[0, 1], elements=1000, dtype="int32")
        team.kill(2)
        found = until(running, lambda found: "waits:worker-gone" in found.codes, "shrinks")
        assert "job shrinks: waits for rank 2 (h3): its process (" in found.verdict
        assert "nothing: the job is elastic, and goes on without it in a moment" in text(found)
        found = until(running, lambda found: found.is_healthy and "renewed" in found.codes, "shrinks")
        assert "job shrinks went on under a new generation 1 time, last because: " in text(found)
        assert "rank 2 (h3" in text(found)
        assert all("ok" in answer for answer in going.result(PATIENCE_S))
        team.try_("leave", ranks=[0, 1])


def test_a_rank_that_is_late_or_has_left(running: Fabric, train: Streaming, pair: Team) -> None:
    pair.join("uneven")
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(pair.try_, "all_reduce", ranks=[1], elements=10, dtype="int32")
        found = until(running, lambda found: "waits:straggler" in found.codes, "uneven")
        assert "job uneven: waits for rank 0 (h1): it has not called barrier (collective 0)" in found.verdict
        assert "it sleeps (" in found.verdict
        assert "worker.py:" in found.verdict, "where it is"
        left = pool.submit(pair.try_, "leave", ranks=[0])
        found = until(running, lambda found: "mismatch" in found.codes, "uneven")
        assert "job uneven has ended: " in found.verdict
        assert "rank 0 has left after 0 collectives; rank 1: barrier" in found.verdict
        for future in (late, left):
            future.result(PATIENCE_S)
    pair.try_("leave")


def test_ranks_that_call_with_other_sizes(running: Fabric, train: Streaming, pair: Team) -> None:
    pair.join("sizes")
    pair.try_("all_reduce", per_rank=[{"elements": 10}, {"elements": 20}], dtype="int32")
    found = ask(running, "sizes")
    assert found.codes[0] == "mismatch"
    assert "job sizes has ended: " in found.verdict
    assert "same collectives in the same order" in text(found)
    pair.try_("leave")


def test_ranks_that_have_not_joined(running: Fabric, train: Streaming, pair: Team) -> None:
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(
            pair.try_,
            "join",
            ranks=[1],
            controller=running.state.controller,
            job="lonely",
            rank=1,
            world_size=3,
            join_timeout_s=PATIENCE_S,
        )
        found = until(running, lambda found: "joining" in found.codes, "lonely")
        assert found.verdict == "job lonely: waits for ranks 0 and 2 to join, 1 of 3 have."
        assert "there: rank 1 (h2)" in text(found)
        _end(running, "lonely")
        joining.result(PATIENCE_S)


def _end(running: Fabric, job: str) -> None:
    with AdminClient(f"unix:{running.state.control_socket}") as admin:
        admin.delete_job(job)


def test_the_command(
    running: Fabric, train: Streaming, faults: ClusterFaults, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "--cluster", running.state.name]
    deadline = time.monotonic() + PATIENCE_S
    while cli.run([*arguments, "--job", "train"]) != 0:
        assert time.monotonic() < deadline, capsys.readouterr().out
        capsys.readouterr()
    assert capsys.readouterr().out.startswith("All is well: job train ")
    faults.pause_worker("train", 3)
    try:
        until(running, lambda found: "ranks have contributed" in found.verdict)
        assert cli.run([*arguments, "--json"]) == 1
    finally:
        faults.resume_worker("train", 3)
    told = json.loads(capsys.readouterr().out)
    assert told["is_healthy"] is False
    assert (told["findings"][0]["code"], told["findings"][0]["rank"]) == ("waits:worker-stopped", 3)
    assert any(line.startswith("kill -CONT ") for line in told["findings"][0]["do"])
    until_healthy(running)


def test_a_worker_that_is_killed_before_and_after_the_job_has_ended(
    running: Fabric, train: Streaming, faults: ClusterFaults
) -> None:
    faults.kill_worker("train", 1)
    found = ask(running, "train")
    assert found.codes[0] == "waits:worker-gone"
    assert "job train: waits for rank 1 (h2): its process (" in found.verdict
    assert "is gone: it was killed, or has crashed" in found.verdict
    found = until(running, lambda found: "ended-early" in found.codes, "train")
    assert found.verdict.startswith("job train has ended: rank 1 (h2")
    assert found.findings[0].rank == 1


def test_an_uplink_that_is_down_and_where_its_traffic_went() -> None:
    options = SpineLeafOptions(name=f"e2e-{unique()}", leaves=2, spines=2, hosts=4, path_mtu=1024)
    with Fabric(options) as fabric, Team(fabric.state, 4) as team:
        team.join("wide")
        team.do("all_reduce", elements=1000, dtype="int32")
        faults = ClusterFaults(fabric.state)
        faults.set_link("l1:s1", up=False)
        found = until(fabric, lambda found: "moved" in found.verdict)
        assert found.verdict == "link l1:s1 is down: what l1 sent over it has moved to s2."
        assert found.findings[0].do == ("p4reduce link up l1:s1",)
        team.do("all_reduce", elements=1000, dtype="int32")
        faults.set_link("l1:s1", up=True)
        team.do("leave")


def troubles(found: Diagnosis) -> list[str]:
    """Return what the findings say that are worse than a note."""
    return [finding.says for finding in found.findings if finding.severity is not Severity.NOTE]


@pytest.mark.parametrize("target", TARGETS)
def test_a_rack_in_which_nothing_gets_through(target: Target) -> None:
    """Two hosts and wires between: no ping elsewhere comes back, the switch's ends of all links stay up."""
    with rack(2, target=target, fault_wires=True) as running:
        faults = ClusterFaults(running.state)
        until_healthy(running)
        for links in (("h1",), ("h1", "h2")):
            for link in links:
                faults.set_link(link, up=False)
            assert troubles(ask(running)) == [f"link {link}:s1 is down" for link in links]
            for link in links:
                faults.set_link(link, up=True)
            until_healthy(running)
        # What no link shows: a host that sends nothing.
        host = running.state.host("h1")
        run_inside(host.process.pid, "tc", "qdisc", "replace", "dev", host.interface, "root", HOLE)
        assert troubles(ask(running)) == ["nothing comes through links h1:s1 and h2:s1, which are up"]
        run_inside(host.process.pid, "tc", "qdisc", "del", "dev", host.interface, "root")
        until_healthy(running)
