"""Wrong input: it gives a sentence that helps, at every worker, and disturbs nobody else."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from subprocess import PIPE

import pytest

from controller.api.admin import AdminClient
from controller.api.errors import NotFoundError
from host_agent.wire.aggregation import AggregationHeader, Op
from host_agent.wire.headers import Bth, Ethernet, IPv4, Opcode, RocePacket, Udp
from p4reduce.workloads.team import Team
from tests.e2e.conftest import all_reduce, joined, rack
from topologies import launch
from topologies.fabric import Fabric
from topologies.state import ClusterState, HostState

pytestmark = pytest.mark.emulation

# A program for a host: sends the frames that it is given as lines of hexadecimal out of an interface.
_SENDER = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
    raw.bind((sys.argv[1], 0))
    for line in sys.stdin:
        raw.send(bytes.fromhex(line))
"""

# A program for a worker of a job of three: makes a call, and prints the error that it ends with.
_CALLER = """
import sys
import numpy as np
from host_agent.communicator import Communicator

controller, job, rank, call = sys.argv[1:]
with Communicator.join(controller, job=job, rank=int(rank), world_size=3) as c:
    try:
        eval(call, {"c": c, "x": np.arange(8, dtype=np.int32)})
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def six() -> Iterator[Fabric]:
    with rack(6) as running:
        yield running


@contextmanager
def bystanders(running: Fabric) -> Iterator[Team]:
    """Run another job on the last two hosts of the same switch: it has to be right before and after."""
    with Team(running.state, 2, hosts=running.state.hosts[4:]) as team:
        team.join("bystanders")
        all_reduce(team, elements=10_000, dtype="int32", seed=1)
        yield team
        all_reduce(team, elements=10_000, dtype="int32", seed=2)
        team.do("leave")


def admin_of(cluster: ClusterState) -> AdminClient:
    return AdminClient(f"unix:{cluster.control_socket}")


def errors(answers: list[dict[str, dict[str, str]]]) -> list[str]:
    assert all("error" in answer for answer in answers), answers
    return [answer["error"]["text"] for answer in answers]


def send(cluster: ClusterState, host: HostState, frames: list[bytes]) -> None:
    """Put frames on a host's link."""
    process = launch.start(cluster, host, [sys.executable, "-c", _SENDER, host.interface], stdin=PIPE)
    try:
        _, _ = process.communicate("\n".join(frame.hex() for frame in frames), timeout=60)
        assert process.returncode == 0
    finally:
        launch.stop(cluster, [process])


_USUAL = {"op": "sum", "elements": 1000, "dtype": "int32"}


@pytest.mark.parametrize(
    ("what", "differing"),
    [
        ("element types", {"dtype": "float32"}),
        ("sizes", {"elements": 2000}),
        ("operations", {"op": "max"}),
    ],
)
def test_workers_that_call_different_things_all_learn_of_it(
    six: Fabric, what: str, differing: dict[str, object]
) -> None:
    with bystanders(six), Team(six.state, 3) as team:
        team.join(f"differ-{what.replace(' ', '-')}")
        told = errors(
            team.try_(
                "all_reduce",
                per_rank=[
                    {"elements": 1000, "dtype": "int32", "op": "sum"},
                    {"elements": 1000, "dtype": "int32", "op": "sum", **differing},
                    {"elements": 1000, "dtype": "int32", "op": "sum"},
                ],
            )
        )
        words = "all_reduce(SUM) of 1000 int32 in-network"
        op, size, dtype = (differing.get(name, usual) for name, usual in _USUAL.items())
        other = f"all_reduce({str(op).upper()}) of {size} {dtype} in-network"
        for text in told:
            assert f"rank 0, 2: {words}; rank 1: {other}. " in text, told


@pytest.mark.parametrize(
    ("what", "call", "words", "other_call", "other_words"),
    [
        (
            *("kind", "c.all_gather(x, strategy='in-network')", "all_gather of 8 int32 in-network"),
            *("c.broadcast(x)", "broadcast of 8 int32 from rank 0 in-network"),
        ),
        (
            *("root", "c.reduce(x, root=0)", "reduce(SUM) of 8 int32 to rank 0 in-network"),
            *("c.reduce(x, root=2)", "reduce(SUM) of 8 int32 to rank 2 in-network"),
        ),
        (
            *("strategy", "c.all_reduce(x)", "all_reduce(SUM) of 8 int32 in-network"),
            *("c.all_reduce(x, strategy='ring')", "all_reduce(SUM) of 8 int32 by ring"),
        ),
        ("leaving", "c.all_reduce(x)", "all_reduce(SUM) of 8 int32 in-network", "c.leave()", ""),
    ],
)
def test_every_worker_hears_what_each_has_called(
    six: Fabric, what: str, call: str, words: str, other_call: str, other_words: str
) -> None:
    cluster = six.state
    with bystanders(six):
        programs = [
            launch.start(
                cluster,
                cluster.hosts[rank],
                [
                    *(sys.executable, "-c", _CALLER, cluster.controller, f"calls-{what}", str(rank)),
                    other_call if rank == 1 else call,
                ],
                stdout=PIPE,
            )
            for rank in range(3)
        ]
        try:
            told = [program.communicate(timeout=60)[0] for program in programs]
        finally:
            launch.stop(cluster, programs)
    other = f": {other_words}" if other_words else " has left after 0 collectives"
    for text in told:
        said = text if isinstance(text, str) else text.decode()
        assert said.startswith("MismatchError: the workers disagree about collective 0: "), told
        assert f": rank 0, 2: {words}; rank 1{other}. All workers" in said, told


def test_two_workers_with_one_rank(six: Fabric) -> None:
    with bystanders(six), Team(six.state, 2) as team:
        answers = team.try_(
            "join",
            per_rank=[{"rank": 0}, {"rank": 0}],
            controller=six.state.controller,
            job="twins",
            world_size=2,
            join_timeout_s=3,
        )
        texts = errors(answers)
        assert any("rank 0" in text for text in texts), texts


def test_different_world_sizes(six: Fabric) -> None:
    with bystanders(six), Team(six.state, 2) as team:
        answers = team.try_(
            "join",
            per_rank=[{"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 3}],
            controller=six.state.controller,
            job="sizes",
            join_timeout_s=3,
        )
        texts = " ".join(errors(answers))
        assert "2" in texts
        assert "3" in texts


def test_a_rank_that_the_job_does_not_have(six: Fabric) -> None:
    with Team(six.state, 1) as team:
        answers = team.try_(
            "join", controller=six.state.controller, job="beyond", rank=7, world_size=2, join_timeout_s=3
        )
        assert "rank 7" in errors(answers)[0]


def test_an_unknown_job(six: Fabric) -> None:
    with admin_of(six.state) as admin:
        with pytest.raises(NotFoundError, match="nowhere"):
            admin.show_job("nowhere")
        with pytest.raises(NotFoundError, match="nowhere"):
            admin.delete_job("nowhere")


def test_a_path_mtu_that_the_link_cannot_carry(six: Fabric) -> None:
    with Team(six.state, 2) as team:
        told = errors(
            team.try_(
                "join",
                per_rank=[{"rank": 0}, {"rank": 1}],
                controller=six.state.controller,
                job="jumbo",
                world_size=2,
                path_mtu=4096,
                join_timeout_s=3,
            )
        )
        assert all("4096" in text and "MTU" in text for text in told), told


def test_a_controller_that_is_not_there(six: Fabric) -> None:
    with Team(six.state, 1) as team:
        told = errors(
            team.try_("join", controller="172.31.255.254:1", job="x", rank=0, world_size=2, join_timeout_s=3)
        )
        assert "172.31.255.254:1" in told[0]


def test_more_slots_than_the_switch_has(six: Fabric) -> None:
    """A job that finds no room says so and sums by ring; where there is room again, the switch sums."""
    with bystanders(six), admin_of(six.state) as admin, ExitStack() as holding:
        modes, reasons = [], []
        teams = []
        for number in range(8):
            team = holding.enter_context(Team(six.state, 2))
            teams.append(team)
            # 2 * 8 * 64 of the switch's 8192 slots
            admin.create_job(f"big-{number}", world_size=2, window=8, message_packets=64)
            answers = team.join(f"big-{number}")
            modes.append(answers[0]["mode"])
            reasons.append(answers[0]["mode_reason"])
        assert modes[0] == "in_network"
        assert modes[-1] == "ring"
        assert "slots" in reasons[-1]
        all_reduce(teams[-1], elements=1000, dtype="int32", strategy="ring")
        for team in teams:
            team.do("leave")
    with joined(six, 2, job="roomy") as team:
        all_reduce(team, elements=1000, dtype="int32")


def test_malformed_packets_and_foreign_ones_are_dropped(six: Fabric) -> None:
    seed = random.Random(5)
    with bystanders(six), joined(six, 3, job="target") as team:
        with admin_of(six.state) as admin:
            flows = sorted(admin.flows("target"), key=lambda flow: flow.rank)
            flow, hosts = flows[0], six.state.hosts
            good = RocePacket(
                ethernet=Ethernet(dst=bytes.fromhex(hosts[1].mac.replace(":", "")), src=b"\x02\0\0\0\0\x09"),
                ip=IPv4(src=IPv4Address(hosts[0].ip), dst=IPv4Address(hosts[1].ip), total_length=0),
                udp=Udp(length=0),
                bth=Bth(opcode=Opcode.SEND_ONLY, dest_qp=flow.dest_qp, psn=flow.first_psn),
                payload=AggregationHeader(
                    job=0, generation=flow.generation, message=0, rank=0, op=Op.SUM, packets=1
                ).pack()
                + bytes(256),
            ).build()
            cut = [good[:length] for length in range(14, len(good), 7)]
            noise = [seed.randbytes(seed.randrange(14, 1500)) for _ in range(200)]
            flipped = []
            for _ in range(200):
                frame = bytearray(good)
                frame[seed.randrange(34, len(frame))] ^= 1 << seed.randrange(8)
                flipped.append(bytes(frame))
            before = {flow.rank: flow.counters["foreign"].packets for flow in admin.counters("target")}
            # From a member's own host, and from one that is no member: neither may reach a slot or a worker.
            send(six.state, hosts[0], cut + noise + flipped)
            send(six.state, hosts[3], [good] * 10 + cut + flipped)
            after = {flow.rank: flow.counters["foreign"].packets for flow in admin.counters("target")}
            assert after[0] - before[0] >= 10
        all_reduce(team, elements=10_000, dtype="int32", seed=3)


def test_a_dead_worker_ends_the_job_for_the_others_and_is_named(six: Fabric) -> None:
    with bystanders(six), Team(six.state, 3) as team:
        team.join("mortal")
        team.kill(1)
        told = errors(team.try_("all_reduce", ranks=[0, 2], elements=1000, dtype="int32"))
        assert all("rank 1" in text for text in told), told


def test_a_job_without_a_switch_trains_by_ring(six: Fabric) -> None:
    with admin_of(six.state) as admin:
        admin.create_job("by-ring", world_size=2, mode="ring")
        with Team(six.state, 2) as team:
            answers = team.join("by-ring")
            assert {answer["mode"] for answer in answers} == {"ring"}
            assert all(answer["mode_reason"] for answer in answers)
            answers = team.do("all_reduce", elements=1000, dtype="int32", strategy="ring", verify=True)
            assert all(answer["check"]["exact"] for answer in answers)
            team.do("leave")
        admin.delete_job("by-ring")
        with pytest.raises(NotFoundError):
            admin.show_job("by-ring")
